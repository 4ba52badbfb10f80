"""The search of a sweep: points are bounded, then simulated in order of their bounds while they can still matter.

A point is left out once its bound exceeds both the k-th best score and the best of its own strategy; a bound never
exceeds the truth, so the best of each strategy and the k best of all are exact. For the Pareto front a point is left
out when another is at least as fast as its bound, in at most the memory that it cannot do without.

Recomputation takes time, so a point that fits needs none. A point that lacks memory is bounded with its blocks
recomputed (``block``). If it may fit then, it is bounded with attention kept as well (``selective``), which may be
faster. Both stand in one queue with the points that fit without recomputation, and only what can still matter is
simulated. ``full`` is not tried: it would hold the inputs of stages and one layer, less than any framework does.
"""

import heapq
import os
from bisect import bisect_right, insort
from collections import deque
from collections.abc import Collection, Iterable, Iterator
from concurrent.futures import Executor
from dataclasses import dataclass, field
from itertools import accumulate, chain, islice
from math import inf
from typing import Any, Final

from profiles.errors import DiffusimWarning, InfeasibleError, InputError, shown, warn_caller
from profiles.software.runtimes import find_runtime
from sim.explore.answers import Answer, Answers, Bounds, Outcome, Task, take_bounds, take_outcome
from sim.explore.legality import refusal
from sim.explore.points import Asked, Point, groups
from sim.explore.relax import BLOCK, SELECTIVE, attends_in_one
from sim.explore.store import Store
from sim.explore.sweep import Report, Sweep, example_of
from sim.explore.workers import LENT, Workers
from sim.outcomes.phrases import OUT_OF_MEMORY
from sim.replay.engine import no_collection
from strategies.parameters import check_integer

SERIAL_POINTS: Final = 48
"""Fewer points than this are done before worker processes would have started."""
IN_FLIGHT: Final = 3
"""How many simulations may be in flight when a point is pruned; constant, so results do not depend on worker speed."""
UNKNOWN_IN_FLIGHT: Final = 2
"""Simulations in flight of a strategy without a result, which could rule out the others of it."""

Request = tuple[Asked, float]
"""A point, and the seconds from which on it does not matter."""


@no_collection()
def run_sweep(
    sweep: Sweep,
    report: Report = lambda stage, done, total: None,
    workers: int | None = None,
    executor: Executor | None = None,
    store: Store | None = None,
) -> None:
    """Bound all points of a sweep that are not, then simulate those that can still matter.

    Args:
        sweep: its points are filled in as they are done.
        report: told the stage, how many points are done and how many there are.
        workers: processes, by default one per core; of an executor the tasks at once, by default 16.
        executor: does the work in place of own processes; it is left running.
        store: what it knows is not done again, and what is done is kept in it.

    Raises:
        InputError: ``workers`` or ``executor`` is none, ``report`` cannot be called, or the store cannot be used.
    """
    if not callable(report):
        raise InputError(f"report is {shown(report)}, must be a function of a stage, a number and a total")
    if workers is not None:
        check_integer("workers", workers)
    if executor is not None and not isinstance(executor, Executor):
        raise InputError(f"executor is {shown(executor)}, must be a concurrent.futures.Executor")
    own = (workers or os.cpu_count() or 1) if len(sweep.points) > SERIAL_POINTS else 1
    sweep.workers = own if executor is None else 1
    count = own if executor is None else workers or LENT
    with Workers[Task](sweep.scenario, count, executor) as workforce:
        cache, again, fresh = Cache(workforce, store), list[Point](), sweep.points
        try:
            while fresh:
                _bound(sweep, [point for point in fresh if not point.reached], cache, report)
                again += [point for point in fresh if point.checkpointing is not None]
                if not (fresh := next_reliefs(sweep, again)):
                    _simulate(sweep, [*sweep.points, *again], cache, report)
                    fresh = next_reliefs(sweep, again)  # what was found to lack memory only now
        finally:
            sweep.points += [point for point in again if point.status == "simulated"] or nearest(sweep, again)
            sweep.left = [point for point in again if point.status == "bounded"]


def _bound(sweep: Sweep, points: list[Point], cache: "Cache", report: Report) -> None:
    """Bound points, together those of one degree and number of micro-batches, which share most work."""
    shared = groups(points)
    same: dict[Asked, list[Point]] = {}
    for point in chain.from_iterable(shared):
        same.setdefault(_asked(sweep, point), []).append(point)
    each = [dict.fromkeys(_asked(sweep, point) for point in group) for group in shared]
    done = 0
    for asked, bounds in cache.bounds(each, relief_at_once(sweep)):
        for point in same[asked]:
            take_bounds(point, bounds, sweep.scenario.cluster.device.memory_bytes)
            done += 1
            report("bounding", done, sum(map(len, shared)))


