"""Answers: the bounds and the outcome of a point, which depend on the point and the scenario alone."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import pairwise
from typing import Final

from profiles.errors import DeadlockError, InfeasibleError
from sim.explore.points import Candidate, Point
from sim.outcomes.results import OUT_OF_MEMORY, Result, lacking_words
from sim.outcomes.runs import bound, coarse_bound, least_memory_bytes, parameters_of, run_point
from strategies.strategy import AnyScenario, AnyStrategy


@dataclass(frozen=True, slots=True)
class Bounds:
    """Lower bounds of a point: seconds, and bytes of its fullest device.

    The seconds are 0, and were not computed, where the point lacks memory in whatever order it runs.
    """

    bound_s: float
    least_memory_bytes: float


Answer = Bounds | Result | InfeasibleError
"""Bounds or a result, or the reason for neither."""
Answers = dict[Candidate, Answer]
COARSE, BOUNDS, ORDER, REPLAY = "coarse", "bounds", "order", "replay"
"""Kinds of answers: bounds for any cuts and order, for any order, for its own order, and a simulation's outcome."""


def coarse_bounds_of(candidate: Candidate, scenario: AnyScenario) -> Answer:
    """Return what a point cannot undercut whatever its cuts, or the reason why it does not exist; no bytes."""
    try:
        return Bounds(coarse_bound(candidate.strategy, candidate.at(scenario)), 0.0)
    except InfeasibleError as error:
        return error


def bounds_of(candidate: Candidate, scenario: AnyScenario, *, ordered: bool = False) -> Answer:
    """Return the bounds of a point, or the reason why it does not exist."""
    there = candidate.at(scenario)
    try:
        least_bytes = least_memory_bytes(candidate.strategy, there)
        lacks = there.room_bytes is not None and least_bytes > there.room_bytes
        return Bounds(0.0 if lacks else bound(candidate.strategy, there, ordered=ordered), least_bytes)
    except InfeasibleError as error:
        return error


def outcome_of(candidate: Candidate, scenario: AnyScenario) -> Result | InfeasibleError:
    """Simulate a point.

    Raises:
        DeadlockError: its order can never be carried out; the text names the point too.
    """
    there = candidate.at(scenario)
    try:
        return run_point(candidate.strategy, there)
    except InfeasibleError as error:
        return error
    except DeadlockError as error:
        raise DeadlockError(f"{_point_words(candidate.strategy)}: {error}") from None


ANSWERS: Final[Mapping[str, Callable[[Candidate, AnyScenario], Answer]]] = {
    COARSE: coarse_bounds_of,
    BOUNDS: bounds_of,
    ORDER: partial(bounds_of, ordered=True),
    REPLAY: outcome_of,
}
"""In the order in which a point is asked for them."""
FOLLOWING: Final = dict(pairwise(ANSWERS))


def answer_all(kind: str, candidates: Sequence[Candidate], scenario: AnyScenario) -> tuple[str, Answers]:
    """Return a kind of answers, and these answers about points; an error of a strategy's own names its point."""
    answers: Answers = {}
    for candidate in candidates:
        try:
            answers[candidate] = ANSWERS[kind](candidate, scenario)
        except Exception as error:
            error.add_note(f"at {_point_words(candidate.strategy)}")
            raise
    return kind, answers


def _point_words(strategy: AnyStrategy) -> str:
    """Return a strategy with its parameters in words."""
    words = (f"{name} {value}" for name, value in parameters_of(strategy).items() if value is not None)
    return ", ".join([strategy.name, *words])


def take_answer(point: Point, kind: str, answer: Answer, scenario: AnyScenario) -> None:
    """Note what a point cannot undercut, or what its simulation gave; it is infeasible if it lacks memory."""
    point.answered = kind
    match answer:
        case InfeasibleError():
            point.reason, point.kind = str(answer), answer.kind
        case Bounds():
            point.bound_s, point.least_memory_bytes = answer.bound_s, answer.least_memory_bytes
            there = scenario.on(point.num_gpus or scenario.workload.num_gpus)
            if there.room_bytes is not None and answer.least_memory_bytes > there.room_bytes:
                point.reason = lacking_words(answer.least_memory_bytes, there)
                point.kind = OUT_OF_MEMORY
        case Result():
            point.result = answer
            if answer.missing_memory:
                point.reason, point.kind = answer.missing_memory, OUT_OF_MEMORY
