"""Parts: a point replayed part by part, the iterations of training or the phases of a run of the sampler."""

from bisect import bisect_left
from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import accumulate, chain, groupby
from typing import Any, Final, NamedTuple, cast

from sim.outcomes.measures import Measures, in_turn
from sim.replay.engine import no_collection, simulate
from sim.replay.metrics import collective_s, dispatch_s, waited_s
from strategies.patching.frozen import with_frozen
from strategies.patching.layout import unfolded
from strategies.plans.network import Network, network_of
from strategies.plans.traces import Trace
from strategies.sampling_scenario import SamplingScenario
from strategies.scenario import Scenario
from strategies.strategy import AnyScenario, AnyStrategy, Phase, Sampler, Strategy

ROUNDING: Final = 1e-12
"""Share of a run by which the times of two steps may differ besides their period."""


class _Step(NamedTuple):
    """One step of a trace: for each device its ops, then messages by slot and collectives by number."""

    ops: list[range]
    slots: list[int]
    collectives: range

    def spans(self, trace: Trace) -> list[tuple[float, float]]:
        """Return when each op began and ended."""
        return [(trace.starts[at][op], trace.ends[at][op]) for at, ops in enumerate(self.ops) for op in ops]

    def times(self, trace: Trace) -> list[float]:
        """Return when each op, message and collective began and ended."""
        spans = self.spans(trace)
        spans += [(trace.sent[slot], trace.arrived[slot]) for slot in self.slots]
        spans += [trace.collectives[number] for number in self.collectives]
        return [time for span in spans for time in span]


def _measured(trace: Trace, omitted: int) -> Measures | None:
    """Return the measures of a trace with so many more steps as its last but one; None where that repeats no other."""
    if not omitted:
        return Measures.of(trace)
    step = repeated_step(trace, Network(trace.plan.placement))
    return step and in_turn((Measures.of(trace), step), (1, omitted))


def repeated_step(trace: Trace, network: Network) -> Measures | None:
    """Return what the last step, or micro-batch, but one adds, memory aside; None where it does not repeat another."""
    before, step = _steps(trace)
    early, late = before.times(trace), step.times(trace)
    shifts = [b - a for a, b in zip(early, late, strict=False)]
    period_s = sum(shifts) / len(shifts)
    plan, most_s = trace.plan, ROUNDING * trace.end_s
    rows = [ops[part.start : part.stop] for ops, part in zip(plan.ops, step.ops, strict=True)]
    if (
        len(early) != len(late)
        or any(abs(shift - period_s) > most_s for shift in shifts)
        or any(sum(op.host_s for op in row) > period_s + most_s for row in rows)
    ):
        return None
    count, messages = plan.num_devices, trace.wiring.transfers
    sent = [message.size_bytes for slot in step.slots if (message := messages[slot])]
    routes = [network.collective(plan.collectives[number]) for number in step.collectives]
    return Measures(
        duration_s=period_s,
        first_s=period_s,
        idle_s=period_s - sum(end - start for start, end in step.spans(trace)) / count,
        exposed_communication_s=sum(waited_s(trace, step.ops)) / count,
        collective_s=collective_s(trace, step.collectives),
        dispatch_s=dispatch_s(rows),
        p2p_bytes=sum(sent) * plan.placement.copies,
        collective_bytes=sum(route.sent_bytes for route in routes),
        peak_memory_bytes=0.0,
    )


def _steps(trace: Trace) -> Sequence[_Step]:
    """Return the last two steps of a run but the very last."""
    plan, wiring = trace.plan, trace.wiring
    rows = [
        [getattr(op.action, "step", getattr(op.action, "micro_batch", 0)) for op in ops] for ops in plan.ops
    ]
    steps = [[*accumulate(row, max)] for row in rows]
    of_tensor = {tensor: steps[device][op] for tensor, (device, op) in wiring.writers.items()}
    of_collective, last = list[int](), max(row[-1] for row in steps)
    for collective in plan.collectives:
        of_collective.append(of_tensor[collective.reads[0]] if collective.reads else 0)
        of_tensor |= dict.fromkeys(collective.writes, of_collective[-1])
    return [
        _Step(
            [range(bisect_left(row, step), bisect_left(row, step + 1)) for row in steps],
            [slot for (tensor, _), slot in wiring.slots.items() if of_tensor.get(tensor) == step],
            range(bisect_left(of_collective, step), bisect_left(of_collective, step + 1)),
        )
        for step in (last - 2, last - 1)
    ]


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


