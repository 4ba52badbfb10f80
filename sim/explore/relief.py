"""Relief: what recomputes activations where memory is short, in a sweep and in a single run.

What is recomputed takes time, so nothing that fits needs any. Of blocks the bounds tell which points may fit at all.
Those may be faster with attention kept. Each is bounded before it is simulated, and only what can still matter is
simulated, in one queue with what fits without: what keeps attention comes first there, and what it beats is not
replayed. ``full`` is not tried: what it holds, the inputs of stages and one layer, is a bound that no framework
reaches.
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
    """Points of a sweep with relief that follow from what is known of others, and were not tried yet.

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


def _attends_in_one(scenario: AnyScenario) -> bool:
    """Whether a scenario's stack has fused attention, whose output can be kept."""
    return isinstance(scenario, Scenario) and scenario.stack.attention != "math"


def least_recomputed(strategy: AnyStrategy, scenario: AnyScenario) -> tuple[AnyScenario, str]:
    """A scenario with the least recomputation with which a point fits, and a remark on what it is.

    Where none does, that in which it lacks least by bound.

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
