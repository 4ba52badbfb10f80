"""The search of a sweep: points are bounded, then simulated in order of their bounds while they can still matter.

A point is left out once its bound exceeds both the k-th best score and the best of its own strategy; a bound never
exceeds the truth, so the best of each strategy and the k best of all are exact. Then what may be chosen among ties is
simulated, until the choice is exact, too. For the Pareto front a point is left
out when another is at least as fast as its bound, in at most the memory that it cannot do without.

Recomputation takes time, so a point that fits needs none. A point that lacks memory is bounded with its blocks
recomputed (``block``). If it may fit then, it is bounded with attention kept as well (``selective``), which may be
faster. Both stand in one queue with the points that fit without recomputation, with coarse bounds whatever the cuts
until it is their turn, and only what can still matter is simulated. ``full`` is not tried: it would hold the inputs of
stages and one layer, less than any framework does.
"""

import heapq
import os
from bisect import insort
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from concurrent.futures import Executor
from dataclasses import dataclass, field, replace
from functools import partial
from itertools import chain
from math import inf
from typing import Any, Final, TypeVar

from profiles.errors import DiffusimWarning, InputError, shown, warn_caller
from profiles.software.runtimes import find_runtime
from sim.explore.answers import BOUNDS, COARSE, FOLLOWING, REPLAY, Answer, Answers, answer_all, take_answer
from sim.explore.choices import SLACK, choose, contender, may_start
from sim.explore.legality import refusal
from sim.explore.points import Candidate, Point, groups
from sim.explore.relax import BLOCK, SELECTIVE, attends_in_one
from sim.explore.store import Store
from sim.explore.sweep import Report, Sweep, example_of
from sim.explore.workers import LENT, Workers, why_alone
from sim.outcomes.results import OUT_OF_MEMORY
from sim.replay.engine import no_collection
from strategies.parameters import check_integer

S = TypeVar("S", bound=Sweep)
SERIAL_POINTS: Final = 48
"""Fewer points than this are done before worker processes would have started."""


@no_collection()
def run_sweep(
    sweep: S,
    report: Report | None = None,
    workers: int | None = None,
    executor: Executor | None = None,
    store: Store | None = None,
    *,
    reached: Callable[[S], object] = lambda _: None,
) -> S:
    """Return a sweep with all its points bounded, and those simulated that can still matter.

    Args:
        sweep: its points are filled in as they are done; relief adds others to what is returned.
        report: called with the stage, how many points are done and how many there are.
        workers: processes, by default one per core; of an executor the tasks at once, by default 16.
        executor: does the work in place of own processes; it is left running.
        store: what it knows is not done again, and what is done is kept in it.
        reached: called with the sweep as it ends, also where it is interrupted.
    """
    report = (lambda *_: None) if report is None else report
    if not callable(report):
        raise InputError(f"report is {shown(report)}, must be a function of a stage, a number and a total")
    if workers is not None:
        check_integer("workers", workers)
    if executor is not None and not isinstance(executor, Executor):
        raise InputError(f"executor is {shown(executor)}, must be a concurrent.futures.Executor")
    processes = (workers or os.cpu_count() or 1) if len(sweep.points) > SERIAL_POINTS else 1
    if processes > 1 and executor is None:
        strategies = {type(point.strategy): point.strategy for point in sweep.points if point.strategy}
        if why := why_alone(strategies.values()):
            warn_caller(f"one process does the sweep: {why}", DiffusimWarning)
            processes = 1
    sweep = replace(sweep, workers=processes if executor is None else 1)
    count = processes if executor is None else workers or LENT
    late = sweep.leading is not None  # beside others of its kind
    with Workers[tuple[str, Answers]](sweep.scenario, count, executor, late=late) as workforce:
        cache, again = Cache(workforce, store), list[Point]()
        if sweep.relief:  # what is known of points with relief is not asked again
            again = [point for point in sweep.points if point.checkpointing is not None]
            plain = tuple(point for point in sweep.points if point.checkpointing is None)
            sweep = replace(sweep, points=plain)
        fresh, timed = [*sweep.points], sweep.objective not in ("memory", "pareto")
        try:
            while fresh:
                coarse = timed and (sweep.leading is not None or bool(fresh[0].checkpointing))
                unknown = [point for point in fresh if not point.reached]
                _bound(sweep, unknown, cache, report, COARSE if coarse else BOUNDS)
                again += [point for point in fresh if point.checkpointing is not None]
                if not (fresh := next_reliefs(sweep, again)):
                    _simulate(sweep, [*sweep.points, *again], cache, report)
                    fresh = next_reliefs(sweep, again)  # what was found to lack memory only now
        finally:
            relieved = [point for point in again if point.status == "simulated"] or nearest(sweep, again)
            sweep = replace(sweep, points=(*sweep.points, *relieved))
            reached(sweep)
    return sweep


