"""Parts: a point replayed part by part, the iterations of training or the phases of a run of the sampler."""

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any, NamedTuple, cast

from profiles.errors import InfeasibleError
from sim.outcomes.measures import Measures
from sim.outcomes.periods import with_all_periods
from sim.outcomes.results import NamedTrace
from sim.outcomes.steady import (
    ALIKE,
    FIRST_MICRO_BATCHES,
    FIRST_STEPS,
    LEAST_TIMES,
    LEAST_TIMES_AGAIN,
    LONG_STEPS,
    SETTLED,
    grows_in_one_place,
    with_all_layers,
    with_all_micro_batches,
    with_all_steps,
)
from sim.outcomes.unrefined import unrefined_trace
from sim.replay.engine import no_collection, simulate
from strategies.patching.alike_groups import unfolded
from strategies.patching.frozen import with_frozen
from strategies.plans.network import Network, network_of
from strategies.plans.traces import Trace
from strategies.sampling_scenario import SamplingScenario
from strategies.scenario import Scenario
from strategies.strategy import (
    Accumulating,
    AnyScenario,
    AnyStrategy,
    Divided,
    Phase,
    Refining,
    Repeating,
    Sampler,
    Strategy,
)
from strategies.templates.grid_sampler import GridSampler


def replay(strategy: Strategy, scenario: Scenario) -> Trace:
    """The trace of one iteration, the fastest of a strategy's refinements if it refines.

    Raises:
        InfeasibleError: the point does not exist for the scenario.
        DeadlockError: the strategy's order can never be carried out.
    """
    with no_collection():
        trace = unrefined_trace(strategy, scenario)
        network = network_of(scenario, trace.plan.placement)
        refined: list[Trace] = []
        while issubclass(type(strategy), Refining):  # asked of a class, as in ``jobs``
            plan = cast(Refining, strategy).refine(scenario, trace)
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
        """Measures of running it once."""
        return self.continued or Measures.of(self.trace)

    @property
    def duration_s(self) -> float:
        """Seconds of running it once."""
        return self.trace.end_s if self.continued is None else self.continued.duration_s


def jobs(strategy: AnyStrategy, scenario: AnyScenario) -> Sequence[tuple[AnyStrategy, AnyScenario]]:
    """The jobs that run side by side, each with its scenario.

    Raises:
        InfeasibleError: the GPUs cannot be divided so.
    """
    if issubclass(type(strategy), Divided):  # of a class it is known once it was asked, of a value never
        return cast(Divided, strategy).jobs(scenario)
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
        trace = replay(cast(Strategy, strategy), scenario)
        yield Part(variant, Phase("iteration", trace.plan, 1), trace)
        return
    assert isinstance(strategy, Sampler)
    yield from _replay_phases(variant, strategy.phases(scenario))


def _replay_phases(variant: Variant, phases: tuple[Phase, ...]) -> Iterator[Part]:
    """The parts of some phases of denoising steps, and of the frozen components around them.

    Where one guidance group stands for all in a plan, the phase's own plan is of all, its measures are of one.
    """
    strategy, scenario = variant.strategy, variant.scenario
    assert isinstance(strategy, Sampler) and isinstance(scenario, SamplingScenario)
    networks: dict[int, Network] = {}
    written = {phase.name: phase.plan for phase in phases}
    whole = tuple(map(unfolded, phases))
    for phase in with_frozen(scenario, whole, strategy.guidance_groups(scenario)):
        plan = written.get(phase.name, phase.plan)
        network = networks.setdefault(plan.placement.num_positions, Network(plan.placement))
        trace = simulate(plan, network)
        yield Part(variant, phase, trace, None if plan is phase.plan else Measures.of(trace))


def _replay_folded(variant: Variant) -> Iterator[Part]:
    """The parts of a run; of guidance groups that are alike, only one is replayed."""
    strategy, scenario = variant.strategy, variant.scenario
    if not (isinstance(strategy, GridSampler) and isinstance(scenario, SamplingScenario)):
        return _replay_parts(variant)
    return _replay_phases(variant, strategy.folded_phases(scenario))


def _alike_steps(variant: Variant, strategy: GridSampler, scenario: SamplingScenario) -> Iterator[Part]:
    """The parts of a run whose steps are alike, so that one is replayed; if it is large, not all its alike layers."""
    if (short := strategy.shortened(scenario)) is None:
        return _replay_folded(variant)
    parts = list(_replay_phases(variant, (short.phase,)))
    main = main_part(parts)
    measures = with_all_layers(main.trace, short.stretches, Network(main.trace.plan.placement))
    if measures is None:
        return _replay_folded(variant)
    return iter([part._replace(continued=measures) if part is main else part for part in parts])


def parts_of(variant: Variant) -> Iterator[Part]:
    """The parts of a variant with their measures, replayed no further than needed.

    Of long runs the first steps are replayed, of large steps the first alike layers, of iterations with many
    micro-batches some of these.
    """
    strategy, scenario = variant.strategy, variant.scenario
    if not isinstance(scenario, SamplingScenario):
        part = _first_micro_batches(variant) or _excerpt(variant)
        return _replay_parts(variant) if part is None else iter([part])
    if isinstance(strategy, GridSampler) and not strategy.steps_overlap(scenario):
        return _alike_steps(variant, strategy, scenario)
    assert isinstance(strategy, Sampler)
    return _first_steps(variant, strategy, scenario)


