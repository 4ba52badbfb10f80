"""Started: the best point that a runtime runs, where none runs the best of all."""

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
    """A point that runtimes run.

    Attributes:
        result: its own.
        how: its parameters in words.
        runs_in: the runtimes.
        again: the command line that gives its result again.
        tie: whether it ties with the best of all.
        times: what it takes over what the best takes, of what is ranked by.
    """

    result: Result
    how: str
    runs_in: tuple[str, ...]
    again: str
    tie: bool
    times: float


def best_started(sweep: Sweep, best: Point, values: Tried) -> Runnable | None:
    """The best point that runtimes run; None where there is none that fits."""
    found = _best_started(sweep)
    if found is None or found.result is None:
        return None
    objective, words = sweep.objective, how(found.result, values)
    first = sweep.twins().get(id(found), found)  # of points with one result the first says whether they tie
    tie = first is best or first.tied(best, objective)
    times = found.score(objective) / best.score(objective)
    return Runnable(
        found.result, words, starters(found, sweep.scenario), command_of(found.result), tie, times
    )


def _best_started(sweep: Sweep) -> Point | None:
    """The best of the points that runtimes run, among them a few that were not simulated but may be better."""
    objective, left = sweep.objective, TRIED
    found, score = None, inf
    points = [point for point in sweep.points if point.recommended and not point.reason]
    for point in sorted(points, key=lambda point: _least(point, objective)):
        if _least(point, objective) >= score:
            break
        if (point.result is None and not left) or not starters(point, sweep.scenario):
            continue
        left -= point.result is None
        limit_s = inf if objective == "memory" else score / point.price(objective)
        known = point if point.result is not None else simulated_again(point, sweep.scenario, limit_s)
        if known.score(objective) < score:
            found, score = known, known.score(objective)
    return found


def _least(point: Point, objective: str) -> float:
    """The score of a point, or what it cannot undercut."""
    return point.least_score(objective) if point.result is None else point.score(objective)
