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
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import ClassVar, Final, NamedTuple

import torch

from profiles.architectures.models import Model, read_model
from profiles.errors import InputError
from profiles.files import read_text
from profiles.machines.clusters import Cluster, load_cluster
from profiles.machines.devices import Device
from profiles.measuring.counting.component import ModelCount
from profiles.measuring.counting.configured import architecture
from profiles.measuring.fitting.calibration import calibrate, calibrated_device, device_text, show_calibration
from profiles.measuring.fitting.least_squares import Errors
from profiles.measuring.timing.building import RECIPES, draws, update_of
from profiles.measuring.timing.environment import device_name, environment
from profiles.measuring.timing.passes import Clock, Settings, Subject, clock_of, out_of_memory, timed
from profiles.measuring.timing.profiler import counted_for, profile
from profiles.measuring.writing import grouped, show, table
from profiles.outputs import write_files
from profiles.software.stacks import load_stack
from profiles.units import MILLISECOND
from sim.outcomes.parts import replay, replay_parts
from sim.outcomes.runs import steady_step_s
from strategies.plans.workloads import ONE_PREDICTION, SamplingWorkload, TrainingWorkload
from strategies.sampling.teams import Single
from strategies.sampling_scenario import SamplingScenario
from strategies.scenario import Scenario
from strategies.training.replicas import DDP

PROGRAMMES: Final = Path(__file__).with_name("programmes.toml")


@dataclass(frozen=True, slots=True)
class TrainingStep:
    """One training iteration on one device: a batch and its number of micro-batches, which divides it."""

    task: ClassVar = "training"
    model: str
    batch: int
    micro_batches: int

    def __str__(self) -> str:
        return f"{self.model} training, batch {self.batch}, micro-batches {self.micro_batches}"

    @property
    def passes(self) -> tuple[int, int, int]:
        """Height, width and batch of each pass of the backbone."""
        counted = architecture(self.model, tiny=True)
        return counted.height, counted.width, self.batch // self.micro_batches

    def predict_s(self, model: Model, device: Device, dtype: str) -> float:
        """Seconds of the iteration: from measured layers where the model has times on the device, else by its rates."""
        workload = TrainingWorkload(1, self.batch, self_conditioning=0.0, memory_recipe=RECIPES[dtype])
        fused = replace(load_stack(), optimizer="fused")  # as ``update_of`` makes it
        scenario = Scenario(model, alone(device), workload, stack=fused)
        return replay(DDP(overlap="none", micro_batches=self.micro_batches), scenario).end_s

    def measure(self, counted: ModelCount, settings: Settings, clock: Clock) -> float:
        """Median seconds of the iteration, run: forwards and backwards, frozen forwards, and the update."""
        parts = [component for component in counted.components if "train" in component.spec.tasks]
        size, batch = (counted.height, counted.width), self.batch // self.micro_batches
        with out_of_memory(f"{self.model} at batch {self.batch}"):
            subjects = [Subject(part, size, settings.dtype, clock, settings.seed) for part in parts]
            inputs = [(each, each.inputs(batch)) for each in subjects]
            weights = [weight for each in subjects if each.spec.trainable for weight in each.trained]
            update = update_of(weights)

            def iterate() -> None:
                for subject, samples in inputs:
                    subject.module.zero_grad(set_to_none=True)
                    for sample in self.micro_batches * list(samples):
                        output = subject.forward(sample)
                        if subject.spec.trainable:
                            torch.autograd.backward([output], [draws(output, subject.generator)])
                update()

            return timed(clock, settings, iterate)


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
        once = architecture(self.model, tiny=True).guidance in ONE_PREDICTION
        return self.height, self.width, 1 if once else 2

    def predict_s(self, model: Model, device: Device, dtype: str = "") -> float:
        """Seconds of the step, which depend on neither optimizer nor backward passes."""
        workload = SamplingWorkload(1, self.height, self.width, steps=2, guidance=model.guidance)
        return steady_step_s(replay_parts(Single(), SamplingScenario(model, alone(device), workload)))

    def measure(self, counted: ModelCount, settings: Settings, clock: Clock) -> float:
        """Median seconds of the backbone, run without gradients; the scheduler's update of the image is not in it."""
        (part,) = [component for component in counted.components if component.spec.trainable]
        frozen = replace(part, spec=replace(part.spec, trainable=False))
        *size, batch = self.passes
        with out_of_memory(f"{self.model} at {self.height}x{self.width}"):
            subject = Subject(frozen, (size[0], size[1]), settings.dtype, clock, settings.seed)
            inputs = subject.inputs(batch)
            return timed(clock, settings, lambda: [*map(subject.forward, inputs)])


def alone(device: Device) -> Cluster:
    """A cluster of one device."""
    return replace(load_cluster("ideal"), name=device.name, device=device, devices_per_node=1)


def by_rates(model: Model) -> Model:
    """A model without measured times and kernels, so that its times are total work over a device's fitted rates."""
    bare = (replace(part, times=(), kernels=(), half_kernels=()) for part in model.components)
    return replace(model, components=tuple(bare))


Step = TrainingStep | SamplingStep