def _first_micro_batches(variant: Variant) -> Part | None:
    """An iteration of which the first micro-batches are replayed; None where that spares little or does not suffice."""
    strategy, scenario = variant.strategy, variant.scenario
    if not issubclass(type(strategy), Accumulating):
        return None
    micro_batches: int = getattr(strategy, "micro_batches", 1)
    if micro_batches < 2 * FIRST_MICRO_BATCHES:
        return None
    counts = (FIRST_MICRO_BATCHES - 1, FIRST_MICRO_BATCHES)
    asked = [cast(Accumulating, strategy).first_micro_batches(scenario, count) for count in counts]
    try:
        shorter, longer = (None if job is None else job.strategy.plan(job.scenario) for job in asked)
    except InfeasibleError:  # so is the iteration, which says so with its own numbers
        return None
    if shorter is None or longer is None or not grows_in_one_place(shorter, longer):
        return None
    network = Network(longer.placement)
    trace = simulate(longer, network)
    left_out = micro_batches - FIRST_MICRO_BATCHES
    measures = with_all_micro_batches(shorter, trace, left_out, network)
    return None if measures is None else Part(variant, Phase("iteration", longer, 1), trace, measures)


def _excerpt(variant: Variant) -> Part | None:
    """An iteration of a long pipeline, replayed without micro-batches in its middle; None if that does not suffice."""
    strategy = variant.strategy
    if not issubclass(type(strategy), Repeating):
        return None
    found = with_all_periods(cast(Repeating, strategy), cast(Scenario, variant.scenario))
    if found is None:
        return None
    trace, measures = found
    return Part(variant, Phase("iteration", trace.plan, 1), trace, measures)


def _first_steps(variant: Variant, strategy: Sampler, scenario: SamplingScenario) -> Iterator[Part]:
    """The parts of a long run of which the first steps are replayed, where they come to repeat one another."""
    whole, steps, times = scenario.workload.computed_steps, _first(strategy, scenario), LEAST_TIMES
    while times * steps <= whole:
        parts = list(_replay_folded(replace(variant, scenario=scenario.with_steps(steps))))
        main = main_part(parts)
        if main.phase.steps != steps:  # so too of a sampler without a grid
            break
        network = Network(main.trace.plan.placement)
        measures = with_all_steps(main.trace, whole - steps, network)
        if measures is not None:
            phase = main.phase._replace(steps=whole)
            whole_run = main._replace(phase=phase, continued=measures)
            return iter([whole_run if part is main else part for part in parts])
        steps, times = 2 * steps, LEAST_TIMES_AGAIN
    return _replay_folded(variant)


def _first(strategy: Sampler, scenario: SamplingScenario) -> int:
    """Steps that are replayed first: those after which its bound says that a run is steady.

    Where the bound does not say it, all steps of a run that is not long. So too where cards share switches: two
    messages may be due there at once, the last digits of their times say which goes first, and a run that was steady
    for a while may change once more.
    """
    whole = scenario.workload.computed_steps
    least = (getattr(strategy, "warmup_steps", None) or 0) + FIRST_STEPS
    if whole <= LONG_STEPS and scenario.cluster.intra_node.kind == "pcie":
        return whole
    settled = strategy.settled_steps(scenario) if isinstance(strategy, GridSampler) else 0
    if settled:
        return max(least, int(SETTLED * settled) + ALIKE + 1)
    return whole if whole <= LONG_STEPS else least


@no_collection()
def replay_parts(strategy: AnyStrategy, scenario: AnyScenario) -> list[Part]:
    """All parts of a point, replayed.

    Raises:
        InfeasibleError: the point does not exist for the scenario.
    """
    return [part for variant in variants(strategy, scenario) for part in _replay_parts(variant)]


@no_collection()
def measured_parts(strategy: AnyStrategy, scenario: AnyScenario) -> list[Part]:
    """All parts of a point with their measures, replayed no further than needed (``parts_of``).

    Raises:
        InfeasibleError: the point does not exist for the scenario.
    """
    return [part for variant in variants(strategy, scenario) for part in parts_of(variant)]


def traces_of(strategy: AnyStrategy, scenario: AnyScenario, parts: Sequence[Part]) -> list[NamedTrace]:
    """The traces of a point whose parts were measured; where one was continued, it is replayed whole."""
    whole = all(part.continued is None for part in parts)
    return named_traces(parts if whole else replay_parts(strategy, scenario))


def parts_by(parts: Iterable[Part], key: Callable[[Variant], Any]) -> list[list[Part]]:
    """The parts grouped by a key of their variants, in the order in which these come."""
    groups: dict[Any, list[Part]] = {}
    for part in parts:
        groups.setdefault(key(part.variant), []).append(part)
    return list(groups.values())


def main_part(parts: Sequence[Part]) -> Part:
    """The part that speaks for its variant: the iteration, or the last phase with denoising steps."""
    return next(part for part in reversed(parts) if part.phase.steps)


def named_traces(parts: Sequence[Part]) -> list[NamedTrace]:
    """The traces of a point by names that tell them apart: a job's backbone, the extra forward, the phase."""
    groups = parts_by(parts, id)
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
