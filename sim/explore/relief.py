"""Relief: what recomputes activations where memory is short, in a sweep and in a single run.

What is recomputed takes time, so nothing that fits needs any. Blocks first: they tell which points fit at all.
Those that do may be faster with attention kept, and those that do not may fit with no more than the inputs of their
stages, which takes as long. Each is bounded before it is simulated, and only what can still matter is looked at.
"""

from collections.abc import Iterator
from math import inf
from typing import TYPE_CHECKING, Final

from sim.explore.points import Point
from sim.explore.thresholds import Threshold
from sim.results import OUT_OF_MEMORY, missing_memory
from sim.runs import least_memory_bytes, run_point
from strategies.plans.workloads import AUTO, RELIEF
from strategies.scenario import Scenario
from strategies.strategy import AnyScenario, AnyStrategy

if TYPE_CHECKING:
    from sim.explore.sweep import Sweep

BLOCK, SELECTIVE, FULL = RELIEF
LIGHTEST_FIRST: Final = ("none", SELECTIVE, BLOCK, FULL)
"""Ways of checkpointing by the time that they take."""


def reliefs(sweep: "Sweep") -> Iterator[list[Point]]:
    """Points of a sweep with relief, to be answered before the next are asked for, as far as they can still matter.

    Where memory is ranked by, the points that fit are tried again, too: what is recomputed need not be kept.
    """
    if not sweep.relief:
        return
    by_memory = sweep.objective == "memory"
    plain = [of for of in sweep.points if of.kind == OUT_OF_MEMORY or (by_memory and of.kind is None)]
    yield (blocks := _again(sweep, plain, BLOCK))
    if not by_memory and attends_in_one(sweep.scenario):
        fitting = {(of.strategy, of.num_gpus) for of in blocks if of.kind is None}
        yield _again(sweep, [of for of in plain if (of.strategy, of.num_gpus) in fitting], SELECTIVE)
    short = (of for of in blocks if of.kind == OUT_OF_MEMORY or (by_memory and of.kind is None))
    yield _again(sweep, [of for of in short if _is_cut(of.strategy)], FULL)


def attends_in_one(scenario: AnyScenario) -> bool:
    """Whether a scenario's stack has fused attention, whose output can be kept."""
    return isinstance(scenario, Scenario) and scenario.stack.attention != "math"


def _is_cut(strategy: AnyStrategy | None) -> bool:
    """Whether a strategy cuts the backbone: a stage that is all of it is kept whole while it is recomputed."""
    return getattr(strategy, "pipeline_degree", 1) != 1


def _again(sweep: "Sweep", points: list[Point], checkpointing: str) -> list[Point]:
    """Those of some points that can still matter, with what is to be recomputed, which takes no less time."""
    fresh = [
        Point(of.strategy, of.name, of.bound_s, num_gpus=of.num_gpus, checkpointing=checkpointing)
        for of in points
    ]
    known = Threshold(sweep.objective, sweep.top)
    for point in sweep.points:
        known.add(point)
    limits = dict.fromkeys(map(id, fresh), inf) if sweep.exhaustive else known.limits(fresh)
    return [point for point in fresh if point.least_score(sweep.objective) < limits[id(point)]]


def lightest(strategy: AnyStrategy, scenario: AnyScenario) -> tuple[AnyScenario, str]:
    """A scenario with the least recomputation with which a point fits, and a remark on what it is.

    Where none does, nothing is recomputed.

    Raises:
        InfeasibleError: the point does not exist for the scenario.
    """
    assert isinstance(scenario, Scenario)
    there, before = scenario.cluster.device.memory_bytes, ""
    for checkpointing in LIGHTEST_FIRST:
        if checkpointing == SELECTIVE and not attends_in_one(scenario):
            continue
        asked = scenario.with_checkpointing(checkpointing)
        held = least_memory_bytes(strategy, asked)
        if there is None or held <= there:
            held = run_point(strategy, asked).peak_memory_bytes
        if there is None or held <= there:
            return asked, f"checkpointing {AUTO} took {checkpointing}{before}"
        before = f": with {checkpointing} it {missing_memory(held, there, at_least=True)}"
    return scenario, f"checkpointing {AUTO} took none, as it fits with no other either"
