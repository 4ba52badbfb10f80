"""The search of a sweep: points are bounded, then simulated in order of their bounds while they can still matter.

A point is left out once its bound exceeds the k-th best score, the best of its own strategy, and what may be chosen
among ties with the best; a bound never exceeds the truth, so the best of each strategy, the k best of all and the
choice are exact. For the Pareto front a point is left out when another is at least as fast as its bound, in at most the
memory that it cannot do without.

Points stand in one queue with coarse bounds, whatever their cuts, until it is their turn. Recomputation takes time, so
a point that fits needs none. When one is found to lack memory, it joins the queue with its blocks recomputed
(``block``), and, if it may fit then, with attention kept as well (``selective``), which may be faster. ``full`` is not
tried: it would hold the inputs of stages and one layer, less than any framework does.
"""

import heapq
import os
from bisect import insort
from collections.abc import Collection, Iterable, Iterator, Sequence
from concurrent.futures import Executor
from dataclasses import dataclass, field, replace
from functools import partial
from itertools import islice
from math import inf
from operator import attrgetter
from typing import Any, Final, TypeVar

from profiles.errors import DiffusimWarning, InputError, shown, warn_caller
from profiles.software.runtimes import find_runtime
from sim.explore.legality import refusal, starts
from sim.explore.points import (
    COARSE,
    FOLLOWING,
    REPLAY,
    Answer,
    Answers,
    Candidate,
    Point,
    Question,
    answer_all,
    take_answer,
)
from sim.explore.relax import BLOCK, SELECTIVE, attends_in_one
from sim.explore.store import Store
from sim.explore.sweep import SLACK, Report, Sweep, example_of
from sim.explore.workers import LENT, Workers, why_alone
from sim.outcomes.results import OUT_OF_MEMORY
from sim.replay.engine import no_collection
from strategies.parameters import check_integer

S = TypeVar("S", bound=Sweep)
SERIAL_POINTS: Final = 48
"""Fewer points than this are done before worker processes would have started."""
AT_ONCE: Final = 8
"""The most points whose bounds are one task of a worker."""


@no_collection()
def run_sweep(
    sweep: S,
    report: Report | None = None,
    workers: int | None = None,
    executor: Executor | None = None,
    store: Store | None = None,
) -> S:
    """Bound all points of a sweep, simulate those that can still matter, and return it.

    Args:
        sweep: its points are filled in as they are done; relief adds others, also where it is interrupted.
        report: called with the stage, how many points are done and how many there are.
        workers: processes, by default one per core; of an executor the tasks at once, by default 16.
        executor: does the work in place of own processes; it is left running.
        store: what it knows is not done again, and what is done is kept in it.
    """
    report = (lambda *_: None) if report is None else report
    if not callable(report):
        raise InputError(f"report is {shown(report)}, must be a function of a stage, a number and a total")
    if workers is not None:
        check_integer("workers", workers)
    if executor is not None and not isinstance(executor, Executor):
        raise InputError(f"executor is {shown(executor)}, must be a concurrent.futures.Executor")
    alone = sweep.leading is None  # else it runs beside others of its kind
    many = alone and len(sweep.points) > SERIAL_POINTS
    processes = (workers or os.cpu_count() or 1) if many else 1
    if processes > 1 and executor is None:
        strategies = {type(point.strategy): point.strategy for point in sweep.points if point.strategy}
        if why := why_alone(strategies.values()):
            warn_caller(f"one process does the sweep: {why}", DiffusimWarning)
            processes = 1
    sweep.workers = processes if executor is None else 1
    count = processes if executor is None else workers or LENT
    with Workers[Answers](sweep.scenario, count, executor) as workforce:
        queue = Queue(sweep, Cache(workforce, store))
        try:
            queue.bound(report)
            queue.simulate(report)
            if alone:
                queue.bound_nearest()
        finally:
            sweep.points = (*sweep.points, *queue.relieved())
    return sweep