def _asked(sweep: Sweep, point: Point) -> Asked:
    assert point.strategy is not None
    return Asked(point.strategy, point.num_gpus or sweep.scenario.workload.num_gpus, point.checkpointing)


def _simulate(sweep: Sweep, points: list[Point], cache: "Cache", report: Report) -> None:
    """Simulate what can still matter, in order; where all is wanted, everything."""
    queue, done = _Queue(sweep, points, cache), 0
    while queue.fill():
        point, request = queue.in_flight.popleft()
        take_outcome(point, cache.outcome(request, map(queue.request, queue.promising())))
        queue.learn(point)
        done += 1
        report("simulating", done, done + len(queue))


def next_reliefs(sweep: Sweep, tried: Iterable[Point]) -> list[Point]:
    """Points of a sweep with relief that are to be tried next, by what is known of others.

    Where memory is ranked by, the points that fit are tried again, too: what is recomputed need not be kept.

    Args:
        sweep: its points are without relief, and bounded.
        tried: those with relief, bounded.
    """
    if not sweep.relief:
        return []
    by_memory = sweep.objective == "memory"

    def lack(points: Iterable[Point]) -> list[Point]:
        return [of for of in points if of.kind == OUT_OF_MEMORY or (by_memory and of.kind is None)]

    known = {(of.strategy, of.num_gpus, of.checkpointing): of for of in tried}
    blocks = [of for of in known.values() if of.checkpointing == BLOCK]
    again = {BLOCK: lack(sweep.points)}
    if not by_memory and attends_in_one(sweep.scenario):
        again[SELECTIVE] = [of for of in blocks if of.kind is None]
    fresh = [
        Point(of.strategy, of.name, num_gpus=of.num_gpus, checkpointing=checkpointing)
        for checkpointing, points in again.items()
        for of in points
        if (of.strategy, of.num_gpus, checkpointing) not in known
    ]
    if sweep.runtime is None:
        return fresh
    runtime = find_runtime(sweep.runtime)
    return [of for of in fresh if not refusal(runtime, of, sweep.scenario)]


def relief_at_once(sweep: Sweep) -> tuple[str, ...]:
    """Ways of checkpointing with which any point of a sweep that lacks memory is tried next, one after the other."""
    if sweep.runtime is not None or sweep.objective == "memory":  # which tries others, or more
        return ()
    return sweep.relief if attends_in_one(sweep.scenario) else sweep.relief[:1]


def nearest(sweep: Sweep, tried: Iterable[Point]) -> list[Point]:
    """Of points tried with relief in vain, where nothing else is feasible either, the one that lacks least."""
    if any(point.reason is None for point in sweep.points):
        return []
    short = [point for point in tried if point.kind == OUT_OF_MEMORY]
    return [example_of(short, OUT_OF_MEMORY)] if short else []


