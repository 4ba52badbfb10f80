"""Excerpts: orders of many micro-batches without some in their middle, over which all positions repeat themselves."""

from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from itertools import chain
from operator import itemgetter
from typing import Final, NamedTuple, Self

import numpy as np

from strategies.plans.actions import Rows, StageAction

SHORT_PERIOD: Final = 2
"""Most micro-batches of a period that counts as short."""
CYCLE: Final = 24
"""Short periods are left out in multiples of this, as times may repeat themselves less often than the order does."""
CYCLE_OF_LONG_PERIODS: Final = 2
"""The same for all other periods."""


class Excerpt(NamedTuple):
    """An order without some of its micro-batches.

    Attributes:
        rows: the passes of each position, numbered as if nothing were left out.
        left_out: micro-batches of each chain that are left out.
        period: micro-batches of each chain after which rows repeat themselves.
        repeating: for each position the passes over which it does so; periods may be put in anywhere among them.
        each: for each position how many passes a period has.
    """

    rows: Rows
    left_out: int
    period: int
    repeating: tuple[range, ...]
    each: tuple[int, ...]

    def longer(self, times: int) -> "Excerpt":
        """The order with ``times`` more periods, or fewer if that is negative."""
        rows = tuple(
            [
                _longer(row, own.start, each, times, self.period)
                for row, own, each in zip(self.rows, self.repeating, self.each, strict=True)
            ]
        )
        repeating = [
            range(own.start, own.stop + times * each)
            for own, each in zip(self.repeating, self.each, strict=True)
        ]
        left_out = self.left_out - times * self.period
        return Excerpt(rows, left_out, self.period, tuple(repeating), self.each)


class Repeats(NamedTuple):
    """An order that repeats itself, of which the shortest excerpt is held.

    Attributes:
        micro_batches: of each chain.
        shortest: the order without any micro-batches that can be left out.
    """

    micro_batches: int
    shortest: Excerpt

    @classmethod
    def of(cls, rows: Rows) -> Self | None:
        """The repeats of rows; None where these do not share one period in their middle."""
        degree, (count, *others) = len(rows), {*Counter(map(itemgetter(0, 1), rows[0])).values()}
        if others:
            return None
        for period in dict.fromkeys((1, 2, degree // 2, degree)):
            if period and len(found := [*_all_repeating(rows, period)]) == degree:
                repeating, each = zip(*found, strict=True)
                times = min(len(own) // passes for own, passes in found) - 1
                return cls(count, Excerpt(rows, 0, period, repeating, each).longer(-times))
        return None

    def excerpt(self, more: int) -> Excerpt | None:
        """The order with at least so many micro-batches of each chain more than the shortest.

        None where less than half of them can be left out.
        """
        most, period = self.shortest.left_out, self.shortest.period
        cycle = period * (CYCLE if period <= SHORT_PERIOD else CYCLE_OF_LONG_PERIODS)
        left_out = (most - more) // cycle * cycle
        return (
            self.shortest.longer((most - left_out) // period) if left_out >= self.micro_batches / 2 else None
        )


def _longer(
    row: Sequence[StageAction], at: int, each: int, times: int, period: int
) -> tuple[StageAction, ...]:
    """A row in which the passes of a period, from one on, come so many times more, or less if that is negative."""
    more = chain.from_iterable(_later(row[at : at + each], n * period) for n in range(times))
    return (*row[:at], *more, *_later(row[at + max(0, -times) * each :], times * period))


def _later(passes: Iterable[StageAction], count: int) -> Iterator[StageAction]:
    """The same passes of micro-batches that come so many later."""
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
