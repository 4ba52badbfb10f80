"""The sweep: every point of every strategy, with what is known of it, and the one that it recommends."""

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from operator import attrgetter
from typing import Any, Final, NamedTuple, TypeVar

from profiles.checks import is_one_of
from profiles.errors import InfeasibleError, InputError, counted, shown
from profiles.units import GIB
from sim.explore.legality import starts
from sim.explore.points import Point
from sim.explore.relax import MOST_CHANGES, NOTHING_FITS, Question, relax
from sim.outcomes.contents import content_of, inputs_of
from sim.outcomes.results import OUT_OF_MEMORY, Result, activity
from sim.outcomes.runs import with_source
from sim.outcomes.tasks import TASKS
from strategies.parameters import check_integer
from strategies.registry import class_of
from strategies.strategy import AnyScenario, AnyStrategy, Sampler

SLACK: Final = 1.05
"""A point is chosen only if its score is at most so many times that of the best that a runtime starts."""

WIDE: Final = 2.0
"""A point whose error is more than so many times that of another takes its place by no tie: the error would decide."""


def is_exact(point: Point, scenario: AnyScenario) -> bool:
    """Return whether a point exists and draws the image that a single GPU does; one that trains draws none."""
    strategy = point.strategy
    if not isinstance(strategy, Sampler):
        return True
    try:
        return not strategy.approximation(point.candidate.at(scenario))
    except InfeasibleError:
        return False


def is_wide(point: Point, other: Point) -> bool:
    """Return whether the error of a point is far larger than that of another; both were simulated."""
    one, two = (item.result.uncertainty.band.spread for item in (point, other) if item.result is not None)
    return one > WIDE * two


Facts = Callable[[Point, AnyScenario], Any]
PREFERRED: Final[dict[str, Facts]] = {
    "runs today": lambda point, scenario: not starts(point, scenario),
    "surely fits": lambda point, _: point.result is not None and point.result.nearly_full,
    "takes the fewest GPUs": lambda point, _: point.num_gpus,
    "draws the exact image": lambda point, scenario: not is_exact(point, scenario),
    "is the simplest method": lambda point, scenario: point.complexity,
}
"""What decides among points within the error, in this order: the least of each wins."""


class Choice(NamedTuple):
    """The recommended point.

    Attributes:
        best: the point of the best score, of those that a runtime starts if there are any.
        close: points within the error of that one and of the best of their own strategy, as ``SLACK`` and ``WIDE``
            allow.
        by: what decided among them, in words; empty where the time did.
    """

    point: Point
    best: Point
    close: tuple[Point, ...]
    by: tuple[str, ...]


def tying(good: Sequence[Point], best: Point, scenario: AnyScenario, objective: str) -> list[Point]:
    """Return the points, best first, that cannot be told from one of them, nor from the best of their own strategy."""
    first = {(point.name, starts(point, scenario)): point for point in reversed(good)}

    def ties(point: Point) -> bool:
        own = first[point.name, starts(point, scenario)]
        return all(point is other or point.tied(other, objective) for other in (best, own))

    return [point for point in good if ties(point)]


def choose(points: Iterable[Point], scenario: AnyScenario, objective: str) -> Choice | None:
    """Return the choice among the simulated and recommended ones of some points; None where there are none.

    Of equals by all that is preferred, those count that tie with the fastest of them: the first of least whole GiB. A
    point that is nowhere worse than that, and faster or smaller, takes its place.
    """
    good = [point for point in points if point.status == "simulated" and point.recommended]
    good.sort(key=lambda point: (point.score(objective), *point.costs))
    if not good:
        return None
    best = next((point for point in good if starts(point, scenario)), good[0])
    worst = SLACK * best.score(objective)
    ties = tying(good, best, scenario, objective)
    close = [point for point in ties if point.score(objective) <= worst and not is_wide(point, best)]
    left, by = close, list[str]()
    for words, fact in PREFERRED.items():
        least = min(fact(point, scenario) for point in left)
        kept = [point for point in left if fact(point, scenario) == least]
        by += [words] * (len(kept) < len(left))
        left = kept
    first = left[0]
    preferred = min((peer for peer in left if peer is first or peer.tied(first, objective)), key=_whole_gib)

    def worth(one: Point) -> tuple[Any, ...]:
        facts = (fact(one, scenario) for fact in PREFERRED.values())
        return *facts, one.score(objective), *one.costs

    limits = worth(preferred)
    better = [point for point in good if all(a <= b for a, b in zip(worth(point), limits, strict=True))]
    point = min(better, key=worth)
    least = all(point.costs[1] <= other.costs[1] for other in close)
    words = "needs the least memory" if least else "needs less memory than faster ones like it"
    by += [words] * (_whole_gib(point) < _whole_gib(first))
    return Choice(point, best, tuple(close), tuple(by))


