"""The best point that a runtime runs, where none runs the best of all."""

from dataclasses import replace
from typing import Any, NamedTuple

from profiles.software.runtimes import all_runtimes
from sim.explore.legality import always_recomputed, refusal, starters, within
from sim.explore.points import Point
from sim.explore.sweep import Sweep
from sim.outcomes.results import Result
from sim.report.changes import swept
from sim.report.descriptions import how, tried
from sim.report.results import command_of


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
    """

    result: Result
    how: str
    runs_in: tuple[str, ...]
    again: str
    tie: bool
    times: float
    others: tuple[str, ...]

    def to_json(self) -> dict[str, Any]:
        """Return its values beside the result, under public keys."""
        return {name: getattr(self, name) for name in ("tie", "others", "runs_in", "again")}


def best_runnable(sweep: Sweep, best: Point) -> Runnable | None:
    """Return the best point that runtimes run; None where there is none that fits."""
    best_by_runtime = best_of_each(sweep)
    if not best_by_runtime:
        return None
    scores = {name: point.score(sweep.objective) for name, point in best_by_runtime.items()}
    score, first = min(scores.values()), best_by_runtime[min(scores, key=lambda name: scores[name])]
    names = starters(first, sweep.scenario)
    others = tuple(sorted(scores.keys() - set(names), key=lambda name: (scores[name], name)))
    tie = first.costs == best.costs or first.tied(best, sweep.objective)
    result = sweep.result_of(first)
    words = how(result, tried([*sweep.points, first]))
    return Runnable(
        result, words, names, command_of(result), tie, score / best.score(sweep.objective), others
    )


def best_of_each(sweep: Sweep) -> dict[str, Point]:
    """Return the best point by runtime, of a sweep in it; parameters that the user set stay as they are."""
    best: dict[str, Point] = {}
    known = [point for point in (*sweep.points, *sweep.left) if point.strategy is not None]
    plain = [point for point in known if point.checkpointing is None]
    relieved = {of.candidate(sweep.scenario): of for of in known if of.checkpointing is not None}
    for runtime in all_runtimes().values():
        if runtime.task != sweep.scenario.task or runtime.unknown(sweep.scenario.model.name):
            continue
        always = always_recomputed(runtime.name) if sweep.relief else ""
        points = plain
        if always:
            again = (of.candidate(sweep.scenario)._replace(checkpointing=always) for of in plain)
            points = [relieved.get(of) or of.point() for of in again]
        there = [
            point
            for point in within(runtime.name, list(map(replace, points)), sweep.scenario)
            if all(getattr(point.strategy, name, of) == of for name, of in sweep.held.items())
        ]
        there += [replace(of) for of in relieved.values() if not refusal(runtime, of, sweep.scenario)]
        within_it = replace(sweep, runtime=runtime.name, relief=() if always else sweep.relief)
        if first := swept(within_it, there, sweep.scenario, sweep.objective).best_point():
            best[runtime.name] = first
    return best
