"""Steps on one GPU predicted and then measured, in one command that goes on where it was interrupted.

1. Every layer of five models is timed (``profile``).
2. The device's rates are fitted to all layers, and judged by fits without some of them (``calibrate``).
3. Training iterations and sampling steps are predicted and then measured; those at sizes at which layers were timed are
   summarised separately.

The prediction is the simulator's own (``ddp`` on one device, ``single``), from measured layers or from the rates of a
calibrated device. The measurement runs everything: frozen encoders, forward and backward of every micro-batch, and the
optimizer. ``--rehearse`` does the same with tiny models on the CPU.
"""

import json
import sys
import tomllib
from argparse import Namespace
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import ClassVar, Final, NamedTuple

import torch

from profiles.architectures.models import Component, MeasuredTime, Model, read_model
from profiles.errors import InputError
from profiles.files import path_kind, read_text
from profiles.machines.clusters import Cluster, load_cluster
from profiles.machines.devices import Device
from profiles.measuring.counting.component import ModelCount
from profiles.measuring.counting.specs import Architecture
from profiles.measuring.counting.zoo import architecture
from profiles.measuring.fitting.calibration import calibrate, calibrated_device, device_text, show_calibration
from profiles.measuring.fitting.layer_times import FirstBackwards, read_first_backwards
from profiles.measuring.fitting.least_squares import Errors
from profiles.measuring.tables import show, table
from profiles.measuring.timing.building import RECIPES, draws, update_of
from profiles.measuring.timing.clocks import THREAD, Clock, clock_of
from profiles.measuring.timing.environment import Value, device_name, environment
from profiles.measuring.timing.passes import (
    Given,
    OutOfMemoryError,
    Settings,
    Subject,
    check_memory,
    out_of_memory,
    timed,
)
from profiles.measuring.timing.profiler import counted_for, profile, report_profile
from profiles.measuring.writing import write_files
from profiles.software.stacks import load_stack
from profiles.units import MILLISECOND
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


PREDICTED: Final = ("measured layers", "the device's rates")
SHOWN: Final = (
    *("step", "measured", "frozen", "optimizer"),
    *("from layers", "error", "from rates", "error", "note"),
)
SAME: Final = ("gpu", "driver", "torch", "processor", "threads", "dtype")
"""Header keys that must not change between two parts of one measurement."""

Step = TrainingStep | SamplingStep


class StepRow(NamedTuple):
    """A step as predicted, in seconds, and as measured, or the reason why it was not, such as lack of memory."""

    step: str
    group: str
    measured: MeasuredStep | None
    from_layers_s: float
    from_rates_s: float
    note: str = ""
    no_memory: bool = False

    @property
    def predicted_s(self) -> tuple[float, float]:
        """From measured layers, and from the device's rates."""
        return self.from_layers_s, self.from_rates_s


@dataclass(frozen=True, slots=True)
class Programme:
    """A programme: device and clock, models and batch sizes whose layers are timed, and steps that are predicted.

    Steps at sizes at which layers were timed do not test the rates. The clock is that of a CPU.
    """

    device: str
    dtype: str
    profiles: tuple[tuple[str, tuple[int, ...]], ...]
    steps: tuple[Step, ...]
    warmup: int = 5
    rounds: int = 20
    clock: str = THREAD

    def settings(self, *batch_sizes: int) -> Settings:
        """Settings by which layers, or steps, are timed."""
        return Settings(batch_sizes or (1,), self.dtype, self.warmup, self.rounds, clock=self.clock)

    def held_back(self, step: Step) -> bool:
        """Whether layers were timed at another size than the step's passes have."""
        own = architecture(step.model, tiny=True)
        height, width, batch = step.passes
        at_its_size = (height, width) == (own.height, own.width)
        return not (at_its_size and batch in dict(self.profiles).get(step.model, ()))

    def group(self, step: Step) -> str:
        """Name of the group in which a step is summarised: its task, and whether its size is one that was timed."""
        return f"{step.task}, {'held back' if self.held_back(step) else 'at timed sizes'}"


def _programme(name: str) -> Programme:
    """One of the programmes of ``programmes.toml``."""
    read = tomllib.loads(Path(__file__).with_name("programmes.toml").read_text(encoding="utf-8"))[name]
    profiles = tuple((model, tuple(batches)) for model, batches in read.pop("profiles").items())
    training = tuple(TrainingStep(*step) for step in read.pop("training"))
    sampling = tuple(SamplingStep(*step) for step in read.pop("sampling"))
    return Programme(profiles=profiles, steps=training + sampling, **read)


ONE_GPU: Final = _programme("one_gpu")
REHEARSAL: Final = _programme("rehearsal")


def run_gpu(options: Namespace) -> None:
    """Carry out the programme of a GPU, or its rehearsal."""
    if options.rehearse:
        torch.set_num_threads(1)
    report_gpu(options.output, REHEARSAL if options.rehearse else ONE_GPU, options.name)


def report_gpu(folder: Path, programme: Programme, name: str | None) -> list[StepRow]:
    """Carry a programme out, print what it finds, and write it into a folder."""
    clock = clock_of(programme.device, programme.clock)
    run = _Run(folder, programme, clock, name or device_name(clock.device))
    rows = run.carry_out()
    show(150, table(f"{run.name}: steps on one device", SHOWN, map(_shown, rows), left=("step", "note")))
    for line in steps_summary(rows):
        print(line)
    return rows


