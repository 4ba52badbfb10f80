"""Choices: the point that a sweep recommends, of those that it cannot tell from the best by their times."""

from collections.abc import Callable, Iterable, Sequence
from typing import Any, Final, NamedTuple

from profiles.errors import InfeasibleError
from profiles.units import GIB
from sim.explore.legality import starts
from sim.explore.points import Point
from strategies.strategy import AnyScenario, Sampler

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
        return not strategy.approximation(point.candidate(scenario).at(scenario))
    except InfeasibleError:
        return False


def is_wide(point: Point, other: Point) -> bool:
    """Return whether the error of a point is far larger than that of another; both were simulated."""
    one, two = (of.result.uncertainty.band.spread for of in (point, other) if of.result is not None)
    return one > WIDE * two


def may_start(point: Point, scenario: AnyScenario) -> bool:
    """Return whether a runtime starts a point that may be recommended."""
    return point.recommended and starts(point, scenario)


Facts = Callable[[Point, AnyScenario], Any]
PREFERRED: Final[dict[str, Facts]] = {
    "runs today": lambda point, scenario: not starts(point, scenario),
    "surely fits": lambda point, _: point.result is not None and point.result.nearly_full,
    "takes the fewest GPUs": lambda point, scenario: point.num_gpus or scenario.workload.num_gpus,
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
    close = [of for of in ties if of.score(objective) <= worst and not is_wide(of, best)]
    left, by = close, list[str]()
    for words, fact in PREFERRED.items():
        least = min(fact(point, scenario) for point in left)
        kept = [point for point in left if fact(point, scenario) == least]
        by += [words] * (len(kept) < len(left))
        left = kept
    first = left[0]
    preferred = min((of for of in left if of is first or of.tied(first, objective)), key=_whole_gib)

    def worth(one: Point) -> tuple[Any, ...]:
        facts = (fact(one, scenario) for fact in PREFERRED.values())
        return *facts, one.score(objective), *one.costs

    limits = worth(preferred)
    better = [of for of in good if all(a <= b for a, b in zip(worth(of), limits, strict=True))]
    point = min(better, key=worth)
    least = all(point.costs[1] <= of.costs[1] for of in close)
    words = "needs the least memory" if least else "needs less memory than faster ones like it"
    by += [words] * (_whole_gib(point) < _whole_gib(first))
    return Choice(point, best, tuple(close), tuple(by))


def _whole_gib(point: Point) -> int:
    return int(point.costs[1] / GIB)


def contender(points: Iterable[Point], scenario: AnyScenario, objective: str) -> Point | None:
    """Return the bounded point of the least score that may be the choice, or rule it out; None where there is none.

    Where points can be started, one of them was simulated. By memory, which is counted, nothing ties.
    """
    points = list(points)
    if (choice := choose(points, scenario, objective)) is None:
        return None
    runs = starts(choice.best, scenario)
    limit = choice.best.score(objective) * (1.0 if objective == "memory" else SLACK)
    waiting = [
        of
        for of in points
        if of.status == "bounded" and of.recommended and of.least_score(objective) <= limit
    ]
    near = (of for of in waiting if starts(of, scenario) == runs)
    return min(near, key=lambda point: point.least_score(objective), default=None)
