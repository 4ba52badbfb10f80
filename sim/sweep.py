"""The sweep: every point of every strategy, bounded first and simulated only while it can still matter.

Points are simulated in order of their bounds. A point is left out when its bound already exceeds both the k-th
best time so far and the best of its own strategy; since a bound never exceeds the truth, the best of each
strategy and the k best of all are exact. For the Pareto front of time and memory, a point is left out when another
is known to be as fast as its bound in no more memory than it cannot do without.
"""

import heapq
import os
from bisect import bisect_right, insort
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field, fields, replace
from itertools import accumulate
from math import inf, prod
from typing import Any, Final

from profiles.errors import InfeasibleError, InputError
from sim.experiment import OUT_OF_MEMORY, TrainingResult, missing_memory
from sim.workers import SERIAL_POINTS, Bounds, Outcome, Workers, start_workers
from strategies.parameters import check_parameters
from strategies.registry import all_strategies, strategy_class
from strategies.scenario import Scenario
from strategies.strategy import Strategy

OBJECTIVES: Final = ("throughput", "latency", "memory", "pareto")
TOP: Final = 20
"""So many of the best points are exact."""
WAVE: Final = 16
"""Points simulated between two looks at the bounds; fixed, so that results do not depend on the machine."""
REFUSED: Final = "a value that others of the sweep know"
MAX_MICRO_BATCHES: Final = 1024
"""More micro-batches than this gain nothing and take long to simulate."""

Report = Callable[[str, int, int], None]


@dataclass(slots=True)
class Point:
    """One point of the design space and what is known of it.

    Attributes:
        strategy: the strategy with its parameters; None where a strategy does not apply at all.
        name: the strategy's name.
        bound_s: seconds that its iteration cannot undercut.
        least_memory_bytes: bytes that its fullest device cannot do without.
        result: what its simulation gave.
        reason: why it cannot exist, or does not fit.
        kind: the reason without its numbers.
    """

    strategy: Strategy | None
    name: str
    bound_s: float = inf
    least_memory_bytes: float = 0.0
    result: TrainingResult | None = None
    reason: str | None = None
    kind: str | None = None

    @property
    def reached(self) -> bool:
        """Whether anything is known of it; not so where a sweep was interrupted before it."""
        return self.status != "bounded" or self.bound_s < inf

    @property
    def parameters(self) -> dict[str, Any]:
        """The strategy's parameters; none where it does not apply at all."""
        return {} if self.strategy is None else asdict(self.strategy)  # type: ignore[call-overload]

    @property
    def status(self) -> str:
        """``infeasible``, ``simulated`` or ``bounded``."""
        if self.reason is not None:
            return "infeasible"
        return "bounded" if self.result is None else "simulated"

    def least_score(self, objective: str) -> float:
        """Return what the score of a point cannot undercut."""
        return self.least_memory_bytes if objective == "memory" else self.bound_s

    def score(self, objective: str) -> float:
        """Return what the ranking minimises: seconds, or bytes; infinite where it is not known."""
        if self.status != "simulated" or self.result is None:
            return inf
        expected = self.result.expected
        return expected.peak_memory_bytes if objective == "memory" else expected.iteration_s


@dataclass(slots=True)
class Sweep:
    """A sweep under way; its points can be looked at whenever it is interrupted.

    Attributes:
        scenario: what is swept over.
        objective: what the ranking minimises; ``pareto`` ranks by time and makes the whole front exact.
        points: all points, in the order in which they were found.
        top: so many of the best points are exact.
    """

    scenario: Scenario
    objective: str = "throughput"
    points: list[Point] = field(default_factory=list)
    top: int = TOP

    def ranked(self) -> list[Point]:
        """Return simulated points best first, then bounded ones by bound, then infeasible ones; duplicates once."""
        order = {"simulated": 0, "bounded": 1, "infeasible": 2}
        ranked = sorted(self.points, key=lambda p: (order[p.status], p.score(self.objective), p.bound_s))
        seen = set()
        unique = []
        for point in ranked:
            key = _identity(point)
            if key is None or key not in seen:
                unique.append(point)
                seen.add(key)
        return unique

    def infeasible_by_reason(self) -> dict[str, int]:
        """Return how many points cannot exist or do not fit, by reason, the most frequent first."""
        counts: dict[str, int] = {}
        for point in self.points:
            if point.kind is not None:
                counts[point.kind] = counts.get(point.kind, 0) + 1
        return dict(sorted(counts.items(), key=lambda item: (-item[1], item[0])))


def _identity(point: Point) -> tuple[Any, ...] | None:
    """Return what two points of equal results share; parameters that change nothing make no other point."""
    if point.status != "simulated" or point.result is None:
        return None
    return (point.name, point.result.expected)


