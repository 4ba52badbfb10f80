"""Modules: kernels that train a small real model, stage by stage, as the plan says.

What crosses a cut is the hidden state with every live skip, or, where the plan keeps skips local, the hidden state
alone and each skip from the stage that makes it to the stage that takes it.
"""

from collections.abc import Mapping

import torch
from torch import Tensor
from torch import distributed as dist

from strategies.pipelining.sharding import GATHER, SCATTER
from strategies.plans.actions import BACKWARD, OPTIMIZER, StageAction
from strategies.plans.plan import Op
from strategies.plans.wiring import Wiring
from validate.running.executor import Kernels, Mark
from validate.running.links import RankSeat
from validate.running.training.blocks import LEARNING_RATE, Gradients, Layers, exercise
from validate.running.training.device import TrainedDevice, Training


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
            kind = {"dtype": torch.float64, "device": layers.device}
            weights, gradients = (torch.zeros(share * num_ranks, **kind) for _ in range(2))  # type: ignore[call-overload]
            for parameter, weight, gradient in zip(
                parameters, self._pieces(stage, weights), self._pieces(stage, gradients), strict=True
            ):
                weight.copy_(parameter.data)
                parameter.data, parameter.grad = weight, gradient
            self._weights[stage], self._gradients[stage] = weights, gradients
        self.clear()

    def _pieces(self, stage: int, flat: Tensor) -> list[Tensor]:
        """The parts of something flat that stand for each parameter, as views."""
        parameters = self._parameters[stage]
        ends = torch.tensor([0, *(parameter.numel() for parameter in parameters)]).cumsum(0).tolist()
        return [
            flat[start:end].view_as(parameter)
            for start, end, parameter in zip(ends, ends[1:], parameters, strict=False)
        ]

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
        """Get the weights that other ranks own."""
        weights = self._weights[stage]
        dist.all_gather_single(weights, weights[self._own[stage]].clone(), group=group)

    def set_aside(self, stage: int, op: int) -> None:
        """Keep the gradients of one backward apart: the next one may begin while they are still scattered."""
        self._aside[stage, op] = self._gradients[stage].clone()
        self._gradients[stage].zero_()

    def scatter(self, stage: int, op: int, group: dist.ProcessGroup) -> None:
        """Sum the gradients of one backward over all ranks, and keep the part that the rank owns."""
        received = torch.empty_like(self._sums[stage])
        dist.reduce_scatter_single(received, self._aside.pop((stage, op)), group=group)
        self._sums[stage] += received

    def step(self, stage: int) -> None:
        """Step the optimizer on what the rank owns; all else is out of date."""
        self._weights[stage][self._own[stage]].sub_(self._sums[stage], alpha=LEARNING_RATE)
        self.free(stage)

    def gradients(self, stage: int) -> list[Tensor]:
        """The gradients of each parameter, of all ranks; all ranks must ask."""
        whole = torch.empty_like(self._gradients[stage])
        dist.all_gather_single(whole, self._sums[stage])
        return self._pieces(stage, whole)


class ModuleKernels(Kernels):
    """Carries out the ops of one device on real layers."""

    sleeping = False

    def __init__(self, training: Training, wiring: Wiring, seat: RankSeat, place: torch.device) -> None:
        self._wiring, self._plan = wiring, wiring.plan
        replicas, group_batch = seat.placement.replicas, training.batch_size // seat.placement.num_groups
        first, end = seat.group * group_batch, (seat.group + 1) * group_batch
        own = slice(first + seat.replica, end, replicas)
        sharded = {c.operation for c in self._plan.collectives} & {SCATTER, GATHER}
        self._device = TrainedDevice(
            training, self._plan, seat.device, Layers(training.model, {}, place), own=own,
            samples=training.samples.of_replica(seat.replica, replicas), flatten=not sharded,
        )  # fmt: skip
        self._shards = self._sharded() if sharded else None
        self._side = None
        if place.type == "cuda":
            self._side = torch.cuda.Stream()  # type: ignore[no-untyped-call]
            self._warm_up()

    def _warm_up(self) -> None:
        """Run every layer once: loading kernels and finding memory may wait for all of the GPU, messages too."""
        frozen = [(component, range(last + 1)) for component, last in self._device.last.items()]
        for component, layers in [*self._device.ranges.values(), *frozen]:
            for layer in layers:
                exercise(self._device.layers, component, layer, self._device.training.micro_batch)
        torch.cuda.current_stream().synchronize()

    def _sharded(self) -> Shards:
        """Divide the weights among the ranks, as the plan gathers them; each pass then waits for its own."""
        plan, device = self._plan, self._device
        shards = Shards(device.layers, device.ranges, dist.get_rank(), plan.placement.num_gpus)
        device.step = shards.step  # type: ignore[method-assign]
        self._freed = {
            stage
            for op in plan.ops[device.number]
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

    def begin(self, iteration: int) -> None:
        self._device.load(iteration)
        self._device.turn()
        self._device.values.clear()
        if self._shards:
            self._shards.clear()

    def run(self, index: int, op: Op, mark: Mark) -> None:
        """Carry out an op; gradient buckets are all ready at its end."""
        self._device.run(index, op)
        if self._shards and isinstance(op.action, StageAction):
            self._after_pass(self._shards, index, op.action)
        if self._side is not None:  # of this stream alone: others wait for messages
            torch.cuda.current_stream().synchronize()
        for _, tensor in op.early:
            mark(tensor)

    def _after_pass(self, shards: Shards, index: int, action: StageAction) -> None:
        if action.kind == BACKWARD and (self._device.number, index) in self._scattered:
            shards.set_aside(action.stage, index)
        if action.kind != OPTIMIZER and action.stage in self._freed:
            shards.free(action.stage)

    def room(self, tensor: int) -> Tensor:
        frozen = self._device.frozen_rows(tensor)
        return torch.stack(self._device.room(tensor)) if frozen is None else torch.empty_like(frozen)

    def pack(self, tensor: int) -> Tensor:
        frozen = self._device.frozen_rows(tensor)
        return torch.stack(self._device.values[tensor]) if frozen is None else frozen.clone()

    def unpack(self, tensor: int, payload: Tensor) -> None:
        frozen = self._device.frozen_rows(tensor)
        if frozen is None:
            self._device.values[tensor] = list(payload)
        else:
            frozen.copy_(payload)

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
                dist.all_reduce(self._device.flat[stage], group=group)

    def _ready(self, collective: int) -> list[tuple[int, int]]:
        """Stages whose gradients are all there, and their ops: no later collective takes a bucket of one."""
        tensors, later = self._plan.tensors, self._plan.collectives[collective + 1 :]
        following = {self._wiring.writers[tensor] for other in later for tensor in other.reads}
        found = {tensors[t].stage: self._wiring.writers[t] for t in self._plan.collectives[collective].reads}
        return [
            (stage, writer[1])
            for stage, writer in found.items()
            if stage in self._device.ranges and writer not in following
        ]

    def found(self) -> Gradients:
        device = self._device
        if not self._shards:
            return device.layers.gradients(device.ranges.values())
        found: Gradients = {}
        for stage, (component, layers) in device.ranges.items():
            pieces = iter(self._shards.gradients(stage))
            for layer in layers:
                own = device.layers.parameters(component, range(layer, layer + 1))
                found[component, layer] = [next(pieces).to("cpu", copy=True) for _ in own]
        return found
