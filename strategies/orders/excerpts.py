"""Excerpts: orders of many micro-batches without some in their middle, over which all positions repeat themselves."""

from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from itertools import chain
from operator import itemgetter
from typing import Final, NamedTuple, Self

import numpy as np

from strategies.plans.actions import Rows, StageAction

CYCLE: Final = 24
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


class Repeats(NamedTuple):
    """Rows that repeat themselves, which are so many times as long as what is held of them.

    Attributes:
        count: micro-batches of each chain.
        shortest: the rows without any micro-batches that can be left out.
    """

    count: int
    shortest: Excerpt

    @classmethod
    def of(cls, rows: Rows) -> Self | None:
        """The shortest period of rows; None where there is none that they keep to in their middle."""
        degree, (count, *others) = len(rows), {*Counter(map(itemgetter(0, 1), rows[0])).values()}
        if others:
            return None
        for period in dict.fromkeys((1, 2, degree // 2, degree)):
            if period and len(found := [*_all_repeating(rows, period)]) == degree:
                times = min(len(own) // each for own, each in found) - 1
                short = [
                    _without(row, own.start, times * each, times * period)
                    for row, (own, each) in zip(rows, found, strict=True)
                ]
                ranges = tuple([range(own.start, own.stop - times * each) for own, each in found])
                return cls(count, Excerpt(tuple(short), times * period, period, ranges))
        return None

    def excerpt(self, more: int) -> Excerpt | None:
        """The order with at least so many micro-batches of each chain more than the shortest.

        None where no more than half of them can be left out.
        """
        rows, most, period, repeating = self.shortest
        cycle = period * (CYCLE if period <= SHORT_CYCLE else SHORT_CYCLE)
        left_out = (most - more) // cycle * cycle
        if left_out < self.count / 2:
            return None
        times = (most - left_out) // period
        each = [period * len(set(map(itemgetter(0, 1), row))) for row in rows]
        longer = [
            _with(row, own.start, count, times, period)
            for row, own, count in zip(rows, repeating, each, strict=True)
        ]
        ranges = [
            range(own.start, own.stop + times * count) for own, count in zip(repeating, each, strict=True)
        ]
        return Excerpt(tuple(longer), left_out, period, tuple(ranges))


def _without(row: Sequence[StageAction], at: int, passes: int, left_out: int) -> tuple[StageAction, ...]:
    """A row without so many passes from one on, and those after them numbered on."""
    return (*row[:at], *_later(row[at + passes :], -left_out))


def _with(
    row: Sequence[StageAction], at: int, passes: int, times: int, period: int
) -> tuple[StageAction, ...]:
    """A row with so many passes from one on so many times more, and those after them numbered on."""
    more = chain.from_iterable(_later(row[at : at + passes], n * period) for n in range(times))
    return (*row[:at], *more, *_later(row[at:], times * period))


def _later(passes: Iterable[StageAction], count: int) -> Iterator[StageAction]:
    """Passes for micro-batches that come so many later."""
    return (StageAction(stage, kind, number + count) for stage, kind, number in passes)


def _all_repeating(rows: Rows, period: int) -> Iterator[tuple[range, int]]:
    """For each position the passes over which it repeats itself, and those of a period, up to one that does not."""
    for row in rows:
        found = _repeating(row, period)
        if found is None:
            return
        yield found


def _repeating(row: Sequence[StageAction], period: int) -> tuple[range, int] | None:
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
    return range(start, stop + each), each
