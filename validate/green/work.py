"""Work: what the steps of an iteration do, on real layers or asleep.

All devices of a plan live in one process, so a message is a copy from where its sender wrote to where its receiver
reads. What has not arrived is not a number, and so is every gradient that comes of it.
"""

import time
from collections.abc import Callable, Iterable
from itertools import pairwise
from statistics import median
from typing import Final

import torch
from torch import Tensor

from profiles.models import Model
from strategies.plans.plan import Plan
from strategies.plans.wiring import Wiring
from validate.green.lanes import Lanes
from validate.green.partitions import GreenLanes
from validate.running.training.blocks import (
    CPU,
    REPEATS,
    SMALL,
    Gradients,
    Layers,
    LayerTimes,
    Shape,
    build_layer,
    passes_of,
    times_of_layers,
)
from validate.running.training.device import TrainedDevice, Training


class Work:
    """What the steps of an iteration do, all of which only enqueue on a GPU; these ops sleep as long as planned."""

    def __init__(self, plan: Plan) -> None:
        self._plan = plan

    def reset(self) -> None:
        """Prepare for an iteration, on settled lanes."""

    def op(self, device: int, index: int) -> None:
        """Carry out an op."""
        time.sleep(self._plan.ops[device][index].duration_s)

    def message(self, slot: int) -> None:
        """Copy what a message holds to where its receiver reads it."""

    def reduce(self, number: int) -> None:
        """Sum up what a collective sums up."""


class LayerWork(Work):
    """Trains a small real model as a plan says.

    Ops may be captured once, one CUDA graph each, and replayed ever after; messages and sums are few kernels. The ops
    of a device are captured in the order of its list, on its stream and in one pool of memory, as they are replayed:
    what a backward no longer needs is there for the next forward, as without graphs. Outputs and gradients of inputs
    are held until the next capture, for messages are copied from there.
    """

    def __init__(
        self, training: Training, wiring: Wiring, place: torch.device = CPU, shape: Shape = SMALL
    ) -> None:
        super().__init__(wiring.plan)
        self._wiring, self._shape = wiring, shape
        self._graphs: list[list[torch.cuda.CUDAGraph]] = []
        self._devices = [
            TrainedDevice(training, self._plan, number, Layers(training.model, {}, place, shape))
            for number in range(self._plan.num_devices)
        ]
        self._landing = self._land(training)
        stages = [{self._plan.tensors[t].stage for t in c.reads} for c in self._plan.collectives]
        self._summed = [sorted(own - set().union(*stages[n + 1 :])) for n, own in enumerate(stages)]
        """For each collective the stages whose last bucket it sums."""
        self._iteration = -1

    def _land(self, training: Training) -> list[Tensor]:
        found: list[Tensor] = []
        for transfer in self._wiring.transfers:
            if transfer is not None and transfer.tensor not in training.samples.tensors:
                target = self._devices[transfer.target]
                target.values[transfer.tensor] = target.room(transfer.tensor)
                found += target.values[transfer.tensor]
        return found

    def restart(self) -> None:
        """Let all parameters be as they were built; the next iteration loads the first batch."""
        with torch.no_grad():
            for device in self._devices:
                device.prepared = not self._plan.cross_iteration
                for key, layer in device.layers.built.items():
                    fresh = build_layer(device.training.model, *key, self._shape)
                    for own, built in zip(layer.parameters(), fresh.parameters(), strict=True):
                        own.copy_(built)
        self._iteration = -1

    def advance(self) -> None:
        """Load the batch of the next iteration."""
        self._iteration += 1
        for device in self._devices:
            device.load(self._iteration)

    def reset(self) -> None:
        """Empty what an iteration fills; nothing of the last one can be taken for something of this one."""
        for values in self._landing:
            values.fill_(torch.nan)
        for device in self._devices:
            device.turn()

    def op(self, device: int, index: int) -> None:
        if self._graphs:
            self._graphs[device][index].replay()
        else:
            self._devices[device].run(index, self._plan.ops[device][index])

    def capture(self, lanes: GreenLanes) -> None:
        """Let ops be graphs; they must have run eagerly before, so that libraries have set themselves up."""
        lanes.settle()
        self._graphs = [self._captured(device, lanes) for device in range(self._plan.num_devices)]
        lanes.settle()

    def _captured(self, device: int, lanes: GreenLanes) -> list[torch.cuda.CUDAGraph]:
        pool, graphs = torch.cuda.graph_pool_handle(), []
        for index in range(len(self._plan.ops[device])):
            graphs.append(torch.cuda.CUDAGraph())
            with torch.cuda.graph(graphs[-1], pool=pool, stream=lanes.stream(device)):
                self.op(device, index)
        return graphs

    def message(self, slot: int) -> None:
        transfer = self._wiring.transfers[slot]
        assert transfer is not None
        tensor, source, target = (
            transfer.tensor,
            *(self._devices[d] for d in (transfer.source, transfer.target)),
        )
        written, landing = source.frozen_rows(tensor), target.frozen_rows(tensor)
        if written is not None and landing is not None:
            landing.copy_(written)
            return
        for room, values in zip(target.values[tensor], source.values[tensor], strict=True):
            room.copy_(values)

    def reduce(self, number: int) -> None:
        """Sum up the gradients of the stages whose last bucket this is, in place on each member."""
        members = [self._devices[device] for device in self._plan.collectives[number].devices]
        flats = [[own.flat[stage] for stage in self._summed[number] if stage in own.flat] for own in members]
        for first, *others in zip(*flats, strict=True):
            for other in others:
                first.add_(other)
            for other in others:
                other.copy_(first)

    def gradients(self) -> list[Gradients]:
        """Gradients that each device holds, as copies on the CPU."""
        return [device.layers.gradients(device.ranges.values()) for device in self._devices]


AHEAD_S: Final = 3e-3
"""A lane is held back so long, until all that is timed is in it: else the time of enqueuing is measured."""


def layer_times(lanes: Lanes, model: Model, batch: int, shape: Shape) -> LayerTimes:
    """Seconds of the layers of the small real model at a batch, medians, on the first lane alone."""

    def measure(component: int, layer: int) -> tuple[float, float]:
        works = passes_of(Layers(model, {}, lanes.device, shape), component, layer, batch)
        lanes.settle()
        rounds = [_timed(lanes, works) for _ in range(1 + REPEATS)]
        forward_s, backward_s = (median(seconds) for seconds in zip(*rounds[1:], strict=True))
        return forward_s, backward_s if model.components[component].trainable else 0.0

    return times_of_layers(model, measure)


def _timed(lanes: Lanes, works: Iterable[Callable[[], None]]) -> list[float]:
    lanes.hold(0, lanes.record(0, stamped=True), AHEAD_S)
    marks = [lanes.record(0)]
    for work in works:
        lanes.submit(0, work)
        marks.append(lanes.record(0))
    lanes.settle()
    return [lanes.seconds(start, end) for start, end in pairwise(marks)]
