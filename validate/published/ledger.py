"""The ledger: every published number once, what the numbers amount to by source and method, and files of them."""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from math import inf
from pathlib import Path
from statistics import median
from typing import Any, Final, TypeVar

import pandas as pd

from profiles.errors import InputError
from profiles.units import GIB
from validate.published.records import LATENCY, Published, Record, Standing, all_published, source_names, why
from validate.reporting.sections import Section, percent, signed
from validate.writing import write_file

NEAR: Final = 0.15
"""Relative error within which a prediction counts as near."""
COUNTED: Final = (
    "numbers", "predicted", "judged", "median error", "worst error", f"within {NEAR:.0%}", "fitted", "apart",
    "not covered",
)  # fmt: skip
REMARK: Final = (
    "Each number stands in one of the columns judged, fitted, apart and not covered. Errors, simulated over published"
    " less one, are of judged numbers alone; the median is of absolute values. Fitted: a rate, a link, a constant or"
    " the way to count was set by the number, or with it in view. Apart: predicted, but a bound, a zero, seconds of a"
    " solver, memory that ran out, or printed before."
)
OUT_OF_MEMORY: Final = "OOM"
T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Ledger:
    """Published numbers, each with one record, in the order of the files."""

    records: tuple[Record, ...]

    def __add__(self, other: "Ledger") -> "Ledger":
        return Ledger(self.records + other.records)

    def of(self, standing: Standing) -> list[Record]:
        """The records of one standing."""
        return [one for one in self.records if one.standing is standing]

    def sections(self) -> list[Section]:
        """The tables of the summary, the longest first."""
        return [self.by_source_and_method(), self.not_judged(), self.by_source()]

    def by_source(self) -> Section:
        """One line per source."""
        rows = [[name, *_counts(group)] for name, group in self._sources()]
        title = f"By source: {len(self.records)} published numbers"
        return Section(title, ("source", *COUNTED), rows, REMARK)

    def by_source_and_method(self) -> Section:
        """One line per source and method; where it is no latency, with what was measured."""
        rows = [
            [name if not number else "", method, *_counts(records)]
            for name, group in self._sources()
            for number, (method, records) in enumerate(sorted(grouped(group, method_of).items()))
        ]
        title = f"By source and method: {len(self.records)} published numbers"
        return Section(title, ("source", "method", *COUNTED), rows)

    def _sources(self) -> Iterator[tuple[str, list[Record]]]:
        """The sources that have numbers, in the order of their list."""
        groups = grouped(self.records, lambda one: one.row.group)
        return ((name, groups[name]) for name in source_names() if name in groups)

    def not_judged(self) -> Section:
        """Why numbers judge nothing: how many, and which."""
        left = [one for one in self.records if one.standing is not Standing.JUDGED]
        order = list(Standing)
        groups = grouped(left, lambda one: (order.index(one.standing), _split(one.reason)[0]))
        rows = [
            [order[standing], reason, f"{len(group)}", "; ".join(dict.fromkeys(map(_which, group)))]
            for (standing, reason), group in sorted(
                groups.items(), key=lambda item: (item[0][0], -len(item[1]), item[0][1])
            )
        ]
        title = f"Not judged: {len(left)} of {len(self.records)} numbers"
        return Section(title, ("", "why", "numbers", "which"), rows)

    def frame(self) -> pd.DataFrame:
        """One line per published number, with its prediction and what became of it."""
        return pd.DataFrame([_flat(one) for one in self.records])

    def write(self, path: Path | None) -> None:
        """Write the frame as CSV, or as JSON where the file ends so, if a file is given.

        Raises:
            InputError: the file cannot be written.
        """
        if path is None:
            return
        frame = self.frame()
        if path.suffix.lower() == ".json":
            write_file(path, frame.to_json(orient="records", indent=1) + "\n")
            return
        for column, words in WORDS.items():
            frame[column] = frame[column].map(words, na_action="ignore")
        write_file(path, frame.to_csv(index=False))


def training_ledger(records: Iterable[Record]) -> Ledger:
    """Every number of training, in the order of the file.

    Args:
        records: of one number that of the base setting first; the others do not count.
    """
    first: dict[Published, Record] = {}
    for record in records:
        first.setdefault(record.row, record)
    return Ledger(tuple(first.get(row) or _uncovered(row) for row in all_published()))


def _uncovered(row: Published) -> Record:
    return Record(row, None, Standing.UNCOVERED, why(row) or "not predicted")


