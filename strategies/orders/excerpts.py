"""Excerpts: orders of many micro-batches without some in their middle, over which all positions repeat themselves."""

from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from operator import itemgetter
from typing import Final, NamedTuple, Self

import numpy as np

from strategies.plans.actions import Rows, StageAction

CYCLE: Final = 12
"""Periods of an order of which as many are left out as a multiple of this, so that times may repeat less often."""
SHORT_CYCLE: Final = 2
"""The same where a period is as many micro-batches as there are positions."""


class Excerpt(NamedTuple):
    """An order without some of its micro-batches.

    Attributes:
        rows: the passes of each position, numbered as if nothing were left out.
        left_out: micro-batches of each chain that are left out.
        period: micro-batches of each chain after which rows repeat themselves.
        repeating: for each position the passes over which it does so; what is left out may come at any place of them.
    """

    rows: Rows
    left_out: int
    period: int
    repeating: tuple[range, ...]


@dataclass(frozen=True, slots=True)
class Repeats:
    """Rows that repeat themselves.

    Attributes:
        rows: the passes of each position.
        count: micro-batches of each chain.
        period: micro-batches of each chain after which they do.
        repeating: for each position the passes over which it does.
    """

    rows: Rows
    count: int
    period: int
    repeating: tuple[range, ...]

    @classmethod
    def of(cls, rows: Rows) -> Self | None:
        """The shortest period of rows; None where there is none that they keep to in their middle."""
        degree = len(rows)
        for period in dict.fromkeys((1, 2, degree // 2, degree)):
            if period and (found := [*_all_repeating(rows, period)]) and len(found) == degree:
                (count,) = set(Counter(map(itemgetter(0, 1), rows[0])).values())
                return cls(rows, count, period, tuple(found))
        return None

    def excerpt(self, kept: int) -> Excerpt | None:
        """The order of at least so many of the micro-batches of each chain; None where few can be left out.

        Args:
            kept: micro-batches of each chain.
        """
        cycle = self.period * (CYCLE if self.period <= SHORT_CYCLE else SHORT_CYCLE)
        passes = [len(set(map(itemgetter(0, 1), row))) for row in self.rows]
        there = (len(own) // each - self.period for own, each in zip(self.repeating, passes, strict=True))
        left_out = min(self.count - kept, *there) // cycle * cycle
        if left_out < self.count / 2:
            return None
        parts = zip(self.rows, self.repeating, passes, strict=True)
        rows = tuple([_without(row, own.start, left_out * each, left_out) for row, own, each in parts])
        parts = zip(self.rows, self.repeating, passes, strict=True)
        repeating = tuple([range(own.start, own.stop - left_out * each) for _, own, each in parts])
        return Excerpt(rows, left_out, self.period, repeating)


def _without(row: Sequence[StageAction], at: int, passes: int, left_out: int) -> tuple[StageAction, ...]:
    """A row without so many passes from one on, those after them numbered on."""
    after = (StageAction(stage, kind, number - left_out) for stage, kind, number in row[at + passes :])
    return (*row[:at], *after)


def _all_repeating(rows: Rows, period: int) -> Iterator[range]:
    """For each position the passes over which it repeats itself; it ends at the first that does not."""
    for row in rows:
        found = _repeating(row, period)
        if found is None:
            return
        yield found


def _repeating(row: Sequence[StageAction], period: int) -> range | None:
    """The passes about the middle of a row after each of which, a period on, comes the same one of a later micro-batch.

    None where the one in the middle is not among them, or where not every pass of a stage is in each period.
    """
    looks = [*map(itemgetter(0, 1), row)]
    codes = {look: code for code, look in enumerate(dict.fromkeys(looks))}
    each, middle = period * len(codes), len(row) // 2
    kinds = np.fromiter(map(codes.__getitem__, looks), np.int64, len(row))
    numbers = np.fromiter(map(itemgetter(2), row), np.int64, len(row))
    differs = np.flatnonzero((kinds[each:] != kinds[:-each]) | (numbers[each:] != numbers[:-each] + period))
    at = np.searchsorted(differs, middle)
    start = int(differs[at - 1]) + 1 if at else 0
    stop = int(differs[at]) if at < len(differs) else len(row) - each
    if not start <= middle < stop or set(Counter(looks[start : start + each]).values()) != {period}:
        return None
    return range(start, stop + each)