class Queue:
    """Points of a sweep in their turn, by bound.

    The most promising point of each strategy matters always, and, until one that a runtime starts was simulated, all
    such points do.
    Only a point whose turn it is gets its next bounds, which take longer; then it waits for its turn again, beside
    those with relief that they may call for.
    Of equals the first of the sweep comes first, so which are simulated depends on answers alone, not on who is quick.
    """

    def __init__(self, sweep: Sweep, cache: "Cache") -> None:
        self.sweep, self.cache, self._again = sweep, cache, dict[Candidate, Point]()
        self._waiting = list[Point]()
        self._places = {id(point): place for place, point in enumerate(sweep.points)}
        self._known = {flag: Threshold(sweep.objective, sweep.top, sweep.leading) for flag in (True, False)}
        self._limits = {True: inf, False: inf}  # scores that may be chosen, by whether a runtime starts them
        for point in sweep.points:
            self._note(point)

    def bound(self, report: Report) -> None:
        """Bound all points coarsely that are not, and those with relief that these call for."""
        points = self.sweep.points
        for done, point in enumerate(points, 1):
            (self._relieve if point.answered or point.reason else self._ask)(point)
            report("bounding", done, len(points))
        self._waiting = sorted(filter(self._matters, (*points, *self._again.values())), key=self._turn)

    def _matters(self, point: Point) -> bool:
        """Return whether a point may be one of the best, or be chosen among ties with the best."""
        if point.status != "bounded":
            return False
        score = point.least_score(self.sweep.objective)
        if self.sweep.exhaustive or score < self._known[point.recommended].limit(point):
            return True
        if not point.recommended or score > self._limits[True]:
            return False
        none = self._limits[True] == inf
        return starts(point, self.sweep.scenario) or (none and score <= self._limits[False])

    def _note(self, point: Point) -> bool:
        """Take note of what a simulation gave; return whether that changes which points matter."""
        score = point.score(self.sweep.objective)
        if score == inf:
            return False
        changes = self._known[point.recommended].add(point, score)
        if point.recommended:
            runs = starts(point, self.sweep.scenario)
            limit = score * (1.0 if self.sweep.objective == "memory" else SLACK)  # memory does not tie
            changes |= limit < self._limits[runs]
            self._limits[runs] = min(self._limits[runs], limit)
        return changes

    def _turn(self, point: Point) -> tuple[float, int]:
        return point.least_score(self.sweep.objective), self._places[id(point)]

    def _ahead(self) -> Iterator[Question]:
        """Yield what may be asked next."""
        scenario = self.sweep.scenario
        for point in self._waiting[: 2 * AT_ONCE * self.cache.workers.window]:
            candidate, later = point.candidate, replace(point)
            while (kind := FOLLOWING[later.answered]) != REPLAY and (kind, candidate) in self.cache.known:
                take_answer(later, kind, self.cache.known[kind, candidate], scenario)
            if self._matters(later):
                yield kind, candidate

    def _ask(self, point: Point) -> bool:
        """Bound a point more closely, or simulate it where that is done; return whether it was simulated."""
        kind = FOLLOWING[point.answered]
        answer = self.cache.answer((kind, point.candidate), self._ahead())
        take_answer(point, kind, answer, self.sweep.scenario)
        self._relieve(point)
        return kind == REPLAY

    def _relieve(self, point: Point) -> None:
        """Let the point with relief that one calls for wait, too.

        Where memory counts, points that fit are tried again, too: what is recomputed need not be kept.
        """
        sweep, objective = self.sweep, self.sweep.objective
        lacks, fits = point.kind == OUT_OF_MEMORY, point.reason is None
        block = point.checkpointing is None and (lacks or (fits and objective in ("memory", "pareto")))
        attends = objective != "memory" and attends_in_one(sweep.scenario)
        selective = point.checkpointing == BLOCK and fits and attends
        if not sweep.relief or not (block or selective):
            return
        candidate = point.candidate._replace(checkpointing=BLOCK if block else SELECTIVE)
        other = candidate.point()
        refused = sweep.runtime and refusal(find_runtime(sweep.runtime), other, sweep.scenario)
        if candidate not in self._again and not refused:
            self._again[candidate], self._places[id(other)] = other, self._places[id(point)]
            self._ask(other)  # coarsely
            insort(self._waiting, other, key=self._turn)

    def simulate(self, report: Report) -> None:
        """Ask about points in their turn as long as they matter."""
        done = 0
        while self._waiting:
            point = self._waiting.pop(0)
            if not self._matters(point):
                continue
            if not self._ask(point):
                insort(self._waiting, point, key=self._turn)
                continue
            if self._note(point):
                self._waiting = list(filter(self._matters, self._waiting))
            done += 1
            report("simulating", done, done + len(self._waiting))

    def bound_nearest(self) -> None:
        """Bound more closely what may lack least memory, with relief or without: the verdict names it."""
        for points in (self.sweep.points, tuple(self._again.values())):
            lacking, least = [point for point in points if point.kind == OUT_OF_MEMORY], inf
            for point in sorted(lacking, key=attrgetter("needed_bytes")):
                if point.answered == COARSE and point.needed_bytes < least:
                    self._ask(point)
                least = min(least, point.needed_bytes if point.kind == OUT_OF_MEMORY else inf)

    def relieved(self) -> list[Point]:
        """Simulated points with relief; where nothing at all is feasible, the one that lacks least memory."""
        tried = sorted(self._again.values(), key=lambda point: self._places[id(point)])
        if any(point.reason is None for point in (*self.sweep.points, *tried)):
            return [point for point in tried if point.status == "simulated"]
        lacking = [point for point in tried if point.kind == OUT_OF_MEMORY]
        return [example_of(lacking, OUT_OF_MEMORY)] if lacking else []