def _bound(sweep: Sweep, points: list[Point], cache: "Cache", report: Report, kind: str) -> None:
    """Bound points, together those of one degree and number of micro-batches, which share most work."""
    shared = groups(points)
    same: dict[Candidate, list[Point]] = {}
    for point in chain.from_iterable(shared):
        same.setdefault(point.candidate(sweep.scenario), []).append(point)
    each = [tuple(dict.fromkeys(point.candidate(sweep.scenario) for point in group)) for group in shared]
    done = 0
    for candidate, bounds in cache.bounds(kind, each):
        for point in same[candidate]:
            take_answer(point, kind, bounds, sweep.scenario)
            done += 1
            report("bounding", done, sum(map(len, shared)))


def _simulate(sweep: Sweep, points: list[Point], cache: "Cache", report: Report) -> None:
    """Simulate what can still matter: the most promising point of each strategy, then by bound.

    Until one that a runtime starts was simulated, all such points matter, since those come first.
    Only a point whose turn it is gets its next bounds, which take longer; then it waits for its turn again.
    Which points are simulated depends on the answers about those before them alone, not on who is quick.
    """
    known = {flag: Threshold(sweep.objective, sweep.top, sweep.leading) for flag in (True, False)}
    led = {point.name for point in points if point.status == "simulated"}
    if sweep.leading is not None:
        led |= {point.name for point in points} - set(sweep.leading)
    done = 0
    started = any(point.status == "simulated" and may_start(point, sweep.scenario) for point in points)

    def matters(point: Point) -> bool:
        always = sweep.exhaustive or (not started and may_start(point, sweep.scenario))
        limit = inf if always else known[point.recommended].limit(point)
        return point.status == "bounded" and point.least_score(sweep.objective) < limit

    def turn(point: Point) -> tuple[bool, float]:
        return point.name in led, point.least_score(sweep.objective)

    def ahead() -> Iterator[Question]:
        for point in waiting[: 2 * cache.workers.window]:
            candidate, later = point.candidate(sweep.scenario), replace(point)
            while (kind := FOLLOWING[later.answered]) != REPLAY and (kind, candidate) in cache.known:
                take_answer(later, kind, cache.known[kind, candidate], sweep.scenario)
            if matters(later):
                yield kind, candidate

    def simulate(point: Point) -> bool:
        """Bound a point more closely, or simulate it where that is done; return whether it was simulated."""
        kind = FOLLOWING[point.answered]
        answer = cache.answer((kind, point.candidate(sweep.scenario)), ahead())
        take_answer(point, kind, answer, sweep.scenario)
        return kind == REPLAY

    for point in points:
        known[point.recommended].add(point)
    waiting = sorted(filter(matters, points), key=turn)
    while waiting:
        point = waiting.pop(0)
        if not matters(point):
            continue
        if not simulate(point):
            insort(waiting, point, key=turn)
            continue
        starts = not started and point.status == "simulated" and may_start(point, sweep.scenario)
        if known[point.recommended].add(point) or starts or point.name not in led:
            led.add(point.name)
            started |= starts
            waiting = sorted(filter(matters, waiting), key=turn)
        done += 1
        report("simulating", done, done + len(waiting))
    if (choice := choose(points, sweep.scenario, sweep.objective)) is not None:
        worst = SLACK * choice.best.score(sweep.objective)
        points = [of for of in points if of.result is not None or of.least_score(sweep.objective) <= worst]
    while (chosen := contender(points, sweep.scenario, sweep.objective)) is not None:
        simulate(chosen)


def next_reliefs(sweep: Sweep, tried: Iterable[Point]) -> list[Point]:
    """Points of a sweep with relief that are to be tried next, by what is known of others.

    Where memory is ranked by, the points that fit are tried again, too: what is recomputed need not be kept.
    The points of the sweep are without relief; those ``tried`` are with it. All are bounded.
    """
    if not sweep.relief:
        return []
    by_memory = sweep.objective == "memory"

    def lack(points: Iterable[Point]) -> list[Point]:
        return [of for of in points if of.kind == OUT_OF_MEMORY or (by_memory and of.kind is None)]

    known = {of.candidate(sweep.scenario): of for of in tried}
    blocks = [of for of in known.values() if of.checkpointing == BLOCK]
    again = {BLOCK: lack(sweep.points)}
    if not by_memory and attends_in_one(sweep.scenario):
        again[SELECTIVE] = [of for of in blocks if of.kind is None]
    candidates = (
        of.candidate(sweep.scenario)._replace(checkpointing=checkpointing)
        for checkpointing, points in again.items()
        for of in points
    )
    fresh = [candidate.point() for candidate in candidates if candidate not in known]
    if sweep.runtime is None:
        return fresh
    return [of for of in fresh if not refusal(find_runtime(sweep.runtime), of, sweep.scenario)]


