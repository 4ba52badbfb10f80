"""An experiment: one strategy on one scenario, replayed and measured."""

from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass
from typing import Any, Final

from profiles.errors import InfeasibleError
from profiles.mappings import FrozenMapping
from profiles.units import GIB
from sim.engine import no_collection, simulate
from sim.memory import peak_memory_bytes
from sim.metrics import collective_s, exposed_communication_s, idle_s
from strategies.network import network_of
from strategies.plan import Stage
from strategies.scenario import Scenario
from strategies.strategy import Divided, Holding, Job, MemoryBounded, Refining, Strategy
from strategies.traces import Trace

OUT_OF_MEMORY: Final = "out of memory"
"""The reason of points that do not fit, without its numbers."""


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
    pass, and ratios are ratios of expectations; the peak memory is the larger of the two. Of jobs side by side,
    an iteration is the time in which they together train each backbone on one batch.
    """

    model: str
    cluster: str
    num_gpus: int
    strategy: str
    parameters: Mapping[str, Any]
    batch_size: int
    num_backbones: int
    options: Mapping[str, Any]
    expected: Iteration
    fits_memory: bool
    memory_bytes: float | None
    provenance: str
    stages: tuple[Mapping[str, Any], ...]

    def __post_init__(self) -> None:
        object.__setattr__(self, "parameters", FrozenMapping(self.parameters))
        object.__setattr__(self, "options", FrozenMapping(self.options))
        object.__setattr__(self, "stages", tuple(map(FrozenMapping, self.stages)))

    def __repr__(self) -> str:
        what = f"{self.model} by {self.strategy} on {self.num_gpus} GPUs of {self.cluster}"
        return f"<TrainingResult {what}: {self.expected.iteration_s:.4g} s>"

    @property
    def missing_memory(self) -> str | None:
        """How much memory the devices lack, in words; None where the point fits."""
        if self.fits_memory or self.memory_bytes is None:
            return None
        return missing_memory(self.expected.peak_memory_bytes, self.memory_bytes)

    @property
    def samples_per_s(self) -> float:
        """Throughput; a sample counts once for each backbone that it trains (DiffusionPipe, section 6)."""
        return self.num_backbones * self.batch_size / self.expected.iteration_s

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
            "parameters": dict(self.parameters),
            "batch_size": self.batch_size,
            "options": dict(self.options),
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
            "stages": [{**stage, "devices": list(stage["devices"])} for stage in self.stages],
        }


def missing_memory(needed_bytes: float, there_bytes: float, *, at_least: bool = False) -> str:
    """Return by how much memory does not suffice, in words."""
    needed, there = needed_bytes / GIB, there_bytes / GIB
    words, digits = "needs at least" if at_least else "needs", 1 if needed - there >= 0.05 else 3
    return (
        f"{words} {needed:.{digits}f} GiB, the device has {there:.{digits}f} GiB:"
        f" {needed - there:.{digits}f} GiB too much"
    )


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
        strategy: the strategy of these iterations; a job's own, where several run side by side.
        scenario: the scenario of these iterations.
        probability: how often an iteration takes as long as these; where each group draws, the slowest decides.
        share: the share of the groups that do this work.
        job: the number of their job.
    """

    strategy: Strategy
    scenario: Scenario
    probability: float
    share: float
    job: int = 0


def jobs(strategy: Strategy, scenario: Scenario) -> tuple[Job, ...]:
    """Return what runs side by side.

    Raises:
        InfeasibleError: the GPUs cannot be divided so.
    """
    return strategy.jobs(scenario) if isinstance(strategy, Divided) else (Job(strategy, scenario),)


def variants(strategy: Strategy, scenario: Scenario) -> list[Variant]:
    """Return the iterations that occur, job by job."""
    numbered = enumerate(jobs(strategy, scenario))
    return [variant for number, job in numbered for variant in _variants(*job, number)]


def _variants(strategy: Strategy, scenario: Scenario, job: int) -> list[Variant]:
    degree: int = getattr(strategy, "pipeline_degree", 1)
    groups = scenario.workload.num_gpus // (getattr(strategy, "group_size", None) or degree)
    probability, share = scenario.extra_forward_probability(groups), scenario.self_conditioning
    both = [
        Variant(strategy, scenario.with_extra_forward(False), 1 - probability, 1 - share, job),
        Variant(strategy, scenario.with_extra_forward(True), probability, share, job),
    ]
    return [variant for variant in both if variant.share > 0]


Replayed = list[tuple[Variant, Trace]]


def replay_variants(strategy: Strategy, scenario: Scenario) -> Replayed:
    """Return the iterations that occur and their traces.

    Raises:
        InfeasibleError: the point does not exist for the scenario.
    """
    return [(variant, replay(variant.strategy, variant.scenario)) for variant in variants(strategy, scenario)]


@no_collection()
def run_training(strategy: Strategy, scenario: Scenario) -> TrainingResult:
    """Return the result of one strategy on one scenario.

    Raises:
        InfeasibleError: the point does not exist for the scenario.
    """
    return summarize(strategy, scenario, replay_variants(strategy, scenario))


