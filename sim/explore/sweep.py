"""The sweep: every point of every strategy, bounded first and simulated only while it can still matter.

Points are simulated in order of their bounds. A point is left out when its bound already exceeds both the k-th
best time so far and the best of its own strategy; since a bound never exceeds the truth, the best of each
strategy and the k best of all are exact. For the Pareto front of time and memory, a point is left out when another
is known to be as fast as its bound in no more memory than it cannot do without.
"""

import heapq
import os
from bisect import bisect_right, insort
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from functools import cache
from html import escape
from itertools import accumulate
from math import inf, prod
from typing import TYPE_CHECKING, Any, Final

from profiles.errors import InfeasibleError, InputError
from sim.explore.points import Asked, Point, find_points
from sim.explore.workers import SERIAL_POINTS, Bounds, Outcome, Workers, start_workers
from sim.results import OUT_OF_MEMORY, Result, missing_memory
from sim.runs import named_traces, replay_parts, source_of
from sim.scenarios import KIND
from strategies.parameters import check_integer
from strategies.registry import class_of
from strategies.strategy import AnyScenario

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure
    from pandas import DataFrame

__all__ = [
    "MAX_MICRO_BATCHES",
    "OBJECTIVES",
    "TOP",
    "Point",
    "Report",
    "Sweep",
    "find_points",
    "objectives",
    "run_sweep",
]

OBJECTIVES: Final[Mapping[str, tuple[str, ...]]] = {
    "train": ("throughput", "latency", "memory", "pareto"),
    "sample": ("latency", "throughput", "memory", "cost", "pareto"),
}
"""Objectives of each task, the default first; cost is in GPU-seconds per image."""
TOP: Final = 20
"""Number of best points that are exact."""
WAVE: Final = 4
"""Points simulated between two looks at the bounds; fixed, so that results do not depend on the machine."""
MAX_MICRO_BATCHES: Final = 1024
"""More micro-batches than this gain nothing and take long to simulate."""

Report = Callable[[str, int, int], None]


def objectives(scenario: AnyScenario) -> tuple[str, ...]:
    """Objectives of a sweep over a scenario; the first is the default."""
    return OBJECTIVES[scenario.task]