def nearest(sweep: Sweep, tried: Iterable[Point]) -> list[Point]:
    """Return the point tried with relief that lacks least, where nothing at all is feasible."""
    if any(point.reason is None for point in sweep.points):
        return []
    short = [point for point in tried if point.kind == OUT_OF_MEMORY]
    return [example_of(short, OUT_OF_MEMORY)] if short else []


Question = tuple[str, Candidate]
"""A kind of answer, and the point that is asked about."""


class Cache:
    """Answers about a sweep's points: from its store, else from workers, whose answers the store keeps.

    Attributes:
        workers: they find out what is not known.
        store: knows what was found before; None where nothing is kept, or the store became full.
        known: answers that were asked for.
    """

    def __init__(self, workers: Workers[tuple[str, Answers]], store: Store | None) -> None:
        self.workers, self.store = workers, store
        self.known: dict[Question, Answer] = {}
        self._requested: set[Question] = set()

    def bounds(self, kind: str, groups: Sequence[Sequence[Candidate]]) -> Iterator[tuple[Candidate, Answer]]:
        """Yield bounds of a kind of all points as they become known; a group is one task."""
        for group in groups:
            self._request(kind, group)
        points = dict.fromkeys(candidate for group in groups for candidate in group)
        answered = [candidate for candidate in points if (kind, candidate) in self.known]
        yield from ((candidate, self.known[kind, candidate]) for candidate in answered)
        awaited = points.keys() - answered
        while awaited:
            for of, answers in self._finished():
                if of == kind:  # not of points that were simulated ahead
                    awaited -= answers.keys()
                    yield from answers.items()

    def answer(self, question: Question, ahead: Iterator[Question]) -> Answer:
        """Return the answer to a question; what may be asked next is submitted ``ahead`` where workers are idle."""
        self._request(question[0], question[1:])
        while question not in self.known:
            while self.workers.open_tasks < self.workers.window and (other := next(ahead, None)) is not None:
                self._request(other[0], other[1:])
            self._finished()
        return self.known[question]

    def _request(self, kind: str, candidates: Sequence[Candidate]) -> None:
        """Have answers found out, unless they are known, to the store too, or are being found out."""
        fresh = [candidate for candidate in candidates if (kind, candidate) not in self._requested]
        self._requested.update((kind, candidate) for candidate in fresh)
        if self.store is not None:
            kept = {(kind, candidate): self.store.answer(kind, candidate) for candidate in fresh}
            self.known |= {question: answer for question, answer in kept.items() if answer is not None}
        if unknown := tuple(candidate for candidate in fresh if (kind, candidate) not in self.known):
            self.workers.submit(partial(answer_all, kind, unknown))

    def _finished(self) -> list[tuple[str, Answers]]:
        """Wait for workers, and return the answers that they found; they are kept."""
        done = self.workers.finished()
        for kind, answers in done:
            self.known |= {(kind, candidate): answer for candidate, answer in answers.items()}
            if self.store is not None:
                try:
                    self.store.keep(kind, answers)
                except InputError as error:  # such as a full disk
                    warn_caller(f"{error}: what is still found is not kept", DiffusimWarning)
                    self.store = None
        return done


@dataclass(slots=True)
class Threshold:
    """Results so far, and the limits they set to points not yet simulated.

    Attributes:
        top: so many of the best points are to be exact.
        leading: strategies whose best is to be exact, too; None: all.
        scores: scores by what points of equal results share.
        kth: the last score of the top; infinite where it has room.
        best_of: the best score of each strategy.
        front: seconds and bytes of the points that no other beats in both.
    """

    objective: str
    top: int
    leading: Collection[str] | None = None
    scores: dict[Any, float] = field(default_factory=dict)
    kth: float = inf
    best_of: dict[str, float] = field(default_factory=dict)
    front: list[tuple[float, float]] = field(default_factory=list)

    def add(self, point: Point) -> bool:
        """Take note of a point that was simulated; return whether that changes a limit."""
        score = point.score(self.objective)
        if score == inf:
            return False
        before = self.kth, self.best_of.get(point.name), self.front
        self.scores[point.identity] = score
        best = heapq.nsmallest(self.top, self.scores.values())
        self.kth = best[-1] if len(best) >= self.top else inf
        self.best_of[point.name] = min(self.best_of.get(point.name, inf), score)
        seconds, size = point.costs
        if self.objective == "pareto" and self._fastest_s(size) > seconds:
            self.front = [of for of in self.front if of[0] < seconds or of[1] < size] + [point.costs]
        return before != (self.kth, self.best_of[point.name], self.front)

    def limit(self, point: Point) -> float:
        """Return the score from which on a point does not matter."""
        last = self._fastest_s(point.least_memory_bytes) if self.objective == "pareto" else self.kth
        leads = self.leading is None or point.name in self.leading
        return max(self.best_of.get(point.name, inf), last) if leads else last

    def _fastest_s(self, memory_bytes: float) -> float:
        """Seconds of the fastest point whose peak memory is at most so much."""
        return min((seconds for seconds, size in self.front if size <= memory_bytes), default=inf)