@no_collection()
def run_training_within(strategy: Strategy, scenario: Scenario, limit_s: float) -> TrainingResult | float:
    """Return the result, or, as soon as that is clear, seconds from ``limit_s`` on that the point cannot undercut.

    Raises:
        InfeasibleError: the point does not exist for the scenario.
    """
    occurring = variants(strategy, scenario)
    expected_s = [variant.probability * variant.strategy.bound(variant.scenario) for variant in occurring]
    replayed: Replayed = []
    while (known_s := _iteration_s(occurring, expected_s)) < limit_s:
        if len(replayed) == len(occurring):
            return summarize(strategy, scenario, replayed)
        variant = occurring[len(replayed)]
        trace = replay(variant.strategy, variant.scenario)
        expected_s[len(replayed)] = variant.probability * trace.end_s
        replayed.append((variant, trace))
    return known_s


def summarize(strategy: Strategy, scenario: Scenario, replayed: Replayed) -> TrainingResult:
    """Return the result that the iterations that occur amount to."""
    by_job: dict[int, list[tuple[Variant, Iteration]]] = {}
    for variant, trace in replayed:
        by_job.setdefault(variant.job, []).append((variant, Iteration.of(trace)))
    expected = _side_by_side([_expectation(measured) for measured in by_job.values()])
    memory_bytes = scenario.cluster.device.memory_bytes
    return TrainingResult(
        model=scenario.model_name,
        cluster=scenario.cluster_name,
        num_gpus=scenario.workload.num_gpus,
        strategy=strategy.name,
        parameters=asdict(strategy),  # type: ignore[call-overload]
        batch_size=scenario.workload.batch_size,
        num_backbones=len(scenario.model.backbones),
        options=_options(scenario),
        expected=expected,
        fits_memory=memory_bytes is None or expected.peak_memory_bytes <= memory_bytes,
        memory_bytes=memory_bytes,
        provenance=scenario.costs.provenance,
        stages=tuple(_stages(replayed)),
    )


def bound(strategy: Strategy, scenario: Scenario) -> float:
    """Return seconds below which the expected iteration of a point cannot take."""
    occurring = variants(strategy, scenario)
    return _iteration_s(occurring, [v.probability * v.strategy.bound(v.scenario) for v in occurring])


def least_memory_bytes(strategy: Strategy, scenario: Scenario) -> float:
    """Return bytes that the fullest device of a point cannot do without; 0 where its strategy does not know."""
    least = 0.0
    for job in jobs(strategy, scenario):
        if isinstance(job.strategy, MemoryBounded):
            least = max(least, job.strategy.least_memory_bytes(job.scenario))
    return least


def check_held_memory(strategy: Strategy, scenario: Scenario) -> None:
    """Refuse a point whose order alone says that it lacks memory; it need not be replayed.

    Raises:
        InfeasibleError: it lacks memory, or does not exist for the scenario.
    """
    there = scenario.cluster.device.memory_bytes
    for job in jobs(strategy, scenario):
        if there is not None and isinstance(job.strategy, Holding):
            held = job.strategy.held_bytes(job.scenario)
            if held > there:
                raise InfeasibleError(missing_memory(held, there, at_least=True), OUT_OF_MEMORY)


def _iteration_s(occurring: list[Variant], expected_s: list[float]) -> float:
    """Return the seconds of an iteration, from what each variant adds to those of its job."""
    by_job: dict[int, float] = {}
    for variant, seconds in zip(occurring, expected_s, strict=True):
        by_job[variant.job] = by_job.get(variant.job, 0.0) + seconds
    return _together_s(list(by_job.values()))


def _together_s(jobs_s: list[float]) -> float:
    """Return the seconds in which jobs side by side train as many samples as each does in one iteration.

    Their throughputs add up, so it is the harmonic mean. Source: DiffusionPipe, section 6, DeepSpeed-P.
    """
    if len(jobs_s) == 1:
        return jobs_s[0]
    return len(jobs_s) / sum(1 / seconds for seconds in jobs_s)


def _side_by_side(jobs: list[Iteration]) -> Iteration:
    """Return what jobs on equally many GPUs do together while they train each backbone on one batch.

    Each runs as many of its iterations, or such a part of one, as fit; times are means over all devices.
    """
    if len(jobs) == 1:
        return jobs[0]
    iteration_s = _together_s([job.iteration_s for job in jobs])

    def total(name: str) -> float:
        return float(sum(getattr(job, name) * iteration_s / job.iteration_s for job in jobs))

    return Iteration(
        iteration_s=iteration_s,
        first_iteration_s=total("first_iteration_s") / len(jobs),
        idle_s=total("idle_s") / len(jobs),
        exposed_communication_s=total("exposed_communication_s") / len(jobs),
        collective_s=total("collective_s") / len(jobs),
        p2p_bytes=total("p2p_bytes"),
        collective_bytes=total("collective_bytes"),
        peak_memory_bytes=max(job.peak_memory_bytes for job in jobs),
    )


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


def _stages(replayed: Replayed) -> Iterator[dict[str, Any]]:
    """Yield the stages of each job; its GPUs come after those of the jobs before it."""
    first = {variant.job: (variant, trace) for variant, trace in reversed(replayed)}
    for job, (variant, trace) in sorted(first.items()):
        for stage in trace.plan.stages:
            yield _describe(stage, trace, job * variant.scenario.workload.num_gpus)


def _describe(stage: Stage, trace: Trace, first_gpu: int) -> dict[str, Any]:
    return {
        "devices": tuple(first_gpu + gpu for gpu in trace.plan.placement.devices(stage.position)),
        "first_layer": stage.first_layer,
        "last_layer": stage.last_layer,
        "forward_s": stage.forward_s,
        "backward_s": stage.backward_s,
        "parameters": stage.parameters,
    }
