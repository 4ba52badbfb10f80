"""Work: what the steps of an iteration do, on real layers or asleep.

All devices of a plan live in one process, so a message is a copy from where its sender wrote to where its receiver
reads. What has not arrived is not a number, and so is every gradient that comes of it. Everything that outlives an op
lies where it lay in the iteration before, as captured graphs ask for.
"""

import time
from dataclasses import dataclass
from typing import Final

import torch
from torch import Tensor

from profiles.models import Model
from strategies.plans.actions import OPTIMIZER, FrozenAction, StageAction
from strategies.plans.plan import Plan
from strategies.plans.wiring import Wiring
from validate.running.blocks import CPU, SMALL, Layers, Shape, batch_of, build_layer
from validate.running.crossing import Crossing
from validate.running.passes import Batch, Passes
from validate.running.reference import Gradients, frozen_outputs
from validate.running.samples import FrozenSamples, Span

FIRST: Final = 0


class SleepWork:
    """Ops sleep as long as planned; messages hold nothing."""

    def __init__(self, plan: Plan) -> None:
        self._plan = plan

    def reset(self) -> None:
        """Prepare nothing."""

    def op(self, device: int, index: int) -> None:
        """Sleep."""
        time.sleep(self._plan.ops[device][index].duration_s)

    def message(self, slot: int) -> None:
        """Copy nothing."""

    def reduce(self, number: int) -> None:
        """Sum up nothing."""


class _Device:
    """What lies on one device: layers, gradients in one piece per stage, frozen outputs, and what ops wrote."""

    def __init__(self, layers: Layers, plan: Plan, number: int, batch_size: int) -> None:
        model = layers.model
        self.ranges = {
            stage: (of.component, range(of.first_layer, of.last_layer + 1))
            for stage, of in enumerate(plan.stages)
            if of.position == number
        }
        self.layers = layers
        self.passes = Passes(self.layers, Crossing(model, plan), self.ranges)
        self.flat = {stage: self._flatten(stage) for stage in self.ranges}
        for action in {op.action for op in plan.ops[number]}:
            if isinstance(action, FrozenAction):
                self.layers.get(
                    action.component, action.layer
                )  # built here: threads would share one generator
        self.values: dict[int, list[Tensor]] = {}
        self.last = {c: len(model.components[c].layers) - 1 for c in model.frozen}
        states = layers.shape.hidden_states(batch_size)
        self.frozen = {
            (c, layer): torch.full(states, torch.nan, dtype=layers.shape.dtype, device=layers.device)
            for c, last in self.last.items()
            for layer in range(last + 1)
        }
        self.context = {c: self.frozen[c, last] for c, last in self.last.items()}
        if plan.cross_iteration:
            self.context = {c: torch.full_like(values, torch.nan) for c, values in self.context.items()}

    def _flatten(self, stage: int) -> Tensor:
        """Let the gradients of a stage lie in one piece, so that they are summed up, and emptied, at once."""
        parameters = self.layers.parameters(*self.ranges[stage])
        size = sum(parameter.numel() for parameter in parameters)
        flat = torch.zeros(size, dtype=self.layers.shape.dtype, device=self.layers.device)
        start = 0
        for parameter in parameters:
            parameter.grad = flat[start : start + parameter.numel()].view_as(parameter)
            start += parameter.numel()
        return flat

    def turn(self, *, keep: bool) -> None:
        """Empty gradients and frozen outputs; those prepared for this iteration become its context."""
        for flat in self.flat.values():
            flat.zero_()
        if keep:
            for component, last in self.last.items():
                self.context[component].copy_(self.frozen[component, last])
        for values in self.frozen.values():
            values.fill_(torch.nan)


@dataclass(frozen=True, slots=True)
class Training:
    """What is trained: a model's structure, samples of the pipeline and of a micro-batch, and those of frozen work."""

    model: Model
    batch_size: int
    micro_batch: int
    samples: FrozenSamples


