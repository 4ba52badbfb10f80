"""Pipeline bubbles: the spans in which positions of a pipeline run no compute.

Source: DiffusionPipe, section 5: a bubble is (start time, end time, idle devices), cut so that its idle
devices are the same throughout.
"""

from collections.abc import Sequence
from itertools import chain
from typing import NamedTuple

import numpy as np

# Share of the timeline. The same times added up in another order come out some 1e-13 apart; a gap of that
# size is no idle time, and must not cut the bubble of another position in two.
ROUNDING = 1e-9


class Bubble(NamedTuple):
    """A span in which the same positions, ascending, are idle."""

    start_s: float
    end_s: float
    positions: tuple[int, ...]

    @property
    def duration_s(self) -> float:
        """Length of the span in seconds."""
        return self.end_s - self.start_s


def find_bubbles(busy: Sequence[Sequence[tuple[float, float]]], end_s: float) -> list[Bubble]:
    """Cut the timeline wherever the set of idle positions changes, and return the pieces with somebody idle.

    ``busy`` is the compute of each position, sorted and without overlap. Spans of length zero count as none. Bubbles
    that are neighbours differ in their positions, or do not touch.
    """
    # Every boundary of a span flips its position between idle and busy, in whatever order equal times come.
    times_s = np.minimum(np.fromiter(chain.from_iterable(chain.from_iterable(busy)), np.float64), end_s)
    at = np.repeat(np.arange(len(busy)), [2 * len(spans) for spans in busy])
    order = np.argsort(times_s, kind="stable")
    flips = zip(times_s[order].tolist(), at[order].tolist(), strict=True)
    bubbles: list[Bubble] = []
    start_s, least_s = 0.0, ROUNDING * end_s
    idle = (1 << len(busy)) - 1  # a bit for each position
    known: dict[int, tuple[int, ...]] = {0: ()}
    for time_s, position in [*flips, (end_s, 0)]:
        if time_s - start_s > least_s:
            if idle not in known:
                known[idle] = tuple(p for p in range(len(busy)) if idle >> p & 1)
            last = bubbles[-1] if bubbles else None
            if last is not None and last.end_s == start_s and last.positions == known[idle]:
                bubbles[-1] = last._replace(end_s=time_s)  # nobody came or went between the two
            elif known[idle]:
                bubbles.append(Bubble(start_s, time_s, known[idle]))
            start_s = time_s
        idle ^= 1 << position
    return bubbles
