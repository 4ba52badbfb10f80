"""Trust: errors of the independent published numbers, by task, family of devices and kind of method.

``trust.csv``, and ``misses.csv`` of each model's own, are written by ``python -m validate published --trust
profiles/trust.csv``. Pace and scaling are told
apart: a source that prints a run on one GPU, or within one node, says how fast compute is; what it prints beyond says
how the method scales, whatever the pace.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Final

from profiles.architectures.components import TASKS
from profiles.costs.bands import FAMILIES, FEWEST, load_bands
from profiles.errors import counted
from profiles.files import Row, read_rows

TRUST: Final = Path(__file__).parents[1] / "trust.csv"
COLUMNS: Final = (
    "task", "family", "kind", "strategies", "sources", "models", "sizes", "pace_numbers", "pace_median", "pace_worst",
    "scaling_numbers", "scaling_median", "scaling_worst",
)  # fmt: skip
MISSES: Final = TRUST.with_name("misses.csv")
OWN: Final = ("task", "model", "device", "numbers", "low", "high")
"""Columns of a model's own numbers: estimated over published times, the least and the largest."""
ALONE: Final = "one GPU"
"""The kind of every method on one GPU."""
NEAREST: Final = {"train": "data parallel", "sample": ALONE}
"""By task, the kind whose numbers stand in for a method that has none: its compute is timed alike."""
FEW: Final = 3
"""Most names that a line spells out."""


@dataclass(frozen=True, slots=True)
class Errors:
    """Absolute relative errors: how many, their median, and the largest; 0 where there are none."""

    numbers: int = 0
    median: float = 0.0
    worst: float = 0.0

    def __str__(self) -> str:
        return f"median error {self.median:.1%}, worst {self.worst:.0%}"


@dataclass(frozen=True, slots=True)
class Trust:
    """Published times, throughputs and speedups of one kind of method, and the errors of their predictions.

    Attributes:
        task: ``train`` or ``sample``.
        family: of devices, one of ``profiles.costs.bands.FAMILIES``.
        kind: of the method, in words.
        strategies: those of the kind.
        sources: authors of its independent numbers.
        models: those that they ran.
        sizes: pixels of their images or videos.
        pace: errors of times of which the source set nothing.
        scaling: errors left once the same source's run on one GPU, or within one node, sets the pace; of speedups over
            another method.
        nearest: the trust in another kind, for a method without a number of its own.
    """

    task: str
    family: str
    kind: str
    strategies: tuple[str, ...] = ()
    sources: tuple[str, ...] = ()
    models: tuple[str, ...] = ()
    sizes: tuple[str, ...] = ()
    pace: Errors = Errors()
    scaling: Errors = Errors()
    nearest: "Trust | None" = None

    def __str__(self) -> str:
        if self.sources and max(self.pace.numbers, self.scaling.numbers) < FEWEST:
            return f"{self.kind}: not validated: {self.words}"
        if self.sources:
            return f"{self.kind}: {self.words}"
        command = {"train": "run", "sample": "latency"}[self.task]
        message = f"not validated: no published {command} of {self.kind} on such GPUs to compare with"
        return f"{message}; {self.nearest.kind}: {self.nearest.words}" if self.nearest else message

    @property
    def words(self) -> str:
        """Sources, models, sizes and errors in words."""
        sizes = f" at {_sizes(self.sizes)}" if self.sizes else ""
        parts = {"times": self.pace, "scaling": self.scaling}
        numbers = counted(sum(errors.numbers for errors in parts.values()), "published number")
        known = f"{numbers} from {counted(len(self.sources), 'source')} ({_few(self.models, 'model')}{sizes})"
        told = [f"{name}: {errors}" for name, errors in parts.items() if errors.numbers >= FEWEST]
        return "; ".join([known, *(told or ["too few to say how far off such estimates are"])])


def _few(names: Sequence[str], word: str) -> str:
    return ", ".join(names) if len(names) <= FEW else counted(len(names), word)


def _sizes(sizes: Sequence[str]) -> str:
    """Sizes in words: the least and the largest where all are sides of squares."""
    if not all(size.isdigit() for size in sizes):
        return _few(sizes, "size")
    sides = sorted(map(int, sizes))
    return f"{sides[0]} px" if len(sides) == 1 else f"{sides[0]} to {sides[-1]} px"


def trust_of(task: str, device: str, strategy: str, num_gpus: int, *, timed: bool = False) -> Trust | None:
    """Return the trust in predictions of a strategy on a device; None on devices that are no hardware.

    The task is ``train`` or ``sample``; ``timed`` says that the model's layers were timed on the device.
    """
    bands = load_bands()
    if device in bands.exact:
        return None
    family = bands.family(device, timed=timed)
    for one in read_trust():
        same = one.kind == ALONE if num_gpus == 1 else strategy in one.strategies and one.kind != ALONE
        if (one.task, one.family) == (task, family) and same:
            return one
    near = (one for one in read_trust() if (one.task, one.family, one.kind) == (task, family, NEAREST[task]))
    kind = ALONE if num_gpus == 1 else strategy
    return Trust(task, family, kind, nearest=None if kind == NEAREST[task] else next(near, None))


@cache
def own_misses(task: str, model: str, device: str) -> str:
    """Return the errors of the published numbers of a model itself in words, those on a device first; empty without."""
    rows = [row for row in read_rows(MISSES, OWN) if row.cells(OWN[:2]) == (task, model)]
    rows.sort(key=lambda row: row.text("device") != device)
    told = []
    for row in rows:
        ends = dict.fromkeys(f"{round(row.number(end) - 1, 2) + 0.0:+.0%}" for end in OWN[-2:])
        told.append(f"{' to '.join(ends)} on {row.text('device')} ({row.integer('numbers')})")
    return f"{model} itself, our time over the published, by device: {', '.join(told)}" if told else ""


@cache
def read_trust(path: Path = TRUST) -> tuple[Trust, ...]:
    """Read the lines of a file."""
    return tuple(map(_trust, read_rows(path, COLUMNS)))


def _trust(row: Row) -> Trust:
    strategies, sources, models, sizes = (tuple(cell.split()) for cell in row.cells(COLUMNS[3:7]))
    pace, scaling = (
        Errors(
            row.integer(f"{part}_numbers"), *(row.number(f"{part}_{name}") for name in ("median", "worst"))
        )
        for part in ("pace", "scaling")
    )
    subject = row.choice("task", TASKS), row.choice("family", FAMILIES), row.text("kind")
    return Trust(*subject, strategies, sources, models, sizes, pace, scaling)
