"""The queue: the points of a sweep in the order in which they are bounded and simulated.

A bound in full takes time. So points are bounded roughly at first, by the work of their busiest GPU, and in full
once they come to the head of the queue: by time or cost, whatever is simulated was bounded in full, and comes in the
order of that. By memory, and where all is simulated, rough bounds of the time stay.
"""

from collections import deque
from collections.abc import Callable, Iterable, Iterator
from itertools import chain, islice
from math import inf
from typing import TYPE_CHECKING, Final

from sim.explore.answers import take_bounds, take_outcome
from sim.explore.points import Asked, Point, groups
from sim.explore.relief import relief_at_once
from sim.explore.thresholds import Threshold
from sim.explore.working.desk import Desk, Limited, alike

if TYPE_CHECKING:
    from sim.explore.sweep import Sweep

LAG: Final = 3
"""Places between a point and the last whose outcome decides on it; fixed, so that no result depends on who is quick."""
UNSURE: Final = 2
"""Places under way of a strategy of which no result is known, so that nothing of it is ruled out."""
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
    for done, _ in enumerate(_bounded(sweep, points, desk, rough=rough, relief=relief_at_once(sweep)), 1):
        report("bounding", done, total)


def _bounded(
    sweep: "Sweep", points: Iterable[Point], desk: Desk, *, rough: bool, relief: tuple[str, ...] = ()
) -> Iterator[Point]:
    """Points, as they are bounded: together those of one degree and number of micro-batches, which share most work."""
    shared = groups(points)
    same: dict[Asked, list[Point]] = {}
    for point in chain.from_iterable(shared):
        same.setdefault(_asked(sweep, [point])[0], []).append(point)
    each = [dict.fromkeys(_asked(sweep, group)) for group in shared]
    for asked, bounds in desk.bounds(each, rough=rough, relief=relief):
        for point in same[asked]:
            take_bounds(point, bounds, sweep.scenario.cluster.device.memory_bytes)
            yield point


def _asked(sweep: "Sweep", points: Iterable[Point]) -> list[Asked]:
    gpus = sweep.scenario.workload.num_gpus
    return [Asked(p.strategy, p.num_gpus or gpus, p.checkpointing) for p in points if p.strategy is not None]


def simulate_points(sweep: "Sweep", points: list[Point], desk: Desk, report: Report) -> None:
    """Simulate what can still matter, in order; where all is asked for, everything.

    Each point is decided on as soon as those are known that were decided on ``LAG`` places before it.
    """
    queue, done = _Queue(sweep, points, desk), 0
    while queue.fill():
        for point, request in queue.under_way.popleft():
            take_outcome(point, desk.outcome(request, ahead=map(queue.request, queue.promising())))
            queue.learn(point)
            done += 1
            report("simulating", done, done + len(queue))


class _Queue:
    """The points that are still to be simulated.

    The most promising point of each strategy comes first, then the others: a strategy's best rules out its own.

    Attributes:
        points: by their least scores.
        under_way: those that were asked about, in the order in which they were decided on; together what shares work.
        known: what limits the recommended points set to each other, and the others.
    """

    def __init__(self, sweep: "Sweep", points: list[Point], desk: Desk) -> None:
        self.sweep, self.desk = sweep, desk
        self.known = {flag: Threshold(sweep.objective, sweep.top) for flag in (True, False)}
        for point in points:
            self.learn(point)
        self.points = [point for point in points if point.status == "bounded" and self._matters(point)]
        self.under_way = deque[list[tuple[Point, Limited]]]()
        self._places = {id(point): place for place, point in enumerate(self.points)}
        self._leaders = set[int]()
        self._leaders.update(map(id, self._find_leaders()))
        self.points.sort(key=self._rank)

    def __len__(self) -> int:
        return len(self.points) + sum(map(len, self.under_way))

    def learn(self, point: Point) -> None:
        """Take note of how a point came out."""
        self.known[point.recommended].add(point)

    def request(self, point: Point) -> Limited:
        """What to ask about a point: the seconds from which on it does not matter, by the score."""
        (asked,), score = _asked(self.sweep, [point]), self._limit(point)
        by_memory = self.sweep.objective == "memory"
        return asked, inf if by_memory else score / point.price(self.sweep.objective)

    def fill(self) -> bool:
        """Decide on points until enough are under way, and ask about them; whether there are any."""
        count = len(self.under_way)
        while len(self.under_way) < LAG and (points := self._next()):
            self.under_way.append([(point, self.request(point)) for point in points])
        fresh = chain.from_iterable(islice(self.under_way, count, None))
        self.desk.ask(request for _, request in fresh)
        return bool(self.under_way)

    def _next(self) -> list[Point]:
        """Take out the first point that matters and need not wait, bounded in full, and those that share its replay."""
        place = 0
        while place < len(self.points):
            point = self.points[place]
            if not self._matters(point):
                del self.points[place]
            elif self._waits(point):
                place += 1
            elif self._is_rough(point):
                self._sharpen(self.points[:AHEAD])
                self.points = sorted(filter(self._matters, self.points), key=self._rank)
                place = 0
            else:
                return self._taken(place)
        return []

    def _taken(self, place: int) -> list[Point]:
        """The point at a place, and those right behind it that replay one plan first; they leave the queue."""
        first, taken = self._plan(self.points[place]), list[Point]()
        for point in islice(self.points, place, None):
            if self._plan(point) != first or self._is_rough(point) or not self._matters(point):
                break
            taken.append(point)
        del self.points[place : place + len(taken)]
        return taken

    def _plan(self, point: Point) -> Asked:
        """What is replayed first of a point."""
        return alike(_asked(self.sweep, [point])[0])

    def promising(self) -> Iterator[Point]:
        """The points that come next, by what is known so far."""
        return (p for p in self.points if self._matters(p) and not self._waits(p) and not self._is_rough(p))

    def _limit(self, point: Point) -> float:
        """The score from which on a point does not matter; recommended points and others apart."""
        return inf if self.sweep.exhaustive else self.known[point.recommended].limit(point)

    def _matters(self, point: Point) -> bool:
        return point.least_score(self.sweep.objective) < self._limit(point)

    def _waits(self, point: Point) -> bool:
        """Whether others of its strategy, of which nothing is known that fits, tell first how long it may take."""
        if self.sweep.exhaustive or point.name in self.known[point.recommended].best_of:
            return False
        return sum(ones[0][0].name == point.name for ones in self.under_way) >= UNSURE

    def _is_rough(self, point: Point) -> bool:
        """Whether a point is to be bounded in full before it is simulated."""
        return point.rough and not self.sweep.exhaustive and self.sweep.objective != "memory"

    def _rank(self, point: Point) -> tuple[bool, float, int]:
        score = point.least_score(self.sweep.objective)
        return id(point) not in self._leaders, score, self._places[id(point)]

    def _find_leaders(self) -> list[Point]:
        """The most promising point of each strategy."""
        while True:
            of_each: dict[str, list[Point]] = {}
            for point in sorted(self.points, key=self._rank):
                of_each.setdefault(point.name, []).append(point)
            unsure = [own for own in of_each.values() if self._is_rough(own[0])]
            if not unsure:
                return [own[0] for own in of_each.values()]
            self._sharpen(chain.from_iterable(own[:OF_EACH] for own in unsure))

    def _sharpen(self, points: Iterable[Point]) -> None:
        """Bound those points in full that are not."""
        for _ in _bounded(self.sweep, filter(self._is_rough, points), self.desk, rough=False):
            pass
        self.points = [point for point in self.points if point.status == "bounded"]
