"""Step rows: steps as measured and as predicted; their table, their errors, and the file that a run goes on from."""

import csv
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from io import StringIO
from pathlib import Path
from statistics import mean
from typing import Final

from rich.table import Table

from profiles.errors import InputError
from profiles.files import Table as File
from profiles.files import path_kind, read_rows
from validate.profiling.environment import Value, toml_lines
from validate.profiling.steps import MeasuredStep
from validate.writing import write_files

NOT_MEASURED: Final = "-"
NONE: Final = "none"
COLUMNS: Final = (
    "step",
    "group",
    "measured_ms",
    "frozen_ms",
    "optimizer_ms",
    "from_layers_ms",
    "from_rates_ms",
    "note",
)
SHOWN: Final = ("step", "measured", "frozen", "optimizer", "from layers", "error", "from rates", "error")
SAME: Final = ("gpu", "driver", "torch", "processor", "threads", "dtype")
"""What must not change between two parts of one measurement."""


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

    def errors(self) -> tuple[float, float] | None:
        """Return the relative errors of both predictions; None where nothing was measured."""
        if self.measured is None:
            return None
        seconds = self.measured.step_s
        return self.from_layers_s / seconds - 1, self.from_rates_s / seconds - 1


def steps_table(name: str, rows: Sequence[StepRow]) -> Table:
    """Return the steps, measured and predicted, in milliseconds, a section for each group."""
    result = Table(title=f"{name}: steps on one device", title_justify="left")
    for column in (*SHOWN, "note"):
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
    """Yield for each group how many steps were measured, and mean and worst error of either prediction."""
    for group in dict.fromkeys(row.group for row in rows):
        of_group = [row for row in rows if row.group == group]
        found = [pair for row in of_group if (pair := row.errors()) is not None]
        without = sum(row.no_memory for row in of_group)
        memory = f", {without} ran out of memory" if without else ""
        yield f"{group}: measured {len(found)} of {len(of_group)}{memory}"
        for number, what in enumerate(("from measured layers", "from the device's rates")):
            errors = [100 * abs(pair[number]) for pair in found]
            if errors:
                yield f"{group}, {what}: mean error {mean(errors):.1f} %, worst {max(errors):.1f} %"


def write_steps(path: Path, rows: Sequence[StepRow], header: Mapping[str, Value]) -> None:
    """Write all rows, and beside them what they were measured with: what the first were, where there are some.

    Raises:
        InputError: they cannot be written.
    """
    texts = {Path(path.name): _text(rows)}
    beside = path.with_suffix(".toml")
    if path_kind(beside) == "nothing":
        texts[Path(beside.name)] = "\n".join(toml_lines(header)) + "\n"
    write_files(path.parent, texts)


def read_steps(path: Path) -> list[StepRow]:
    """Return the rows of an earlier run; none where there was none.

    Raises:
        InputError: the file breaks a rule, or no header is beside it.
    """
    if path_kind(path) == "nothing":
        return []
    if path_kind(path.with_suffix(".toml")) == "nothing":
        raise InputError(f"{path}: no header beside it says what it was measured with; name another --output")
    rows = []
    for row in read_rows(path, COLUMNS):
        measured = None
        if row.text("measured_ms") != NOT_MEASURED:
            whole, frozen, optimizer = (row.number(key) / 1e3 for key in COLUMNS[2:5])
            measured = MeasuredStep(whole - frozen - optimizer, frozen, optimizer)
        layers_s, rates_s = row.number("from_layers_ms") / 1e3, row.number("from_rates_ms") / 1e3
        note = "" if row.text("note") == NONE else row.text("note")
        rows.append(StepRow(row.text("step"), row.text("group"), measured, layers_s, rates_s, note))
    return rows


def check_same(path: Path, header: Mapping[str, Value]) -> None:
    """Refuse to go on from what was measured with another GPU, driver or torch.

    Args:
        path: a header of an earlier run; it may be missing.
        header: of this one.

    Raises:
        InputError: they differ.
    """
    if path_kind(path) == "nothing":
        return
    earlier = File.read(path)
    for key in SAME:
        was, now = _read_value(earlier, key), header.get(key, NONE)
        if was != now:
            raise InputError(
                f"{path}: was measured with {key} '{was}', and here it is '{now}': name another --output"
            )


def _read_value(header: File, key: str) -> Value:
    if key not in header:
        return NONE
    return header.integer(key) if key == "threads" else header.text(key)


def _text(rows: Sequence[StepRow]) -> str:
    text = StringIO()
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow(COLUMNS)
    for row in rows:
        parts = [row.measured.step_s, row.measured.frozen_s, row.measured.optimizer_s] if row.measured else []
        cells = [f"{1e3 * seconds:.5f}" for seconds in parts] or [NOT_MEASURED] * 3
        predicted = [f"{1e3 * seconds:.5f}" for seconds in (row.from_layers_s, row.from_rates_s)]
        writer.writerow([row.step, row.group, *cells, *predicted, row.note or NONE])
    return text.getvalue()
