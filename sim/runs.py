"""Runs: one strategy on one scenario, replayed and weighed."""

from collections.abc import Iterator
from dataclasses import asdict, dataclass
from typing import Any

from profiles.errors import InfeasibleError
from sim.replay.engine import no_collection, simulate
from sim.results import (
    OUT_OF_MEMORY,
    Drawing,
    Iteration,
    ReplayedPhases,
    SamplingResult,
    TrainingResult,
    describe_stage,
    missing_memory,
    training_options,
)
from strategies.patching.frozen import with_frozen
from strategies.plans.actions import PatchAction
from strategies.plans.network import Network, network_of
from strategies.plans.plan import Op
from strategies.plans.traces import Trace
from strategies.scenario import SamplingScenario, Scenario
from strategies.strategy import (
    Divided,
    Holding,
    Job,
    MemoryBounded,
    Phase,
    Refining,
    Sampler,
    Strategy,
    guidance_groups,
    is_seamless,
)


def replay(strategy: Strategy, scenario: Scenario) -> Trace:
    """The trace of one iteration; of what a strategy's refinements give, the fastest.

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
    """The jobs that run side by side.

    Raises:
        InfeasibleError: the GPUs cannot be divided so.
    """
    return strategy.jobs(scenario) if isinstance(strategy, Divided) else (Job(strategy, scenario),)


def variants(strategy: Strategy, scenario: Scenario) -> list[Variant]:
    """The iterations that occur, job by job."""
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
    """The iterations that occur and their traces.

    Raises:
        InfeasibleError: the point does not exist for the scenario.
    """
    return [(variant, replay(variant.strategy, variant.scenario)) for variant in variants(strategy, scenario)]


@no_collection()
def run_training(strategy: Strategy, scenario: Scenario) -> TrainingResult:
    """The result of one strategy on one scenario.

    Raises:
        InfeasibleError: the point does not exist for the scenario.
    """
    return summarize(strategy, scenario, replay_variants(strategy, scenario))


@no_collection()
def run_training_within(strategy: Strategy, scenario: Scenario, limit_s: float) -> TrainingResult | float:
    """The result, or, as soon as that is clear, seconds from ``limit_s`` on that the point cannot undercut.

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
    """The result that the iterations that occur amount to."""
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
        options=training_options(scenario),
        expected=expected,
        fits_memory=memory_bytes is None or expected.peak_memory_bytes <= memory_bytes,
        memory_bytes=memory_bytes,
        provenance=scenario.costs.provenance,
        stages=tuple(_stages(replayed)),
    )


def bound(strategy: Strategy, scenario: Scenario) -> float:
    """Seconds below which the expected iteration of a point cannot take."""
    occurring = variants(strategy, scenario)
    return _iteration_s(occurring, [v.probability * v.strategy.bound(v.scenario) for v in occurring])


def least_memory_bytes(strategy: Strategy, scenario: Scenario) -> float:
    """Bytes that the fullest device of a point cannot do without; 0 where its strategy does not know."""
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
    """The seconds of an iteration, from what each variant adds to those of its job."""
    by_job: dict[int, float] = {}
    for variant, seconds in zip(occurring, expected_s, strict=True):
        by_job[variant.job] = by_job.get(variant.job, 0.0) + seconds
    return _together_s(list(by_job.values()))


def _together_s(jobs_s: list[float]) -> float:
    """The seconds in which jobs side by side train as many samples as each does in one iteration.

    Their throughputs add up, so it is the harmonic mean. Source: DiffusionPipe, section 6, DeepSpeed-P.
    """
    if len(jobs_s) == 1:
        return jobs_s[0]
    return len(jobs_s) / sum(1 / seconds for seconds in jobs_s)


