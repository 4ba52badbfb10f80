"""Relief: what recomputes activations where memory is short, in a sweep and in a single run.

Recomputation takes time, so a point that fits needs none. A point that lacks memory is bounded with its blocks
recomputed (``block``). If it may fit then, it is bounded with attention kept as well (``selective``), which may be
faster. Both stand in one queue with the points that fit without recomputation, and only what can still matter is
simulated. ``full`` is not tried: it would hold the inputs of stages and one layer, less than any framework does.
"""

from collections.abc import Iterable
from typing import TYPE_CHECKING, Final

from profiles.software.runtimes import find_runtime
from sim.explore.legality import refusal
from sim.explore.points import Point
from sim.outcomes.phrases import OUT_OF_MEMORY, missing_memory
from sim.outcomes.runs import least_memory_bytes, run_point
from strategies.plans.workloads import AUTO, RELIEF
from strategies.scenario import Scenario
from strategies.strategy import AnyScenario, AnyStrategy

if TYPE_CHECKING:
    from sim.explore.sweep import Sweep

BLOCK, SELECTIVE = RELIEF
LIGHTEST_FIRST: Final = ("none", SELECTIVE, BLOCK)
"""Ways of checkpointing by the time that they take."""


def next_reliefs(sweep: "Sweep", tried: Iterable[Point]) -> list[Point]:
    """Points of a sweep with relief that are to be tried next, by what is known of others.

    Where memory is ranked by, the points that fit are tried again, too: what is recomputed need not be kept.

    Args:
        sweep: its points are without relief, and bounded.
        tried: those with relief, bounded.
    """
    if not sweep.relief:
        return []
    by_memory = sweep.objective == "memory"

    def lack(points: Iterable[Point]) -> list[Point]:
        return [of for of in points if of.kind == OUT_OF_MEMORY or (by_memory and of.kind is None)]

    known = {(of.strategy, of.num_gpus, of.checkpointing): of for of in tried}
    blocks = [of for of in known.values() if of.checkpointing == BLOCK]
    again = {BLOCK: lack(sweep.points)}
    if not by_memory and _attends_in_one(sweep.scenario):
        again[SELECTIVE] = [of for of in blocks if of.kind is None]
    fresh = [
        Point(of.strategy, of.name, num_gpus=of.num_gpus, checkpointing=checkpointing)
        for checkpointing, points in again.items()
        for of in points
        if (of.strategy, of.num_gpus, checkpointing) not in known
    ]
    if sweep.runtime is None:
        return fresh
    runtime = find_runtime(sweep.runtime)
    return [of for of in fresh if not refusal(runtime, of, sweep.scenario)]


def relief_at_once(sweep: "Sweep") -> tuple[str, ...]:
    """Ways of checkpointing with which any point of a sweep that lacks memory is tried next, one after the other."""
    if sweep.runtime is not None or sweep.objective == "memory":  # which tries others, or more
        return ()
    return sweep.relief if _attends_in_one(sweep.scenario) else sweep.relief[:1]


def _attends_in_one(scenario: AnyScenario) -> bool:
    """Whether a scenario's stack has fused attention, whose output can be kept."""
    return isinstance(scenario, Scenario) and scenario.stack.attention != "math"


def least_recomputed(strategy: AnyStrategy, scenario: AnyScenario) -> tuple[AnyScenario, str]:
    """The scenario with the least recomputation that lets a point fit, and a remark that says which it is.

    Where none does, the one in which the point lacks least memory by its bound.

    Raises:
        InfeasibleError: the point does not exist for the scenario.
    """
    assert isinstance(scenario, Scenario)
    there, before = scenario.cluster.device.memory_bytes, ": it fits without recomputation"
    lacking: list[tuple[float, int]] = []
    for order, checkpointing in enumerate(LIGHTEST_FIRST):
        if checkpointing == SELECTIVE and not _attends_in_one(scenario):
            continue
        asked = scenario.with_checkpointing(checkpointing)
        held = bound = least_memory_bytes(strategy, asked)
        if there is None or held <= there:
            held = run_point(strategy, asked).peak_memory_bytes
        if there is None or held <= there:
            return asked, f"--checkpointing {AUTO} took {checkpointing}{before}"
        before = f": with {checkpointing} it {missing_memory(held, there, at_least=True)}"
        lacking.append((bound, order))
    least = LIGHTEST_FIRST[min(lacking)[1]]
    words = f"--checkpointing {AUTO} took {least}, with which it lacks least: no recomputation makes it fit"
    return scenario.with_checkpointing(least), words
