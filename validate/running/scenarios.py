"""Scenarios of a run: which plan the strategy makes for this model, these times and these links."""

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any, Final

from profiles.clusters import load_cluster
from profiles.costs import ModelCosts
from profiles.errors import InputError
from profiles.models import MeasuredTime, Model
from sim.runs import jobs, replay
from strategies.plans.actions import (
    BACKWARD,
    BACKWARD_INPUT,
    BACKWARD_WEIGHT,
    EXTRA_FORWARD,
    FORWARD,
    StageAction,
)
from strategies.plans.plan import Plan
from strategies.registry import make_strategy
from strategies.scenario import Scenario, TrainingWorkload
from validate.running.links import DEVICE, emulated_cluster

ESTIMATED_ON: Final = "p4de"
"""Where nothing is measured, sleeping kernels take times in proportion to those estimated for its devices."""


@dataclass(frozen=True, slots=True)
class Question:
    """What is to be run.

    Attributes:
        strategy: name of a training strategy.
        parameters: its parameters; those not given take their defaults.
        num_gpus: ranks in all.
        batch_size: samples of all ranks together.
        link_s: what every message takes.
        extra_forward: whether the iteration runs the extra forward pass of self-conditioning.
    """

    strategy: str
    parameters: Mapping[str, Any]
    num_gpus: int
    batch_size: int
    link_s: float
    extra_forward: bool = False

    @property
    def name(self) -> str:
        """The strategy and what was asked of it."""
        asked = ", ".join(f"{key}={value}" for key, value in self.parameters.items())
        return f"{self.strategy}({asked})" if asked else self.strategy


def scenario_of(question: Question, model: Model) -> Scenario:
    """Return the scenario of a question; the model has times on the ranks.

    Raises:
        InputError: something does not fit together.
    """
    workload = TrainingWorkload(
        question.num_gpus,
        question.batch_size,
        self_conditioning=float(question.extra_forward),
        extra_forward=question.extra_forward,
    )
    return Scenario(model, emulated_cluster(question.link_s), workload)


def plan_of(question: Question, scenario: Scenario) -> Plan:
    """Return the plan that a strategy makes of a scenario, as good as it gets.

    Raises:
        InfeasibleError: the strategy does not apply.
        InputError: several jobs run side by side.
    """
    strategy = make_strategy(question.strategy, question.parameters)
    if len(jobs(strategy, scenario)) > 1:
        raise InputError("backbones side by side have no plan in common: run each on ranks of its own")
    plan = replay(strategy, scenario).plan
    check_complete(plan)
    return plan


def check_complete(plan: Plan) -> None:
    """Refuse a plan that loses or doubles a micro-batch.

    Raises:
        InputError: a stage does not run each pass of each of its micro-batches once.
    """
    counts = Counter(op.action for row in plan.ops for op in row if isinstance(op.action, StageAction))
    for action, count in counts.items():
        if count > 1 and action.micro_batch >= 0:
            raise InputError(f"the plan runs {action} {count} times, must be once")
    for stage, numbers in _micro_batches(plan, counts).items():
        for number in sorted(numbers):
            passes = {kind for kind in "FBIW" if counts[StageAction(stage, kind, number)]}
            if passes not in ({FORWARD, BACKWARD}, {FORWARD, BACKWARD_INPUT, BACKWARD_WEIGHT}):
                found = "".join(sorted(passes)) or "nothing"
                raise InputError(
                    f"the plan runs {found} of micro-batch {number} on stage {stage}, must be F and B, or F, I and W"
                )


def _micro_batches(plan: Plan, counts: Counter[StageAction]) -> dict[int, set[int]]:
    """Return the micro-batches that must pass each stage: those that any stage of its chain sees."""
    found: dict[int, set[int]] = {}
    chain: list[int] = []
    for number, stage in enumerate(plan.stages):
        if stage.first_layer == 0:
            chain = []
        chain.append(number)
        seen = {a.micro_batch for a in counts if a.stage in chain and a.kind in "FBIW" + EXTRA_FORWARD}
        found.update(dict.fromkeys(chain, seen))
    return found


def with_times(model: Model, times: Mapping[tuple[int, int], tuple[float, float]], batch: int) -> Model:
    """Return a model whose layers take these (forward, backward) seconds at a batch, more or less in proportion."""
    components = [
        replace(
            component,
            times=(
                (
                    DEVICE,
                    tuple(
                        MeasuredTime(layer, batch, *times[number, layer])
                        for layer in range(len(component.layers))
                    ),
                ),
            ),
        )
        for number, component in enumerate(model.components)
    ]
    return replace(model, components=tuple(components))


def sleeping_model(model: Model, batch: int, forward_s: float) -> Model:
    """Return a model whose kernels sleep: each backbone's forward takes so long, all else in proportion.

    Args:
        model: times on the ranks are taken where it has them, else those estimated for a ``p4de``.
        batch: samples of a micro-batch.
        forward_s: seconds of all forwards of one micro-batch through the first backbone.
    """
    measured = all(dict(component.times).get(DEVICE) for component in model.components)
    device = (emulated_cluster(0.0) if measured else load_cluster(ESTIMATED_ON)).device
    costs = ModelCosts(model, device).components
    factor = forward_s / float(costs[model.backbones[0]].forward_s(batch).sum())
    times = {
        (number, layer): (factor * float(forward), factor * float(backward))
        for number, of in enumerate(costs)
        for layer, (forward, backward) in enumerate(
            zip(of.forward_s(batch), of.backward_s(batch), strict=True)
        )
    }
    return with_times(model, times, batch)
