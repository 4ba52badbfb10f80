"""What one GPU can show of the cost model, in one command that goes on where it was interrupted.

1. Every layer of five models is timed (``profile``).
2. The device's rates are fitted to every other layer and judged on the rest, then to all (``calibrate``).
3. Training iterations at batch sizes that were not timed, and sampling steps, are predicted and then measured.

``--rehearse`` does the same with tiny models on the CPU.
"""

import csv
import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from io import StringIO
from pathlib import Path
from statistics import mean
from typing import Final

from rich.console import Console
from rich.table import Table

from profiles.devices import Device
from profiles.errors import InputError
from profiles.files import path_kind, read_rows
from profiles.models import Model, read_model
from validate.profiling.calibration import calibrate
from validate.profiling.calibration_report import calibrated_device, class_table, device_text, summary
from validate.profiling.clocks import THREAD, Clock, clock_of
from validate.profiling.environment import device_name
from validate.profiling.measuring import Settings
from validate.profiling.profiler import counted_for, profile, report_profile
from validate.profiling.steps import MeasuredStep, SamplingStep, TrainingStep, by_rates
from validate.writing import write_files

NOT_MEASURED: Final = "-"
COLUMNS: Final = (
    "step",
    "measured_ms",
    "frozen_ms",
    "optimizer_ms",
    "from_layers_ms",
    "from_rates_ms",
    "note",
)


@dataclass(frozen=True, slots=True)
class Programme:
    """What is measured, and with what.

    Attributes:
        device: ``cpu`` or ``cuda``.
        dtype: of weights and activations.
        profiles: models and the batch sizes at which their layers are timed.
        steps: what is predicted and measured; no micro-batch has a size at which layers were timed.
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


@dataclass(frozen=True, slots=True)
class StepRow:
    """A step as measured and as predicted, in seconds; ``note`` says why one was not measured."""

    step: str
    measured: MeasuredStep | None
    from_layers_s: float
    from_rates_s: float
    note: str = ""

    def errors(self) -> tuple[float, float] | None:
        """Return the relative errors of both predictions; None where nothing was measured."""
        if self.measured is None:
            return None
        seconds = self.measured.step_s
        return self.from_layers_s / seconds - 1, self.from_rates_s / seconds - 1


def report_gpu(folder: Path, programme: Programme, name: str | None) -> list[StepRow]:
    """Carry a programme out, print what it finds, and write it into a folder.

    Raises:
        InputError: there is no GPU, or a file cannot be read or written.
    """
    clock = clock_of(programme.device, programme.clock)
    name = name or device_name(clock.device)
    for model, batch_sizes in programme.profiles:
        if path_kind(folder / model / "times" / f"{name}.csv") == "nothing":
            settings = programme.settings(*batch_sizes)
            report_profile(
                profile(model, programme.device, settings, name=name, output=folder / model), folder / model
            )
    models = {model: read_model(folder / model) for model, _ in programme.profiles}
    device = _calibrate(folder, name, list(models.values()))
    rows = _measure_steps(folder / f"steps-{name}.csv", programme, clock, models, device)
    Console(width=150).print(steps_table(name, rows))
    for line in steps_summary(rows):
        print(line)
    return rows


def steps_table(name: str, rows: Sequence[StepRow]) -> Table:
    """Return the steps, measured and predicted, in milliseconds."""
    result = Table(title=f"{name}: steps on one device", title_justify="left")
    for column in (
        "step",
        "measured",
        "frozen",
        "optimizer",
        "from layers",
        "error",
        "from rates",
        "error",
        "note",
    ):
        result.add_column(column, justify="left" if column in ("step", "note") else "right")
    for row in rows:
        parts = [row.measured.step_s, row.measured.frozen_s, row.measured.optimizer_s] if row.measured else []
        shown = [f"{100 * error:+.1f} %" for error in row.errors() or ()] or ["", ""]
        result.add_row(
            row.step,
            *([f"{1e3 * seconds:.2f}" for seconds in parts] or ["", "", ""]),
            f"{1e3 * row.from_layers_s:.2f}",
            shown[0],
            f"{1e3 * row.from_rates_s:.2f}",
            shown[1],
            row.note,
        )
    return result


def steps_summary(rows: Sequence[StepRow]) -> Iterator[str]:
    """Yield mean and worst error of either prediction."""
    found = [pair for row in rows if (pair := row.errors()) is not None]
    for number, what in enumerate(("from measured layers", "from the device's rates")):
        errors = [100 * abs(pair[number]) for pair in found]
        if errors:
            yield f"{what}: mean error {mean(errors):.1f} %, worst {max(errors):.1f} %, of {len(errors)} steps"


def _calibrate(folder: Path, name: str, models: Sequence[Model]) -> Device:
    paths = [folder / model.name / "times" / f"{name}.csv" for model in models]
    found = calibrate(name, models, paths)
    console = Console(width=130)
    console.print(class_table(found))
    for line in summary(found):
        console.print(line, highlight=False)
    write_files(folder, {Path(f"{name}.toml"): device_text(found)})
    return calibrated_device(found)


def _measure_steps(
    path: Path, programme: Programme, clock: Clock, models: dict[str, Model], device: Device
) -> list[StepRow]:
    """Predict and measure each step; what a file of an earlier run holds is measured no more."""
    known = _read_steps(path)
    rows = []
    for step in programme.steps:
        measured, note = known.get(str(step)), ""
        if measured is None:
            print(f"validate: measuring {step}", file=sys.stderr)
            try:
                measured = _measure(step, programme, clock)
            except InputError as error:
                note = str(error)
        predicted = [_predict_s(step, model, device, programme) for model in _both(models[step.model])]
        rows.append(StepRow(str(step), measured, predicted[0], predicted[1], note))
        write_files(path.parent, {Path(path.name): _steps_text(rows)})
    return rows


def _measure(step: TrainingStep | SamplingStep, programme: Programme, clock: Clock) -> MeasuredStep:
    height, width = (step.height, step.width) if isinstance(step, SamplingStep) else (None, None)
    counted = counted_for(step.model, programme.dtype, height=height, width=width)
    return step.measure(counted, programme.settings(), clock)


def _predict_s(
    step: TrainingStep | SamplingStep, model: Model, device: Device, programme: Programme
) -> float:
    if isinstance(step, SamplingStep):
        return step.predict_s(model, device)
    return step.predict_s(model, device, programme.dtype)


def _both(model: Model) -> tuple[Model, Model]:
    """Return a model with its measured times, and without."""
    return model, by_rates(model)


def _steps_text(rows: Sequence[StepRow]) -> str:
    text = StringIO()
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow(COLUMNS)
    for row in rows:
        parts = [row.measured.step_s, row.measured.frozen_s, row.measured.optimizer_s] if row.measured else []
        cells = [f"{1e3 * seconds:.5f}" for seconds in parts] or [NOT_MEASURED] * 3
        predicted = [f"{1e3 * seconds:.5f}" for seconds in (row.from_layers_s, row.from_rates_s)]
        writer.writerow([row.step, *cells, *predicted, row.note])
    return text.getvalue()


def _read_steps(path: Path) -> dict[str, MeasuredStep]:
    found: dict[str, MeasuredStep] = {}
    for row in read_rows(path, COLUMNS) if path_kind(path) == "file" else ():
        if row.text("measured_ms") == NOT_MEASURED:
            continue
        whole, frozen, optimizer = (row.number(key) / 1e3 for key in COLUMNS[1:4])
        found[row.text("step")] = MeasuredStep(whole - frozen - optimizer, frozen, optimizer)
    return found