@dataclass(slots=True, repr=False)
class Sweep:
    """A sweep under way; its points can be looked at whenever it is interrupted.

    Attributes:
        scenario: what is swept over.
        objective: what the ranking minimises; ``pareto`` ranks by time and makes the whole front exact.
        points: all points, in the order in which they were found.
        top: so many of the best points are exact.
    """

    scenario: AnyScenario
    objective: str = "throughput"
    points: list[Point] = field(default_factory=list)
    top: int = TOP

    def __post_init__(self) -> None:
        if self.objective not in (offered := objectives(self.scenario)):
            rule = f"must be one of {', '.join(offered)} in a sweep of {KIND[self.scenario.task]}"
            raise InputError(f"--objective is '{self.objective}', {rule}")
        check_integer("top", self.top)

    def ranked(self) -> list[Point]:
        """Simulated points best first, then bounded ones by bound, then infeasible ones; duplicates once.

        Of each, those come last that are not recommended.
        """
        order = {"simulated": 0, "bounded": 1, "infeasible": 2}
        ranked = sorted(
            self.points,
            key=lambda p: (order[p.status], not p.recommended, p.score(self.objective), p.bound_s),
        )
        seen = set()
        unique = []
        for point in ranked:
            key = point.identity
            if key is None or key not in seen:
                unique.append(point)
                seen.add(key)
        return unique

    def best_point(self) -> Point | None:
        """The best point that was simulated and is recommended; None where there is none."""
        return next((p for p in self.ranked() if p.status == "simulated" and p.recommended), None)

    def ties(self) -> list[Point]:
        """The recommended points of which the comparison with the best cannot tell that they are slower, best first.

        None where memory is ranked by, which is counted.
        """
        best = self.best_point()
        if best is None or self.objective == "memory":
            return []
        others = (point for point in self.ranked() if point.recommended and point is not best)
        return [point for point in others if point.tied(best, self.objective)]

    @property
    def best(self) -> Result:
        """The result of the best point.

        Raises:
            InfeasibleError: no point that is recommended is feasible.
        """
        return self._result(self.best_point(), "no point of the sweep is feasible and recommended")

    def best_of(self, strategy: str) -> Result:
        """The result of the best point of a strategy.

        Raises:
            InputError: there is no strategy of this name.
            InfeasibleError: none of its points is feasible.
        """
        class_of(strategy)  # refuses a name that no strategy has
        own = [point for point in self.ranked() if point.name == strategy]
        reason = own[0].reason if own else "the sweep did not look at it"
        first = next((point for point in own if point.status == "simulated"), None)
        return self._result(first, f"no point of {strategy} is feasible: {reason}")

    def _result(self, point: Point | None, otherwise: str) -> Result:
        if point is None:
            raise InfeasibleError(otherwise)
        return self.result_of(point)

    def result_of(self, point: Point) -> Result:
        """The result of a simulated point, whose traces are replayed when they are asked for.

        Raises:
            InfeasibleError: it was not simulated.
        """
        strategy, result = point.strategy, point.result
        if strategy is None or result is None:
            raise InfeasibleError(f"{point!r} has no result")
        there = self.scenario.on(result.num_gpus)
        replayed = cache(lambda: named_traces(replay_parts(strategy, there)))
        return replace(result, source=source_of(strategy, there, replayed))

    def __iter__(self) -> Iterator[Point]:
        """The points, best first."""
        return iter(self.ranked())

    def __len__(self) -> int:
        """Points with results of their own."""
        return len(self.ranked())

    @property
    def title(self) -> str:
        """The scenario in words."""
        scenario, workload = self.scenario, self.scenario.workload
        where = f"{scenario.cluster.name}, stack {scenario.stack.name}"
        title = f"{scenario.model.title} on {workload.num_gpus} GPUs of {where}"
        asked = scenario.asked
        drawn = f", {asked['resolution']} pixels, {asked['steps']} steps" if scenario.task == "sample" else ""
        return ", ".join([f"{title}, batch {workload.batch_size}{drawn}", *scenario.departures])

    def __repr__(self) -> str:
        best = self.best_point()
        words = "nothing simulated" if best is None or best.result is None else f"best {best.result!r}"
        return f"<Sweep of {self.title}: {len(self)} points, {words}>"

    def _repr_html_(self) -> str:
        """The best of each strategy as a table, in a notebook."""
        names = (
            "status",
            "strategy",
            "num_gpus",
            "samples_per_s",
            "tie",
            "bubble_ratio",
            "peak_memory_bytes",
            "reason",
        )
        frame = self.frame(best_of_each=True)
        return f"<b>{escape(self.title)}</b>" + str(
            frame[[n for n in names if n in frame]].to_html(index=False)
        )

    def rows(self, *, best_of_each: bool = False) -> list[dict[str, Any]]:
        """All points, or the best of each strategy, under their public keys, best first."""
        from sim.explore.frames import row

        ranked = self.ranked()
        best = {point.name: point for point in reversed(ranked)}
        chosen = [point for point in ranked if best[point.name] is point] if best_of_each else ranked
        ties = set(map(id, self.ties()))
        return [row(self, point, tie=id(point) in ties) for point in chosen]

    def frame(self, *, best_of_each: bool = False) -> "DataFrame":
        """All points, or the best of each strategy, best first; each parameter and option has its own column."""
        from sim.explore.frames import frame_of

        return frame_of(self.rows(best_of_each=best_of_each))

    def front(self) -> "DataFrame":
        """The points that no other beats in both throughput and memory, by memory.

        All of them where the objective is ``pareto``, else of what was simulated.
        """
        from sim.explore.frames import frame_of
        from sim.explore.space import pareto_front

        return frame_of(pareto_front(self.rows()))

    def plot(self, ax: "Axes | None" = None) -> "Figure":
        """Draw speed against memory, on axes of one's own or on a new figure.

        Raises:
            InputError: nothing was simulated.
        """
        from sim.report.plots import plot_sweep

        return plot_sweep(self.rows(), self.title, self.scenario.cluster.device.memory_bytes, ax=ax)

    def infeasible_by_reason(self) -> dict[str, int]:
        """Counts of the points that cannot exist or do not fit, by reason, the most frequent first."""
        counts: dict[str, int] = {}
        for point in self.points:
            if point.kind is not None:
                counts[point.kind] = counts.get(point.kind, 0) + 1
        return dict(sorted(counts.items(), key=lambda item: (-item[1], item[0])))


def run_sweep(
    sweep: Sweep, report: Report = lambda stage, done, total: None, workers: int | None = None
) -> None:
    """Bound all points of a sweep, then simulate those that can still matter.

    Args:
        sweep: its points are filled in as they are done.
        report: told the stage, how many points are done and how many there are.
        workers: processes; by default one per core.

    Raises:
        InputError: there is to be no worker.
    """
    if workers is not None:
        check_integer("workers", workers)
    count = (workers or os.cpu_count() or 1) if len(sweep.points) > SERIAL_POINTS else 1
    with start_workers(sweep.scenario, count) as staff:
        _bound_points(sweep, staff, report)
        open_points = [point for point in sweep.points if point.reason is None]
        queue = _leaders_first(sorted(open_points, key=lambda point: point.least_score(sweep.objective)))
        _simulate_points(sweep, queue, staff, report)


def _leaders_first(points: list[Point]) -> list[Point]:
    """The most promising point of each strategy, then the others: a strategy's best rules out its own."""
    leaders = {point.name: point for point in reversed(points)}
    return sorted(points, key=lambda point: leaders[point.name] is not point)


def _bound_points(sweep: Sweep, staff: Workers, report: Report) -> None:
    """Bound the points, together those of one degree and number of micro-batches: they share most of the work."""
    groups = _groups(sweep.points)
    done, total = 0, sum(map(len, groups))
    for group, found in zip(groups, staff.bounds([_asked(sweep, group) for group in groups]), strict=True):
        for point, bounds in zip(group, found, strict=True):
            _take_bounds(point, bounds, sweep.scenario.cluster.device.memory_bytes)
            done += 1
            report("bounding", done, total)


