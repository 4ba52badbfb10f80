"""Runs: one strategy on one scenario, replayed part by part and weighed."""

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any, NamedTuple

from profiles.errors import InfeasibleError
from sim.doubts import doubt_of
from sim.measures import Measures, expectation, in_turn, side_by_side, together_s
from sim.replay.engine import no_collection, simulate
from sim.results import OUT_OF_MEMORY, NamedTrace, Result, Source, missing_memory
from sim.steady import FIRST_STEPS, LONG_STEPS, continued, repeats
from strategies.patching.frozen import with_frozen
from strategies.plans.actions import PatchAction
from strategies.plans.network import Network, network_of
from strategies.plans.plan import Plan
from strategies.plans.traces import Trace
from strategies.scenario import SamplingScenario, Scenario
from strategies.strategy import (
    AnyScenario,
    AnyStrategy,
    Divided,
    Holding,
    MemoryBounded,
    Phase,
    Refining,
    Remarking,
    Sampler,
    Strategy,
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
    """Iterations that run, or do not run, the extra forward pass of self-conditioning; or a run of the sampler.

    Attributes:
        strategy: the strategy of these iterations; a job's own, where several run side by side.
        scenario: the scenario of these iterations.
        probability: how often an iteration takes as long as these; where each group draws, the slowest decides.
        share: the share of the groups that do this work.
        job: the number of their job.
    """

    strategy: AnyStrategy
    scenario: AnyScenario
    probability: float
    share: float
    job: int = 0


class Part(NamedTuple):
    """A part of a point as it was replayed: of training an iteration, of sampling a phase of the run.

    Where the trace is of a shorter run, ``continued`` are the measures of the whole.
    """

    variant: Variant
    phase: Phase
    trace: Trace
    continued: Measures | None = None

    @property
    def measures(self) -> Measures:
        """The measures of one time."""
        return self.continued or Measures.of(self.trace)

    @property
    def duration_s(self) -> float:
        """Seconds of one time."""
        return self.trace.end_s if self.continued is None else self.continued.duration_s


def jobs(strategy: AnyStrategy, scenario: AnyScenario) -> Sequence[tuple[AnyStrategy, AnyScenario]]:
    """The jobs that run side by side, each with its scenario.

    Raises:
        InfeasibleError: the GPUs cannot be divided so.
    """
    if isinstance(strategy, Divided):
        return strategy.jobs(scenario)
    return ((strategy, scenario),)


def variants(strategy: AnyStrategy, scenario: AnyScenario) -> list[Variant]:
    """The iterations that occur, job by job."""
    numbered = enumerate(jobs(strategy, scenario))
    return [variant for number, job in numbered for variant in _variants(*job, number)]


def _variants(strategy: AnyStrategy, scenario: AnyScenario, job: int) -> list[Variant]:
    degree: int = getattr(strategy, "pipeline_degree", None) or 1
    groups = scenario.workload.num_gpus // (getattr(strategy, "group_size", None) or degree)
    return [
        Variant(strategy, own, probability, share, job)
        for own, probability, share in scenario.variants(groups)
    ]


def _replay_parts(variant: Variant) -> Iterator[Part]:
    """The parts of a variant, each as soon as it is replayed."""
    strategy, scenario = variant.strategy, variant.scenario
    if isinstance(scenario, Scenario):
        assert isinstance(strategy, Strategy)
        trace = replay(strategy, scenario)
        yield Part(variant, Phase("iteration", trace.plan, 1), trace)
        return
    assert isinstance(strategy, Sampler)
    networks: dict[int, Network] = {}
    for phase in with_frozen(scenario, strategy.phases(scenario), strategy.guidance_groups(scenario)):
        placement = phase.plan.placement
        network = networks.setdefault(placement.num_positions, Network(placement))
        yield Part(variant, phase, simulate(phase.plan, network))


def _measured_parts(variant: Variant) -> Iterator[Part]:
    """The parts of a variant as they are measured: a long run is continued from where its steps repeat one another."""
    scenario = variant.scenario
    if not isinstance(scenario, SamplingScenario) or scenario.workload.steps <= LONG_STEPS:
        return _replay_parts(variant)
    steps = (getattr(variant.strategy, "warmup_steps", None) or 0) + FIRST_STEPS
    while 2 * steps < scenario.workload.steps:
        shorter, longer = (
            list(_replay_parts(replace(variant, scenario=scenario.with_steps(asked))))
            for asked in (steps - 1, steps)
        )
        if main_part(longer).phase.steps != steps:  # all steps are replayed as one anyway
            return _replay_parts(variant)
        if repeats(main_part(shorter).trace, main_part(longer).trace):
            return _continue(variant, shorter, longer)
        steps *= 2
    return _replay_parts(variant)


def _continue(variant: Variant, shorter: Sequence[Part], longer: Sequence[Part]) -> Iterator[Part]:
    """The parts of a variant, from those of two shorter runs of which one has a step more."""
    whole: int = variant.scenario.workload.steps  # type: ignore[union-attr]  # of sampling
    for before, part in zip(shorter, longer, strict=True):
        steps = part.phase.steps
        measures = continued(before.measures, part.measures, whole - steps) if steps else None
        phase = part.phase._replace(steps=whole) if steps else part.phase
        yield Part(variant, phase, part.trace, measures)


@no_collection()
def replay_parts(strategy: AnyStrategy, scenario: AnyScenario) -> list[Part]:
    """All parts of a point, replayed.

    Raises:
        InfeasibleError: the point does not exist for the scenario.
    """
    return [part for variant in variants(strategy, scenario) for part in _replay_parts(variant)]


@no_collection()
def measured_parts(strategy: AnyStrategy, scenario: AnyScenario) -> list[Part]:
    """All parts of a point with their measures; of long runs of the sampler the first steps alone are replayed.

    Raises:
        InfeasibleError: the point does not exist for the scenario.
    """
    return [part for variant in variants(strategy, scenario) for part in _measured_parts(variant)]


def traces_of(strategy: AnyStrategy, scenario: AnyScenario, parts: Sequence[Part]) -> list[NamedTrace]:
    """The traces of a point whose parts were measured; where one was continued, it is replayed whole."""
    whole = all(part.continued is None for part in parts)
    return named_traces(parts if whole else replay_parts(strategy, scenario))


def run_point(strategy: AnyStrategy, scenario: AnyScenario) -> Result:
    """The result of one strategy on one scenario.

    Raises:
        InfeasibleError: the point does not exist for the scenario.
    """
    return weigh(strategy, scenario, measured_parts(strategy, scenario))


@no_collection()
def run_within(strategy: AnyStrategy, scenario: AnyScenario, limit_s: float) -> Result | float:
    """The result, or, as soon as that is clear, seconds from ``limit_s`` on that the point cannot undercut.

    Raises:
        InfeasibleError: the point does not exist for the scenario.
    """
    occurring = variants(strategy, scenario)
    least_s = [_bound_s(variant) for variant in occurring]
    if (known_s := _together_s(occurring, least_s)) >= limit_s:
        return known_s
    parts: list[Part] = []
    for number, variant in enumerate(occurring):
        least_s[number] = 0.0
        for part in _measured_parts(variant):
            parts.append(part)
            least_s[number] += part.phase.times * part.duration_s
            if (known_s := _together_s(occurring, least_s)) >= limit_s:
                return known_s
    return weigh(strategy, scenario, parts)


def bound(strategy: AnyStrategy, scenario: AnyScenario) -> float:
    """Seconds below which the expected iteration, or run, of a point cannot take."""
    occurring = variants(strategy, scenario)
    return _together_s(occurring, [_bound_s(variant) for variant in occurring])


def _bound_s(variant: Variant) -> float:
    ask: Callable[[AnyScenario], float] = variant.strategy.bound  # type: ignore[assignment]  # each its own task
    return ask(variant.scenario)


def _together_s(occurring: Sequence[Variant], seconds: Sequence[float]) -> float:
    """The expected seconds of all jobs together, from what an iteration of each variant takes."""
    by_job: dict[int, float] = {}
    for variant, each_s in zip(occurring, seconds, strict=True):
        by_job[variant.job] = by_job.get(variant.job, 0.0) + variant.probability * each_s
    return together_s(list(by_job.values()))


def least_memory_bytes(strategy: AnyStrategy, scenario: AnyScenario) -> float:
    """Bytes that the fullest device of a point cannot do without; 0 where its strategy does not know."""
    least = 0.0
    for own, there in jobs(strategy, scenario):
        if isinstance(own, MemoryBounded):
            least = max(least, own.least_memory_bytes(there))
    return least


def check_held_memory(strategy: AnyStrategy, scenario: AnyScenario) -> None:
    """Refuse a point whose order alone says that it lacks memory; it need not be replayed.

    Raises:
        InfeasibleError: it lacks memory, or does not exist for the scenario.
    """
    there = scenario.cluster.device.memory_bytes
    for own, asked in jobs(strategy, scenario):
        if there is not None and isinstance(own, Holding):
            held = own.held_bytes(asked)
            if held > there:
                raise InfeasibleError(missing_memory(held, there, at_least=True), OUT_OF_MEMORY)


def weigh(
    strategy: AnyStrategy, scenario: AnyScenario, parts: Sequence[Part], source: Source | None = None
) -> Result:
    """The result that the replayed parts of a point amount to."""
    expected, workload, parameters = _expected(parts), scenario.workload, parameters_of(strategy)
    return Result(
        task=scenario.task,
        model=scenario.model_name,
        cluster=scenario.cluster_name,
        stack=scenario.stack_name,
        num_gpus=workload.num_gpus,
        strategy=strategy.name,
        parameters=parameters,
        batch_size=workload.batch_size,
        num_backbones=len(scenario.model.backbones),
        asked=scenario.asked,
        options=scenario.options,
        times=_times(parts, expected),
        expected=expected,
        memory_bytes=scenario.cluster.device.memory_bytes,
        provenance=scenario.costs.provenance,
        stages=tuple(_stages(parts)),
        seamless=is_seamless(strategy),
        departures=scenario.departures,
        doubt=doubt_of(scenario, strategy.name, parameters, expected),
        compute_factor=scenario.calibration.factor,
        source=source,
    )


def source_of(
    strategy: AnyStrategy, scenario: AnyScenario, replay: Callable[[], Sequence[NamedTrace]]
) -> Source:
    """The source of a result, with the strategy's remarks about the point."""
    remarks = tuple(strategy.remarks(scenario)) if isinstance(strategy, Remarking) else ()
    return Source(scenario, replay, remarks)


def parameters_of(strategy: AnyStrategy) -> dict[str, Any]:
    """The parameters of a strategy by name."""
    return asdict(strategy)  # type: ignore[call-overload,no-any-return]


def _by(parts: Iterable[Part], key: Callable[[Variant], Any]) -> list[list[Part]]:
    """The parts that have something in common, in the order in which they come."""
    groups: dict[Any, list[Part]] = {}
    for part in parts:
        groups.setdefault(key(part.variant), []).append(part)
    return list(groups.values())


def _expected(parts: Sequence[Part]) -> Measures:
    """Expectations: phases in turn, iterations as often as they occur, jobs side by side."""
    return side_by_side([_of_job(own) for own in _by(parts, lambda variant: variant.job)])


def _of_job(parts: Sequence[Part]) -> Measures:
    by_variant = _by(parts, id)
    measured = [
        in_turn([part.measures for part in own], [part.phase.times for part in own]) for own in by_variant
    ]
    occurring = [own[0].variant for own in by_variant]
    return expectation(measured, [v.probability for v in occurring], [v.share for v in occurring])


def _times(parts: Sequence[Part], expected: Measures) -> dict[str, float]:
    """The durations of a result under their public keys."""
    if parts[0].variant.scenario.task == "sample":
        return {"latency_s": expected.duration_s, "step_s": step_s(parts)}
    return {"iteration_s": expected.duration_s, "first_iteration_s": expected.first_s}


def step_s(parts: Sequence[Part]) -> float:
    """The seconds of a steady step: of the last phase, or from the end of its last step but one on."""
    _, phase, trace, _ = main_part(parts)
    if phase.steps == 1:
        return trace.end_s
    ends: dict[int, float] = {}
    for ops, times in zip(trace.plan.ops, trace.ends, strict=True):
        for op, end in zip(ops, times, strict=True):
            if isinstance(op.action, PatchAction):
                ends[op.action.step] = max(ends.get(op.action.step, 0.0), end)
    last, before = (ends[step] for step in sorted(ends)[-1:-3:-1])
    return last - before


def main_part(parts: Sequence[Part]) -> Part:
    """The part that speaks for its variant: the iteration, or the last phase with denoising steps."""
    return next(part for part in reversed(parts) if part.phase.steps)


def _stages(parts: Sequence[Part]) -> Iterator[dict[str, Any]]:
    """The stages of each job with their devices; its GPUs come after those of the jobs before it."""
    for own in _by(parts, lambda variant: variant.job):
        variant, phase, *_ = next(part for part in own if part.phase.steps)
        first_gpu = variant.job * variant.scenario.workload.num_gpus
        for number, stage in enumerate(phase.plan.stages):
            yield {
                "devices": tuple(first_gpu + gpu for gpu in _devices(phase.plan, number)),
                "first_layer": stage.first_layer,
                "last_layer": stage.last_layer,
                "forward_s": stage.forward_s,
                "backward_s": stage.backward_s,
                "parameters": stage.parameters,
            }


def _devices(plan: Plan, stage: int) -> Iterable[int]:
    """The GPUs that hold a stage; where patches pass, those whose ops are of it."""
    actions = [ops[0].action if ops else None for ops in plan.ops]
    if not isinstance(actions[0], PatchAction):
        return plan.placement.devices(plan.stages[stage].position)
    return [device for device, of in enumerate(actions) if isinstance(of, PatchAction) and of.stage == stage]


def named_traces(parts: Sequence[Part]) -> list[NamedTrace]:
    """The traces of a point by names that tell them apart: a job's backbone, the extra forward, the phase."""
    groups = _by(parts, id)
    several_jobs = len({own[0].variant.job for own in groups}) > 1
    jobs_seen: set[int] = set()
    found = []
    for own in groups:
        variant, main = own[0].variant, main_part(own)
        words = [_backbone(variant)] if several_jobs else []
        words += ["extra-forward"] if variant.job in jobs_seen else []
        jobs_seen.add(variant.job)
        for part in own:
            name = "-".join(words if part is main else [*words, part.phase.name])
            found.append(NamedTrace(name, part.trace, part is main and own is groups[0]))
    return found


def _backbone(variant: Variant) -> str:
    return variant.scenario.model.components[variant.scenario.backbone_index].name
