"""Measurements of the cost model on one GPU, in one command that goes on where it was interrupted.

1. Every layer of five models is timed (``profile``).
2. The device's rates are fitted to all layers, and judged by fits without some of them (``calibrate``).
3. Training iterations and sampling steps are predicted and then measured; those at sizes at which layers were timed are
   summarised separately.

``--rehearse`` does the same with tiny models on the CPU.
"""

import json
import sys
import tomllib
from argparse import Namespace
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final, NamedTuple

import torch

from profiles.architectures.models import Model, read_model
from profiles.errors import InputError
from profiles.files import path_kind, read_text
from profiles.machines.devices import Device
from profiles.measuring.counting.zoo import architecture
from profiles.measuring.fitting.calibration import calibrate, calibrated_device, device_text, show_calibration
from profiles.measuring.fitting.layer_times import read_first_backwards
from profiles.measuring.fitting.least_squares import Errors
from profiles.measuring.tables import show, table
from profiles.measuring.timing.clocks import THREAD, Clock, clock_of
from profiles.measuring.timing.environment import Value, device_name, environment
from profiles.measuring.timing.passes import OutOfMemoryError, Settings
from profiles.measuring.timing.profiler import counted_for, profile, report_profile
from profiles.measuring.writing import write_files
from profiles.units import MILLISECOND
from validate.steps.measured import MeasuredStep, SamplingStep, TrainingStep, by_rates

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
