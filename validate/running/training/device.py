"""A trained device: the real layers of one device of a plan, what its ops do on them, and on which samples.

A plan says how many samples frozen ops take; which they are follows from the order in which they are laid out, so it is
laid out once more. Frozen outputs that nobody delivered are not a number, and so is every gradient that comes of them.
Everything that outlives an op lies where it lay in the iteration before, as captured CUDA graphs ask for.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

import torch
from torch import Tensor

from profiles.models import Model
from strategies.pipelining.frozen import FrozenWork
from strategies.plans.actions import FORWARD, OPTIMIZER, FrozenAction, StageAction
from strategies.plans.plan import Op, Plan
from strategies.scenario import Scenario
from validate.running.training.blocks import Layers, batch_of, frozen_outputs
from validate.running.training.passes import Batch, Crossing, Passes, stage_ranges

Span = tuple[int, int]  # first and end of a range of samples


class FrozenSamples(NamedTuple):
    """Ranges of the group's samples that each frozen op takes, by (device, index), and each frozen tensor holds."""

    ops: dict[tuple[int, int], tuple[Span, ...]]
    tensors: dict[int, Span]

    def of_replica(self, replica: int, replicas: int) -> "FrozenSamples":
        """The same in samples of one replica of a position, which takes every so many-th of the group."""

        def own(span: Span) -> Span:
            start, end = (-(-(edge - replica) // replicas) for edge in span)
            return start, end

        ops = {key: tuple(map(own, spans)) for key, spans in self.ops.items()}
        return FrozenSamples(ops, {tensor: own(span) for tensor, span in self.tensors.items()})


@dataclass(frozen=True, slots=True)
class Training:
    """What is trained: a small model of a structure, on samples of all ranks, and of a micro-batch on one rank."""

    model: Model
    batch_size: int
    micro_batch: int
    samples: FrozenSamples
    extra_forward: bool = False


class _Ledger:
    """Writes down the samples of frozen ops, by position, and of frozen tensors."""

    def __init__(self) -> None:
        self.taken: dict[int, list[tuple[Span, ...]]] = {}
        self.spans: list[Span] = []

    def op(self, position: int, samples: list[range]) -> None:
        self.taken.setdefault(position, []).append(tuple((own.start, own.stop) for own in samples))

    def tensor(self, samples: range) -> None:
        self.spans.append((samples.start, samples.stop))


def frozen_samples(plan: Plan, scenario: Scenario, micro_batch: int) -> FrozenSamples:
    """Where the samples of the frozen work of a plan are, ``micro_batch`` samples of the group at a time."""
    placement = plan.placement
    group_batch = scenario.workload.batch_size // placement.num_groups
    ledger = _Ledger()
    work = FrozenWork(scenario, group_batch, placement.replicas, [], ledger)
    for layer in plan.filling.layers if plan.filling else ():
        work.place(layer)
    ops = {}
    for device, row in enumerate(plan.ops):
        own = [index for index, op in enumerate(row) if isinstance(op.action, FrozenAction)]
        taken = ledger.taken.get(device, [])
        assert len(own) == len(taken), (device, len(own), len(taken))
        ops.update({(device, index): spans for index, spans in zip(own, taken, strict=True)})
    _hand_out(plan, scenario, micro_batch, work)
    frozen = [index for index, tensor in enumerate(plan.tensors) if tensor.role == "frozen"]
    return FrozenSamples(ops, dict(zip(frozen, ledger.spans, strict=True)))


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


class TrainedDevice:
    """What one device of a plan trains, on its ``own`` samples of the batch.

    ``values`` are what ops wrote and messages brought, by tensor; ``flat`` the gradients of each stage, in one piece if
    they are to be summed, and emptied, at once; ``frozen`` the output of each frozen (component, layer).
    """

    def __init__(
        self,
        training: Training,
        plan: Plan,
        number: int,
        layers: Layers,
        *,
        own: slice = slice(None),
        samples: FrozenSamples | None = None,
        flatten: bool = True,
    ) -> None:
        self.training, self.plan, self.number, self.layers = training, plan, number, layers
        self.samples, self._own = samples or training.samples, own
        model = training.model
        self.ranges, self.crossing = stage_ranges(plan, number), Crossing(model, plan)
        self._passes = Passes(layers, self.crossing, self.ranges)
        self.flat = {stage: self._flatten(stage) for stage in self.ranges} if flatten else {}
        self.values: dict[int, list[Tensor]] = {}
        for action in {op.action for op in plan.ops[number]}:
            if isinstance(action, FrozenAction):
                layers.get(action.component, action.layer)  # built here: threads would share one generator
        self.last = {c: len(model.components[c].layers) - 1 for c in model.frozen}
        self._inputs = {c: self._draw(0, c)[0] for c in model.frozen}
        self._batch = {c: self._draw(0, c) for c in model.backbones}
        (count,) = {len(inputs) for inputs, _ in self._batch.values()}
        states = layers.shape.hidden_states(count)
        self.frozen = {
            (c, layer): torch.full(states, torch.nan, dtype=layers.shape.dtype, device=layers.device)
            for c, last in self.last.items()
            for layer in range(last + 1)
        }
        self._context = {c: self.frozen[c, last] for c, last in self.last.items()}
        if plan.cross_iteration:
            self._context = {c: torch.full_like(values, torch.nan) for c, values in self._context.items()}
        self.prepared = not plan.cross_iteration

    def _flatten(self, stage: int) -> Tensor:
        parameters = self.layers.parameters(*self.ranges[stage])
        sizes = [parameter.numel() for parameter in parameters]
        flat = torch.zeros(sum(sizes), dtype=self.layers.shape.dtype, device=self.layers.device)
        for parameter, own in zip(parameters, torch.split(flat, sizes), strict=True):
            parameter.grad = own.view_as(parameter)
        return flat

    def _draw(self, iteration: int, component: int) -> tuple[Tensor, Tensor]:
        layers, size = self.layers, self.training.batch_size
        inputs, targets = batch_of(iteration, component, size, layers.device, layers.shape)
        return inputs[self._own], targets[self._own]

    def load(self, iteration: int) -> None:
        """Load the batch of an iteration; frozen work may be of the one after it."""
        for component, inputs in self._inputs.items():
            inputs.copy_(self._draw(iteration + self.plan.cross_iteration, component)[0])
        for component, pair in self._batch.items():
            for own, fresh in zip(pair, self._draw(iteration, component), strict=True):
                own.copy_(fresh)
        if not self.prepared:
            fresh_layers = Layers(self.training.model, {}, self.layers.device, self.layers.shape)
            everyone = frozen_outputs(fresh_layers, iteration, self.training.batch_size)
            for component, values in everyone.items():
                self.frozen[component, self.last[component]].copy_(values[self._own])
            self.prepared = True

    def turn(self) -> None:
        """Empty gradients and frozen outputs; those prepared for this iteration become its context."""
        for flat in self.flat.values():
            flat.zero_()
        if self.plan.cross_iteration:
            for component, last in self.last.items():
                self._context[component].copy_(self.frozen[component, last])
        for values in self.frozen.values():
            values.fill_(torch.nan)

    def run(self, index: int, op: Op) -> None:
        """Carry out an op of the device's list."""
        if isinstance(op.action, FrozenAction):
            self._run_frozen(op.action, self.samples.ops[self.number, index])
            return
        assert isinstance(op.action, StageAction)
        action, tensors = op.action, self.plan.tensors
        if action.kind == OPTIMIZER:
            self.step(action.stage)
            return
        read = {tensors[t][:2]: self.values[t] for t in op.reads if t in self.values}
        written = self._passes.run(action, read, lambda: self._micro_batch(action))
        for tensor in op.writes:
            if tensors[tensor][:2] in written:
                self.values[tensor] = written[tensors[tensor][:2]]

    def step(self, stage: int) -> None:
        """Step the optimizer."""
        self.layers.step(*self.ranges[stage])

    def _run_frozen(self, action: FrozenAction, spans: Sequence[Span]) -> None:
        component, layer, _ = action
        source = self.frozen[component, layer - 1] if layer else self._inputs[component]
        needed = () if layer else self.training.model.inputs_of(component)
        context = {c: _pieces(self.frozen[c, self.last[c]], spans) for c in needed if c in self.last}
        with torch.no_grad():
            result = self.layers.run(component, range(layer, layer + 1), _pieces(source, spans), {}, context)
            for (first, end), part in zip(spans, torch.split(result, [b - a for a, b in spans]), strict=True):
                self.frozen[component, layer][first:end].copy_(part)

    def _micro_batch(self, action: StageAction) -> Batch:
        component, _ = self.ranges[action.stage]
        size = self.training.micro_batch
        rows = slice(action.micro_batch * size, (action.micro_batch + 1) * size)
        inputs, targets = self._batch[component]
        # a copy: pieces for later micro-batches still arrive, and autograd wants what it keeps to stay as it is
        context = {c: values[rows].clone() for c, values in self._context.items()}
        return Batch(inputs[rows], targets[rows], context, self.training.batch_size)

    def frozen_rows(self, tensor: int) -> Tensor | None:
        """Where a frozen tensor lies; None for any other."""
        if tensor not in self.samples.tensors:
            return None
        _, component, layer, _ = self.plan.tensors[tensor]
        return self.frozen[component, layer][slice(*self.samples.tensors[tensor])]

    def room(self, tensor: int) -> list[Tensor]:
        """Room for the hidden states of a micro-batch that a tensor holds."""
        states = self.layers.shape.hidden_states(self.training.micro_batch)
        made = torch.empty(
            (self.crossing.count(self.plan.tensors[tensor]), *states),
            dtype=self.layers.shape.dtype,
            device=self.layers.device,
        )
        return list(made)


def _pieces(values: Tensor, spans: Sequence[Span]) -> Tensor:
    return torch.cat([values[first:end] for first, end in spans])
