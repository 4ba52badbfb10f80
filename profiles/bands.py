"""Bands: how far published times lay from predicted ones, by device, stack and kind of method.

Source: ``python -m validate published --bands``, from numbers that nothing was set with in view.
"""

from dataclasses import dataclass
from fnmatch import fnmatchcase
from functools import cache
from math import inf
from pathlib import Path
from typing import Final

from profiles.components import TASKS
from profiles.errors import InputError
from profiles.files import Table

BANDS: Final = Path(__file__).with_name("bands.toml")
ANY: Final = "*"


@dataclass(frozen=True, slots=True)
class Band:
    """What predicted times are to be multiplied by so that the share ``level`` of true ones lies between.

    Attributes:
        task: ``train``, ``sample``, or ``*``: any; likewise device, stack and kind of method.
        device: name of the device.
        stack: name of the software stack.
        kind: kind of method, a key of ``strategies.kinds.KINDS``.
        low: factor on a predicted time, at most 1.
        high: factor on a predicted time, at least 1.
        level: share of true times between them.
        rows: numbers that it is from.
        sources: sources of these.
    """

    task: str
    device: str
    stack: str
    kind: str
    low: float
    high: float
    level: float
    rows: int
    sources: int

    def __post_init__(self) -> None:
        if not 0 < self.low <= 1 <= self.high < inf:
            raise InputError(f"band of {self.kind}: low({self.low}) and high({self.high}) must enclose 1")
        if not 0 < self.level < 1:
            raise InputError(f"band of {self.kind}: level is {self.level}, must be between 0 and 1")
        if self.task not in (*TASKS, ANY):
            raise InputError(
                f"band of {self.kind}: task is '{self.task}', must be one of {', '.join(TASKS)}, {ANY}"
            )

    def fits(self, *asked: str) -> bool:
        """Whether it is about a task, device, stack and kind of method."""
        return all(map(fnmatchcase, asked, (self.task, self.device, self.stack, self.kind)))


def read_bands(path: Path = BANDS) -> tuple[Band, ...]:
    """The bands of a file, the narrowest question first.

    Raises:
        InputError: a band breaks a rule, or the last is not about everything.
    """
    table = Table.read(path)
    level = table.positive("level", maximum=1.0)
    table.text("source")
    found = tuple(_band(one, level) for one in table.tables("band"))
    table.finish()
    if not found or not found[-1].fits(ANY, ANY, ANY, ANY):
        raise InputError(f"{path}: the last band must be about every task, device, stack and kind")
    return found


def _band(table: Table, level: float) -> Band:
    names = {key: table.text(key) for key in ("task", "device", "stack", "kind")}
    found = Band(
        **names,
        low=table.positive("low"),
        high=table.positive("high"),
        level=level,
        rows=table.integer("rows"),
        sources=table.integer("sources"),
    )
    table.finish()
    return found


@cache
def shipped_bands() -> tuple[Band, ...]:
    """The bands that come with the package."""
    return read_bands()


def band_of(task: str, device: str, stack: str, kind: str) -> Band:
    """The first shipped band that is about a prediction."""
    return next(band for band in shipped_bands() if band.fits(task, device, stack, kind))
