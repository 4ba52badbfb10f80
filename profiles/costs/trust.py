"""Trust: errors of the independent published numbers, by task, family of devices and kind of method.

``trust.csv`` is written by ``python -m validate published --trust profiles/trust.csv``.
"""

from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Final

from profiles.architectures.components import TASKS
from profiles.costs.bands import FAMILIES, FEWEST, load_bands
from profiles.costs.calibration import DOING
from profiles.errors import counted
from profiles.files import read_rows

TRUST: Final = Path(__file__).parents[1] / "trust.csv"
COLUMNS: Final = ("task", "family", "kind", "strategies", "numbers", "median_error", "worst_error")
ALONE: Final = "one GPU"
"""The kind of every method on one GPU."""
NEAREST: Final = {"train": "data parallel", "sample": ALONE}
"""By task, the kind whose numbers stand in for a method that has none: its compute is timed alike."""


@dataclass(frozen=True, slots=True)
class Trust:
    """Published times, throughputs and speedups of one kind of method, and the errors of their predictions.

    Attributes:
        task: ``train`` or ``sample``.
        family: of devices, one of ``profiles.costs.bands.FAMILIES``.
        kind: of the method, in words.
        strategies: those of the kind.
        numbers: how many of them are independent.
        median_error: median of the absolute relative errors; 0 where there are no numbers.
        worst_error: the largest of them.
        nearest: the trust in another kind, for a method without a number of its own.
    """

    task: str
    family: str
    kind: str
    strategies: tuple[str, ...] = ()
    numbers: int = 0
    median_error: float = 0.0
    worst_error: float = 0.0
    nearest: "Trust | None" = None

    @property
    def cells(self) -> tuple[str, ...]:
        """The cells of its line in the file."""
        errors = (f"{error:.4f}" for error in (self.median_error, self.worst_error))
        return self.task, self.family, self.kind, " ".join(self.strategies), f"{self.numbers}", *errors

    def __str__(self) -> str:
        kernels = f"{'with' if self.family == FAMILIES[0] else 'without'} measured kernels"
        where = f"{DOING[self.task]}, {self.kind}, on GPUs {kernels}"
        if not self.numbers:
            message = f"no independent published number ({where})"
            if near := self.nearest:
                message += f"; nearest: {counted(near.numbers, 'number')} of {near.kind}{near.errors_words}"
            return message
        return f"{counted(self.numbers, 'independent published number')} ({where}){self.errors_words}"

    @property
    def errors_words(self) -> str:
        """The errors of its numbers in words."""
        if self.numbers < FEWEST:
            return ", too few to judge by"
        return f": median error {self.median_error:.1%}, worst {self.worst_error:.0%}"


def trust_of(task: str, device: str, strategy: str, num_gpus: int, *, timed: bool = False) -> Trust | None:
    """Return the trust in predictions of a strategy on a device; None on devices that are no hardware.

    The task is ``train`` or ``sample``; ``timed`` says that the model's layers were timed on the device.
    """
    bands = load_bands()
    if device in bands.exact:
        return None
    family = bands.family(device, timed=timed)
    for one in _shipped():
        same = one.kind == ALONE if num_gpus == 1 else strategy in one.strategies and one.kind != ALONE
        if (one.task, one.family) == (task, family) and same:
            return one
    near = (one for one in _shipped() if (one.task, one.family, one.kind) == (task, family, NEAREST[task]))
    kind = ALONE if num_gpus == 1 else strategy
    return Trust(task, family, kind, nearest=None if kind == NEAREST[task] else next(near, None))


@cache
def _shipped() -> tuple[Trust, ...]:
    return tuple(read_trust(TRUST))


def read_trust(path: Path) -> list[Trust]:
    """Read the lines of a file."""
    return [
        Trust(
            row.choice("task", TASKS),
            row.choice("family", FAMILIES),
            row.text("kind"),
            tuple(row.text("strategies").split()),
            row.integer("numbers", minimum=1),
            row.number("median_error"),
            row.number("worst_error"),
        )
        for row in read_rows(path, COLUMNS)
    ]
