"""Pipeline bubbles: the spans in which positions of a pipeline run no compute.

Source: DiffusionPipe, section 5: a bubble is (start time, end time, idle devices), cut so that its idle
devices are the same throughout.
"""

from collections.abc import Sequence
from itertools import chain
from typing import NamedTuple

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
    # every boundary of a span flips its position between idle and busy, in whatever order equal times come
    flips = sorted((min(at, end_s), position) for position, spans in enumerate(busy) for at in chain(*spans))
    bubbles: list[Bubble] = []
    start_s, idle = 0.0, set(range(len(busy)))
    for time_s, position in [*flips, (end_s, 0)]:
        if time_s - start_s > ROUNDING * end_s:
            last, positions = bubbles[-1] if bubbles else None, tuple(sorted(idle))
            if last is not None and last.end_s == start_s and last.positions == positions:
                bubbles[-1] = last._replace(end_s=time_s)  # nobody came or went between the two
            elif positions:
                bubbles.append(Bubble(start_s, time_s, positions))
            start_s = time_s
        idle ^= {position}
    return bubbles
