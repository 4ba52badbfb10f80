"""Parts: a point replayed part by part, the iterations of training or the phases of a run of the sampler."""

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import chain, groupby
from typing import Any, NamedTuple, cast

from sim.outcomes.measures import Measures, in_turn
from sim.outcomes.repeats import repeated_step
from sim.outcomes.results import NamedTrace
from sim.replay.engine import no_collection, simulate
from strategies.patching.frozen import with_frozen
from strategies.patching.layout import unfolded
from strategies.plans.network import Network, network_of
from strategies.plans.traces import Trace
from strategies.sampling_scenario import SamplingScenario
from strategies.scenario import Scenario
from strategies.strategy import AnyScenario, AnyStrategy, Phase, Sampler, Strategy


def replay(strategy: Strategy, scenario: Scenario) -> Trace:
    """Return the trace of one iteration, the fastest of a strategy's refinements if it refines."""
    with no_collection():
        plan = strategy.plan(scenario)
        network = network_of(scenario, plan.placement)
        trace = simulate(plan, network)
        refined: list[Trace] = []
        while (plan := strategy.refine(scenario, trace)) is not trace.plan:
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

    Its measures are of running it once, also where the trace is of one guidance group that stands for all, or of the
    first steps.
    """

    variant: Variant
    phase: Phase
    trace: Trace
    measures: Measures


def variants(strategy: AnyStrategy, scenario: AnyScenario) -> list[Variant]:
    """Return the iterations that occur, job by job.

    Raises:
        InfeasibleError: the GPUs cannot be divided among the jobs.
    """
    occurring: list[Variant] = []
    for job, (point, there) in enumerate(strategy.jobs(scenario)):
        each = there.variants(groups_of(point, there), getattr(point, "draws", ""))
        occurring += [Variant(point, of, probability, share, job) for of, probability, share in each]
    return occurring


def groups_of(strategy: AnyStrategy, scenario: AnyScenario) -> int:
    """Return the groups of GPUs that each train on samples of their own."""
    size = getattr(strategy, "group_size", None) or getattr(strategy, "pipeline_degree", None) or 1
    return scenario.workload.num_gpus // size


def _replay(variant: Variant, *, folded: bool, excerpt: bool) -> Iterator[Part]:
    """Yield the parts of a variant; of a sampler its phases, and the frozen components around them.

    Where one guidance group stands for all in a plan, the phase's own plan is of all, its measures are of one.
    """
    strategy, scenario = variant.strategy, variant.scenario
    if not isinstance(strategy, Sampler) or not isinstance(scenario, SamplingScenario):
        trace = replay(cast(Strategy, strategy), cast(Scenario, scenario))
        yield Part(variant, Phase("iteration", trace.plan, 1), trace, Measures.of(trace))
        return
    first = strategy.folded_phases(scenario, excerpt=excerpt) if folded else strategy.phases(scenario)
    written, networks = {phase.name: phase.plan for phase in first}, dict[int, Network]()
    for phase in with_frozen(scenario, tuple(map(unfolded, first)), strategy.guidance_groups(scenario)):
        plan, omitted = written.get(phase.name, phase.plan), phase.omitted
        network = networks.setdefault(plan.placement.num_positions, Network(plan.placement))
        trace = simulate(plan, network)
        step = repeated_step(trace, network) if omitted else None
        if omitted and step is None:  # no step repeats another so early
            plan = next(of.plan for of in strategy.folded_phases(scenario) if of.name == phase.name)
            trace = simulate(plan, network)
        measures = Measures.of(trace)
        if step is not None:
            measures = in_turn((measures, step), (1, omitted))
        yield Part(variant, phase, trace, measures)


@no_collection()
def replay_parts(
    strategy: AnyStrategy, scenario: AnyScenario, *, folded: bool = False, excerpt: bool = False
) -> list[Part]:
    """Return all parts of a point, replayed.

    Args:
        strategy: the strategy with its parameters.
        scenario: the model, cluster, stack and workload.
        folded: whether one guidance group stands for all where they are alike.
        excerpt: whether of a long folded run whose steps repeat one another only the first are replayed.
    """
    each = (_replay(one, folded=folded, excerpt=excerpt) for one in variants(strategy, scenario))
    return list(chain.from_iterable(each))


def measured_parts(strategy: AnyStrategy, scenario: AnyScenario) -> list[Part]:
    """Return all parts of a point with their measures, replayed no further than needed."""
    return replay_parts(strategy, scenario, folded=True, excerpt=True)


def parts_by(parts: Iterable[Part], key: Callable[[Variant], Any]) -> list[list[Part]]:
    """Return the parts grouped by a key of their variants, which follow one another."""
    return [list(group) for _, group in groupby(parts, lambda part: key(part.variant))]


def main_part(parts: Sequence[Part]) -> Part:
    """Return the part that speaks for its variant: the iteration, or the last phase with denoising steps."""
    return next(part for part in reversed(parts) if part.phase.steps)


def named_traces(parts: Sequence[Part]) -> list[NamedTrace]:
    """Return the traces of a point, named by a job's backbone, the extra forward, and the phase."""
    groups = parts_by(parts, id)
    several_jobs = len({group[0].variant.job for group in groups}) > 1
    jobs_seen: set[int] = set()
    traces = []
    for group in groups:
        variant, main = group[0].variant, main_part(group)
        backbone = variant.scenario.model.components[variant.scenario.backbone_index].name
        words = [backbone] if several_jobs else []
        words += ["extra-forward"] if variant.job in jobs_seen else []
        jobs_seen.add(variant.job)
        for part in group:
            name = "-".join(words if part is main else [*words, part.phase.name])
            traces.append(NamedTrace(name, part.trace, part is main and group is groups[0]))
    return traces