def find_points(
    scenario: Scenario, names: Sequence[str] | None = None, fixed: Mapping[str, Any] | None = None
) -> list[Point]:
    """Return the points of all strategies, or those named, that keep to fixed parameters.

    A value that some strategies know and others do not, such as a way to cut the backbone, leaves the others out.

    Raises:
        InputError: a strategy is unknown, no strategy has a fixed parameter, or none takes its value.
    """
    classes = [strategy_class(name) for name in dict.fromkeys(all_strategies() if names is None else names)]
    fixed = fixed or {}
    for key in fixed:
        if not any(key in {f.name for f in fields(cls)} for cls in classes):  # type: ignore[arg-type]
            raise InputError(f"no strategy of this sweep has the parameter --{key.replace('_', '-')}")
    points: list[Point] = []
    refused: list[InputError] = []
    for cls in classes:
        if cls.task != "train":
            continue
        try:
            found = [check_parameters(s) for s in _keep(list(cls.candidates(scenario)), fixed)]
            points += [Point(strategy, cls.name) for strategy in dict.fromkeys(found)]
        except InfeasibleError as error:
            points.append(Point(None, cls.name, reason=str(error), kind=error.kind))
        except InputError as error:
            refused.append(error)
            points.append(Point(None, cls.name, reason=str(error), kind=REFUSED))
    if refused and not any(point.strategy is not None and _has(point.strategy, fixed) for point in points):
        raise refused[0]
    return points


def _has(strategy: Strategy, fixed: Mapping[str, Any]) -> bool:
    """Whether a strategy has one of the fixed parameters."""
    return any(hasattr(strategy, key) for key in fixed)


def _keep(candidates: list[Strategy], fixed: Mapping[str, Any]) -> list[Strategy]:
    """Return the candidates with a fixed value; where none has it, all of them set to it."""
    for key, value in fixed.items():
        if candidates and hasattr(candidates[0], key):
            matching = [c for c in candidates if getattr(c, key) == value]
            candidates = matching or [replace(c, **{key: value}) for c in candidates]  # type: ignore[type-var]
    return candidates


def run_sweep(
    sweep: Sweep, report: Report = lambda stage, done, total: None, workers: int | None = None
) -> None:
    """Bound all points of a sweep, then simulate those that can still matter.

    Args:
        sweep: its points are filled in as they are done.
        report: told the stage, how many points are done and how many there are.
        workers: processes; by default one per core.
    """
    count = (workers or os.cpu_count() or 1) if len(sweep.points) > SERIAL_POINTS else 1
    with start_workers(sweep.scenario, count) as staff:
        _bound_points(sweep, staff, report)
        open_points = [point for point in sweep.points if point.reason is None]
        queue = sorted(open_points, key=lambda point: point.least_score(sweep.objective))
        _simulate_points(sweep, queue, staff, report)


def _bound_points(sweep: Sweep, staff: Workers, report: Report) -> None:
    """Bound the points, together those of one degree and number of micro-batches: they share most of the work."""
    groups = _groups(sweep.points)
    done, total = 0, sum(map(len, groups))
    for group, found in zip(groups, staff.bounds(map(_strategies, groups)), strict=True):
        for point, bounds in zip(group, found, strict=True):
            _take_bounds(point, bounds, sweep.scenario.cluster.device.memory_bytes)
            done += 1
            report("bounding", done, total)


def _groups(points: Iterable[Point]) -> list[list[Point]]:
    """Return the points to be bounded, by what they share; groups of the longest orders first."""
    groups: dict[tuple[int, int], list[Point]] = {}
    for point in points:
        shape = getattr(point.strategy, "pipeline_degree", 1), getattr(point.strategy, "micro_batches", 1)
        if shape[1] > MAX_MICRO_BATCHES:
            point.reason = (
                f"micro_batches({shape[1]}) exceeds {MAX_MICRO_BATCHES}, the most that a sweep looks at"
            )
            point.kind = "too many micro-batches"
        elif point.strategy is not None:
            groups.setdefault(shape, []).append(point)
    return [groups[shape] for shape in sorted(groups, key=prod, reverse=True)]


def _strategies(points: Iterable[Point]) -> list[Strategy]:
    return [point.strategy for point in points if point.strategy is not None]


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
    done, known = 0, _Known(sweep.objective, sweep.top)
    while True:
        limits = known.limits(queue)
        queue = [p for p in queue if p.least_score(sweep.objective) < limits[id(p)]]
        wave, queue = queue[: min(WAVE, sweep.top)], queue[min(WAVE, sweep.top) :]
        if not wave:
            break
        seconds = [inf if sweep.objective == "memory" else limits[id(p)] for p in wave]
        for point, outcome in zip(wave, staff.outcomes(_strategies(wave), seconds), strict=True):
            _record(point, outcome)
            known.add(point)
            done += 1
            report("simulating", done, done + len(queue))


@dataclass(slots=True)
class _Known:
    """What the points simulated so far say about those that are not.

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
        self.scores[_identity(point)] = score
        self.best_of[point.name] = min(self.best_of.get(point.name, inf), score)
        expected = point.result.expected
        insort(self.front, (expected.peak_memory_bytes, expected.iteration_s))
        fastest = accumulate((seconds for _, seconds in self.front), min, initial=inf)
        self.front = [item for item, before_s in zip(self.front, fastest, strict=False) if item[1] < before_s]

    def limits(self, points: Iterable[Point]) -> dict[int, float]:
        """Return for each point, by its id, the score from which on it does not matter."""
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
        """Return seconds of the fastest point that takes no more memory than this one cannot do without."""
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
