"""An experiment: one strategy on one scenario, replayed and measured."""

from dataclasses import asdict, dataclass
from typing import Any

from profiles.units import GIB
from sim.engine import no_collection, simulate
from sim.memory import peak_memory_bytes
from sim.metrics import collective_s, exposed_communication_s, idle_s
from strategies.network import network_of
from strategies.plan import Stage
from strategies.scenario import Scenario
from strategies.strategy import Refining, Strategy
from strategies.traces import Trace


@dataclass(frozen=True, slots=True)
class Iteration:
    """What one replayed iteration took; means over devices where a quantity has one value per device.

    Attributes:
        iteration_s: the period: makespan with the frozen work of one iteration.
        first_iteration_s: the first one, which also runs its own frozen work.
        idle_s: seconds without compute.
        exposed_communication_s: idle seconds while something awaited is on the wire.
        collective_s: seconds in which a collective runs.
        p2p_bytes: what all GPUs together send in messages.
        collective_bytes: what all GPUs together send in collectives.
        peak_memory_bytes: the largest over devices.
    """

    iteration_s: float
    first_iteration_s: float
    idle_s: float
    exposed_communication_s: float
    collective_s: float
    p2p_bytes: float
    collective_bytes: float
    peak_memory_bytes: float

    @property
    def busy_s(self) -> float:
        """Seconds in which compute runs."""
        return self.iteration_s - self.idle_s

    @classmethod
    def of(cls, trace: Trace) -> "Iteration":
        """Return what a trace says."""
        return cls(
            iteration_s=trace.end_s,
            first_iteration_s=trace.end_s + trace.plan.prologue_s,
            idle_s=idle_s(trace),
            exposed_communication_s=exposed_communication_s(trace),
            collective_s=collective_s(trace),
            p2p_bytes=trace.p2p_bytes,
            collective_bytes=trace.collective_bytes,
            peak_memory_bytes=float(peak_memory_bytes(trace).max()),
        )


@dataclass(frozen=True, slots=True)
class TrainingResult:
    """A result: what was simulated, and what came out of it.

    With self-conditioning all quantities are expectations over iterations with and without the extra forward
    pass, and ratios are ratios of expectations; the peak memory is the larger of the two.
    """

    model: str
    cluster: str
    num_gpus: int
    strategy: str
    parameters: dict[str, Any]
    batch_size: int
    options: dict[str, Any]
    expected: Iteration
    fits_memory: bool
    memory_bytes: float | None
    provenance: str
    stages: tuple[dict[str, Any], ...]

    @property
    def missing_memory(self) -> str | None:
        """How much memory the devices lack, in words; None where the point fits."""
        if self.fits_memory or self.memory_bytes is None:
            return None
        return missing_memory(self.expected.peak_memory_bytes, self.memory_bytes)

    @property
    def samples_per_s(self) -> float:
        """Throughput."""
        return self.batch_size / self.expected.iteration_s

    @property
    def bubble_ratio(self) -> float:
        """Share of the devices' time in which they are idle."""
        return self.expected.idle_s / self.expected.iteration_s

    def to_json(self) -> dict[str, Any]:
        """Return the result under its public keys; bytes and seconds, floats as they are."""
        expected = self.expected
        return {
            "task": "train",
            "model": self.model,
            "cluster": self.cluster,
            "num_gpus": self.num_gpus,
            "strategy": self.strategy,
            "parameters": self.parameters,
            "batch_size": self.batch_size,
            "options": self.options,
            "iteration_s": expected.iteration_s,
            "first_iteration_s": expected.first_iteration_s,
            "samples_per_s": self.samples_per_s,
            "bubble_ratio": self.bubble_ratio,
            "exposed_communication_s": expected.exposed_communication_s,
            "collective_s": expected.collective_s,
            "p2p_bytes": expected.p2p_bytes,
            "collective_bytes": expected.collective_bytes,
            "peak_memory_bytes": expected.peak_memory_bytes,
            "fits_memory": self.fits_memory,
            "provenance": self.provenance,
            "stages": list(self.stages),
        }


def missing_memory(needed_bytes: float, there_bytes: float, *, at_least: bool = False) -> str:
    """Return by how much memory does not suffice, in words."""
    needed, there = needed_bytes / GIB, there_bytes / GIB
    words = "needs at least" if at_least else "needs"
    return f"{words} {needed:.1f} GiB, the device has {there:.1f} GiB: {needed - there:.1f} GiB too much"


def replay(strategy: Strategy, scenario: Scenario) -> Trace:
    """Return the trace of one iteration; of what a strategy's refinements give, the fastest.

    Raises:
        InfeasibleError: the point does not exist for the scenario.
        DeadlockError: the strategy's order can never be carried out.
    """
    with no_collection():
        plan = strategy.plan(scenario)
        network = network_of(scenario, plan.placement)
        trace = simulate(plan, network)
        refined: list[Trace] = []
        while isinstance(strategy, Refining):
            plan = strategy.refine(scenario, trace)
            if plan is trace.plan:
                break
            trace = simulate(plan, network)
            refined.append(trace)
        return min(refined, key=lambda trace: trace.end_s, default=trace)


