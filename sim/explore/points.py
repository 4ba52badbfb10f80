"""Points of a design space, of training and of sampling, and answers about them: their bounds and results."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, fields, replace
from functools import partial
from itertools import pairwise
from math import inf
from typing import Any, Final, NamedTuple

from profiles.costs.bands import tied
from profiles.errors import DeadlockError, InfeasibleError, InputError
from sim.inputs.scenarios import fields_of
from sim.outcomes.results import OUT_OF_MEMORY, Result, lacking_words
from sim.outcomes.runs import bound, coarse_bounds, least_memory_bytes, parameters_of, run_point
from strategies.parameters import completed
from strategies.registry import class_of, strategies_of
from strategies.scenario import Scenario
from strategies.strategy import AnyScenario, AnyStrategy, gpu_counts, is_seamless
from strategies.templates.ordered_pipeline import OrderedPipeline

REFUSED: Final = "parameter value not valid for this strategy"

MAX_MICRO_BATCHES: Final = 1024
"""More micro-batches than this gain nothing and take long to simulate."""


class Candidate(NamedTuple):
    """A strategy, the number of GPUs it is to run on, and what is recomputed where the scenario does not say it."""

    strategy: AnyStrategy
    num_gpus: int
    checkpointing: str | None = None

    def at(self, scenario: AnyScenario) -> AnyScenario:
        """The scenario on the GPUs of this point, with what it recomputes."""
        there = scenario.on(self.num_gpus)
        if self.checkpointing is None or not isinstance(there, Scenario):
            return there
        return there.with_options(checkpointing=self.checkpointing)

    def point(self) -> "Point":
        """The point, of which nothing is known yet."""
        return Point(self.strategy, self.strategy.name, self.num_gpus, self.checkpointing)


@dataclass(slots=True)
class Point:
    """One point of the design space and what is known of it.

    Attributes:
        strategy: the strategy with its parameters; None where a strategy does not apply at all.
        name: the strategy's name.
        num_gpus: GPUs that it runs on.
        checkpointing: what is recomputed in it, where the scenario does not say it.
        bound_s: seconds that its iteration, or its run of the sampler, cannot undercut.
        least_memory_bytes: bytes that its fullest device cannot do without.
        result: what its simulation gave.
        reason: why it cannot exist, or does not fit.
        kind: the reason without its numbers.
        answered: the kind of the last answer about it; empty where nothing is known.
    """

    strategy: AnyStrategy | None
    name: str
    num_gpus: int
    checkpointing: str | None = None
    bound_s: float = inf
    least_memory_bytes: float = 0.0
    result: Result | None = None
    reason: str | None = None
    kind: str | None = None
    answered: str = ""

    @property
    def recommended(self) -> bool:
        """Whether it may be the best, since no seams show in what it draws; such points come before all others."""
        return is_seamless(self.strategy or class_of(self.name))

    @property
    def complexity(self) -> tuple[int, int]:
        """What has to be set up: that of its strategy, then how many of its degrees are above 1."""
        degrees = (degree for name, degree in self.parameters.items() if name.endswith("_degree") and degree)
        return class_of(self.name).complexity, sum(degree > 1 for degree in degrees)

    def __repr__(self) -> str:
        known = self.reason or (f"over {self.bound_s:.4g} s" if self.result is None else repr(self.result))
        return f"<Point {self.strategy or self.name}: {known}>"

    @property
    def candidate(self) -> Candidate:
        """Its strategy on its GPUs, with its recomputation."""
        assert self.strategy is not None
        return Candidate(self.strategy, self.num_gpus, self.checkpointing)

    @property
    def parameters(self) -> dict[str, Any]:
        """The strategy's parameters; none where it does not apply at all."""
        return {} if self.strategy is None else parameters_of(self.strategy)

    @property
    def status(self) -> str:
        """``infeasible``, ``simulated`` or ``bounded``."""
        if self.reason is not None:
            return "infeasible"
        return "bounded" if self.result is None else "simulated"

    @property
    def identity(self) -> tuple[Any, ...] | None:
        """A key that points with equal results share, as where they differ only in parameters that change nothing."""
        if self.status != "simulated" or self.result is None:
            return None
        return (self.name, self.result.num_gpus, self.result.times, self.result.expected)

    def same(self, other: "Point") -> bool:
        """Whether it is another, or one of another strategy with its result."""
        one, two = self.identity, other.identity
        return self is other or (one is not None and two is not None and one[1:] == two[1:])

    def tied(self, other: "Point", objective: str) -> bool:
        """Whether both have results that their comparison cannot tell apart; by memory never, which is counted."""
        scores = self.score(objective), other.score(objective)
        if self.result is None or other.result is None or objective == "memory" or inf in scores:
            return False
        return tied(self.result.uncertainty, scores[0], other.result.uncertainty, scores[1])

    def least_score(self, objective: str) -> float:
        """Lower bound of the score of a point."""
        return self._score(objective, self.bound_s, self.least_memory_bytes)

    @property
    def needed_bytes(self) -> float:
        """Bytes of its fullest device at least, as far as is known."""
        return max(self.least_memory_bytes, self.costs[1])

    @property
    def costs(self) -> tuple[float, float]:
        """Seconds and peak bytes of a point that was simulated; else zeros."""
        expected = None if self.result is None else self.result.expected
        return (0.0, 0.0) if expected is None else (expected.duration_s, expected.peak_memory_bytes)

    def score(self, objective: str) -> float:
        """Score that the ranking minimises: seconds, GPU-seconds or bytes; infinite where it is not known."""
        return self._score(objective, *self.costs) if self.status == "simulated" else inf

    def _score(self, objective: str, seconds: float, size: float) -> float:
        if objective == "memory":
            return size
        return seconds * self.num_gpus if objective == "cost" else seconds


