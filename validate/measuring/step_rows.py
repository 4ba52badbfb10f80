"""Step rows: steps as measured and as predicted; their table, their errors, and the file that a run goes on from."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from rich.table import Table

from profiles.errors import InputError
from profiles.files import Row, path_kind
from profiles.files import Table as File
from profiles.units import MILLISECOND
from validate.fitting import loading
from validate.fitting.errors import Errors
from validate.fitting.loading import load
from validate.measuring.environment import Value, toml_lines
from validate.measuring.steps import MeasuredStep
from validate.printing import table
from validate.writing import csv_text, write_files

NOT_MEASURED: Final = "-"
NONE: Final = "none"
MEASURED: Final = ("measured_ms", "frozen_ms", "optimizer_ms")
SHOWN: Final = (
    "step",
    "measured",
    "frozen",
    "optimizer",
    "from layers",
    "error",
    "from rates",
    "error",
    "note",
)
SAME: Final = ("gpu", "driver", "torch", "processor", "threads", "dtype")
"""What must not change between two parts of one measurement."""


def _if_measured(row: Row, key: str) -> float | None:
    return None if row.text(key) == NOT_MEASURED else row.number(key)


RULES: Final = {
    "step": loading.text,
    "group": loading.text,
    **dict.fromkeys(MEASURED, _if_measured),
    "from_layers_ms": loading.number,
    "from_rates_ms": loading.number,
    "note": loading.text,
}
COLUMNS: Final = tuple(RULES)


@dataclass(frozen=True, slots=True)
class StepRow:
    """A step as measured and as predicted, in seconds.

    Attributes:
        step: in words.
        group: of the steps that are summed up with it.
        measured: None where it was not.
        from_layers_s: predicted from measured layers.
        from_rates_s: predicted from the device's rates.
        note: why it was not measured.
        no_memory: for want of memory.
    """

    step: str
    group: str
    measured: MeasuredStep | None
    from_layers_s: float
    from_rates_s: float
    note: str = ""
    no_memory: bool = False

    @property
    def parts_ms(self) -> list[float]:
        """Milliseconds of the step, its frozen part and its optimizer; none where it was not measured."""
        found = self.measured
        seconds = (found.step_s, found.frozen_s, found.optimizer_s) if found else ()
        return [each / MILLISECOND for each in seconds]


def steps_table(name: str, rows: Sequence[StepRow]) -> Table:
    """Steps, measured and predicted, in milliseconds."""
    title = f"{name}: steps on one device"
    return table(title, SHOWN, map(_shown, rows), left=("step", "note"))


def _shown(row: StepRow) -> list[str]:
    cells = [f"{ms:.2f}" for ms in row.parts_ms] or [""] * 3
    for seconds in (row.from_layers_s, row.from_rates_s):
        error = f"{100 * (seconds / row.measured.step_s - 1):+.1f} %" if row.measured else ""
        cells += [f"{seconds / MILLISECOND:.2f}", error]
    return [row.step, *cells, row.note]


def steps_summary(rows: Sequence[StepRow]) -> Iterator[str]:
    """For each group how many steps were measured, and mean and worst error of either prediction."""
    for group in dict.fromkeys(row.group for row in rows):
        of_group = [row for row in rows if row.group == group]
        found = [(row.measured.step_s, row) for row in of_group if row.measured]
        without = sum(row.no_memory for row in of_group)
        memory = f", {without} ran out of memory" if without else ""
        yield f"{group}: measured {len(found)} of {len(of_group)}{memory}"
        for key, what in (("from_layers_s", "measured layers"), ("from_rates_s", "the device's rates")):
            errors = Errors.of((seconds, getattr(row, key)) for seconds, row in found)
            if errors:
                worth = f"mean error {100 * errors.mean:.1f} %, worst {100 * errors.worst:.1f} %"
                yield f"{group}, from {what}: {worth}"


def write_steps(path: Path, rows: Sequence[StepRow], header: Mapping[str, Value]) -> None:
    """Write all rows, and beside them what they were measured with: what the first were, where there are some."""
    texts = {Path(path.name): csv_text(COLUMNS, map(_cells, rows))}
    beside = path.with_suffix(".toml")
    if path_kind(beside) == "nothing":
        texts[Path(beside.name)] = "\n".join(toml_lines(header)) + "\n"
    write_files(path.parent, texts)


def _cells(row: StepRow) -> list[str]:
    measured = [f"{ms:.5f}" for ms in row.parts_ms] or [NOT_MEASURED] * len(MEASURED)
    predicted = [f"{seconds / MILLISECOND:.5f}" for seconds in (row.from_layers_s, row.from_rates_s)]
    return [row.step, row.group, *measured, *predicted, row.note or NONE]


def read_steps(path: Path) -> list[StepRow]:
    """Rows of an earlier run; none where there was none."""
    if path_kind(path) == "nothing":
        return []
    if path_kind(path.with_suffix(".toml")) == "nothing":
        raise InputError(f"{path}: no header beside it says what it was measured with; name another --output")
    rows = []
    for row in load(path, RULES):
        parts = [row[key] * MILLISECOND for key in MEASURED if row[key] is not None]
        measured = MeasuredStep(parts[0] - parts[1] - parts[2], *parts[1:]) if len(parts) == 3 else None
        predicted = (row["from_layers_ms"] * MILLISECOND, row["from_rates_ms"] * MILLISECOND)
        note = "" if row["note"] == NONE else row["note"]
        rows.append(StepRow(row["step"], row["group"], measured, *predicted, note))
    return rows


def check_same(path: Path, header: Mapping[str, Value]) -> None:
    """Refuse to go on from what was measured with another GPU, driver or torch.

    Args:
        path: a header of an earlier run; it may be missing.
        header: of this one.
    """
    if path_kind(path) == "nothing":
        return
    earlier = File.read(path)
    for key in SAME:
        read = earlier.integer if key == "threads" else earlier.text
        was, now = read(key) if key in earlier else NONE, header.get(key, NONE)
        if was != now:
            raise InputError(
                f"{path}: was measured with {key} '{was}', and here it is '{now}': name another --output"
            )
