"""Thresholds: the bound from which on a point no longer matters, by what is known of the others."""

import heapq
from bisect import bisect_right, insort
from dataclasses import dataclass, field
from itertools import accumulate
from math import inf
from typing import Any

from sim.explore.points import Point


@dataclass(slots=True)
class Threshold:
    """Results so far, and the limits they set to points not yet simulated.

    Attributes:
        objective: what is minimised.
        top: so many of the best points are to be exact.
        scores: scores by what points of equal results share.
        kth: the last score of the top; infinite where it has room.
        best_of: the best score of each strategy.
        front: bytes and seconds of the points that no other beats in both, by bytes.
    """

    objective: str
    top: int
    scores: dict[Any, float] = field(default_factory=dict)
    kth: float = inf
    best_of: dict[str, float] = field(default_factory=dict)
    front: list[tuple[float, float]] = field(default_factory=list)

    def add(self, point: Point) -> None:
        """Take note of a point that was simulated."""
        score = point.score(self.objective)
        if score == inf or point.result is None:
            return
        self.scores[point.identity] = score
        best = heapq.nsmallest(self.top, self.scores.values())
        self.kth = best[-1] if len(best) >= self.top else inf
        self.best_of[point.name] = min(self.best_of.get(point.name, inf), score)
        insort(self.front, (point.result.expected.peak_memory_bytes, point.result.expected.duration_s))
        fastest = accumulate((front_s for _, front_s in self.front), min, initial=inf)
        self.front = [item for item, before_s in zip(self.front, fastest, strict=False) if item[1] < before_s]

    def limit(self, point: Point) -> float:
        """The score from which on a point does not matter."""
        last = self._beaten_s(point) if self.objective == "pareto" else self.kth
        return max(self.best_of.get(point.name, inf), last)

    def _beaten_s(self, point: Point) -> float:
        """Seconds of the fastest point whose peak memory is at most what this one cannot do without."""
        within = bisect_right(self.front, (point.least_memory_bytes, inf))
        return self.front[within - 1][1] if within else inf