def find_points(
    scenario: AnyScenario, names: Sequence[str] | None = None, fixed: Mapping[str, Any] | None = None
) -> list[Point]:
    """The points of all strategies of a scenario's task, or those named, that keep to fixed parameters.

    A strategy for which a fixed value is not valid, such as a way to cut the backbone, gives one infeasible point.
    Samplers are looked at on fewer GPUs too.
    """
    chosen = strategies_of(scenario.task) if names is None else names
    classes = [class_of(name, scenario.task) for name in dict.fromkeys(chosen)]
    fixed = fixed or {}
    for key in fixed:
        if key not in fields_of(classes):
            raise InputError(f"no strategy of this sweep has the parameter `{key}`")
    points: list[Point] = []
    refused: list[InputError] = []
    gpus = scenario.workload.num_gpus
    for cls in classes:
        try:
            kept = _keep(_candidates(cls, scenario), fixed)
            candidates = dict.fromkeys(one._replace(strategy=completed(one.strategy)) for one in kept)
            points += [one.point() for one in candidates]
        except InfeasibleError as error:
            points.append(Point(None, cls.name, gpus, reason=str(error), kind=error.kind))
        except InputError as error:
            refused.append(error)
            points.append(Point(None, cls.name, gpus, reason=str(error), kind=REFUSED))
    having = any(hasattr(point.strategy, key) for point in points for key in fixed)
    if refused and not having:
        raise refused[0]
    return points


def _candidates(cls: Any, scenario: AnyScenario) -> list[Candidate]:  # noqa: ANN401
    """The points of a strategy worth a look, on every number of GPUs worth a look."""
    gpus = scenario.workload.num_gpus
    candidates: list[Candidate] = []
    errors: list[InfeasibleError] = []
    for count in gpu_counts(cls, gpus):
        try:
            offered = cls.candidates(scenario.on(count))
            candidates += [Candidate(point, count) for strategy in offered for point in _cuts(strategy)]
        except InfeasibleError as error:
            errors.append(error)
    if not candidates:
        words = f"`gpus({gpus})` and `batch_size({scenario.workload.batch_size})`"
        none = InfeasibleError(
            f"no degrees of parallelism for {words}", "no degrees for these GPUs and this batch"
        )
        raise next(iter(errors), none)
    return candidates


def _cuts(strategy: AnyStrategy) -> Iterator[AnyStrategy]:
    """A point on each partition that a sweep tries: strategies compare by their best."""
    if not isinstance(strategy, OrderedPipeline):
        yield strategy
        return
    choices = next(item for item in fields(strategy) if item.name == "partition").metadata["choices"]
    yield from (replace(strategy, partition=split) for split in strategy.partitions if split in choices)


def _keep(candidates: list[Candidate], fixed: Mapping[str, Any]) -> list[Candidate]:
    """The candidates with a fixed value; where none has it, all of them set to it."""
    for key, value in fixed.items():
        if candidates and key in fields_of([type(candidates[0].strategy)]):
            matching = [c for c in candidates if getattr(c.strategy, key) == value]
            candidates = matching or [
                c._replace(strategy=replace(c.strategy, **{key: value}))  # type: ignore[type-var]
                for c in candidates
            ]
    return candidates


@dataclass(frozen=True, slots=True)
class Bounds:
    """Lower bounds of a point: seconds, and bytes of its fullest device.

    The seconds are 0, and were not computed, where the point lacks memory in whatever order it runs.
    """

    bound_s: float
    least_memory_bytes: float


Answer = Bounds | Result | InfeasibleError
"""Bounds or a result, or the reason for neither."""
Question = tuple[str, Candidate]
"""A kind of answer, and the point that is asked about."""
Answers = dict[Question, Answer]
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


def answer_all(questions: Sequence[Question], scenario: AnyScenario) -> Answers:
    """Return the answers to questions; an error of a strategy's own names its point.

    Raises:
        DeadlockError: the order of a point can never be carried out.
    """
    answers: Answers = {}
    for kind, candidate in questions:
        try:
            answers[kind, candidate] = answer_of(kind, candidate, scenario)
        except Exception as error:
            values = parameters_of(candidate.strategy).items()
            there = (f"{name} {value}" for name, value in values if value is not None)
            words = ", ".join([candidate.strategy.name, *there])
            if isinstance(error, DeadlockError):
                raise DeadlockError(f"{words}: {error}") from None
            error.add_note(f"at {words}")
            raise
    return answers


def take_answer(point: Point, kind: str, answer: Answer, scenario: AnyScenario) -> None:
    """Note what a point cannot undercut, or what its simulation gave; it is infeasible if it lacks memory."""
    point.answered = kind
    match answer:
        case InfeasibleError():
            point.reason, point.kind = str(answer), answer.kind
        case Bounds():
            point.bound_s = answer.bound_s
            point.least_memory_bytes = max(point.least_memory_bytes, answer.least_memory_bytes)
            there = scenario.on(point.num_gpus)
            if there.room_bytes is not None and point.least_memory_bytes > there.room_bytes:
                point.reason = lacking_words(point.least_memory_bytes, there)
                point.kind, point.bound_s = OUT_OF_MEMORY, 0.0
        case Result():
            point.result = answer
            if answer.missing_memory:
                point.reason, point.kind = answer.missing_memory, OUT_OF_MEMORY