class Cache:
    """Answers of a sweep's points: from its store, else from workers, whose answers the store keeps.

    Attributes:
        workers: they simulate what is not known.
        store: knows what was found before; None where nothing is kept, or the store became full.
    """

    def __init__(self, workers: Workers[Task], store: Store | None) -> None:
        self.workers, self.store = workers, store
        self._answers: dict[Asked, Answer] = {}
        self._bounds: dict[Asked, Bounds | InfeasibleError] = {}
        self._requested: set[Asked] = set()

    def bounds(
        self, groups: Iterable[Collection[Asked]], relief: tuple[str, ...] = ()
    ) -> Iterator[tuple[Asked, Bounds | InfeasibleError]]:
        """Yield the bounds of points, in groups that have much in common, as they become known.

        Args:
            groups: the points.
            relief: recomputation with which points that lack memory are bounded right away.
        """
        tasks: list[Task] = []
        for group in groups:
            known = {asked: self._bounds.pop(asked) for asked in group if asked in self._bounds}
            if self.store is not None:
                known |= self.store.bounds([asked for asked in group if asked not in known])
            yield from known.items()
            if left := tuple(asked for asked in group if asked not in known):
                tasks.append(Task(left, relief=relief))
        for task in tasks:
            self.workers.submit(task)
        still_open = len(tasks)
        while still_open:
            for task, answers in self.workers.finished():
                self._take(task, answers)
                if task.limits_s is None:
                    still_open -= 1
                    yield from ((asked, self._bounds.pop(asked)) for asked in task.points)

    def ask(self, requests: Iterable[Request]) -> None:
        """Have points replayed, each up to a limit that no later request raises."""
        for task in self._tasks(requests):
            self.workers.submit(task)

    def outcome(self, request: Request, ahead: Iterable[Request]) -> Outcome:
        """Return how a point came out that was asked for.

        Args:
            request: as it was asked for.
            ahead: what may be needed next; submitted where workers would be idle.
        """
        (point, limit_s), workers, tasks = request, self.workers, self._tasks(ahead)
        while point not in self._answers:
            while workers.open_tasks < workers.window and (task := next(tasks, None)) is not None:
                workers.submit(task)
            for task, answers in workers.finished():
                self._take(task, answers)
        return self._answers[point].within(limit_s)

    def _is_known(self, point: Asked, limit_s: float) -> bool:
        """Whether a point is answered, by the store too, or asked for."""
        if point not in self._requested and self.store is not None:
            answer = self.store.answer(point)
            if answer is not None and answer.holds_to_s >= limit_s:
                self._answers[point] = answer
                self._requested.add(point)
        return point in self._requested

    def _tasks(self, requests: Iterable[Request]) -> Iterator[Task]:
        """Yield tasks for what is not known yet."""
        unknown = (request for request in requests if not self._is_known(*request))
        while chunk := list(islice(unknown, self.workers.chunk)):
            points, limits_s = zip(*chunk, strict=True)
            self._requested.update(points)
            yield Task(points, limits_s)

    def _take(self, task: Task, answers: Answers) -> None:
        known = dict(task.told(answers))
        if self.store is not None:
            try:
                self.store.keep(known)
            except InputError as error:  # such as a full disk
                warn_caller(f"{error}: what is still found is not kept", DiffusimWarning)
                self.store = None
        for point, answer in known.items():
            if isinstance(answer, Answer):
                self._answers[point] = answer
            else:
                self._bounds[point] = answer


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
        """Return the score from which on a point does not matter."""
        last = self._beaten_s(point) if self.objective == "pareto" else self.kth
        return max(self.best_of.get(point.name, inf), last)

    def _beaten_s(self, point: Point) -> float:
        """Seconds of the fastest point whose peak memory is at most what this one cannot do without."""
        within = bisect_right(self.front, (point.least_memory_bytes, inf))
        return self.front[within - 1][1] if within else inf


class _Queue:
    """The points that are still to be simulated: the most promising of each strategy first, then by bound.

    Attributes:
        points: by their least scores.
        in_flight: those that were asked for, in order.
        known: the thresholds of recommended points, and of the others.
    """

    def __init__(self, sweep: Sweep, points: list[Point], cache: Cache) -> None:
        self.sweep, self.cache = sweep, cache
        self.known = {flag: Threshold(sweep.objective, sweep.top) for flag in (True, False)}
        for point in points:
            self.learn(point)
        left = [point for point in points if point.status == "bounded" and self._matters(point)]
        self.points = sorted(left, key=self._score)
        leaders = {id(point) for point in {point.name: point for point in reversed(self.points)}.values()}
        self.points.sort(key=lambda point: id(point) not in leaders)
        self.in_flight = deque[tuple[Point, Request]]()

    def __len__(self) -> int:
        return len(self.points) + len(self.in_flight)

    def learn(self, point: Point) -> None:
        """Take note of how a point came out."""
        self.known[point.recommended].add(point)

    def request(self, point: Point) -> Request:
        """Return a point with the seconds from which on it does not matter."""
        by_memory = self.sweep.objective == "memory"
        limit_s = inf if by_memory else self._limit(point) / point.price(self.sweep.objective)
        return _asked(self.sweep, point), limit_s

    def fill(self) -> bool:
        """Ask for points until enough are in flight; return whether any is."""
        count = len(self.in_flight)
        while len(self.in_flight) < IN_FLIGHT and (point := next(self.promising(), None)) is not None:
            self.points = [one for one in self.points if one is not point and self._matters(one)]
            self.in_flight.append((point, self.request(point)))
        self.cache.ask(request for _, request in islice(self.in_flight, count, None))
        return bool(self.in_flight)

    def promising(self) -> Iterator[Point]:
        """Yield the points that come next, by what is known so far."""
        return (point for point in self.points if self._matters(point) and not self._waits(point))

    def _score(self, point: Point) -> float:
        return point.least_score(self.sweep.objective)

    def _limit(self, point: Point) -> float:
        return inf if self.sweep.exhaustive else self.known[point.recommended].limit(point)

    def _matters(self, point: Point) -> bool:
        return self._score(point) < self._limit(point)

    def _waits(self, point: Point) -> bool:
        """Whether others of its strategy, without a result yet, tell first how long it may take."""
        if self.sweep.exhaustive or point.name in self.known[point.recommended].best_of:
            return False
        return sum(one.name == point.name for one, _ in self.in_flight) >= UNKNOWN_IN_FLIGHT
