"""Steps: one training iteration and one sampling step on a single device, predicted and measured.

The prediction is the simulator's own (``ddp`` on one device, ``single``), from measured layers or from the rates of a
calibrated device. The measurement runs everything: frozen encoders, forward and backward of every micro-batch, and the
optimizer.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import ClassVar, NamedTuple

import torch

from profiles.architectures.models import Component, MeasuredTime, Model
from profiles.errors import InputError
from profiles.machines.clusters import Cluster, load_cluster
from profiles.machines.devices import Device
from profiles.measuring.counting.component import ModelCount
from profiles.measuring.counting.specs import Architecture
from profiles.measuring.counting.zoo import architecture
from profiles.measuring.fitting.layer_times import FirstBackwards
from profiles.measuring.timing.building import RECIPES, draws, update_of
from profiles.measuring.timing.clocks import Clock
from profiles.measuring.timing.passes import Given, Settings, Subject, check_memory, out_of_memory, timed
from profiles.software.stacks import load_stack
from sim.outcomes.parts import replay, replay_parts
from sim.outcomes.runs import steady_step_s
from strategies.plans.workloads import ONE_PREDICTION, SamplingWorkload, TrainingWorkload
from strategies.sampling.single import Single
from strategies.sampling_scenario import SamplingScenario
from strategies.scenario import Scenario
from strategies.training.ddp import DDP


@dataclass(frozen=True, slots=True)
class TrainingStep:
    """One training iteration on one device: a batch and its number of micro-batches."""

    task: ClassVar = "training"
    model: str
    batch: int
    micro_batches: int

    def __post_init__(self) -> None:
        if min(self.batch, self.micro_batches) < 1 or self.batch % self.micro_batches:
            raise InputError(f"batch {self.batch} does not divide into {self.micro_batches} micro-batches")

    def __str__(self) -> str:
        return f"{self.model} training, batch {self.batch}, micro-batches {self.micro_batches}"

    @property
    def passes(self) -> tuple[int, int, int]:
        """Height, width and batch of each pass of the backbone."""
        own = architecture(self.model, tiny=True)
        return own.height, own.width, self.batch // self.micro_batches

    def predict_s(
        self, model: Model, device: Device, dtype: str, first: FirstBackwards | None = None
    ) -> float:
        """Seconds of the iteration: from measured layers where the model has times on the device, else by its rates.

        Backward passes of a first micro-batch may have been measured apart from later ones.
        """
        if first:
            model = in_turn(model, device.name, first, self.micro_batches)
        workload = TrainingWorkload(1, self.batch, self_conditioning=0.0, memory_recipe=RECIPES[dtype])
        fused = replace(load_stack(), optimizer="fused")  # as ``update_of`` makes it
        scenario = Scenario(model, alone(device), workload, stack=fused)
        return replay(DDP(overlap="none", micro_batches=self.micro_batches), scenario).end_s

    def measure(self, counted: ModelCount, settings: Settings, clock: Clock) -> "MeasuredStep":
        """Run the iteration."""
        parts = [component for component in counted.components if "train" in component.spec.tasks]
        for part in parts:
            check_memory(part, self.batch // self.micro_batches, settings.dtype, clock)
        size = (counted.height, counted.width)
        with out_of_memory(f"{self.model} at batch {self.batch}"):
            subjects = [Subject(part, size, settings.dtype, clock, settings.seed) for part in parts]
            return MeasuredStep(*timed(clock, settings, self._parts(subjects)))

    def _parts(self, subjects: Sequence[Subject]) -> list[Callable[[], object]]:
        """Forwards and backwards, frozen forwards, and the update."""
        inputs = [(each, each.inputs(self.batch // self.micro_batches)) for each in subjects]
        frozen = [pair for pair in inputs if not pair[0].spec.trainable]
        given = [pair for pair in inputs if pair[0].spec.trainable]
        update = update_of([weight for subject, _ in given for weight in subject.trained])

        def encode() -> None:
            for _ in range(self.micro_batches):
                for subject, sample in frozen:
                    _forward(subject, sample)

        def train() -> None:
            for subject, sample in given:
                subject.module.zero_grad(set_to_none=True)
                for _ in range(self.micro_batches):
                    output = subject.forward(sample[0])
                    torch.autograd.backward([output], [draws(output, subject.generator)])

        return [train, encode, update]


@dataclass(frozen=True, slots=True)
class SamplingStep:
    """One denoising step of one image with guidance: both predictions in one batch."""

    task: ClassVar = "sampling"
    model: str
    height: int
    width: int

    def __str__(self) -> str:
        return f"{self.model} sampling, {self.height}x{self.width}"

    @property
    def passes(self) -> tuple[int, int, int]:
        """Height, width and batch of the pass of the backbone."""
        return self.height, self.width, predictions(architecture(self.model, tiny=True))

    def predict_s(
        self, model: Model, device: Device, dtype: str = "", first: FirstBackwards | None = None
    ) -> float:
        """Seconds of the step, which depend on neither optimizer nor backward passes."""
        workload = SamplingWorkload(1, self.height, self.width, steps=2, guidance=model.guidance)
        return steady_step_s(replay_parts(Single(), SamplingScenario(model, alone(device), workload)))

    def measure(self, counted: ModelCount, settings: Settings, clock: Clock) -> "MeasuredStep":
        """Run the backbone without gradients; the update of the image by the scheduler is not in it."""
        (part,) = [component for component in counted.components if component.spec.trainable]
        frozen = replace(part, spec=replace(part.spec, trainable=False))
        batch = predictions(counted.architecture)
        check_memory(frozen, batch, settings.dtype, clock)
        with out_of_memory(f"{self.model} at {self.height}x{self.width}"):
            subject = Subject(frozen, (counted.height, counted.width), settings.dtype, clock, settings.seed)
            given = subject.inputs(batch)
            (seconds,) = timed(clock, settings, [lambda: _forward(subject, given)])
        return MeasuredStep(seconds, 0.0, 0.0)


class MeasuredStep(NamedTuple):
    """Median seconds of a step's parts."""

    forward_backward_s: float
    frozen_s: float
    optimizer_s: float

    @property
    def step_s(self) -> float:
        """Seconds of the whole step."""
        return self.forward_backward_s + self.frozen_s + self.optimizer_s


def alone(device: Device) -> Cluster:
    """A cluster of one device."""
    return replace(load_cluster("ideal"), name=device.name, device=device, devices_per_node=1)


def predictions(architecture: Architecture) -> int:
    """Number of predictions that one sampling step makes for an image."""
    return 1 if architecture.guidance in ONE_PREDICTION else 2


def in_turn(model: Model, device: str, first: FirstBackwards, micro_batches: int) -> Model:
    """A model whose backward times are the mean over an iteration's micro-batches: one first, later ones."""

    def mean(component: str, time: MeasuredTime) -> MeasuredTime:
        once = first.get((component, time.layer, time.batch_size), time.backward_s)
        return replace(time, backward_s=(once + (micro_batches - 1) * time.backward_s) / micro_batches)

    def turned(component: Component) -> Component:
        times = dict(component.times)
        if device in times:
            times[device] = tuple(mean(component.name, time) for time in times[device])
        return replace(component, times=tuple(times.items()))

    return replace(model, components=tuple(map(turned, model.components)))


def by_rates(model: Model) -> Model:
    """A model without measured times and kernels, so that its times are total work over a device's fitted rates."""
    bare = (replace(part, times=(), kernels=(), half_kernels=()) for part in model.components)
    return replace(model, components=tuple(bare))


def _forward(subject: Subject, given: Given) -> None:
    for sample in given:
        subject.forward(sample)