def _whole_gib(point: Point) -> int:
    return int(point.costs[1] / GIB)


R = TypeVar("R", bound=Mapping[str, Any])
Report = Callable[[str, int, int], None]
"""Called with the stage of a sweep, how many points are done and how many there are."""
TOP: Final = 20
"""Number of best points that are exact."""


@dataclass(slots=True, repr=False, eq=False)
class Sweep:
    """A sweep; where it was interrupted, its points hold what is known.

    Attributes:
        scenario: what is swept over.
        objective: what the ranking minimises; ``pareto`` ranks by time and makes the whole front exact.
        points: all points, in the order in which they were found.
        top: so many of the best points are exact.
        leading: strategies whose best is exact, too; None: all of them.
        exhaustive: whether every point that may fit is simulated, also those that can no longer be the best.
        relief: ways of checkpointing with which points that lack memory are tried again; empty: with none.
        held: parameters that all points keep to.
        runtime: the name of one that runs all points; None where none must.
        workers: processes that worked on it; as many share the replays of its verdict.
    """

    scenario: AnyScenario
    objective: str = "throughput"
    points: tuple[Point, ...] = ()
    top: int = TOP
    leading: tuple[str, ...] | None = None
    exhaustive: bool = False
    relief: tuple[str, ...] = ()
    held: Mapping[str, Any] = field(default_factory=dict)
    runtime: str | None = None
    workers: int = 1

    def __post_init__(self) -> None:
        if not is_one_of(self.objective, *(offered := TASKS[self.scenario.task].objectives)):
            rule = f"must be one of {', '.join(offered)} in a sweep of {TASKS[self.scenario.task].noun}"
            hint = "; cost is of sampling: `steps` or `task` sample" * is_one_of(self.objective, "cost")
            raise InputError(f"`objective` is {shown(self.objective)}, {rule}{hint}")
        check_integer("top", self.top)

    def ranked(self) -> list[Point]:
        """Simulated points best first, then bounded ones by bound, then infeasible ones; duplicates once.

        Within each group, points that are not recommended come last; of equal scores, the faster comes first, then the
        one that holds less. Of points that lack memory whatever their order, the one that lacks least comes first.
        """
        order = {"bounded": 0, "infeasible": 1}

        def rank(point: Point) -> tuple[float, ...]:
            lacks = point.least_memory_bytes if point.reason else 0.0
            return order[point.status], not point.recommended, *point.costs, point.bound_s, lacks

        return [*self.simulated(), *sorted((p for p in self.points if p.status in order), key=rank)]

    def simulated(self) -> list[Point]:
        """Simulated points in that order."""

        def rank(point: Point) -> tuple[float, ...]:
            return not point.recommended, point.score(self.objective), *point.costs

        unique: dict[object, Point] = {}
        for point in sorted((point for point in self.points if point.status == "simulated"), key=rank):
            unique.setdefault(point.identity, point)
        return list(unique.values())

    def listed(self) -> list[Point]:
        """The points in the order of rows: the recommended one, then by rank."""
        headline = self.best_point()
        return sorted(self.ranked(), key=lambda point: point is not headline)

    def choice(self) -> Choice | None:
        """The recommended point, and what decided on it; None where none was simulated."""
        return choose(self.simulated(), self.scenario, self.objective)

    def best_point(self) -> Point | None:
        """The recommended point, which runtimes start if they start any; None where none was simulated."""
        choice = self.choice()
        return None if choice is None else choice.point

    def fastest_point(self) -> Point | None:
        """The recommended point of the best score, whether or not a runtime starts it; None where there is none."""
        return next((point for point in self.simulated() if point.recommended), None)

    def ties(self) -> list[Point]:
        """The recommended points that the comparison with the best cannot tell from it, best first.

        None ties that the best of its own strategy surely beats. Only points that were simulated can tie; another name
        for the result of the best does not. By memory, which is counted, nothing ties.
        """
        best = self.best_point()
        if best is None:
            return []
        good = [point for point in self.simulated() if point.recommended]
        ties = tying(good, best, self.scenario, self.objective)
        return [point for point in ties if not point.same(best)]

    def twins(self) -> dict[int, Point]:
        """By the id of each point that has the result of a better ranked one of another strategy, that better one."""
        first: dict[object, Point] = {}
        pairs = [(p, first.setdefault(p.identity[1:], p)) for p in self.simulated() if p.identity]
        return {id(point): same for point, same in pairs if same is not point}

    def copies(self, point: Point) -> int:
        """Copies of a point that work side by side where cost is ranked by, each on images of its own; else 1."""
        return self.scenario.workload.num_gpus // point.num_gpus if self.objective == "cost" else 1

    def samples_per_s(self, point: Point) -> float:
        """Throughput of a simulated point, of all its copies together where cost is ranked by."""
        assert point.result is not None
        return self.copies(point) * point.result.samples_per_s

    @property
    def best(self) -> Result:
        """The result of the best point.

        Raises:
            InfeasibleError: no point that is recommended is feasible; the reason of most, and changes that would do.
        """
        point = self.best_point()
        if point is None:
            raise self.none_fits()
        return self.result_of(point)

    def none_fits(self, most: int = MOST_CHANGES) -> InfeasibleError:
        """The error that says why there is no best point, with an example, and at most so many changes that would do.

        Of a sweep that was not run, or was interrupted before any result, it says that alone.
        """
        counts, statuses = self.infeasible_by_reason(), {point.status for point in self.points}
        if "simulated" in statuses:
            words = "no point of the sweep is feasible and recommended: seams show in those that fit"
            return InfeasibleError(words)
        if not counts or "bounded" in statuses:
            return InfeasibleError("nothing was simulated yet")
        kind = self.main_reason
        such = f"{kind} (such as {example_words(self.points, kind)})"
        words = f"{counts[kind]} of {counted(len(self.points), 'point')}: {such}"
        if kind == OUT_OF_MEMORY and most:
            first = example_of(self.points, kind).name
            names = list(dict.fromkeys([first, *(point.name for point in self.points)]))
            question = Question(self.scenario, names, self.held, bool(self.relief), runtime=self.runtime)
            words += f"; {relax(question, most) or NOTHING_FITS}"
        return InfeasibleError(f"no point of the sweep is feasible: {words}")

    def nearest_words(self) -> str:
        """Why there is no best point, with the one that is the nearest to it: of memory, that lacks least."""
        kind = self.main_reason
        if not kind or any(point.reason is None for point in self.points):
            return str(self.none_fits(most=0))
        such = "the nearest is" if kind == OUT_OF_MEMORY else "such as"
        return f"{kind}, {such} {example_words(self.points, kind)}"

    def best_of(self, strategy: str | type[AnyStrategy]) -> Result:
        """The result of the best point of a strategy, given by its name or its class: ``best`` where that is of it.

        Raises:
            InputError: there is no such strategy.
            InfeasibleError: none of its points is feasible, or the sweep looked at none.
        """
        name = getattr(strategy, "name", None) if isinstance(strategy, type) else strategy
        if not isinstance(name, str):
            raise InputError(f"strategy is {shown(strategy)}, must be a name or the class of a strategy")
        class_of(name)  # refuses a name that no strategy has
        first = next((point for point in self.listed() if point.name == name), None)
        if first is None:
            raise InfeasibleError(f"the sweep looked at no point of {name}")
        if first.status != "simulated":
            raise InfeasibleError(f"no point of {name} is feasible: {first.reason}")
        return self.result_of(first)

    def result_of(self, point: Point) -> Result:
        """The result of a simulated point, whose traces are replayed when they are asked for.

        Raises:
            InfeasibleError: it was not simulated.
        """
        strategy, result = point.strategy, point.result
        if strategy is None or result is None:
            raise InfeasibleError(f"{point!r} has no result")
        return with_source(result, strategy, point.candidate.at(self.scenario))

    def __iter__(self) -> Iterator[Point]:
        """The points, best first."""
        return iter(self.ranked())

    def __len__(self) -> int:
        """Points with results of their own."""
        return len(self.ranked())

    @property
    def content(self) -> str:
        """Hash of the question: the scenario by its content, the points and the objective."""
        points = [(p.name, p.num_gpus, p.strategy) for p in self.points if p.checkpointing is None]
        wanted = (self.objective, self.top, self.exhaustive, *self.relief)
        return content_of((inputs_of(self.scenario), self.scenario.workload, wanted, points))

    @property
    def title(self) -> str:
        """The scenario in words."""
        workload = self.scenario.workload
        return self.titled(counted(workload.num_gpus, "GPU"), f"batch {workload.batch_size}")

    def titled(self, gpus: str, batch: str) -> str:
        """The scenario in words, on these GPUs with this batch."""
        scenario, options = self.scenario, self.scenario.asked
        where = f"{gpus} of {scenario.cluster.name}, stack {scenario.stack.name}"
        words = [f"{scenario.model.title}, {activity(scenario.task, scenario.options)} on {where}", batch]
        if scenario.task == "sample":
            words += [f"{options['resolution']} pixels", counted(options["steps"], "step")]
        return ", ".join([*words, *scenario.departures])

    def __repr__(self) -> str:
        best = self.best_point()
        words = self.none_fits(most=0) if best is None else f"best {best.result!r}"
        return f"<Sweep of {self.title}: {counted(len(self), 'point')}, {words}>"

    def infeasible_by_reason(self) -> dict[str, int]:
        """Counts of the points that cannot exist or do not fit, by reason, the most frequent first."""
        counts = Counter(point.kind for point in self.points if point.kind is not None)
        return dict(sorted(counts.items(), key=lambda item: (-item[1], item[0])))

    @property
    def main_reason(self) -> str:
        """Want of memory where any point lacks it, which other flags may mend; else the most frequent reason."""
        counts = self.infeasible_by_reason()
        return OUT_OF_MEMORY if OUT_OF_MEMORY in counts else next(iter(counts), "")


