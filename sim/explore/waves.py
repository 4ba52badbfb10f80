"""Waves: the points of a sweep in the order in which they are bounded and simulated.

A bound in full takes time. So points are bounded roughly at first, by the work of their busiest GPU, and in full
once they come to the head of the queue: by time or cost, whatever is simulated was bounded in full, and comes in the
order of that. By memory, and where all is simulated, rough bounds of the time stay.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping
from itertools import chain
from math import inf
from typing import TYPE_CHECKING, Final

from sim.explore.answers import take_bounds, take_outcome
from sim.explore.points import Asked, Point, groups
from sim.explore.thresholds import Threshold
from sim.explore.working.desk import Desk
from sim.explore.working.workers import WAVE

if TYPE_CHECKING:
    from sim.explore.sweep import Sweep

AHEAD: Final = 64
"""Points at the head of the queue that are bounded in full together."""
OF_EACH: Final = 16
"""Points of each strategy that are bounded in full together, to find its most promising one."""

Report = Callable[[str, int, int], None]


def bound_points(sweep: "Sweep", points: list[Point], desk: Desk, report: Report) -> None:
    """Bound points, roughly where that is enough for now; it is not for samplers where that would decide ties."""
    total = sum(map(len, groups(points)))
    stays = sweep.exhaustive or sweep.objective == "memory"
    rough = not (stays and sweep.scenario.task == "sample")
    for done, _ in enumerate(_bounded(sweep, points, desk, rough=rough), 1):
        report("bounding", done, total)


def _bounded(sweep: "Sweep", points: Iterable[Point], desk: Desk, *, rough: bool) -> Iterator[Point]:
    """Points, as they are bounded: together those of one degree and number of micro-batches, which share most work."""
    shared = groups(points)
    alike: dict[Asked, list[Point]] = {}
    for point in chain.from_iterable(shared):
        alike.setdefault(_asked(sweep, [point])[0], []).append(point)
    for asked, bounds in desk.bounds([dict.fromkeys(_asked(sweep, group)) for group in shared], rough=rough):
        for point in alike[asked]:
            take_bounds(point, bounds, sweep.scenario.cluster.device.memory_bytes)
            yield point


def _asked(sweep: "Sweep", points: Iterable[Point]) -> list[Asked]:
    gpus = sweep.scenario.workload.num_gpus
    return [Asked(p.strategy, p.num_gpus or gpus, p.checkpointing) for p in points if p.strategy is not None]


def simulate_points(sweep: "Sweep", points: list[Point], desk: Desk, report: Report) -> None:
    """Simulate what can still matter, wave by wave; where all is asked for, everything."""
    done, known = 0, {flag: Threshold(sweep.objective, sweep.top) for flag in (True, False)}
    for point in points:
        known[point.recommended].add(point)
    queue = _Queue(sweep, points, desk)
    while queue.points:
        limits = _limits(sweep, queue.points, known)
        count = queue.advance(limits)
        ahead = [point for point in queue.points[: desk.workers.reach(count)] if not queue.is_rough(point)]
        limits_s = [_limit_s(sweep, point, limits[id(point)]) for point in ahead]
        asked = list(zip(_asked(sweep, ahead), limits_s, strict=True))
        wave, total = queue.points[:count], done + len(queue.points)
        queue.points = queue.points[count:]
        for point, outcome in zip(wave, desk.outcomes(asked, count), strict=True):
            take_outcome(point, outcome)
            known[point.recommended].add(point)
            done += 1
            report("simulating", done, total)


class _Queue:
    """The points that are still to be simulated.

    The most promising point of each strategy comes first, then the others: a strategy's best rules out its own.

    Attributes:
        points: by their least scores.
    """

    def __init__(self, sweep: "Sweep", points: list[Point], desk: Desk) -> None:
        self.sweep, self.desk = sweep, desk
        self.points = [point for point in points if point.status == "bounded"]
        self._places = {id(point): place for place, point in enumerate(self.points)}
        self._leaders = set[int]()
        self._leaders.update(map(id, self._find_leaders()))

    def is_rough(self, point: Point) -> bool:
        """Whether a point is to be bounded in full before it is simulated."""
        return point.rough and not self.sweep.exhaustive and self.sweep.objective != "memory"

    def advance(self, limits: Mapping[int, float]) -> int:
        """Leave out points that no longer matter; so many of the others are next, and bounded in full."""
        while True:
            left = (p for p in self.points if p.least_score(self.sweep.objective) < limits[id(p)])
            self.points = sorted(left, key=self._rank)
            many = len(self.points)
            count = many if self.sweep.exhaustive else min(WAVE, self.sweep.top, many)
            if not any(map(self.is_rough, self.points[:count])):
                return count
            self._sharpen(self.points[:AHEAD])

    def _rank(self, point: Point) -> tuple[bool, float, int]:
        score = point.least_score(self.sweep.objective)
        return id(point) not in self._leaders, score, self._places[id(point)]

    def _find_leaders(self) -> list[Point]:
        """The most promising point of each strategy."""
        while True:
            of_each: dict[str, list[Point]] = {}
            for point in sorted(self.points, key=self._rank):
                of_each.setdefault(point.name, []).append(point)
            unsure = [own for own in of_each.values() if self.is_rough(own[0])]
            if not unsure:
                return [own[0] for own in of_each.values()]
            self._sharpen(chain.from_iterable(own[:OF_EACH] for own in unsure))

    def _sharpen(self, points: Iterable[Point]) -> None:
        """Bound those points in full that are not."""
        for _ in _bounded(self.sweep, filter(self.is_rough, points), self.desk, rough=False):
            pass
        self.points = [point for point in self.points if point.status == "bounded"]


def _limits(sweep: "Sweep", queue: list[Point], known: Mapping[bool, Threshold]) -> dict[int, float]:
    """For each point, by its id, the score from which on it does not matter; recommended points and others apart."""
    if sweep.exhaustive:
        return dict.fromkeys(map(id, queue), inf)
    return {
        key: limit
        for flag, ones in known.items()
        for key, limit in ones.limits([p for p in queue if p.recommended == flag]).items()
    }


def _limit_s(sweep: "Sweep", point: Point, limit: float) -> float:
    """The seconds from which on a point does not matter, by the score from which on it does not."""
    return inf if sweep.objective == "memory" else limit / point.price(sweep.objective)
