"""The best point that a runtime runs, where none runs the best of all."""

from collections.abc import Iterator, Sequence
from math import inf
from operator import itemgetter
from typing import Any, Final, NamedTuple

from profiles.software.runtimes import Runtime, all_runtimes
from sim.explore.legality import RECOMPUTED, kept_to, refusal, starters
from sim.explore.points import Point, groups
from sim.explore.sweep import Sweep
from sim.outcomes.results import Result
from sim.report.changes import bounded, simulated_again
from sim.report.descriptions import how, tried
from sim.report.results import command_of

TRIED: Final = 8
"""Points that are simulated although the sweep did not need to: those that promise most of what runtimes run."""


class Runnable(NamedTuple):
    """The best point that runtimes run.

    Attributes:
        result: the result of the point.
        how: its parameters in words.
        runs_in: the runtimes.
        again: the command line that gives its result again.
        tie: whether it ties with the best of all.
        times: its score over that of the best.
        others: other runtimes that run some point; a sweep with ``--runtime`` finds the best that each runs.
        unsure: runtimes that may run a better point, as not all that promise more were simulated.
    """

    result: Result
    how: str
    runs_in: tuple[str, ...]
    again: str
    tie: bool
    times: float
    others: tuple[str, ...]
    unsure: tuple[str, ...]

    def to_json(self) -> dict[str, Any]:
        """Return its values beside the result, under public keys."""
        return {name: getattr(self, name) for name in ("tie", "others", "unsure", "runs_in", "again")}


def best_runnable(sweep: Sweep, best: Point) -> Runnable | None:
    """Return the best point that runtimes run; None where there is none that fits."""
    best_by_runtime, left = best_of_each(sweep)
    if not best_by_runtime:
        return None
    objective = sweep.objective
    first = min(best_by_runtime.values(), key=lambda point: point.score(objective))
    names, result = starters(first, sweep.scenario), first.result
    assert result is not None
    tie = sweep.twins().get(id(first)) is best or first.tied(best, objective)
    score = first.score(objective)
    scores = {name: point.score(objective) for name, point in best_by_runtime.items()}
    others = tuple(sorted(scores.keys() - set(names), key=lambda name: (scores[name], name)))
    unsure = tuple(name for name, least in sorted(left.items()) if least < score)
    words, again = how(result, tried([*sweep.points, first])), command_of(sweep.result_of(first))
    return Runnable(result, words, names, again, tie, score / best.score(objective), others, unsure)


def best_of_each(sweep: Sweep) -> tuple[dict[str, Point], dict[str, float]]:
    """Return the best point by runtime, some of them simulated here, and the least score of those that were not."""
    objective = sweep.objective
    best: dict[str, Point] = {}
    left: dict[str, float] = {}
    count = 0
    for least, point in sorted(((_least(p, objective), p) for p in _promising(sweep)), key=itemgetter(0)):
        names = starters(point, sweep.scenario)
        worst = max((best[name].score(objective) if name in best else inf for name in names), default=0.0)
        if least >= worst:
            continue
        if point.result is None and count == TRIED:
            left = dict.fromkeys(names, least) | left
            continue
        count += point.result is None
        known = point if point.result is not None else simulated_again(point, sweep.scenario)
        score = known.score(objective)
        best |= {name: known for name in names if name not in best or score < best[name].score(objective)}
    return {name: point for name, point in best.items() if point.status == "simulated"}, left


def _promising(sweep: Sweep) -> Iterator[Point]:
    """Yield the points that may fit, then substitutes for those that runtimes refuse, bounded; none twice."""
    points, scenario = [*sweep.points, *sweep.left], sweep.scenario
    yield from (point for point in points if point.recommended and not point.reason)
    known = set(map(_key, points))
    for runtime, substitute in _in_place(sweep, points):
        if _key(substitute) in known or refusal(runtime, substitute, scenario) or not groups([substitute]):
            continue
        known.add(_key(substitute))
        if not (fresh := bounded(substitute.candidate(scenario), scenario)).reason:
            yield fresh


def _in_place(sweep: Sweep, points: Sequence[Point]) -> Iterator[tuple[Runtime, Point]]:
    """Yield substitutes for points that a runtime refuses: with the parameters that it allows.

    Parameters that the user set stay as they are.
    """
    scenario, held = sweep.scenario, {*sweep.held, *(() if sweep.relief else (RECOMPUTED,))}
    for runtime in all_runtimes().values():
        if runtime.task == scenario.task and not runtime.unknown(scenario.model.name):
            having = (point for point in points if point.recommended and point.name in runtime.rules)
            there = ((point, kept_to(runtime, point, scenario, held)) for point in having)
            yield from ((runtime, other) for point, other in there if other is not point)


def _key(point: Point) -> tuple[object, ...]:
    """Return the identity of a point."""
    return point.strategy, point.num_gpus, point.checkpointing


def _least(point: Point, objective: str) -> float:
    """Return the score of a point, or its bound."""
    return point.least_score(objective) if point.result is None else point.score(objective)
