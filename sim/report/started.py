"""Started: the best point of each runtime, where none runs the best of all."""

from math import inf
from typing import Final, NamedTuple

from sim.explore.legality import starters
from sim.explore.points import Point
from sim.explore.sweep import Sweep
from sim.outcomes.results import Result
from sim.report.changes import simulated_again
from sim.report.descriptions import Tried, how
from sim.report.tables import command_of

TRIED: Final = 8
"""Points that are simulated although the sweep did not need to: those that promise most of what runtimes run."""


class Runnable(NamedTuple):
    """The best point that runtimes run.

    Attributes:
        result: its own.
        how: its parameters in words.
        runs_in: the runtimes.
        again: the command line that gives its result again.
        tie: whether it ties with the best of all.
        times: what it takes over what the best takes, of what is ranked by.
        others: other runtimes that run some point; what each runs fastest, ``--runtime`` says, which recomputes for it.
    """

    result: Result
    how: str
    runs_in: tuple[str, ...]
    again: str
    tie: bool
    times: float
    others: tuple[str, ...]


def best_started(sweep: Sweep, best: Point, values: Tried) -> Runnable | None:
    """The best point that runtimes run; None where there is none that fits."""
    found = best_of_each(sweep)
    if not found:
        return None
    objective, first = sweep.objective, min(found.values(), key=lambda point: point.score(sweep.objective))
    names, result = starters(first, sweep.scenario), first.result
    assert result is not None
    alike = sweep.twins().get(id(first), first)  # of points with one result the first says whether they tie
    tie = alike is best or alike.tied(best, objective)
    times = first.score(objective) / best.score(objective)
    others = tuple(sorted(found.keys() - set(names), key=lambda name: (found[name].score(objective), name)))
    words, again = how(result, values), command_of(result)
    return Runnable(result, words, names, again, tie, times, others)


def best_of_each(sweep: Sweep) -> dict[str, Point]:
    """The best point of each runtime that runs any, among them a few that were not simulated but may be better."""
    objective, left = sweep.objective, TRIED
    found: dict[str, Point] = {}
    points = [point for point in sweep.points if point.recommended and not point.reason]
    for point in sorted(points, key=lambda point: _least(point, objective)):
        least, names = _least(point, objective), starters(point, sweep.scenario)
        worst = max((found[name].score(objective) if name in found else inf for name in names), default=0.0)
        if least >= worst or (point.result is None and not left):
            continue
        left -= point.result is None
        limit_s = inf if objective == "memory" else worst / point.price(objective)
        known = point if point.result is not None else simulated_again(point, sweep.scenario, limit_s)
        score = known.score(objective)
        found |= {name: known for name in names if name not in found or score < found[name].score(objective)}
    return {name: point for name, point in found.items() if point.status == "simulated"}


def _least(point: Point, objective: str) -> float:
    """The score of a point, or what it cannot undercut."""
    return point.least_score(objective) if point.result is None else point.score(objective)
