"""Answers: what there is to know of a point, found wherever the point is worked on.

An answer depends on the point and the scenario alone. Where a replay was cut off at a limit, the answer says up to
which limit it holds; so it serves whoever asks with a lower one later on.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from math import inf
from typing import NamedTuple

from profiles.errors import DeadlockError, InfeasibleError
from sim.explore.points import Asked, Point
from sim.outcomes.phrases import OUT_OF_MEMORY, missing_memory
from sim.outcomes.results import Result
from sim.outcomes.runs import (
    bound,
    check_held_memory,
    least_memory_bytes,
    parameters_of,
    run_within,
)
from strategies.strategy import AnyScenario


@dataclass(frozen=True, slots=True)
class Bounds:
    """Lower bounds of a point: seconds, and bytes of its fullest device.

    The seconds are 0, and were not computed, where the point lacks memory in whatever order it runs.
    """

    bound_s: float
    least_memory_bytes: float

    def lacks(self, memory_bytes: float | None) -> bool:
        """Whether its fullest device cannot do with so much memory."""
        return memory_bytes is not None and self.least_memory_bytes > memory_bytes


Outcome = Result | InfeasibleError | float
"""A result, the reason for none, or a lower bound in seconds."""


@dataclass(frozen=True, slots=True)
class Answer:
    """All that the replay of a point told.

    Attributes:
        known_s: seconds that it cannot undercut, in the order in which they became clear.
        end: its result, or the reason for none; None where the replay was cut off.
    """

    known_s: tuple[float, ...]
    end: Result | InfeasibleError | None

    @property
    def holds_to_s(self) -> float:
        """The largest limit for which it says what a replay would."""
        return max(self.known_s, default=inf) if self.end is None else inf

    def within(self, limit_s: float) -> Outcome:
        """What a replay gives that is cut off at a limit; not above ``holds_to_s``."""
        found = next((seconds for seconds in self.known_s if seconds >= limit_s), self.end)
        assert found is not None, f"asked for {limit_s} s, known to {self.holds_to_s} s"
        return found


def bounds_of(asked: Asked, scenario: AnyScenario) -> Bounds | InfeasibleError:
    """Return the bounds of a point, or the reason why it does not exist."""
    there = asked.at(scenario)
    memory_bytes = there.cluster.device.memory_bytes
    try:
        least_bytes = least_memory_bytes(asked.strategy, there)
        lacks = memory_bytes is not None and least_bytes > memory_bytes
        if lacks:
            return Bounds(0.0, least_bytes)
        return Bounds(bound(asked.strategy, there), least_bytes)
    except InfeasibleError as error:
        return error


def answer_of(asked: Asked, scenario: AnyScenario, limit_s: float) -> Answer:
    """The answer of a point, replayed as far as a limit.

    Raises:
        DeadlockError: its order can never be carried out; the text names the point too.
    """
    there = asked.at(scenario)
    known_s: list[float] = []
    try:
        check_held_memory(asked.strategy, there)
        found = run_within(asked.strategy, there, limit_s, known_s)
    except InfeasibleError as error:
        return Answer(tuple(known_s), error)
    except DeadlockError as error:
        given = parameters_of(asked.strategy).items()
        words = (f"{name} {value}" for name, value in given if value is not None)
        raise DeadlockError(f"{', '.join([asked.strategy.name, *words])}: {error}") from None
    return Answer(tuple(known_s), None if isinstance(found, float) else found)


class Task(NamedTuple):
    """Points to be bounded, or, where limits are given, replayed as far as these.

    A point that lacks memory is bounded with the first ``relief`` too, and with each next one while it fits.
    """

    points: tuple[Asked, ...]
    limits_s: tuple[float, ...] | None = None
    relief: tuple[str, ...] = ()

    def answers(self, scenario: AnyScenario) -> "Answers":
        """What there is to know of its points."""
        if self.limits_s is None:
            return [tuple(self._bounds(asked, scenario)) for asked in self.points]
        pairs = zip(self.points, self.limits_s, strict=True)
        return [answer_of(asked, scenario, limit_s) for asked, limit_s in pairs]

    def _bounds(self, asked: Asked, scenario: AnyScenario) -> Iterator[Bounds | InfeasibleError]:
        """The bounds of a point, and those with relief."""
        there = scenario.cluster.device.memory_bytes
        yield (found := bounds_of(asked, scenario))
        if asked.checkpointing is None and isinstance(found, Bounds) and found.lacks(there):
            for checkpointing in self.relief:
                yield (found := bounds_of(asked._replace(checkpointing=checkpointing), scenario))
                if not isinstance(found, Bounds) or found.lacks(there):
                    return

    def told(self, answers: "Answers") -> Iterator[tuple[Asked, "Told"]]:
        """Its points and those with relief, each with its own of the answers."""
        for asked, answer in zip(self.points, answers, strict=True):
            if isinstance(answer, Answer):
                yield asked, answer
                continue
            for checkpointing, bounds in zip((asked.checkpointing, *self.relief), answer, strict=False):
                yield asked._replace(checkpointing=checkpointing), bounds


Told = Bounds | InfeasibleError | Answer
Answers = Sequence[Answer | Sequence[Bounds | InfeasibleError]]


def take_bounds(point: Point, bounds: Bounds | InfeasibleError, memory_bytes: float | None) -> None:
    """Note what a point cannot undercut; it is infeasible if it lacks memory whatever its order."""
    if isinstance(bounds, InfeasibleError):
        point.reason, point.kind = str(bounds), bounds.kind
        return
    point.bound_s, point.least_memory_bytes = bounds.bound_s, bounds.least_memory_bytes
    if memory_bytes is not None and bounds.lacks(memory_bytes):
        point.reason = missing_memory(point.least_memory_bytes, memory_bytes, at_least=True)
        point.kind = OUT_OF_MEMORY


def take_outcome(point: Point, outcome: Outcome) -> None:
    """Note what the replay of a point gave."""
    if isinstance(outcome, float):
        point.bound_s = max(point.bound_s, outcome)
    elif isinstance(outcome, InfeasibleError):
        point.reason, point.kind = str(outcome), outcome.kind
    else:
        point.result = outcome
        if outcome.missing_memory:
            point.reason, point.kind = outcome.missing_memory, OUT_OF_MEMORY
