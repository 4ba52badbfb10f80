"""Answers: the bounds and the outcome of a point, which depend on the point and the scenario alone."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import pairwise
from typing import Final

from profiles.errors import DeadlockError, InfeasibleError
from sim.explore.points import MAX_MICRO_BATCHES, Candidate, Point
from sim.outcomes.results import OUT_OF_MEMORY, Result, lacking_words
from sim.outcomes.runs import bound, coarse_bounds, least_memory_bytes, parameters_of, run_point
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


def bounds_of(strategy: AnyStrategy, scenario: AnyScenario, *, ordered: bool = False) -> Bounds:
    """Return the bounds of a point."""
    least_bytes = least_memory_bytes(strategy, scenario)
    lacks = scenario.room_bytes is not None and least_bytes > scenario.room_bytes
    return Bounds(0.0 if lacks else bound(strategy, scenario, ordered=ordered), least_bytes)


ANSWERS: Final[Mapping[str, Callable[[AnyStrategy, AnyScenario], Answer]]] = {
    COARSE: lambda strategy, scenario: Bounds(*coarse_bounds(strategy, scenario)),
    BOUNDS: bounds_of,
    ORDER: partial(bounds_of, ordered=True),
    REPLAY: run_point,
}
"""In the order in which a point is asked for them."""
FOLLOWING: Final = dict(pairwise(("", *ANSWERS)))


def answer_of(kind: str, candidate: Candidate, scenario: AnyScenario) -> Answer:
    """Return an answer about a point, or the reason why it does not exist."""
    if (count := getattr(candidate.strategy, "micro_batches", 1)) > MAX_MICRO_BATCHES:
        reason = f"micro_batches({count}) exceeds {MAX_MICRO_BATCHES}, the most of a sweep"
        return InfeasibleError(reason, "too many micro-batches")
    try:
        return ANSWERS[kind](candidate.strategy, candidate.at(scenario))
    except InfeasibleError as error:
        return error


def answer_all(kind: str, candidates: Sequence[Candidate], scenario: AnyScenario) -> tuple[str, Answers]:
    """Return a kind of answers, and these answers about points; an error of a strategy's own names its point.

    Raises:
        DeadlockError: the order of a point can never be carried out.
    """
    answers: Answers = {}
    for candidate in candidates:
        try:
            answers[candidate] = answer_of(kind, candidate, scenario)
        except Exception as error:
            values = parameters_of(candidate.strategy).items()
            there = (f"{name} {value}" for name, value in values if value is not None)
            words = ", ".join([candidate.strategy.name, *there])
            if isinstance(error, DeadlockError):
                raise DeadlockError(f"{words}: {error}") from None
            error.add_note(f"at {words}")
            raise
    return kind, answers


def take_answer(point: Point, kind: str, answer: Answer, scenario: AnyScenario) -> None:
    """Note what a point cannot undercut, or what its simulation gave; it is infeasible if it lacks memory."""
    point.answered = kind
    match answer:
        case InfeasibleError():
            point.reason, point.kind = str(answer), answer.kind
        case Bounds():
            point.bound_s = answer.bound_s
            point.least_memory_bytes = max(point.least_memory_bytes, answer.least_memory_bytes)
            there = scenario.on(point.num_gpus or scenario.workload.num_gpus)
            if there.room_bytes is not None and point.least_memory_bytes > there.room_bytes:
                point.reason = lacking_words(point.least_memory_bytes, there)
                point.kind, point.bound_s = OUT_OF_MEMORY, 0.0
        case Result():
            point.result = answer
            if answer.missing_memory:
                point.reason, point.kind = answer.missing_memory, OUT_OF_MEMORY