class StepRow(NamedTuple):
    """A step as predicted, in seconds, and as measured, or the reason why it was not, such as lack of memory."""

    step: str
    group: str
    measured_s: float | None
    from_layers_s: float
    from_rates_s: float
    note: str = ""


@dataclass(frozen=True, slots=True)
class Programme:
    """A programme: device, models and batch sizes whose layers are timed, and steps that are predicted.

    Steps at sizes at which layers were timed do not test the rates.
    """

    device: str
    dtype: str
    profiles: dict[str, tuple[int, ...]]
    steps: Sequence[Step]
    warmup: int = 5
    rounds: int = 20

    def settings(self, batch_sizes: Sequence[int] = (1,)) -> Settings:
        """Settings by which layers, or steps, are timed."""
        return Settings(tuple(batch_sizes), self.dtype, self.warmup, self.rounds)

    def group(self, step: Step) -> str:
        """Name of the group in which a step is summarised: its task, and whether layers were timed at its size."""
        counted = architecture(step.model, tiny=True)
        *size, batch = step.passes
        at_its_size = size == [counted.height, counted.width] and batch in self.profiles.get(step.model, ())
        return f"{step.task}, {'at timed sizes' if at_its_size else 'held back'}"


def run_gpu(options: Namespace) -> None:
    """Carry out the programme of a GPU, or its rehearsal."""
    if options.rehearse:
        torch.set_num_threads(1)
    read = tomllib.loads(read_text(PROGRAMMES))["rehearsal" if options.rehearse else "one_gpu"]
    steps: list[Step] = [TrainingStep(*step) for step in read.pop("training")]
    steps += [SamplingStep(*step) for step in read.pop("sampling")]
    report_gpu(options.output, Programme(steps=steps, **read), options.name)


def report_gpu(folder: Path, programme: Programme, name: str | None) -> list[StepRow]:
    """Time the layers that were not, calibrate, and predict and measure each step; print a table of them.

    Steps in the file of an earlier run in the folder are not measured again, and are kept.
    """
    clock = clock_of(programme.device)
    name = name or device_name(clock.device)
    path = folder / f"steps-{name}.json"
    earlier = json.loads(read_text(path))["steps"] if path.exists() else []
    known = {step: measured_s for step, _, measured_s, *_ in earlier}
    times = {model: folder / model / "times" / f"{name}.csv" for model in programme.profiles}
    for model, batch_sizes in programme.profiles.items():
        if not times[model].exists():
            settings, target = programme.settings(batch_sizes), folder / model
            show(150, profile(model, programme.device, settings, name=name, output=target))
    models = {model: read_model(folder / model) for model in programme.profiles}
    calibration = calibrate(name, list(models.values()), list(times.values()))
    show_calibration(calibration)
    write_files(folder, {Path(f"{name}.toml"): device_text(calibration)})
    device, rows = calibrated_device(calibration), list[StepRow]()
    for step in programme.steps:
        measured_s, note = known.get(str(step)), ""
        if measured_s is None:
            print(f"validate: measuring {step}", file=sys.stderr)
            height, width, _ = step.passes
            try:
                counted = counted_for(step.model, programme.dtype, height=height, width=width)
                measured_s = step.measure(counted, programme.settings(), clock)
            except InputError as error:
                note = str(error)
        description = models[step.model]
        from_layers, from_rates = (
            step.predict_s(one, device, programme.dtype) for one in (description, by_rates(description))
        )
        group = programme.group(step)
        rows.append(StepRow(str(step), group, measured_s, from_layers, from_rates, note))
        kept = [*rows, *(row for row in earlier if row[0] not in {one.step for one in rows})]
        measured_with = environment(clock.device) | {"dtype": programme.dtype}
        text = json.dumps({"measured_with": measured_with, "steps": kept}, indent=1)
        write_files(folder, {Path(path.name): text})
    header = ("step", "measured", "from layers", "error", "from rates", "error", "note")
    show(150, table(f"{name}: steps on one device", header, map(_shown, rows), left=("step", "note")))
    print(*steps_summary(rows), sep="\n")
    return rows


def _shown(row: StepRow) -> list[str]:
    measured_s = row.measured_s
    cells = [f"{measured_s / MILLISECOND:.2f}" if measured_s else ""]
    for seconds in (row.from_layers_s, row.from_rates_s):
        error = f"{100 * (seconds / measured_s - 1):+.1f} %" if measured_s else ""
        cells += [f"{seconds / MILLISECOND:.2f}", error]
    return [row.step, *cells, row.note]


def steps_summary(rows: Sequence[StepRow]) -> Iterator[str]:
    """A line for each group: the number of measured steps, and mean and worst error of either prediction."""
    for group, of_group in grouped(rows, lambda row: row.group).items():
        done = [(row.measured_s, *row[3:5]) for row in of_group if row.measured_s]
        yield f"{group}: measured {len(done)} of {len(of_group)}"
        for at, what in enumerate(("measured layers", "the device's rates"), 1) if done else ():
            errors = Errors.of((error[0], error[at]) for error in done)
            worth = f"mean error {100 * errors.mean:.1f} %, worst {100 * errors.worst:.1f} %"
            yield f"{group}, from {what}: {worth}"
