"""What one GPU can show of the cost model, in one command that goes on where it was interrupted.

1. Every layer of five models is timed (``profile``).
2. The device's rates are fitted to all layers, and judged by fits without some of them (``calibrate``).
3. Training iterations and sampling steps are predicted and then measured; those of sizes at which layers were timed are
   summed up apart.

``--rehearse`` does the same with tiny models on the CPU.
"""

import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from rich.console import Console

from profiles.devices import Device
from profiles.errors import InputError
from profiles.files import path_kind
from profiles.models import Model, read_model
from validate.profiling.calibration import calibrate
from validate.profiling.calibration_report import calibrated_device, class_table, device_text, summary
from validate.profiling.clocks import THREAD, Clock, clock_of
from validate.profiling.environment import Value, device_name, environment
from validate.profiling.measuring import OutOfMemoryError, Settings
from validate.profiling.profiler import counted_for, profile, report_profile
from validate.profiling.step_rows import (
    StepRow,
    check_same,
    read_steps,
    steps_summary,
    steps_table,
    write_steps,
)
from validate.profiling.steps import MeasuredStep, SamplingStep, TrainingStep, by_rates
from validate.profiling.time_files import FirstBackwards, read_first_backwards
from validate.profiling.tiny import profiled_architecture
from validate.writing import write_files


@dataclass(frozen=True, slots=True)
class Programme:
    """What is measured, and with what.

    Attributes:
        device: ``cpu`` or ``cuda``.
        dtype: of weights and activations.
        profiles: models and the batch sizes at which their layers are timed.
        steps: what is predicted and measured; those of sizes at which layers were timed are no proof of the rates.
        warmup: rounds that do not count.
        rounds: rounds that do.
        clock: of a CPU.
    """

    device: str
    dtype: str
    profiles: tuple[tuple[str, tuple[int, ...]], ...]
    steps: tuple[TrainingStep | SamplingStep, ...]
    warmup: int = 5
    rounds: int = 20
    clock: str = THREAD

    def settings(self, *batch_sizes: int) -> Settings:
        """Return how layers, or steps, are timed."""
        return Settings(batch_sizes or (1,), self.dtype, self.warmup, self.rounds, clock=self.clock)

    def held_back(self, step: TrainingStep | SamplingStep) -> bool:
        """Return whether layers were timed at another size than the step's passes have."""
        return step.passes not in [
            (architecture.height, architecture.width, batch)
            for model, batches in self.profiles
            if model == step.model
            for architecture in [profiled_architecture(model)]
            for batch in batches
        ]

    def group(self, step: TrainingStep | SamplingStep) -> str:
        """Return the steps that one is summed up with: of one task, held back from what was timed or not."""
        return f"{step.task}, {'held back' if self.held_back(step) else 'at timed sizes'}"


ONE_GPU: Final = Programme(
    "cuda",
    "bfloat16",
    profiles=(
        ("sd21", (1, 2, 4, 8, 16)),
        ("controlnet", (1, 2, 4, 8, 16)),
        ("pixart", (1, 2, 4, 8)),
        ("sdxl", (1, 2, 4)),
        ("uvit-h", (8, 16, 32, 64)),
    ),
    steps=(
        TrainingStep("sd21", 12, 1),
        TrainingStep("sd21", 24, 4),
        TrainingStep("controlnet", 12, 1),
        TrainingStep("controlnet", 20, 2),
        TrainingStep("pixart", 6, 1),
        TrainingStep("pixart", 12, 4),
        TrainingStep("sdxl", 3, 1),
        TrainingStep("sdxl", 6, 2),
        TrainingStep("uvit-h", 48, 1),
        TrainingStep("uvit-h", 96, 4),
        SamplingStep("pixart", 1024, 1024),
        SamplingStep("pixart", 2048, 2048),
    ),
)

REHEARSAL: Final = Programme(
    "cpu",
    "float32",
    profiles=(("tiny-sd", (1, 2, 4)), ("tiny-pixart", (1, 2)), ("tiny-uvit", (1, 4))),
    steps=(
        TrainingStep("tiny-sd", 3, 1),
        TrainingStep("tiny-sd", 6, 2),
        TrainingStep("tiny-uvit", 2, 1),
        TrainingStep("tiny-uvit", 9, 3),
        SamplingStep("tiny-pixart", 256, 256),
        SamplingStep("tiny-pixart", 512, 512),
    ),
    warmup=1,
    rounds=3,
)


