"""Crossing: which skips each message of a plan carries."""

from profiles.models import Model
from strategies.plans.plan import Plan, Tensor

Key = tuple[int, int]


def stage_ranges(plan: Plan, device: int) -> dict[int, tuple[int, range]]:
    """Component and layers of each stage that lies on a device."""
    return {
        number: (stage.component, range(stage.first_layer, stage.last_layer + 1))
        for number, stage in enumerate(plan.stages)
        if stage.position == device
    }


class Crossing:
    """What crosses the cuts of a plan: skips with the hidden state or, where they are kept local, on their own."""

    def __init__(self, model: Model, plan: Plan) -> None:
        self._model, self._stages = model, plan.stages
        words = {(t.stage, t.role) for t in plan.tensors if t.role.startswith("skip to ")}
        self._pairs = sorted((source, int(role.rpartition(" ")[2])) for source, role in words)
        self._local = bool(self._pairs)

    def is_first(self, stage: int) -> bool:
        """Whether a stage begins its backbone."""
        return self._stages[stage].first_layer == 0

    def is_last(self, stage: int) -> bool:
        """Whether a stage ends its backbone."""
        of = self._stages[stage]
        return of.last_layer == len(self._model.components[of.component].layers) - 1

    def relayed(self, stage: int) -> list[Key]:
        """The skips that go with the hidden state over the cut after a stage."""
        of = self._stages[stage]
        if self._local or self.is_last(stage):
            return []
        skips = self._model.components[of.component].live_skips(of.last_layer)
        return [(skip.source, skip.target) for skip in skips]

    def direct(self, source: int, target: int) -> list[Key]:
        """The skips from one stage to another."""
        start, end = self._stages[source], self._stages[target]
        return [
            (skip.source, skip.target)
            for skip in self._model.components[start.component].skips
            if start.first_layer <= skip.source <= start.last_layer
            and end.first_layer <= skip.target <= end.last_layer
        ]

    def senders(self, stage: int) -> list[int]:
        """The stages from which skips go to a stage on their own."""
        return [source for source, target in self._pairs if target == stage]

    def receivers(self, stage: int) -> list[int]:
        """The stages to which skips go from a stage on their own."""
        return [target for source, target in self._pairs if source == stage]

    def count(self, tensor: Tensor) -> int:
        """How many hidden states of a micro-batch a tensor holds."""
        role = tensor.role.removeprefix("extra ")
        if role == "hidden":
            return 1 + len(self.relayed(tensor.stage))
        if role == "gradient":
            return 1 + len(self.relayed(tensor.stage - 1))
        if role.startswith("skip gradient to "):
            return len(self.direct(int(role.rpartition(" ")[2]), tensor.stage))
        if role.startswith("skip to "):
            return len(self.direct(tensor.stage, int(role.rpartition(" ")[2])))
        assert role == "feedback", tensor
        return 1