def _groups(points: Iterable[Point]) -> list[list[Point]]:
    """The points to be bounded, by what they share; groups of the longest orders first."""
    groups: dict[tuple[int, int], list[Point]] = {}
    for point in points:
        degree = getattr(point.strategy, "pipeline_degree", None) or 1
        shape = degree, getattr(point.strategy, "micro_batches", 1)
        if shape[1] > MAX_MICRO_BATCHES:
            point.reason = (
                f"micro_batches({shape[1]}) exceeds {MAX_MICRO_BATCHES}, the most that a sweep looks at"
            )
            point.kind = "too many micro-batches"
        elif point.strategy is not None:
            groups.setdefault(shape, []).append(point)
    return [groups[shape] for shape in sorted(groups, key=prod, reverse=True)]


def _asked(sweep: Sweep, points: Iterable[Point]) -> list[Asked]:
    gpus = sweep.scenario.workload.num_gpus
    return [Asked(p.strategy, p.num_gpus or gpus) for p in points if p.strategy is not None]


def _take_bounds(point: Point, bounds: Bounds | InfeasibleError, memory_bytes: float | None) -> None:
    """Note what a point cannot undercut; give it up if it lacks memory whatever its order."""
    if isinstance(bounds, InfeasibleError):
        point.reason, point.kind = str(bounds), bounds.kind
        return
    point.bound_s, point.least_memory_bytes = bounds.bound_s, bounds.least_memory_bytes
    if memory_bytes is not None and point.least_memory_bytes > memory_bytes:
        point.reason = missing_memory(point.least_memory_bytes, memory_bytes, at_least=True)
        point.kind = OUT_OF_MEMORY


def _simulate_points(sweep: Sweep, queue: list[Point], staff: Workers, report: Report) -> None:
    done, known = 0, {flag: _Known(sweep.objective, sweep.top) for flag in (True, False)}
    while True:
        limits = {
            key: limit
            for flag, ones in known.items()
            for key, limit in ones.limits([p for p in queue if p.recommended == flag]).items()
        }
        queue = [p for p in queue if p.least_score(sweep.objective) < limits[id(p)]]
        wave, queue = queue[: min(WAVE, sweep.top)], queue[min(WAVE, sweep.top) :]
        if not wave:
            break
        limits_s = [_limit_s(sweep.objective, p, limits[id(p)]) for p in wave]
        for point, outcome in zip(wave, staff.outcomes(_asked(sweep, wave), limits_s), strict=True):
            _record(point, outcome)
            known[point.recommended].add(point)
            done += 1
            report("simulating", done, done + len(queue))


def _limit_s(objective: str, point: Point, limit: float) -> float:
    """The seconds from which on a point does not matter, by the score from which on it does not."""
    return inf if objective == "memory" else limit / point.price(objective)


@dataclass(slots=True)
class _Known:
    """Results so far, and the limits they set to points not yet simulated; recommended points and others apart.

    Attributes:
        objective: what is minimised.
        top: so many of the best points are to be exact.
        scores: scores by what points of equal results share.
        best_of: the best score of each strategy.
        front: bytes and seconds of the points that no other beats in both, by bytes.
    """

    objective: str
    top: int
    scores: dict[Any, float] = field(default_factory=dict)
    best_of: dict[str, float] = field(default_factory=dict)
    front: list[tuple[float, float]] = field(default_factory=list)

    def add(self, point: Point) -> None:
        """Take note of a point that was simulated."""
        score = point.score(self.objective)
        if score == inf or point.result is None:
            return
        self.scores[point.identity] = score
        self.best_of[point.name] = min(self.best_of.get(point.name, inf), score)
        insort(self.front, (point.result.expected.peak_memory_bytes, point.result.expected.duration_s))
        fastest = accumulate((front_s for _, front_s in self.front), min, initial=inf)
        self.front = [item for item, before_s in zip(self.front, fastest, strict=False) if item[1] < before_s]

    def limits(self, points: Iterable[Point]) -> dict[int, float]:
        """For each point, by its id, the score from which on it does not matter."""
        best = heapq.nsmallest(self.top, self.scores.values())
        kth = best[-1] if len(best) >= self.top else inf
        return {
            id(point): max(
                self.best_of.get(point.name, inf),
                self._beaten_s(point) if self.objective == "pareto" else kth,
            )
            for point in points
        }

    def _beaten_s(self, point: Point) -> float:
        """Seconds of the fastest point that takes no more memory than this one cannot do without."""
        within = bisect_right(self.front, (point.least_memory_bytes, inf))
        return self.front[within - 1][1] if within else inf


def _record(point: Point, outcome: Outcome) -> None:
    if isinstance(outcome, float):
        point.bound_s = max(point.bound_s, outcome)
    elif isinstance(outcome, InfeasibleError):
        point.reason, point.kind = str(outcome), outcome.kind
    else:
        point.result = outcome
        if outcome.missing_memory:
            point.reason, point.kind = outcome.missing_memory, OUT_OF_MEMORY
