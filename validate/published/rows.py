"""Published numbers, as rows, and what the simulator says beside them."""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Final

from profiles.files import Row, read_rows

TRAINING: Final = Path(__file__).parent / "training.csv"
COLUMNS: Final = (
    "source",
    "item",
    "model",
    "cluster",
    "num_gpus",
    "method",
    "batch_size",
    "metric",
    "value",
    "note",
)
UNSAID: Final = "-"
"""What stands in a cell where the paper says nothing."""
ESTIMATED: Final = "estimated"
"""Provenance of layer times that the cost model gives; no model folder holds measured ones of a machine above."""


@dataclass(frozen=True, slots=True)
class Published:
    """One printed number: where it stands, what it is about, and the number.

    Attributes:
        source: the paper.
        item: table, figure or section.
        model: the model, as a folder of ``profiles/models`` where there is one.
        cluster: the machine, as a file of ``profiles/clusters`` where there is one.
        num_gpus: GPUs or devices; None where the paper does not say.
        method: what was run, or ``one/another`` where the number compares two.
        batch_size: samples of all GPUs together; None as above.
        metric: what was measured.
        value: the number, ratios as fractions, times in seconds.
        note: how the paper puts it.
    """

    source: str
    item: str
    model: str
    cluster: str
    num_gpus: int | None
    method: str
    batch_size: int | None
    metric: str
    value: float
    note: str

    @classmethod
    def of(cls, row: Row) -> "Published":
        """Return what a row of the file says."""
        return cls(
            source=row.text("source"),
            item=row.text("item"),
            model=row.text("model"),
            cluster=row.text("cluster"),
            num_gpus=_integer(row, "num_gpus"),
            method=row.text("method"),
            batch_size=_integer(row, "batch_size"),
            metric=row.text("metric"),
            value=row.number("value"),
            note=row.text("note"),
        )

    def __str__(self) -> str:
        about = (self.item, self.model, self.cluster, self.method)
        words = [word for word in about if word != UNSAID]
        words += [] if self.num_gpus is None else [f"{self.num_gpus} GPUs"]
        words += [] if self.batch_size is None else [f"batch {self.batch_size}"]
        return ", ".join(words)


def _integer(row: Row, key: str) -> int | None:
    return None if row.text(key) == UNSAID else row.integer(key, minimum=1)


@dataclass(frozen=True, slots=True)
class Prediction:
    """One published number beside a simulated one.

    Attributes:
        row: the published number.
        simulated: what the simulator says.
        setting: the choices behind it that the paper leaves open.
        fitted: what the number set, or which choice was made by it, so that it judges nothing; empty where it does.
        provenance: where the layer times are from.
    """

    row: Published
    simulated: float
    setting: str = ""
    fitted: str = ""
    provenance: str = ESTIMATED

    @property
    def words(self) -> str:
        """The setting, and what the number set."""
        return "; ".join(filter(None, (self.setting, self.fitted)))

    @property
    def relative_error(self) -> float | None:
        """Simulated over published, less one; None where the published number is 0."""
        return self.simulated / self.row.value - 1 if self.row.value else None

    @property
    def error(self) -> str:
        """The relative error in words; where the published number is a bound, whether it holds."""
        if self.row.metric.endswith("_below"):
            return "holds" if self.simulated < self.row.value else "does not hold"
        return "-" if self.relative_error is None else f"{self.relative_error:+.1%}".replace("-0.0%", "+0.0%")


@dataclass(frozen=True, slots=True)
class Section:
    """One part of the report.

    Attributes:
        title: its heading.
        header: the columns of its table.
        rows: the table's cells, in words.
        remark: one paragraph on what the numbers say; empty where they speak for themselves.
        predictions: the published numbers it covers.
    """

    title: str
    header: Sequence[str]
    rows: Sequence[Sequence[str]]
    remark: str = ""
    predictions: Sequence[Prediction] = ()

    def markdown(self) -> str:
        """Return the section as Markdown."""
        lines = [f"### {self.title}", "", _line(self.header), _line(["---"] * len(self.header))]
        lines += [_line(row) for row in self.rows]
        return "\n".join([*lines, *(["", self.remark] if self.remark else [])])


def _line(cells: Sequence[str]) -> str:
    return f"| {' | '.join(cells)} |"


@cache
def all_published() -> tuple[Published, ...]:
    """Return all published numbers of training, in the order of the file."""
    return tuple(Published.of(row) for row in read_rows(TRAINING, COLUMNS))


def published(item: str, **wanted: str | int) -> tuple[Published, ...]:
    """Return the rows of one table, figure or section whose columns have the wanted values."""
    return tuple(
        row
        for row in all_published()
        if row.item == item and all(getattr(row, key) == value for key, value in wanted.items())
    )


def the_published(item: str, **wanted: str | int) -> Published:
    """Return the only such row."""
    (row,) = published(item, **wanted)
    return row


def percent(value: float) -> str:
    """Return a share in words."""
    return f"{value:.1%}"