class Cache:
    """Answers about a sweep's points: from its store, else from workers, whose answers the store keeps.

    Attributes:
        workers: they find out what is not known.
        store: knows what was found before; None where nothing is kept, or the store became full.
        known: answers that were asked for.
    """

    def __init__(self, workers: Workers[Answers], store: Store | None) -> None:
        self.workers, self.store = workers, store
        self.known: Answers = {}
        self._requested: set[Question] = set()

    def answer(self, question: Question, ahead: Iterator[Question]) -> Answer:
        """Return the answer to a question; what may be asked next is submitted ``ahead`` where workers are idle."""
        self._request([question])
        while question not in self.known:
            while self.workers.open_tasks < self.workers.window and (other := next(ahead, None)) is not None:
                more = islice(ahead, AT_ONCE - 1) if other[0] != REPLAY else ()
                self._request([other, *(one for one in more if one[0] == other[0])])
            self._keep(self.workers.finished())
        return self.known[question]

    def _request(self, questions: Sequence[Question]) -> None:
        """Have answers found out, unless they are known, to the store too, or are being found out."""
        fresh = [question for question in questions if question not in self._requested]
        self._requested.update(fresh)
        if self.store is not None:
            kept = {question: self.store.answer(*question) for question in fresh}
            self.known |= {question: answer for question, answer in kept.items() if answer is not None}
        if unknown := [question for question in fresh if question not in self.known]:
            if unknown[0][0] == COARSE:  # found sooner than sent to a worker
                self._keep([answer_all(unknown, self.workers.known)])
            else:
                self.workers.submit(partial(answer_all, unknown))

    def _keep(self, done: Iterable[Answers]) -> None:
        """Keep answers that were found out, in the store too."""
        for answers in done:
            self.known |= answers
            if self.store is not None:
                try:
                    self.store.keep(answers)
                except InputError as error:  # such as a full disk
                    warn_caller(f"{error}: what is still found is not kept", DiffusimWarning)
                    self.store = None


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

    def add(self, point: Point, score: float) -> bool:
        """Take note of the score of a point; return whether that changes a limit."""
        before = self.kth, self.best_of.get(point.name), self.front
        self.scores[point.identity] = score
        best = heapq.nsmallest(self.top, self.scores.values())
        self.kth = best[-1] if len(best) >= self.top else inf
        self.best_of[point.name] = min(self.best_of.get(point.name, inf), score)
        seconds, size = point.costs
        if self.objective == "pareto" and self._fastest_s(size) > seconds:
            self.front = [pair for pair in self.front if pair[0] < seconds or pair[1] < size] + [point.costs]
        return before != (self.kth, self.best_of[point.name], self.front)

    def limit(self, point: Point) -> float:
        """Return the score from which on a point does not matter."""
        last = self._fastest_s(point.least_memory_bytes) if self.objective == "pareto" else self.kth
        leads = self.leading is None or point.name in self.leading
        return max(self.best_of.get(point.name, inf), last) if leads else last

    def _fastest_s(self, memory_bytes: float) -> float:
        """Seconds of the fastest point whose peak memory is at most so much."""
        return min((seconds for seconds, size in self.front if size <= memory_bytes), default=inf)
