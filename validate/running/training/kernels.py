"""Kernels that train a small real model, stage by stage, as the plan says.

What crosses a cut is the hidden state with every live skip, or, where the plan keeps skips local, the hidden state
alone and each skip from the stage that makes it to the stage that takes it. Frozen outputs that were not delivered are
NaN, and so is every gradient that follows from them.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import torch
from torch import Tensor
from torch import distributed as dist

from profiles.architectures.models import Model
from strategies.pipelining.reduction import GATHER, SCATTER
from strategies.plans.actions import (
    BACKWARD,
    BACKWARD_INPUT,
    BACKWARD_WEIGHT,
    EXTRA_FORWARD,
    OPTIMIZER,
    FrozenAction,
    StageAction,
)
from strategies.plans.plan import Op, Plan
from strategies.plans.plan import Tensor as Planned
from strategies.plans.wiring import Wiring
from validate.running.executor import Kernels, Mark
from validate.running.links import RankSeat
from validate.running.training.layers import (
    LEARNING_RATE,
    STATE,
    Gradients,
    Layers,
    batch_of,
    frozen_outputs,
)
from validate.running.training.samples import Span, Training

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


def views(flat: Tensor, parameters: Sequence[Tensor]) -> list[Tensor]:
    """The parts of a flat tensor that stand for each parameter; the rest is padding."""
    sizes = [parameter.numel() for parameter in parameters]
    parts = torch.split(flat[: sum(sizes)], sizes)
    return [part.view_as(parameter) for part, parameter in zip(parts, parameters, strict=True)]


class Shards:
    """The weights and gradients of the stages of one rank, which owns as many numbers of each stage as any other."""

    def __init__(
        self, layers: Layers, ranges: Mapping[int, tuple[int, range]], rank: int, num_ranks: int
    ) -> None:
        self._parameters = {stage: layers.parameters(*own) for stage, own in ranges.items()}
        self._weights: dict[int, Tensor] = {}
        self._gradients: dict[int, Tensor] = {}
        self._own: dict[int, slice] = {}
        for stage, parameters in self._parameters.items():
            share = -(-sum(parameter.numel() for parameter in parameters) // num_ranks)
            self._own[stage] = slice(rank * share, (rank + 1) * share)
            weights, gradients = torch.zeros(2, share * num_ranks, dtype=torch.float64)
            both = views(weights, parameters), views(gradients, parameters)
            for parameter, weight, gradient in zip(parameters, *both, strict=True):
                weight.copy_(parameter.data)
                parameter.data, parameter.grad = weight, gradient
            self._weights[stage], self._gradients[stage] = weights, gradients
        self.clear()

    def clear(self) -> None:
        """Forget all gradients."""
        self._aside: dict[tuple[int, int], Tensor] = {}
        for gradients in self._gradients.values():
            gradients.zero_()
        self._sums = {stage: torch.zeros_like(self._weights[stage][own]) for stage, own in self._own.items()}

    def free(self, stage: int) -> None:
        """Lose all weights but those that the rank owns."""
        weights, own = self._weights[stage], self._own[stage]
        kept = weights[own].clone()
        weights.fill_(torch.nan)
        weights[own] = kept

    def gather(self, stage: int, group: dist.ProcessGroup) -> None:
        """Gather the weights that other ranks own."""
        weights = self._weights[stage]
        dist.all_gather_single(weights, weights[self._own[stage]].clone(), group=group)

    def set_aside(self, stage: int, op: int) -> None:
        """Keep the gradients of one backward apart: the next one may begin while they are still being scattered."""
        self._aside[stage, op] = self._gradients[stage].clone()
        self._gradients[stage].zero_()

    def scatter(self, stage: int, op: int, group: dist.ProcessGroup) -> None:
        """Sum the gradients of one backward over all ranks, and keep the part that the rank owns."""
        received = torch.empty_like(self._sums[stage])
        dist.reduce_scatter_single(received, self._aside.pop((stage, op)), group=group)
        self._sums[stage] += received

    def step(self, stage: int) -> None:
        """Step the optimizer on the weights that the rank owns; all others are then out of date."""
        self._weights[stage][self._own[stage]].sub_(self._sums[stage], alpha=LEARNING_RATE)
        self.free(stage)

    def gradients(self, stage: int) -> list[Tensor]:
        """The gradients of each parameter, of all ranks; all ranks must ask."""
        whole = torch.empty_like(self._gradients[stage])
        dist.all_gather_single(whole, self._sums[stage])
        return views(whole, self._parameters[stage])


class ModuleKernels(Kernels):
    """Carries out the ops of one device on real layers, on its own samples of the batch.

    It keeps what ops wrote and messages brought, by tensor; the gradients of each stage, in one piece where they are
    summed at once; and the output of each frozen (component, layer).
    """

    sleeping = False

    def __init__(self, training: Training, wiring: Wiring, seat: RankSeat) -> None:
        self._training, self._wiring, self._plan, self._number = training, wiring, wiring.plan, seat.device
        replicas, group_batch = seat.placement.replicas, training.batch_size // seat.placement.num_groups
        first, end = seat.group * group_batch, (seat.group + 1) * group_batch
        self._own = slice(first + seat.replica, end, replicas)
        self._samples = training.samples.of_replica(seat.replica, replicas)
        self._layers = Layers(training.model, {})
        self._ranges, self._crossing = (
            stage_ranges(self._plan, seat.device),
            Crossing(training.model, self._plan),
        )
        self._passes = Passes(self._layers, self._crossing, self._ranges)
        for op in self._plan.ops[seat.device]:
            if isinstance(op.action, FrozenAction):
                self._layers.get(op.action.component, op.action.layer)  # threads would share one generator
        self._last = {c: len(training.model.components[c].layers) - 1 for c in training.model.frozen}
        self._values: dict[int, list[Tensor]] = {}
        self._frozen: dict[tuple[int, int], Tensor] = {}
        sharded = {c.operation for c in self._plan.collectives} & {SCATTER, GATHER}
        self._shards = self._sharded() if sharded else None
        self._flat = {} if sharded else {stage: self._flatten(stage) for stage in self._ranges}

    def _sharded(self) -> Shards:
        """Divide the weights among the ranks, as the plan gathers them; each pass then waits for its own."""
        plan = self._plan
        shards = Shards(self._layers, self._ranges, dist.get_rank(), plan.placement.num_gpus)
        self._freed = {
            stage
            for op in plan.ops[self._number]
            for role, stage, _ in (plan.tensors[tensor][:3] for tensor in op.reads)
            if role == "gathered" and isinstance(op.action, StageAction) and op.action.stage == stage
        }
        self._scattered = {
            self._wiring.writers[tensor]
            for collective in plan.collectives
            if collective.operation == SCATTER
            for tensor in collective.reads
        }
        for stage in self._freed:
            shards.free(stage)
        return shards

    def _flatten(self, stage: int) -> Tensor:
        parameters = self._layers.parameters(*self._ranges[stage])
        numel = sum(parameter.numel() for parameter in parameters)
        flat = torch.zeros(numel, dtype=torch.float64)
        for parameter, own in zip(parameters, views(flat, parameters), strict=True):
            parameter.grad = own
        return flat

    def begin(self, iteration: int) -> None:
        """Load the batch; frozen work may be of the next one, and this one's outputs be left from the one before."""
        self._values.clear()
        for flat in self._flat.values():
            flat.zero_()
        if self._shards:
            self._shards.clear()
        self._batch = {c: self._draw(iteration, c) for c in self._training.model.backbones}
        ahead = self._plan.cross_iteration
        self._inputs = {c: self._draw(iteration + ahead, c)[0] for c in self._last}
        prepared = {c: self._frozen[c, last] for c, last in self._last.items() if self._frozen}
        self._frozen = {
            (c, layer): torch.full_like(self._inputs[c], torch.nan)
            for c, last in self._last.items()
            for layer in range(last + 1)
        }
        self._context = {c: self._frozen[c, last] for c, last in self._last.items()}
        if ahead:
            self._context = prepared or self._prepared(iteration)

    def _draw(self, iteration: int, component: int) -> tuple[Tensor, Tensor]:
        inputs, targets = batch_of(iteration, component, self._training.batch_size)
        return inputs[self._own], targets[self._own]

    def _prepared(self, iteration: int) -> dict[int, Tensor]:
        """Frozen outputs of an iteration for which no earlier one computed them."""
        fresh = Layers(self._training.model, {})
        everyone = frozen_outputs(fresh, iteration, self._training.batch_size)
        return {component: values[self._own] for component, values in everyone.items()}

    def run(self, index: int, op: Op, mark: Mark) -> None:
        """Carry out an op; gradient buckets are all ready at its end."""
        if isinstance(op.action, FrozenAction):
            self._run_frozen(op.action, self._samples.ops[self._number, index])
        else:
            assert isinstance(op.action, StageAction)
            self._run_stage(index, op, op.action)
        for _, tensor in op.early:
            mark(tensor)

    def _run_stage(self, index: int, op: Op, action: StageAction) -> None:
        shards, tensors = self._shards, self._plan.tensors
        if action.kind == OPTIMIZER:
            if shards:
                shards.step(action.stage)
            else:
                self._layers.step(*self._ranges[action.stage])
            return
        read = {tensors[t][:2]: self._values[t] for t in op.reads if t in self._values}
        written = self._passes.run(action, read, lambda: self._micro_batch(action))
        for tensor in op.writes:
            if tensors[tensor][:2] in written:
                self._values[tensor] = written[tensors[tensor][:2]]
        if shards and action.kind == BACKWARD and (self._number, index) in self._scattered:
            shards.set_aside(action.stage, index)
        if shards and action.stage in self._freed:
            shards.free(action.stage)

    def _run_frozen(self, action: FrozenAction, spans: Sequence[Span]) -> None:
        component, layer, _ = action
        source = self._frozen[component, layer - 1] if layer else self._inputs[component]
        needed = () if layer else self._training.model.inputs_of(component)
        context = {c: _pieces(self._frozen[c, self._last[c]], spans) for c in needed if c in self._last}
        with torch.no_grad():
            result = self._layers.run(component, range(layer, layer + 1), _pieces(source, spans), {}, context)
            for (first, end), part in zip(spans, torch.split(result, [b - a for a, b in spans]), strict=True):
                self._frozen[component, layer][first:end].copy_(part)

    def _micro_batch(self, action: StageAction) -> Batch:
        component, _ = self._ranges[action.stage]
        size = self._training.micro_batch
        rows = slice(action.micro_batch * size, (action.micro_batch + 1) * size)
        inputs, targets = self._batch[component]
        # a copy: pieces for later micro-batches still arrive, and autograd wants what it keeps to stay as it is
        context = {c: values[rows].clone() for c, values in self._context.items()}
        return Batch(inputs[rows], targets[rows], context, self._training.batch_size)

    def _frozen_rows(self, tensor: int) -> Tensor | None:
        """The rows that a frozen tensor holds; None for any other tensor."""
        if tensor not in self._samples.tensors:
            return None
        _, component, layer, _ = self._plan.tensors[tensor]
        return self._frozen[component, layer][slice(*self._samples.tensors[tensor])]

    def room(self, tensor: int) -> Tensor:
        frozen = self._frozen_rows(tensor)
        if frozen is not None:
            return torch.empty_like(frozen)
        states = self._crossing.count(self._plan.tensors[tensor]), self._training.micro_batch
        return torch.empty((*states, *STATE), dtype=torch.float64)

    def pack(self, tensor: int) -> Tensor:
        frozen = self._frozen_rows(tensor)
        return torch.stack(self._values[tensor]) if frozen is None else frozen.clone()

    def unpack(self, tensor: int, payload: Tensor) -> None:
        frozen = self._frozen_rows(tensor)
        if frozen is None:
            self._values[tensor] = list(payload)
        else:
            frozen.copy_(payload)

    def communicate(self, collective: int, group: dist.ProcessGroup) -> None:
        """Sum or scatter the gradients of a stage with the last of its buckets, or gather its weights."""
        of, tensors = self._plan.collectives[collective], self._plan.tensors
        if of.operation == GATHER:
            assert self._shards is not None
            for stage in {tensors[tensor].stage for tensor in of.writes}:
                self._shards.gather(stage, group)
            return
        for stage, op in self._ready(collective):
            if self._shards:
                self._shards.scatter(stage, op, group)
            else:
                dist.all_reduce(self._flat[stage], group=group)

    def _ready(self, collective: int) -> list[tuple[int, int]]:
        """Stages whose gradients are complete, and their ops: no later collective takes a bucket of them."""
        tensors, later = self._plan.tensors, self._plan.collectives[collective + 1 :]
        following = {self._wiring.writers[tensor] for other in later for tensor in other.reads}
        found = {tensors[t].stage: self._wiring.writers[t] for t in self._plan.collectives[collective].reads}
        return [
            (stage, writer[1])
            for stage, writer in found.items()
            if stage in self._ranges and writer not in following
        ]

    def found(self) -> Gradients:
        if not self._shards:
            return self._layers.gradients(self._ranges.values())
        found: Gradients = {}
        for stage, (component, layers) in self._ranges.items():
            pieces = iter(self._shards.gradients(stage))
            for layer in layers:
                own = self._layers.parameters(component, range(layer, layer + 1))
                found[component, layer] = [next(pieces).clone() for _ in own]
        return found


def _pieces(values: Tensor, spans: Sequence[Span]) -> Tensor:
    return torch.cat([values[first:end] for first, end in spans])