def coverage(rows: Sequence[Published], records: Iterable[Record]) -> Section:
    """Each number of training with its base prediction and the range over all settings, or why there is none."""
    found = grouped(records, lambda one: one.row)
    cells = [_cells(row, found.get(row) or [_uncovered(row)]) for row in rows]
    covered = sum(row in found for row in rows)
    return Section(
        f"Every published number: {covered} of {len(rows)} predicted",
        ("where", "number", "published", "simulated", "error", "base setting, or why not", "all settings"),
        cells,
    )


def _cells(row: Published, records: Sequence[Record]) -> list[str]:
    base = records[0]
    head = [f"{row.source}, {row}", row.quantity.replace("_", " "), f"{row.value:g}"]
    values = [one.predicted for one in records if one.predicted is not None]
    if base.predicted is None:
        return [*head, "-", "-", base.reason, "-"]
    others = "-" if len(values) == 1 else f"{min(values):.4g} to {max(values):.4g}"
    return [*head, f"{base.predicted:.4g}", error_words(base), base.words, others]


def error_words(record: Record) -> str:
    """The relative error in words; where the published number is a bound, whether it holds."""
    if record.reason.startswith("a bound, which "):
        return record.reason.removeprefix("a bound, which ")
    return "-" if record.relative_error is None else signed(record.relative_error)


def grouped(records: Iterable[Record], key: Callable[[Record], T]) -> dict[T, list[Record]]:
    """Records by what a function says of them, in the order in which that first appears."""
    groups: dict[T, list[Record]] = {}
    for one in records:
        groups.setdefault(key(one), []).append(one)
    return groups


def method_of(record: Record) -> str:
    """What was run, and what was measured where that is no latency; all degrees of one method as one."""
    method = record.row.method.strip("-").split(" P=")[0]
    words = [] if record.row.quantity == LATENCY else [record.row.quantity.replace("_", " ")]
    return ", ".join(filter(None, (method, *words)))


def _counts(records: Sequence[Record]) -> list[str]:
    numbers = {standing: sum(one.standing is standing for one in records) for standing in Standing}
    errors = judged_errors(records)
    said = ["-", "-", "-"]
    if errors:
        said = [percent(median(map(abs, errors))), signed(max(errors, key=abs)), f"{near(errors)}"]
    return [
        f"{len(records)}",
        f"{len(records) - numbers[Standing.UNCOVERED]}",
        f"{numbers[Standing.JUDGED]}",
        *said,
        *(f"{numbers[one]}" for one in (Standing.FITTED, Standing.APART, Standing.UNCOVERED)),
    ]


def judged_errors(records: Iterable[Record]) -> list[float]:
    """Errors of the judged numbers."""
    return [one.error for one in records if one.standing is Standing.JUDGED and one.error is not None]


def near(errors: Iterable[float]) -> int:
    """How many errors are near."""
    return sum(abs(error) <= NEAR for error in errors)


def _split(reason: str) -> tuple[str, str]:
    """A reason without the thing that is missing, and that thing."""
    kind, _, missing = reason.partition(" of ") if reason.startswith("no ") else (reason, "", "")
    return kind, missing


def _which(record: Record) -> str:
    return _split(record.reason)[1] or record.row.group


def _flat(one: Record) -> Mapping[str, Any]:
    """The cells of a record by column."""
    row = one.row
    return {
        "task": row.task,
        "source": row.source,
        "item": row.item,
        "model": row.model,
        "machine": row.machine,
        "num_gpus": "" if row.num_gpus is None else str(row.num_gpus),
        "method": row.method,
        "method_config": row.method_config,
        "batch_size": "" if row.batch_size is None else str(row.batch_size),
        "resolution_px": row.resolution_px,
        "steps": row.steps,
        "quantity": row.quantity,
        "unit": row.unit,
        "published": row.value,
        "predicted": one.predicted,
        "error": one.error,
        "standing": str(one.standing),
        "reason": one.reason,
        "provenance": one.provenance,
        "setting": one.setting,
        "predicted_memory_GiB": None if one.memory_bytes is None else one.memory_bytes / GIB,
        "miss": one.miss,
    }


def _number(value: float) -> str:
    return OUT_OF_MEMORY if value == inf else f"{value:.6g}"


WORDS: Final[Mapping[str, Callable[[float], str]]] = {
    "published": _number,
    "predicted": _number,
    "error": "{:.4f}".format,
    "predicted_memory_GiB": "{:.2f}".format,
}
"""How numbers are written as CSV, by column."""


def check_output(path: Path | None) -> None:
    """Refuse a file that could not be written at the end.

    Raises:
        InputError: it is a folder, or its folder is missing.
    """
    if path is not None and (path.is_dir() or not path.parent.is_dir()):
        raise InputError(f"--output is '{path}', must be a file in a folder that exists")