@dataclass(frozen=True, slots=True)
class Variant:
    """Iterations that run, or do not run, the extra forward pass of self-conditioning.

    Attributes:
        scenario: the scenario of these iterations.
        probability: how often an iteration takes as long as these; where each group draws, the slowest decides.
        share: the share of the groups that do this work.
    """

    scenario: Scenario
    probability: float
    share: float


def variants(strategy: Strategy, scenario: Scenario) -> list[Variant]:
    """Return the iterations that occur."""
    degree: int = getattr(strategy, "pipeline_degree", 1)
    groups = scenario.workload.num_gpus // (getattr(strategy, "group_size", None) or degree)
    probability, share = scenario.extra_forward_probability(groups), scenario.self_conditioning
    both = [
        Variant(scenario.with_extra_forward(False), 1 - probability, 1 - share),
        Variant(scenario.with_extra_forward(True), probability, share),
    ]
    return [variant for variant in both if variant.share > 0]


Replayed = list[tuple[Variant, Trace]]


def replay_variants(strategy: Strategy, scenario: Scenario) -> Replayed:
    """Return the iterations that occur and their traces.

    Raises:
        InfeasibleError: the point does not exist for the scenario.
    """
    return [(variant, replay(strategy, variant.scenario)) for variant in variants(strategy, scenario)]


def run_training(strategy: Strategy, scenario: Scenario) -> TrainingResult:
    """Return the result of one strategy on one scenario.

    Raises:
        InfeasibleError: the point does not exist for the scenario.
    """
    return summarize(strategy, scenario, replay_variants(strategy, scenario))


def run_training_within(strategy: Strategy, scenario: Scenario, limit_s: float) -> TrainingResult | float:
    """Return the result, or, as soon as that is clear, seconds from ``limit_s`` on that the point cannot undercut.

    Raises:
        InfeasibleError: the point does not exist for the scenario.
    """
    occurring = variants(strategy, scenario)
    expected_s = [variant.probability * strategy.bound(variant.scenario) for variant in occurring]
    replayed: Replayed = []
    for number, variant in enumerate(occurring):
        if sum(expected_s) >= limit_s:
            return sum(expected_s)
        replayed.append((variant, replay(strategy, variant.scenario)))
        expected_s[number] = variant.probability * replayed[-1][1].end_s
    return summarize(strategy, scenario, replayed)


def summarize(strategy: Strategy, scenario: Scenario, replayed: Replayed) -> TrainingResult:
    """Return the result that the iterations that occur amount to."""
    expected = _expectation([(variant, Iteration.of(trace)) for variant, trace in replayed])
    memory_bytes = scenario.cluster.device.memory_bytes
    _, trace = replayed[0]
    return TrainingResult(
        model=scenario.model_name,
        cluster=scenario.cluster_name,
        num_gpus=scenario.workload.num_gpus,
        strategy=strategy.name,
        parameters=asdict(strategy),  # type: ignore[call-overload]
        batch_size=scenario.workload.batch_size,
        options=_options(scenario),
        expected=expected,
        fits_memory=memory_bytes is None or expected.peak_memory_bytes <= memory_bytes,
        memory_bytes=memory_bytes,
        provenance=scenario.costs.provenance,
        stages=tuple(_describe(stage, trace) for stage in trace.plan.stages),
    )


def bound(strategy: Strategy, scenario: Scenario) -> float:
    """Return seconds below which the expected iteration of a point cannot take."""
    return sum(v.probability * strategy.bound(v.scenario) for v in variants(strategy, scenario))


def _expectation(measured: list[tuple[Variant, Iteration]]) -> Iteration:
    """Return expectations: of times by how often they occur, of what the groups do by how many do it."""

    def mean(weight: str, name: str) -> float:
        products = (getattr(variant, weight) * getattr(iteration, name) for variant, iteration in measured)
        return float(sum(products))

    iteration_s = mean("probability", "iteration_s")
    return Iteration(
        iteration_s=iteration_s,
        first_iteration_s=mean("probability", "first_iteration_s"),
        idle_s=max(0.0, iteration_s - mean("share", "busy_s")),
        exposed_communication_s=mean("share", "exposed_communication_s"),
        collective_s=mean("share", "collective_s"),
        p2p_bytes=mean("share", "p2p_bytes"),
        collective_bytes=mean("share", "collective_bytes"),
        peak_memory_bytes=max(iteration.peak_memory_bytes for _, iteration in measured),
    )


def _options(scenario: Scenario) -> dict[str, Any]:
    workload = scenario.workload
    return {
        "self_conditioning": scenario.self_conditioning,
        "self_conditioning_draw": workload.self_conditioning_draw,
        "checkpointing": workload.checkpointing,
        "memory_recipe": workload.memory_recipe,
        "placement": workload.placement,
    }


def _describe(stage: Stage, trace: Trace) -> dict[str, Any]:
    return {
        "devices": trace.plan.placement.devices(stage.position),
        "first_layer": stage.first_layer,
        "last_layer": stage.last_layer,
        "forward_s": stage.forward_s,
        "backward_s": stage.backward_s,
        "parameters": stage.parameters,
    }