def example_of(points: Iterable[Point], kind: str) -> Point:
    """The point that stands for the infeasible ones of a kind: of those that lack memory, the one that lacks least."""
    return min((point for point in points if point.kind == kind), key=attrgetter("needed_bytes"))


def example_words(points: Iterable[Point], kind: str) -> str:
    """The example of a kind of infeasible points in words."""
    points = list(points)
    example, most = example_of(points, kind), max(point.num_gpus for point in points)
    degrees = [
        f"{name.replace('_', ' ')} {x}"
        for name, x in example.parameters.items()
        if ("_degree" in name or name == "micro_batches") and x
    ]
    degrees += [f"on {counted(example.num_gpus, 'GPU')}"] if example.num_gpus < most else []
    name = ", ".join([example.name, *degrees])
    recomputing = f" with {example.checkpointing} checkpointing" if example.checkpointing else ""
    return example.name if example.reason == kind else f"{name}{recomputing}: {example.reason}"


def pareto_front(rows: Iterable[R]) -> list[R]:
    """The rows that fit and that no other beats in memory and throughput, by memory.

    Args:
        rows: results under their public keys; rows that were not simulated, or are not recommended, are left out.
    """
    fitting = (
        item
        for item in rows
        if "peak_memory_bytes" in item and item.get("fits_memory", True) and item.get("recommended", True)
    )
    front: list[R] = []
    for item in sorted(fitting, key=lambda item: (item["peak_memory_bytes"], -item["samples_per_s"])):
        if not front or item["samples_per_s"] > front[-1]["samples_per_s"]:
            front.append(item)
    return front
