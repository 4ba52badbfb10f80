"""Choices: the point that a sweep recommends, of those that it cannot tell from the best by their times."""

from collections.abc import Callable, Iterable
from math import inf
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
        preferred: the one of them that is preferred, whose place ``point`` may have taken.
    """

    point: Point
    best: Point
    close: tuple[Point, ...]
    by: tuple[str, ...]
    preferred: Point


def choose(points: Iterable[Point], scenario: AnyScenario, objective: str) -> Choice | None:
    """Return the choice among the simulated and recommended ones of some points; None where there are none.

    Of equals by all that is preferred, those count that tie with the fastest of them: the first of least whole GiB. A
    point that is nowhere worse than that, and faster or smaller, takes its place.
    """
    good = [point for point in points if point.status == "simulated" and point.recommended]
    good.sort(key=lambda point: (point.score(objective), *point.costs))
    if not good:
        return None

    def tied(one: Point, other: Point) -> bool:
        return one is other or one.tied(other, objective)

    best = next((point for point in good if starts(point, scenario)), good[0])
    own = {(point.name, starts(point, scenario)): point for point in reversed(good)}
    worst = SLACK * best.score(objective)
    close = [of for of in good if of.score(objective) <= worst and tied(of, best) and not is_wide(of, best)]
    close = [point for point in close if tied(point, own[point.name, starts(point, scenario)])]
    left, by = close, list[str]()
    for words, fact in PREFERRED.items():
        least = min(fact(point, scenario) for point in left)
        kept = [point for point in left if fact(point, scenario) == least]
        by += [words] * (len(kept) < len(left))
        left = kept
    preferred = min([point for point in left if tied(point, left[0])], key=_whole_gib)

    def worth(one: Point) -> tuple[Any, ...]:
        return _worth(one, scenario, objective)

    better = [of for of in good if _nowhere_worse(worth(of), worth(preferred))]
    point = min(better, key=worth)
    least = all(point.costs[1] <= of.costs[1] for of in close)
    words = "needs the least memory" if least else "needs less memory than faster ones like it"
    by += [words] * (_whole_gib(point) < _whole_gib(left[0]))
    return Choice(point, best, tuple(close), tuple(by), preferred)


def _worth(point: Point, scenario: AnyScenario, objective: str) -> tuple[Any, ...]:
    """Return by what a point takes the place of another; of one that was not simulated, the least that it may be."""
    facts = (fact(point, scenario) for fact in PREFERRED.values())
    if point.result is None:
        return *facts, point.least_score(objective), point.bound_s, point.least_memory_bytes
    return *facts, point.score(objective), *point.costs


def _nowhere_worse(one: tuple[Any, ...], other: tuple[Any, ...]) -> bool:
    return all(a <= b for a, b in zip(one, other, strict=True))


def _whole_gib(point: Point) -> int:
    return int(point.costs[1] / GIB)


def contender(points: Iterable[Point], scenario: AnyScenario, objective: str) -> Point | None:
    """Return a bounded point that may be the choice, or rule it out; None where the choice is exact.

    Where points can be started, one of them was simulated.
    """
    points = list(points)
    waiting = [point for point in points if point.status == "bounded" and point.recommended]
    if (choice := choose(points, scenario, objective)) is None:
        return None
    runs = starts(choice.best, scenario)

    def worth(point: Point) -> tuple[Any, ...]:
        return _worth(point, scenario, objective)

    def score(point: Point) -> float:
        return point.least_score(objective) if point.result is None else point.score(objective)

    preferred_worth, chosen_worth = worth(choice.preferred), worth(choice.point)

    def facts(point: Point) -> tuple[Any, ...]:
        return tuple(fact(point, scenario) for fact in PREFERRED.values())

    def preference(point: Point) -> tuple[Any, ...]:
        held_bytes = point.costs[1] or point.least_memory_bytes
        return *facts(point), int(held_bytes / GIB), score(point)

    waiting = [point for point in waiting if starts(point, scenario) == runs]
    limit, chosen, least = choice.best.score(objective), choice.point, facts(choice.point)
    own = dict.fromkeys((chosen.name, choice.preferred.name), inf)  # the fastest of their strategies
    for of in points:
        if of.name in own and starts(of, scenario) == runs:
            own[of.name] = min(own[of.name], of.score(objective))
    alike = min((score(of) for of in choice.close if facts(of) == least), default=score(chosen))
    faster = (
        of
        for of in waiting
        if score(of) < limit
        or score(of) < own.get(of.name, 0.0)
        or (score(of) < alike and facts(of) == least)
        or (_nowhere_worse(worth(of), preferred_worth) and worth(of) < chosen_worth)
    )
    found = min(faster, key=score, default=None)
    if found is not None or objective == "memory":  # which is counted, so that nothing ties
        return found
    close = (point for point in waiting if score(point) <= SLACK * limit)
    preferred = min(close, key=preference, default=chosen)
    return preferred if preference(preferred) < preference(chosen) else None
