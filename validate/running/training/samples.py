"""Samples: a training, and the samples of the frozen ops of its plan.

A plan says how many samples frozen ops take; which ones follows from the order in which they are handed out, so they
are handed out once more.
"""

from dataclasses import dataclass
from typing import NamedTuple

from profiles.architectures.models import Model
from strategies.pipelining.frozen import FrozenWork
from strategies.plans.actions import FORWARD, FrozenAction, StageAction
from strategies.plans.plan import Plan, Tensors
from strategies.scenario import Scenario

Span = tuple[int, int]  # first and end of a range of samples


class FrozenSamples(NamedTuple):
    """Ranges of the group's samples that each frozen op takes, by (device, index), and each frozen tensor holds."""

    ops: dict[tuple[int, int], tuple[Span, ...]]
    tensors: dict[int, Span]

    def of_replica(self, replica: int, replicas: int) -> "FrozenSamples":
        """The same in samples of one replica of a position, which takes every ``replicas``-th of the group."""

        def share(span: Span) -> Span:
            return -(-(span[0] - replica) // replicas), -(-(span[1] - replica) // replicas)

        ops = {key: tuple(map(share, spans)) for key, spans in self.ops.items()}
        return FrozenSamples(ops, {tensor: share(span) for tensor, span in self.tensors.items()})


@dataclass(frozen=True, slots=True)
class Training:
    """A small model of a structure, with the samples of all ranks, and of a micro-batch on one rank."""

    model: Model
    batch_size: int
    micro_batch: int
    samples: FrozenSamples
    extra_forward: bool = False


def frozen_samples(plan: Plan, scenario: Scenario, micro_batch: int) -> FrozenSamples:
    """The samples of the frozen work of a plan, where a micro-batch has ``micro_batch`` samples of the group."""
    placement = plan.placement
    group_batch = scenario.workload.batch_size // placement.num_groups
    work = FrozenWork(scenario, group_batch, placement.replicas, Tensors())
    for layer in plan.filling.layers if plan.filling else ():
        work.place(layer)
    ops = {}
    for device, row in enumerate(plan.ops):
        indices = [index for index, op in enumerate(row) if isinstance(op.action, FrozenAction)]
        taken = [tuple(map(_span, of.samples)) for of in work.placed if of.position == device]
        assert len(indices) == len(taken), (device, len(indices), len(taken))
        ops.update({(device, index): spans for index, spans in zip(indices, taken, strict=True)})
    _hand_out(plan, scenario, micro_batch, work)
    frozen = [index for index, tensor in enumerate(plan.tensors) if tensor.role == "frozen"]
    return FrozenSamples(ops, dict(zip(frozen, map(_span, work.spans), strict=True)))


def _span(samples: range) -> Span:
    return samples.start, samples.stop


def _hand_out(plan: Plan, scenario: Scenario, micro_batch: int, work: FrozenWork) -> None:
    """Hand frozen outputs to the stages that read them, in the order in which the plan does."""
    model = scenario.model
    for number, stage in enumerate(plan.stages):
        passes = [op.action for op in plan.ops[stage.position] if isinstance(op.action, StageAction)]
        numbers = [a.micro_batch for a in passes if a.stage == number and a.kind == FORWARD]
        first, end = min(numbers), max(numbers) + 1
        for source in (i for i in model.inputs_of(stage.component) if i in scenario.frozen):
            readers = [layer for layer, _ in model.reads_of(stage.component, source)]
            if not any(stage.first_layer <= layer <= stage.last_layer for layer in readers):
                continue
            pieces = [(first, end)] if plan.cross_iteration else [(m, m + 1) for m in range(first, end)]
            for start, stop in pieces:
                work.output(source, start * micro_batch, stop * micro_batch, 1.0)