class LayerWork:
    """Trains a small real model as a plan says.

    Args:
        training: what is trained.
        wiring: the plan.
        place: the device of torch.
        shape: how large its layers are.
    """

    def __init__(
        self, training: Training, wiring: Wiring, place: torch.device = CPU, shape: Shape = SMALL
    ) -> None:
        model, batch_size = training.model, training.batch_size
        self._wiring, self._plan, self._place, self._shape = wiring, wiring.plan, place, shape
        self._model, self._batch_size, self._micro_batch = model, batch_size, training.micro_batch
        self._samples = training.samples
        self._devices = [
            _Device(Layers(model, {}, place, shape), self._plan, number, batch_size)
            for number in range(self._plan.num_devices)
        ]
        self._crossing = Crossing(model, self._plan)
        self._landing = self._land()
        self._inputs = {c: batch_of(FIRST, c, batch_size, place, shape)[0] for c in model.frozen}
        self._batch = {c: batch_of(FIRST, c, batch_size, place, shape) for c in model.backbones}
        self._summed = self._find_summed()
        self._iteration = -1

    def _land(self) -> list[Tensor]:
        """Return where messages arrive."""
        states = self._shape.hidden_states(self._micro_batch)
        found: list[Tensor] = []
        for transfer in self._wiring.transfers:
            if transfer is not None and transfer.tensor not in self._samples.tensors:
                count = self._crossing.count(self._plan.tensors[transfer.tensor])
                made = [
                    torch.empty(states, dtype=self._shape.dtype, device=self._place) for _ in range(count)
                ]
                self._devices[transfer.target].values[transfer.tensor] = made
                found += made
        return found

    def _find_summed(self) -> list[list[int]]:
        """Return for each collective the stages whose last bucket it sums."""
        plan = self._plan
        stages = [{plan.tensors[t].stage for t in collective.reads} for collective in plan.collectives]
        return [sorted(own - set().union(*stages[number + 1 :])) for number, own in enumerate(stages)]

    def restart(self) -> None:
        """Let all parameters be as they were built; the next iteration loads the first batch."""
        with torch.no_grad():
            for device in self._devices:
                for key, layer in device.layers.built.items():
                    fresh = build_layer(self._model, *key, self._shape)
                    for own, built in zip(layer.parameters(), fresh.parameters(), strict=True):
                        own.copy_(built)
        self._iteration = -1

    def advance(self) -> None:
        """Load the batch of the next iteration; frozen work may be of the one after it."""
        self._iteration += 1
        ahead = self._plan.cross_iteration
        for component, loaded in self._inputs.items():
            number = self._iteration + ahead
            loaded.copy_(batch_of(number, component, self._batch_size, self._place, self._shape)[0])
        for component, pair in self._batch.items():
            fresh = batch_of(self._iteration, component, self._batch_size, self._place, self._shape)
            for own, values in zip(pair, fresh, strict=True):
                own.copy_(values)
        if ahead and self._iteration == FIRST:
            prepared = frozen_outputs(
                Layers(self._model, {}, self._place, self._shape), FIRST, self._batch_size
            )
            for device in self._devices:
                for component, values in prepared.items():
                    device.frozen[component, device.last[component]].copy_(values)

    def reset(self) -> None:
        """Empty what an iteration fills; nothing of the last one can be taken for something of this one."""
        for values in self._landing:
            values.fill_(torch.nan)
        for device in self._devices:
            device.turn(keep=self._plan.cross_iteration)

    def op(self, device: int, index: int) -> None:
        """Carry out an op."""
        op, own = self._plan.ops[device][index], self._devices[device]
        if isinstance(op.action, FrozenAction):
            self._run_frozen(own, op.action, self._samples.ops[device, index])
            return
        assert isinstance(op.action, StageAction)
        action, tensors = op.action, self._plan.tensors
        read = {tensors[t][:2]: own.values[t] for t in op.reads if t in own.values}
        if action.kind == OPTIMIZER:
            own.layers.step(*own.ranges[action.stage])
            return
        written = own.passes.run(action, read, lambda: self._load(own, action))
        for tensor in op.writes:
            if tensors[tensor][:2] in written:
                own.values[tensor] = written[tensors[tensor][:2]]

    def _run_frozen(self, own: _Device, action: FrozenAction, spans: tuple[Span, ...]) -> None:
        component, layer, _ = action
        source = own.frozen[component, layer - 1] if layer else self._inputs[component]
        needed = () if layer else self._model.inputs_of(component)
        context = {c: _pieces(own.frozen[c, own.last[c]], spans) for c in needed if c in own.last}
        with torch.no_grad():
            result = own.layers.run(component, range(layer, layer + 1), _pieces(source, spans), {}, context)
            start = 0
            for first, end in spans:
                own.frozen[component, layer][first:end].copy_(result[start : start + end - first])
                start += end - first

    def _load(self, own: _Device, action: StageAction) -> Batch:
        component, _ = own.ranges[action.stage]
        first = action.micro_batch * self._micro_batch
        rows = slice(first, first + self._micro_batch)
        inputs, targets = self._batch[component]
        # a copy: pieces for later micro-batches still arrive, and autograd wants what it keeps to stay as it is
        context = {c: values[rows].clone() for c, values in own.context.items()}
        return Batch(inputs[rows], targets[rows], context, self._batch_size)

    def message(self, slot: int) -> None:
        """Copy what a message holds to where its receiver reads it."""
        transfer = self._wiring.transfers[slot]
        assert transfer is not None
        source, target = self._devices[transfer.source], self._devices[transfer.target]
        span = self._samples.tensors.get(transfer.tensor)
        if span is not None:
            _, component, layer, _ = self._plan.tensors[transfer.tensor]
            rows = slice(*span)
            target.frozen[component, layer][rows].copy_(source.frozen[component, layer][rows])
            return
        pairs = zip(target.values[transfer.tensor], source.values[transfer.tensor], strict=True)
        for landing, written in pairs:
            landing.copy_(written)

    def reduce(self, number: int) -> None:
        """Sum up the gradients of the stages whose last bucket this is, in place on each member."""
        members = self._plan.collectives[number].devices
        flats = [
            [
                self._devices[device].flat[stage]
                for stage in self._summed[number]
                if stage in self._devices[device].flat
            ]
            for device in members
        ]
        for own in zip(*flats, strict=True):
            for other in own[1:]:
                own[0].add_(other)
            for other in own[1:]:
                other.copy_(own[0])

    def gradients(self) -> list[Gradients]:
        """Return the gradients that each device holds, as copies on the CPU."""
        found: list[Gradients] = []
        for device in self._devices:
            own: Gradients = {}
            for component, layers in device.ranges.values():
                for layer in layers:
                    parameters = device.layers.parameters(component, range(layer, layer + 1))
                    own[component, layer] = [p.grad.cpu() for p in parameters if p.grad is not None]
            found.append(own)
        return found


def _pieces(values: Tensor, spans: tuple[Span, ...]) -> Tensor:
    return torch.cat([values[first:end] for first, end in spans])
