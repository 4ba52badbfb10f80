"""Questions: what was asked, by one point or by many, and whether anything that answers it fits the devices."""

from collections.abc import Mapping, Sequence
from dataclasses import fields
from math import inf
from types import MappingProxyType
from typing import Any, Final, NamedTuple

from profiles.errors import DiffusimError, InfeasibleError, InputError
from sim.explore.legality import check_heeded, check_runs, within
from sim.explore.points import MAX_MICRO_BATCHES, Asked, Point, find_points
from sim.inputs.limits import check_passes
from sim.inputs.suggestions import check_exists
from sim.outcomes.runs import check_held_memory, least_memory_bytes, run_point
from strategies.plans.workloads import RELIEF
from strategies.registry import class_of, make
from strategies.scenario import Scenario
from strategies.strategy import AnyScenario

MOST: Final = 48
"""Points of a strategy that are looked at."""
TRIED: Final = 2
"""Points that are simulated to see whether one fits: those that need least."""


class Question(NamedTuple):
    """A question as ``sim run`` or ``sim sweep`` asks it.

    Attributes:
        scenario: what is asked about.
        names: the strategies that are asked, the one that lacks least first.
        parameters: those that were given, which hold for the strategies that have them.
        relief: whether what lacks memory is tried with recomputation without being asked.
        single: whether it is of one point: what is not given has its default.
        runtime: the name of one that must run the points; None where none must.
    """

    scenario: AnyScenario
    names: Sequence[str]
    parameters: Mapping[str, Any] = MappingProxyType({})
    relief: bool = False
    single: bool = False
    runtime: str | None = None

    @property
    def recomputes(self) -> bool:
        """Whether recomputation is asked for, or tried; what draws images has none."""
        scenario = self.scenario
        return self.relief or not isinstance(scenario, Scenario) or scenario.workload.checkpointing != "none"


def parameters_known(name: str) -> set[str]:
    """The names of a strategy's parameters."""
    cls: Any = class_of(name)
    return {item.name for item in fields(cls)}


def least_bytes(question: Question) -> float:
    """Bytes without which no point of a question does, of those that are looked at; infinite where it has none."""
    return min((_needs(question, asked) for asked in _points(question)), default=inf)


def fits(question: Question) -> bool:
    """Whether a point that answers a question fits: it is simulated, where its bound lets it."""
    there = question.scenario.cluster.device.memory_bytes
    if there is None:
        return True
    needs = [(_needs(question, asked), asked) for asked in _points(question)]

    def order(
        pair: tuple[float, Asked],
    ) -> tuple[float, int]:  # of those that need as much the quickest first
        return round(pair[0] / there, 1), getattr(pair[1].strategy, "micro_batches", None) or 1

    promising = sorted((pair for pair in needs if pair[0] <= there), key=order)
    return any(_runs(question, asked) for _, asked in promising[:TRIED])


def _points(question: Question) -> list[Asked]:
    """The points that a question asks about, of each strategy so many that are spread over all of them."""
    gpus = question.scenario.workload.num_gpus
    found: list[Asked] = []
    for name in question.names:
        known = parameters_known(name)
        held = {key: value for key, value in question.parameters.items() if key in known}
        try:
            if question.single:
                found.append(Asked(make(name, held), gpus))
                continue
            points = _swept(question, name, held)
        except InputError:  # a value is not valid for this strategy
            continue
        every = [Asked(p.strategy, p.num_gpus or gpus) for p in points if p.strategy is not None]
        found += every[:: max(1, len(every) // MOST)]
    return found


def _swept(question: Question, name: str, held: Mapping[str, Any]) -> list[Point]:
    """The points of a strategy that a sweep looks at."""
    points = find_points(question.scenario, [name], held)
    if question.runtime is not None:
        points = within(question.runtime, points, question.scenario)
    return [p for p in points if (getattr(p.strategy, "micro_batches", None) or 1) <= MAX_MICRO_BATCHES]


def _at(question: Question, asked: Asked) -> AnyScenario:
    """What a point is asked about, with recomputation where that would be tried."""
    there = question.scenario if question.single else asked.at(question.scenario)
    if isinstance(there, Scenario) and question.relief and there.workload.checkpointing == "none":
        return there.with_checkpointing(RELIEF[0])
    return there


def _needs(question: Question, asked: Asked) -> float:
    """Bytes that a point cannot do without; infinite where it does not exist, or does not know."""
    try:
        return least_memory_bytes(asked.strategy, _at(question, asked)) or inf
    except InfeasibleError:
        return inf


def _runs(question: Question, asked: Asked) -> bool:
    """Whether a point is taken, and fits."""
    try:
        there = _at(question, asked)
        if question.single:
            check_exists(asked.strategy, there, question.parameters)
            check_heeded(asked.strategy, there)
            if question.runtime is not None:
                check_runs(question.runtime, asked.strategy, there)
        check_passes(asked.strategy, there)
        check_held_memory(asked.strategy, there)
        return run_point(asked.strategy, there).fits_memory
    except DiffusimError:
        return False
