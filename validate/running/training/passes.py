"""Passes: forwards and backwards of a stage on a real small model, with what each reads and writes by name."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import torch
from torch import Tensor

from profiles.architectures.models import Model
from strategies.plans.actions import BACKWARD, BACKWARD_INPUT, BACKWARD_WEIGHT, EXTRA_FORWARD, StageAction
from strategies.plans.plan import Plan
from strategies.plans.plan import Tensor as Planned
from validate.running.training.blocks import Layers

Key = tuple[int, int]


def stage_ranges(plan: Plan, device: int) -> dict[int, tuple[int, range]]:
    """Component and layers of each stage that lies on a device."""
    return {
        number: (stage.component, range(stage.first_layer, stage.last_layer + 1))
        for number, stage in enumerate(plan.stages)
        if stage.position == device
    }


class Crossing:
    """What crosses the cuts of a plan: skips with the hidden state or, where they stay local, on their own."""

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

    def count(self, tensor: Planned) -> int:
        """Number of hidden states of a micro-batch that a tensor holds."""
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


Name = tuple[str, int]  # role and stage of a tensor of the plan
Values = dict[Name, list[Tensor]]


class Batch(NamedTuple):
    """The inputs of a backbone's micro-batch: samples, frozen outputs, and the number of samples in all."""

    inputs: Tensor
    targets: Tensor
    context: Mapping[int, Tensor]
    batch_size: int


@dataclass(slots=True)
class _Saved:
    leaves: Values
    outputs: Values
    gradients: tuple[list[Tensor], list[Tensor]] = ((), ())  # type: ignore[assignment]


class Passes:
    """The passes of the stages of one device."""

    def __init__(self, layers: Layers, crossing: Crossing, ranges: Mapping[int, tuple[int, range]]) -> None:
        self._layers, self._crossing, self._ranges = layers, crossing, ranges
        self._saved: dict[tuple[int, int], list[_Saved]] = {}

    def run(self, action: StageAction, read: Values, batch: Callable[[], Batch]) -> Values:
        """What a stage writes, run forwards or backwards on what it reads; only forwards ask for their batch."""
        if action.kind == BACKWARD:
            return self.backward(action, read)
        if action.kind == BACKWARD_INPUT:
            return self.backward_input(action, read)
        if action.kind == BACKWARD_WEIGHT:
            self.backward_weight(action)
            return {}
        return self.forward(action, read, batch())

    def forward(self, action: StageAction, read: Values, batch: Batch) -> Values:
        """What a stage writes, run forwards; for self-conditioning it runs once more, without use of the output."""
        extra = action.kind == EXTRA_FORWARD
        with torch.set_grad_enabled(not extra):
            leaves = {name: _leaves(values, extra) for name, values in read.items()}
            outputs = self._outputs(action.stage, "extra " if extra else "", leaves, batch)
        if not extra:
            self._saved.setdefault(action[::2], []).append(_Saved(leaves, outputs))
        return {name: [value.detach() for value in values] for name, values in outputs.items()}

    def _outputs(self, stage: int, prefix: str, leaves: Values, batch: Batch) -> Values:
        crossing, (component, layers) = self._crossing, self._ranges[stage]
        skips: dict[Key, Tensor] = {}
        if crossing.is_first(stage):
            fed_back = [values[0] for (role, _), values in leaves.items() if role == "feedback"]
            hidden = batch.inputs + fed_back[0] if fed_back else batch.inputs
        else:
            hidden, *arrived = leaves[prefix + "hidden", stage - 1]
            skips.update(zip(crossing.relayed(stage - 1), arrived, strict=True))
        for source in crossing.senders(stage):
            arrived = leaves[f"{prefix}skip to {stage}", source]
            skips.update(zip(crossing.direct(source, stage), arrived, strict=True))
        hidden = self._layers.run(component, layers, hidden, skips, batch.context)
        outputs = {
            (f"{prefix}skip to {target}", stage): [skips[key] for key in crossing.direct(stage, target)]
            for target in crossing.receivers(stage)
        }
        if not crossing.is_last(stage):
            outputs[prefix + "hidden", stage] = [hidden, *(skips[key] for key in crossing.relayed(stage))]
        elif prefix:
            outputs["feedback", stage] = [hidden]
        else:
            error = (hidden - batch.targets).square().sum()
            outputs["loss", stage] = [error / (batch.batch_size * hidden[0].numel())]
        return outputs

    def backward(self, action: StageAction, read: Values) -> Values:
        """Run a stage backwards; gradients are added to those of the parameters."""
        saved = self._saved[action[::2]].pop()
        torch.autograd.backward(*self._given(saved, action.stage, read))
        return self._written(saved, action.stage, [leaf.grad for leaf in _all(saved.leaves)])

    def backward_input(self, action: StageAction, read: Values) -> Values:
        """The gradients of what a stage took; those of its weights come later."""
        saved = self._saved[action[::2]][-1]
        saved.gradients = self._given(saved, action.stage, read)
        leaves = _all(saved.leaves)
        found: Sequence[Tensor | None] = ()
        if leaves:
            outputs, gradients = saved.gradients
            found = torch.autograd.grad(outputs, leaves, gradients, retain_graph=True, allow_unused=True)
        return self._written(saved, action.stage, found)

    def backward_weight(self, action: StageAction) -> None:
        """Add the gradients of a stage's weights; what lies between is computed once more."""
        outputs, gradients = self._saved[action[::2]].pop().gradients
        parameters = self._layers.parameters(*self._ranges[action.stage])
        if parameters:
            found = torch.autograd.grad(outputs, parameters, gradients, allow_unused=True)
            for parameter, gradient in zip(parameters, found, strict=True):
                if gradient is not None and parameter.grad is not None:
                    parameter.grad += gradient

    def _given(self, saved: _Saved, stage: int, read: Values) -> tuple[list[Tensor], list[Tensor]]:
        outputs: list[Tensor] = []
        gradients: list[Tensor] = []
        for (role, _), values in saved.outputs.items():
            outputs += values
            if role == "loss":
                gradients.append(torch.ones_like(values[0]))
            elif role == "hidden":
                gradients += read["gradient", stage + 1]
            else:
                gradients += read[f"skip gradient to {stage}", int(role.rpartition(" ")[2])]
        pairs = [(o, g) for o, g in zip(outputs, gradients, strict=True) if o.requires_grad]
        return [output for output, _ in pairs], [gradient for _, gradient in pairs]

    def _written(self, saved: _Saved, stage: int, found: Sequence[Tensor | None]) -> Values:
        """The gradients of what a stage took, under the names by which they are sent."""
        gradients = iter(found)
        written = {}
        for (role, source), leaves in saved.leaves.items():
            if role != "feedback":
                name = "gradient" if role == "hidden" else f"skip gradient to {source}"
                own = [(leaf, next(gradients)) for leaf in leaves]
                written[name, stage] = [torch.zeros_like(x) if g is None else g for x, g in own]
        return written


def _leaves(values: Sequence[Tensor], extra: bool) -> list[Tensor]:
    return [value.detach() if extra else value.detach().requires_grad_() for value in values]


def _all(leaves: Values) -> list[Tensor]:
    return [leaf for (role, _), values in leaves.items() if role != "feedback" for leaf in values]
