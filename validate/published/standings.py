"""Standings: what a published number is worth as a judge of predictions, by the entries of ``standings.toml``."""

from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum
from fnmatch import fnmatchcase
from functools import cache
from pathlib import Path
from typing import Final

from profiles.files import Table

STANDINGS: Final = Path(__file__).with_name("standings.toml")
KEYS: Final = (
    "task", "source", "item", "model", "machine", "num_gpus", "method", "method_config", "quantity", "resolution_px",
    "note",
)  # fmt: skip
"""Columns of a number that an entry may name."""


class Standing(StrEnum):
    """What becomes of a published number; each has one.

    ``INDEPENDENT``: nothing was set with the number in view. ``IN_VIEW``: a model variant, a precision, a reading or a
    constant was chosen knowing it. ``FORMULA``: it follows from its definition, and judges arithmetic alone.
    ``FITTED``: it set a constant. ``APART``: there is a prediction, but no error that could be judged: the number is a
    bound, a zero, seconds of another machine's solver, memory that ran out, or printed a second time.
    """

    INDEPENDENT = "independent"
    IN_VIEW = "in view"
    FORMULA = "formula"
    FITTED = "fitted"
    APART = "apart"
    UNCOVERED = "not covered"


Reason = tuple[Standing, str]
"""A standing and why; empty where the number is independent."""
INDEPENDENT: Final[Reason] = (Standing.INDEPENDENT, "")


@dataclass(frozen=True, slots=True)
class Entry:
    """One entry of the file: patterns of the numbers it is about, by column, and what they are."""

    patterns: tuple[tuple[str, str], ...]
    standing: Standing
    why: str

    @classmethod
    def of(cls, table: Table) -> "Entry":
        """An entry as the file has it."""
        patterns = tuple((key, table.text(key)) for key in KEYS if key in table)
        found = cls(patterns, Standing(table.choice("is", list(Standing)[1:])), table.text("why"))
        table.finish()
        return found

    def fits(self, said: Mapping[str, str]) -> bool:
        """Whether a number's columns fit all patterns."""
        return all(fnmatchcase(said[key], pattern) for key, pattern in self.patterns)


@cache
def entries() -> tuple[Entry, ...]:
    """The entries in the order of the file."""
    table = Table.read(STANDINGS)
    found = tuple(map(Entry.of, table.tables("number")))
    table.finish()
    return found


def entry_of(said: Mapping[str, str]) -> Entry | None:
    """The first entry that fits a number, given by the texts of its columns."""
    return next((entry for entry in entries() if entry.fits(said)), None)
