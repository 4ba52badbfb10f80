"""A trained device: the real layers of one device of a plan, and what its ops do on them.

Frozen outputs that nobody delivered are not a number, and so is every gradient that comes of them. Everything that
outlives an op lies where it lay in the iteration before, as captured CUDA graphs ask for.
"""

from collections.abc import Sequence
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from strategies.plans.actions import OPTIMIZER, FrozenAction, StageAction
from strategies.plans.plan import Op, Plan
from validate.running.training.blocks import Layers, batch_of
from validate.running.training.crossing import Crossing, stage_ranges
from validate.running.training.passes import Batch, Passes
from validate.running.training.reference import frozen_outputs
from validate.running.training.samples import FrozenSamples, Span

if TYPE_CHECKING:
    from validate.running.job import Training


class TrainedDevice:
    """What one device of a plan trains, on its ``own`` samples of the batch.

    ``values`` are what ops wrote and messages brought, by tensor; ``flat`` the gradients of each stage, in one piece if
    they are to be summed, and emptied, at once; ``frozen`` the output of each frozen (component, layer).
    """

    def __init__(
        self,
        training: "Training",
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