def report_gpu(folder: Path, programme: Programme, name: str | None) -> list[StepRow]:
    """Carry a programme out, print what it finds, and write it into a folder.

    Raises:
        InputError: there is no GPU, or a file cannot be read or written.
    """
    clock = clock_of(programme.device, programme.clock)
    name = name or device_name(clock.device)
    steps, header = folder / f"steps-{name}.csv", _header(clock, programme)
    _check_earlier([steps, *(_times(folder, model, name) for model, _ in programme.profiles)], header)
    read_steps(steps)  # what cannot be read is refused before minutes of measuring
    for model, batch_sizes in programme.profiles:
        if path_kind(_times(folder, model, name)) == "nothing":
            settings, target = programme.settings(*batch_sizes), folder / model
            report_profile(profile(model, programme.device, settings, name=name, output=target), target)
    models = {model: read_model(folder / model) for model, _ in programme.profiles}
    device = _calibrate(folder, name, list(models.values()))
    seat = Seat(device, models, {model: read_first_backwards(folder / model, name) for model in models})
    rows = _measure_steps(steps, programme, clock, seat, header)
    Console(width=150).print(steps_table(name, rows))
    for line in steps_summary(rows):
        print(line)
    return rows


@dataclass(frozen=True, slots=True)
class Seat:
    """A calibrated device and what was measured on it; first backward passes by model."""

    device: Device
    models: Mapping[str, Model]
    first: Mapping[str, FirstBackwards]

    def predict_s(self, step: TrainingStep | SamplingStep, dtype: str) -> tuple[float, float]:
        """Return the seconds of a step from the layers as measured, and from the device's rates."""
        model = self.models[step.model]
        if isinstance(step, SamplingStep):
            return step.predict_s(model, self.device), step.predict_s(by_rates(model), self.device)
        measured = step.predict_s(model, self.device, dtype, self.first[step.model])
        return measured, step.predict_s(by_rates(model), self.device, dtype)


def _times(folder: Path, model: str, name: str) -> Path:
    return folder / model / "times" / f"{name}.csv"


def _header(clock: Clock, programme: Programme) -> dict[str, Value]:
    """Return what steps are measured with."""
    kind = programme.clock if clock.device.type == "cpu" else "events"
    return {**environment(clock.device), "dtype": programme.dtype, "clock": kind}


def _check_earlier(paths: Sequence[Path], header: Mapping[str, Value]) -> None:
    """Refuse to go on from files that were measured with something else."""
    for path in paths:
        check_same(path.with_suffix(".toml"), header)


def _calibrate(folder: Path, name: str, models: Sequence[Model]) -> Device:
    paths = [_times(folder, model.name, name) for model in models]
    found = calibrate(name, models, paths)
    console = Console(width=130)
    console.print(class_table(found))
    for line in summary(found):
        console.print(line, highlight=False)
    write_files(folder, {Path(f"{name}.toml"): device_text(found)})
    return calibrated_device(found)


def _measure_steps(
    path: Path, programme: Programme, clock: Clock, seat: Seat, header: Mapping[str, Value]
) -> list[StepRow]:
    """Predict and measure each step; what a file of an earlier run holds is measured no more, and never lost."""
    rows = {row.step: row for row in read_steps(path)}
    for step in programme.steps:
        known = rows.get(str(step))
        measured, note, no_memory = known.measured if known else None, "", False
        if measured is None:
            print(f"validate: measuring {step}", file=sys.stderr)
            try:
                measured = _measure(step, programme, clock)
            except InputError as error:
                note, no_memory = str(error), isinstance(error, OutOfMemoryError)
        predicted = seat.predict_s(step, programme.dtype)
        rows[str(step)] = StepRow(str(step), programme.group(step), measured, *predicted, note, no_memory)
        write_steps(path, list(rows.values()), header)
    return [rows[str(step)] for step in programme.steps]


def _measure(step: TrainingStep | SamplingStep, programme: Programme, clock: Clock) -> MeasuredStep:
    height, width = (step.height, step.width) if isinstance(step, SamplingStep) else (None, None)
    counted = counted_for(step.model, programme.dtype, height=height, width=width)
    return step.measure(counted, programme.settings(), clock)