class Variant(NamedTuple):
    """Iterations that run, or do not run, the extra forward pass of self-conditioning; or a run of the sampler.

    Attributes:
        strategy: the strategy of these iterations; a job's own, where several run side by side.
        scenario: the scenario of these iterations.
        probability: how often an iteration takes as long as these; where each group draws, the slowest decides.
        share: the share of the groups that do this work.
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
        occurring += [Variant(point, draw, probability, share, job) for draw, probability, share in each]
    return occurring


def groups_of(strategy: AnyStrategy, scenario: AnyScenario) -> int:
    """Return the groups of GPUs that each train on samples of their own."""
    size = getattr(strategy, "group_size", None) or getattr(strategy, "pipeline_degree", None) or 1
    return scenario.workload.num_gpus // size


def _replay(variant: Variant, *, excerpt: bool) -> Iterator[Part]:
    """Yield the parts of a variant; of a sampler its phases, and the frozen components around them.

    Where one guidance group stands for all in a plan, the phase's own plan is of all, its measures are of one.
    """
    strategy, scenario = variant.strategy, variant.scenario
    if not isinstance(strategy, Sampler) or not isinstance(scenario, SamplingScenario):
        point, there = cast(Strategy, strategy), cast(Scenario, scenario)
        few, those, omitted = point.excerpt(there) if excerpt else (point, there, 0)
        trace = replay(few, those)
        if (measures := _measured(trace, omitted)) is None:
            trace = replay(point, there)
            measures = Measures.of(trace)
        yield Part(variant, Phase("iteration", trace.plan, 1), trace, measures)
        return
    first = strategy.folded_phases(scenario, excerpt=True) if excerpt else strategy.phases(scenario)
    written, networks = {phase.name: phase.plan for phase in first}, dict[int, Network]()
    for phase in with_frozen(scenario, tuple(map(unfolded, first)), strategy.guidance_groups(scenario)):
        plan = written.get(phase.name, phase.plan)
        network = networks.setdefault(plan.placement.num_positions, Network(plan.placement))
        trace = simulate(plan, network)
        if (measures := _measured(trace, phase.omitted)) is None:  # no step repeats another so early
            plan = next(fold.plan for fold in strategy.folded_phases(scenario) if fold.name == phase.name)
            trace = simulate(plan, network)
            measures = Measures.of(trace)
        yield Part(variant, phase, trace, measures)


@no_collection()
def replay_parts(strategy: AnyStrategy, scenario: AnyScenario, *, excerpt: bool = False) -> list[Part]:
    """Return all parts of a point, replayed.

    With ``excerpt`` one guidance group stands for all where they are alike, and of steps that repeat one another, or
    micro-batches, only the first are replayed.
    """
    each = (_replay(one, excerpt=excerpt) for one in variants(strategy, scenario))
    return list(chain.from_iterable(each))


def measured_parts(strategy: AnyStrategy, scenario: AnyScenario) -> list[Part]:
    """Return all parts of a point with their measures, replayed no further than needed."""
    return replay_parts(strategy, scenario, excerpt=True)


def parts_by(parts: Iterable[Part], key: Callable[[Variant], Any]) -> list[list[Part]]:
    """Return the parts grouped by a key of their variants, which follow one another."""
    return [list(group) for _, group in groupby(parts, lambda part: key(part.variant))]


def main_part(parts: Sequence[Part]) -> Part:
    """Return the part that speaks for its variant: the iteration, or the last phase with denoising steps."""
    return next(part for part in reversed(parts) if part.phase.steps)


def named_traces(parts: Sequence[Part]) -> dict[str, Trace]:
    """Return the traces of a point, named by a job's backbone, the extra forward, and the phase."""
    groups = parts_by(parts, id)
    several_jobs = len({group[0].variant.job for group in groups}) > 1
    jobs_seen: set[int] = set()
    traces: dict[str, Trace] = {}
    for group in groups:
        variant, main = group[0].variant, main_part(group)
        backbone = variant.scenario.model.components[variant.scenario.backbone_index].name
        words = [backbone] if several_jobs else []
        words += ["extra-forward"] if variant.job in jobs_seen else []
        jobs_seen.add(variant.job)
        for part in group:
            name = "-".join(words if part is main else [*words, part.phase.name])
            traces[name] = part.trace
    return traces