def _side_by_side(jobs: list[Iteration]) -> Iteration:
    """Measures of jobs on equally many GPUs together, while they train each backbone on one batch.

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
    """Expectations: of times by how often they occur, of what the groups do by how many do it."""

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


def _stages(replayed: Replayed) -> Iterator[dict[str, Any]]:
    """The stages of each job; its GPUs come after those of the jobs before it."""
    first = {variant.job: (variant, trace) for variant, trace in reversed(replayed)}
    for job, (variant, trace) in sorted(first.items()):
        for stage in trace.plan.stages:
            yield describe_stage(stage, trace, job * variant.scenario.workload.num_gpus)


@no_collection()
def run_sampling(sampler: Sampler, scenario: SamplingScenario) -> SamplingResult:
    """The result of one sampler on one scenario.

    Raises:
        InfeasibleError: the point does not exist for the scenario.
    """
    return summarize_sampling(sampler, scenario, replay_phases(sampler, scenario))


@no_collection()
def run_sampling_within(
    sampler: Sampler, scenario: SamplingScenario, limit_s: float
) -> SamplingResult | float:
    """The result, or, as soon as that is clear, seconds from ``limit_s`` on that the point cannot undercut.

    Raises:
        InfeasibleError: the point does not exist for the scenario.
    """
    least_s = sampler.bound(scenario)
    if least_s >= limit_s:
        return least_s
    replayed: ReplayedPhases = []
    for item in _replay_phases(sampler, scenario):
        replayed.append(item)
        least_s = float(sum(phase.times * trace.end_s for phase, trace in replayed))
        if least_s >= limit_s:
            return least_s
    return summarize_sampling(sampler, scenario, replayed)


def replay_phases(sampler: Sampler, scenario: SamplingScenario) -> ReplayedPhases:
    """The phases of a run and their traces.

    Raises:
        InfeasibleError: the point does not exist for the scenario.
    """
    return list(_replay_phases(sampler, scenario))


def _replay_phases(sampler: Sampler, scenario: SamplingScenario) -> Iterator[tuple[Phase, Trace]]:
    """The phases of a run, each as soon as it is replayed."""
    networks: dict[int, Network] = {}
    for phase in with_frozen(scenario, sampler.phases(scenario), guidance_groups(sampler, scenario)):
        placement = phase.plan.placement
        network = networks.setdefault(placement.num_positions, Network(placement))
        yield phase, simulate(phase.plan, network)


def summarize_sampling(
    sampler: Sampler, scenario: SamplingScenario, replayed: ReplayedPhases
) -> SamplingResult:
    """The result that the phases amount to."""
    expected, workload = Drawing.of(replayed), scenario.workload
    there = scenario.cluster.device.memory_bytes
    return SamplingResult(
        model=scenario.model_name,
        cluster=scenario.cluster_name,
        num_gpus=workload.num_gpus,
        strategy=sampler.name,
        parameters=asdict(sampler),  # type: ignore[call-overload]
        batch_size=workload.batch_size,
        resolution=workload.resolution,
        steps=workload.steps,
        guidance=workload.guidance,
        options={"include": ",".join(workload.include), "decode_chunks": workload.decode_chunks},
        expected=expected,
        fits_memory=there is None or expected.peak_memory_bytes <= there,
        memory_bytes=there,
        provenance=scenario.costs.provenance,
        stages=tuple(_sampling_stages(replayed)),
        seamless=is_seamless(sampler),
    )


def _sampling_stages(replayed: ReplayedPhases) -> list[dict[str, Any]]:
    """The stages of the backbone, and the devices of each, with seconds for the whole image."""
    plan = next(phase.plan for phase, _ in replayed if phase.steps)
    return [
        {
            "devices": tuple(d for d, ops in enumerate(plan.ops) if _stage_of(ops[0]) == number),
            "first_layer": stage.first_layer,
            "last_layer": stage.last_layer,
            "forward_s": stage.forward_s,
            "backward_s": stage.backward_s,
            "parameters": stage.parameters,
        }
        for number, stage in enumerate(plan.stages)
    ]


def _stage_of(op: Op) -> int:
    """The stage of an op of a denoising step; each device has one."""
    assert isinstance(op.action, PatchAction)
    return op.action.stage
