"""What one GPU can show of the cost model, in one command that goes on where it was interrupted.

1. Every layer of five models is timed (``profile``).
2. The device's rates are fitted to all layers, and judged by fits without some of them (``calibrate``).
3. Training iterations and sampling steps are predicted and then measured; those of sizes at which layers were timed are
   summed up apart.

``--rehearse`` does the same with tiny models on the CPU.
"""

import sys
import tomllib
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from profiles.devices import Device
from profiles.errors import InputError
from profiles.files import path_kind
from profiles.models import Model, read_model
from validate.fitting.calibration import calibrate
from validate.fitting.calibration_report import calibrated_device, device_text, show_calibration
from validate.fitting.layer_times import read_first_backwards
from validate.measuring.clocks import THREAD, Clock, clock_of
from validate.measuring.environment import Value, device_name, environment
from validate.measuring.passes import OutOfMemoryError, Settings
from validate.measuring.profiler import counted_for, profile, report_profile
from validate.measuring.step_rows import (
    StepRow,
    check_same,
    read_steps,
    steps_summary,
    steps_table,
    write_steps,
)
from validate.measuring.steps import MeasuredStep, SamplingStep, TrainingStep, by_rates
from validate.measuring.tiny import profiled_architecture
from validate.printing import show
from validate.writing import write_files

Step = TrainingStep | SamplingStep


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
    steps: tuple[Step, ...]
    warmup: int = 5
    rounds: int = 20
    clock: str = THREAD

    def settings(self, *batch_sizes: int) -> Settings:
        """Settings by which layers, or steps, are timed."""
        return Settings(batch_sizes or (1,), self.dtype, self.warmup, self.rounds, clock=self.clock)

    def held_back(self, step: Step) -> bool:
        """Whether layers were timed at another size than the step's passes have."""
        return step.passes not in [
            (architecture.height, architecture.width, batch)
            for model, batches in self.profiles
            if model == step.model
            for architecture in [profiled_architecture(model)]
            for batch in batches
        ]

    def group(self, step: Step) -> str:
        """Steps that one is summed up with: of one task, held back from what was timed or not."""
        return f"{step.task}, {'held back' if self.held_back(step) else 'at timed sizes'}"


def _programme(name: str) -> Programme:
    """One of the programmes of ``programmes.toml``."""
    text = (Path(__file__).parent / "programmes.toml").read_text(encoding="utf-8")
    table = tomllib.loads(text)[name]
    profiles = tuple((model, tuple(batches)) for model, batches in table.pop("profiles").items())
    training = tuple(TrainingStep(*step) for step in table.pop("training"))
    sampling = tuple(SamplingStep(*step) for step in table.pop("sampling"))
    return Programme(profiles=profiles, steps=training + sampling, **table)


ONE_GPU: Final = _programme("one_gpu")
REHEARSAL: Final = _programme("rehearsal")


def report_gpu(folder: Path, programme: Programme, name: str | None) -> list[StepRow]:
    """Carry a programme out, print what it finds, and write it into a folder.

    Raises:
        InputError: there is no GPU, or a file cannot be read or written.
    """
    clock = clock_of(programme.device, programme.clock)
    run = Run(folder, programme, clock, name or device_name(clock.device))
    rows = run.carry_out()
    show(150, steps_table(run.name, rows))
    for line in steps_summary(rows):
        print(line)
    return rows


@dataclass(frozen=True, slots=True)
class Run:
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

        What the file of an earlier run holds is measured no more, and never lost.
        """
        header, path = self.header, self.folder / f"steps-{self.name}.csv"
        timed = [model for model, _ in self.programme.profiles]
        for earlier in (path, *map(self.times, timed)):
            check_same(earlier.with_suffix(".toml"), header)
        rows = {row.step: row for row in read_steps(path)}  # refused before minutes of measuring
        for model, batch_sizes in self.programme.profiles:
            if path_kind(self.times(model)) == "nothing":
                self._profile(model, batch_sizes)
        models = {model: read_model(self.folder / model) for model in timed}
        device = self._calibrate(list(models.values()))
        for step in self.programme.steps:
            known = rows.get(str(step))
            rows[str(step)] = self._row(step, known.measured if known else None, models[step.model], device)
            write_steps(path, list(rows.values()), header)
        return [rows[str(step)] for step in self.programme.steps]

    def _profile(self, model: str, batch_sizes: tuple[int, ...]) -> None:
        settings, target = self.programme.settings(*batch_sizes), self.folder / model
        found = profile(model, self.programme.device, settings, name=self.name, output=target)
        report_profile(found, target)

    def _calibrate(self, models: Sequence[Model]) -> Device:
        found = calibrate(self.name, models, [self.times(model.name) for model in models])
        show_calibration(found)
        write_files(self.folder, {Path(f"{self.name}.toml"): device_text(found)})
        return calibrated_device(found)

    def _row(self, step: Step, measured: MeasuredStep | None, model: Model, device: Device) -> StepRow:
        """Predict a step from the layers as measured and from the device's rates; measure it unless it was."""
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
        from_rates = step.predict_s(by_rates(model), device, dtype)
        group = self.programme.group(step)
        return StepRow(str(step), group, measured, from_layers, from_rates, note, no_memory)
