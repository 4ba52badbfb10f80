"""Modules: kernels that train a small real model, stage by stage, as the plan says.

What crosses a cut is the hidden state with every live skip, or, where the plan keeps skips local, the hidden state
alone and each skip from the stage that makes it to the stage that takes it. Frozen outputs that nobody delivered are
not a number, and so is every gradient that comes of them.
"""

from collections.abc import Sequence

import torch
from torch import Tensor
from torch import distributed as dist

from strategies.pipelining.sharding import GATHER, SCATTER
from strategies.plans.actions import BACKWARD, OPTIMIZER, FrozenAction, StageAction
from strategies.plans.plan import Op
from strategies.plans.wiring import Wiring
from validate.running.blocks import NUMEL, TOKENS, WIDTH, Layers, batch_of
from validate.running.crossing import Crossing
from validate.running.job import Job
from validate.running.kernels import Mark
from validate.running.passes import Batch, Passes, Values
from validate.running.reference import Gradients, frozen_outputs
from validate.running.samples import FrozenSamples
from validate.running.seats import RankSeat
from validate.running.shards import Shards
from validate.running.timing import exercise


class ModuleKernels:
    """Carries out the ops of one device on real layers.

    Args:
        job: what is run.
        wiring: its plan.
        seat: which device, in which group.
        samples: which samples frozen ops take.
    """

    sleeping = False

    def __init__(self, job: Job, wiring: Wiring, seat: RankSeat, samples: FrozenSamples) -> None:
        assert job.model is not None
        self._job, self._wiring, self._plan = job, wiring, wiring.plan
        self._device, self._samples = seat.device, samples
        self._place = torch.device(job.device)
        model, stages = job.model, self._plan.stages
        self._ranges = {
            number: (stage.component, range(stage.first_layer, stage.last_layer + 1))
            for number, stage in enumerate(stages)
            if stage.position == seat.device
        }
        self._layers, self._crossing = Layers(model, {}, self._place), Crossing(model, self._plan)
        self._passes = Passes(self._layers, self._crossing, self._ranges)
        replicas, group_batch = seat.placement.replicas, job.batch_size // seat.placement.num_groups
        first, end = seat.group * group_batch, (seat.group + 1) * group_batch
        self._batch_size, self._own = group_batch // replicas, slice(first + seat.replica, end, replicas)
        self._shards = self._sharded()
        self._flat = {} if self._shards else {s: self._flatten_gradients(s) for s in self._ranges}
        self._last = {c: len(model.components[c].layers) - 1 for c in model.frozen}
        self._buffers: dict[tuple[int, int], Tensor] = {}
        self._side = None
        if self._place.type == "cuda":
            self._side = torch.cuda.Stream()  # type: ignore[no-untyped-call]
            self._warm_up()

    def _warm_up(self) -> None:
        """Run every layer once: loading kernels and finding memory may wait for all of the GPU, messages too."""
        frozen = [(component, range(last + 1)) for component, last in self._last.items()]
        for component, layers in [*self._ranges.values(), *frozen]:
            for layer in layers:
                exercise(self._layers, component, layer, self._job.micro_batch)
        torch.cuda.current_stream().synchronize()

    def _sharded(self) -> Shards | None:
        """Divide the weights among the ranks if the plan gathers them; each pass then waits for its own."""
        plan, placement = self._plan, self._plan.placement
        operations = {collective.operation for collective in plan.collectives}
        if not operations.intersection((SCATTER, GATHER)):
            return None
        shards = Shards(self._layers, self._ranges, dist.get_rank(), placement.num_gpus)
        self._freed = {
            stage
            for op in plan.ops[self._device]
            for role, stage, _ in (plan.tensors[tensor][:3] for tensor in op.reads)
            if role == "gathered" and isinstance(op.action, StageAction) and op.action.stage == stage
        }
        for stage in self._freed:
            shards.free(stage)
        return shards

    def _flatten_gradients(self, stage: int) -> Tensor:
        """Let the gradients of a stage lie in one piece, so that one all-reduce sums them."""
        parameters = self._layers.parameters(*self._ranges[stage])
        size = sum(parameter.numel() for parameter in parameters)
        flat = torch.zeros(size, dtype=torch.float64, device=self._place)
        start = 0
        for parameter in parameters:
            parameter.grad = flat[start : start + parameter.numel()].view_as(parameter)
            start += parameter.numel()
        return flat

    def begin(self, iteration: int) -> None:
        """Load the batch; what the last iteration prepared for this one becomes its context."""
        model, ahead = self._layers.model, self._plan.cross_iteration
        prepared = {c: self._buffers[c, last] for c, last in self._last.items() if self._buffers}
        if ahead and not prepared:
            everyone = frozen_outputs(self._layers, iteration, self._job.batch_size)
            prepared = {c: values[self._own] for c, values in everyone.items()}
        shape = (self._batch_size, TOKENS, WIDTH)
        self._buffers = {
            (c, layer): torch.full(shape, torch.nan, dtype=torch.float64, device=self._place)
            for c, last in self._last.items()
            for layer in range(last + 1)
        }
        self._context = prepared if ahead else {c: self._buffers[c, last] for c, last in self._last.items()}
        self._inputs = {c: self._load(iteration + ahead, c)[0] for c in model.frozen}
        self._batch = {c: self._load(iteration, c) for c in model.backbones}
        self._values: dict[int, list[Tensor]] = {}
        for flat in self._flat.values():
            flat.zero_()
        if self._shards:
            self._shards.clear()

    def _load(self, iteration: int, component: int) -> tuple[Tensor, Tensor]:
        inputs, targets = batch_of(iteration, component, self._job.batch_size, self._place)
        return inputs[self._own], targets[self._own]

    def run(self, index: int, op: Op, mark: Mark) -> None:
        """Carry out an op; gradient buckets are all ready at its end."""
        if isinstance(op.action, FrozenAction):
            self._run_frozen(index, op.action)
        else:
            assert isinstance(op.action, StageAction)
            self._run_stage(index, op.action, op)
        if self._place.type == "cuda":  # of this stream alone: others wait for messages
            torch.cuda.current_stream().synchronize()
        for _, tensor in op.early:
            mark(tensor)

    def _run_frozen(self, index: int, action: FrozenAction) -> None:
        component, layer, _ = action
        spans = self._samples.ops[self._device, index]
        rows = torch.cat([torch.arange(*span, device=self._place) for span in spans])
        source = self._buffers[component, layer - 1] if layer else self._inputs[component]
        needed = () if layer else self._layers.model.inputs_of(component)
        context = {c: self._buffers[c, self._last[c]][rows] for c in needed if c in self._last}
        with torch.no_grad():
            result = self._layers.run(component, range(layer, layer + 1), source[rows], {}, context)
        self._buffers[component, layer][rows] = result

    def _run_stage(self, index: int, action: StageAction, op: Op) -> None:
        read = {self._plan.tensors[t][:2]: self._values[t] for t in op.reads if t in self._values}
        written: Values = {}
        if action.kind == OPTIMIZER:
            self._step(action.stage)
        else:
            written = self._passes.run(action, read, lambda: self._micro_batch(action))
        if self._shards:
            self._after_pass(self._shards, index, action)
        for tensor in op.writes:
            name = self._plan.tensors[tensor][:2]
            if name in written:
                self._values[tensor] = written[name]

    def _after_pass(self, shards: Shards, index: int, action: StageAction) -> None:
        if action.kind == BACKWARD:
            shards.set_aside(action.stage, index)
        if action.kind != OPTIMIZER and action.stage in self._freed:
            shards.free(action.stage)

    def _step(self, stage: int) -> None:
        if self._shards:
            self._shards.step(stage)
        else:
            self._layers.step(*self._ranges[stage])

    def _micro_batch(self, action: StageAction) -> Batch:
        component, _ = self._ranges[action.stage]
        size = self._job.micro_batch
        rows = slice(action.micro_batch * size, (action.micro_batch + 1) * size)
        inputs, targets = self._batch[component]
        # a copy: pieces for later micro-batches still arrive, and autograd wants what it keeps to stay as it is
        context = {c: values[rows].clone() for c, values in self._context.items()}
        return Batch(inputs[rows], targets[rows], context, self._job.batch_size)

    def numel(self, tensor: int) -> int:
        """Return how many numbers a tensor's message holds."""
        if tensor in self._samples.tensors:
            first, end = self._samples.tensors[tensor]
            return (end - first) * NUMEL
        return self._crossing.count(self._plan.tensors[tensor]) * self._job.micro_batch * NUMEL

    def pack(self, tensor: int) -> Sequence[Tensor]:
        """Return what a tensor's message holds."""
        if tensor in self._samples.tensors:
            _, component, layer, _ = self._plan.tensors[tensor]
            return (self._buffers[component, layer][slice(*self._samples.tensors[tensor])],)
        return self._values[tensor]

    def unpack(self, tensor: int, payload: Tensor) -> None:
        """Take what a tensor's message held."""
        pieces = payload.view(-1, TOKENS, WIDTH)
        if tensor in self._samples.tensors:
            _, component, layer, _ = self._plan.tensors[tensor]
            self._buffers[component, layer][slice(*self._samples.tensors[tensor])] = pieces
        else:
            self._values[tensor] = list(torch.split(pieces, self._job.micro_batch))

    def communicate(self, collective: int, group: dist.ProcessGroup) -> None:
        """Sum or scatter the gradients of a stage with the last of its buckets, or gather its weights."""
        if self._side is None:
            self._communicate(collective, group)
            return
        with torch.cuda.stream(self._side):  # beside the stream that computes
            self._communicate(collective, group)
        self._side.synchronize()

    def _communicate(self, collective: int, group: dist.ProcessGroup) -> None:
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
        """Return stages whose gradients are all there, and their ops: no later collective takes a bucket of one."""
        tensors, later = self._plan.tensors, self._plan.collectives[collective + 1 :]
        following = {self._wiring.writers[tensor] for other in later for tensor in other.reads}
        found = {tensors[t].stage: self._wiring.writers[t] for t in self._plan.collectives[collective].reads}
        return [
            (stage, writer[1])
            for stage, writer in found.items()
            if stage in self._ranges and writer not in following
        ]

    def gradients(self) -> Gradients:
        """Return the gradients that this rank holds, as copies."""
        found: Gradients = {}
        for stage, (component, layers) in self._ranges.items():
            parameters = {
                layer: self._layers.parameters(component, range(layer, layer + 1)) for layer in layers
            }
            own = [p.grad for of in parameters.values() for p in of if p.grad is not None]
            gradients = iter(self._shards.gradients(stage) if self._shards else own)
            for layer, of in parameters.items():
                found[component, layer] = [next(gradients).to("cpu", copy=True) for _ in of]
        return found