class _Run(NamedTuple):
    """A programme on a device of some name, in a folder in which it may have been begun."""

    folder: Path
    programme: Programme
    clock: Clock
    name: str

    @property
    def header(self) -> dict[str, Value]:
        """What is measured with."""
        kind = self.programme.clock if self.clock.device.type == "cpu" else "events"
        return {**environment(self.clock.device), "dtype": self.programme.dtype, "clock": kind}

    def times(self, model: str) -> Path:
        """File of a model's measured times."""
        return self.folder / model / "times" / f"{self.name}.csv"

    def carry_out(self) -> list[StepRow]:
        """Time the layers that were not, calibrate, and predict and measure each step.

        Steps in the file of an earlier run are not measured again, and are kept.
        """
        header, path = self.header, self.folder / f"steps-{self.name}.json"
        timed = [model for model, _ in self.programme.profiles]
        rows = _read_steps(path, header)  # refused before minutes of measuring
        for times in (self.times(model).with_suffix(".toml") for model in timed):
            if path_kind(times) != "nothing":
                check_same(times, tomllib.loads(read_text(times)), header)
        for model, batch_sizes in self.programme.profiles:
            if path_kind(self.times(model)) == "nothing":
                settings, target = self.programme.settings(*batch_sizes), self.folder / model
                found = profile(model, self.programme.device, settings, name=self.name, output=target)
                report_profile(found, target)
        models = {model: read_model(self.folder / model) for model in timed}
        calibration = calibrate(self.name, list(models.values()), list(map(self.times, models)))
        show_calibration(calibration)
        write_files(self.folder, {Path(f"{self.name}.toml"): device_text(calibration)})
        device = calibrated_device(calibration)
        for step in self.programme.steps:
            known = rows.get(str(step))
            rows[str(step)] = self._row(step, known.measured if known else None, models[step.model], device)
            text = json.dumps({"measured_with": header, "steps": list(rows.values())}, indent=1)
            write_files(self.folder, {Path(path.name): text})
        return [rows[str(step)] for step in self.programme.steps]

    def _row(self, step: Step, measured: MeasuredStep | None, model: Model, device: Device) -> StepRow:
        """The row of a step, predicted from measured layers and from the device's rates, with what was measured."""
        note, no_memory, dtype = "", False, self.programme.dtype
        if measured is None:
            print(f"validate: measuring {step}", file=sys.stderr)
            try:
                counted = counted_for(step.model, dtype, height=step.passes[0], width=step.passes[1])
                measured = step.measure(counted, self.programme.settings(), self.clock)
            except InputError as error:
                note, no_memory = str(error), isinstance(error, OutOfMemoryError)
        first = read_first_backwards(self.folder / step.model, self.name)
        from_layers = step.predict_s(model, device, dtype, first)
        from_rates, group = step.predict_s(by_rates(model), device, dtype), self.programme.group(step)
        return StepRow(str(step), group, measured, from_layers, from_rates, note, no_memory)


def _shown(row: StepRow) -> list[str]:
    of = row.measured
    parts = (of.step_s, of.frozen_s, of.optimizer_s) if of else ()
    cells = [f"{each / MILLISECOND:.2f}" for each in parts] or [""] * 3
    for seconds in row.predicted_s:
        error = f"{100 * (seconds / row.measured.step_s - 1):+.1f} %" if row.measured else ""
        cells += [f"{seconds / MILLISECOND:.2f}", error]
    return [row.step, *cells, row.note]


def steps_summary(rows: Sequence[StepRow]) -> Iterator[str]:
    """A line for each group: the number of measured steps, and mean and worst error of either prediction."""
    for group in dict.fromkeys(row.group for row in rows):
        of_group = [row for row in rows if row.group == group]
        found = [(row.measured.step_s, row.predicted_s) for row in of_group if row.measured]
        without = sum(row.no_memory for row in of_group)
        memory = f", {without} ran out of memory" if without else ""
        yield f"{group}: measured {len(found)} of {len(of_group)}{memory}"
        for at, what in enumerate(PREDICTED if found else ()):
            errors = Errors.of((seconds, predicted[at]) for seconds, predicted in found)
            worth = f"mean error {100 * errors.mean:.1f} %, worst {100 * errors.worst:.1f} %"
            yield f"{group}, from {what}: {worth}"


def _read_steps(path: Path, header: Mapping[str, Value]) -> dict[str, StepRow]:
    """Rows of an earlier run by their steps; empty where there was none.

    Raises:
        InputError: it was on another machine.
    """
    if path_kind(path) == "nothing":
        return {}
    read = json.loads(read_text(path))
    check_same(path, read["measured_with"], header)
    rows = [StepRow(step, group, of and MeasuredStep(*of), *rest) for step, group, of, *rest in read["steps"]]
    return {row.step: row for row in rows}


def check_same(path: Path, earlier: Mapping[str, Value], header: Mapping[str, Value]) -> None:
    """Refuse to continue an earlier run with another GPU, driver or torch."""
    for key in SAME:
        was, now = earlier.get(key, "none"), header.get(key, "none")
        if was != now:
            rule = f"was measured with {key} '{was}', and here it is '{now}'"
            raise InputError(f"{path}: {rule}: name another --output")
