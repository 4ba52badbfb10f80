"""Reasons: the account of the time of a point.

The point is replayed again on a host that dispatches in no time: the host's share is the time by which compute is
shorter then, and the optimizer's step where that is on the host. Where collectives run beside compute, it is replayed
once more as if they did not slow it: what compute loses to them is the time by which it is shorter then.
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from functools import cache
from math import fsum
from typing import Final

from profiles.machines.clusters import Link
from profiles.machines.collectives import sent_bytes
from profiles.software.stacks import in_graphs
from profiles.units import GB
from sim.explore.points import Point
from sim.explore.sweep import Sweep
from sim.outcomes.parts import Part, main_part, measured_parts
from sim.outcomes.results import Result
from sim.outcomes.runs import run_point
from sim.replay.metrics import MESSAGE, Way, awaited_s, between_nodes, collective_s, members
from sim.report.changes import swept
from sim.report.words import duration, plain, timed, unit_of
from strategies.plans.actions import OPTIMIZER, StageAction
from strategies.plans.network import Network
from strategies.plans.plan import Collective
from strategies.plans.traces import Trace
from strategies.sampling_scenario import SamplingScenario
from strategies.scenario import Scenario
from strategies.strategy import AnyScenario, AnyStrategy

COUNTS: Final = 0.1
"""Share of the time from which on it is worth a reason; share of waiting without a reason."""
LEAST_PART: Final = 0.01
"""Share from which on the optimizer's step on the host, or a part of a difference, is a reason."""
LEAST_TOLD, LEAST_SLOWED = 1e-4, 0.02
"""Shares of the time from which on a difference, and a slowdown by collectives, are reasons."""
PARTS: Final = {
    "lost to collectives": "compute slowed by overlap",
    "host": "waiting for the host",
    "wire": "waiting for the network",
    "idle": "idle",
}
"""Parts of the time in the words of a difference, where others than their names."""
HELP: Final = ": more work for each GPU hides it"
"""Remedy where the host is behind."""


@dataclass(frozen=True, slots=True)
class Account:
    """Shares of the devices' time, which add up to 1, and reasons for them.

    Attributes:
        host: in which a GPU waits for its host to dispatch the next operator, or to step the optimizer.
        wire: idle, while something awaited is on the wire; ``idle`` is all other.
        reasons: in words, the most telling first.
        slowed: the part of compute that it takes longer because collectives run beside it and slow it.
    """

    compute: float
    host: float
    wire: float
    idle: float
    reasons: tuple[str, ...] = ()
    slowed: float = 0.0

    def seconds(self, whole_s: float) -> dict[str, float]:
        """Return the parts of so many seconds, by name."""
        parts = {"compute": self.compute - self.slowed, "lost to collectives": self.slowed, "host": self.host}
        return {name: of * whole_s for name, of in (parts | {"wire": self.wire, "idle": self.idle}).items()}


Replayed = Callable[[], Part]
"""Returns the main part of a point, which is replayed on the first call."""


def shares(result: Result) -> tuple[float, float, float]:
    """Shares of the devices' time in which they compute, wait for data on the wire, and are idle otherwise."""
    whole_s = result.expected.duration_s
    if not whole_s:
        return 1.0, 0.0, 0.0
    wire = min(result.expected.exposed_communication_s / whole_s, result.bubble_ratio)
    return 1 - result.bubble_ratio, wire, result.bubble_ratio - wire


def account_of(result: Result) -> Account:
    """Return the account of a result, from some more replays; without the host where its source is not known."""
    if result.source is None:
        compute, wire, idle = shares(result)
        return Account(compute, 0.0, wire, idle)
    strategy, scenario = result.source.strategy, result.source.scenario

    @cache
    def main() -> Part:
        return main_part(measured_parts(strategy, scenario))

    account, stepped = split_of(strategy, scenario, result, main)
    reasons = (
        *_host_reasons(scenario, stepped, account.host - stepped),
        *_moved_reason(strategy, scenario, result),
        *_wire_reasons(main, account.wire),
        *_slowed_reason(main, account.slowed, result),
        *_idle_reason(strategy, scenario, result, account.idle),
    )
    busy = f"GPUs compute {account.compute - account.slowed:.0%} of the time; no delay takes a tenth"
    return replace(account, reasons=reasons or (busy,))


def split_of(
    strategy: AnyStrategy, scenario: AnyScenario, result: Result, main: Replayed
) -> tuple[Account, float]:
    """Return the account of a point without reasons, and the share of the time in which the host's optimizer steps."""
    busy, wire, idle = shares(result)
    stepped = min(busy, step_share(scenario, main))
    behind, slowed = delays(strategy, scenario, result)
    host = stepped + min(busy - stepped, behind)
    return Account(busy - host, host, wire, idle, slowed=min(busy - host, slowed)), stepped


def delays(strategy: AnyStrategy, scenario: AnyScenario, result: Result) -> tuple[float, float]:
    """Shares of the time by which compute is longer because its host is behind, and because collectives slow it."""
    whole_s, stack, cluster = result.expected.duration_s, scenario.stack, scenario.cluster
    busy_s = alone_s = result.expected.busy_s
    if not whole_s:
        return 0.0, 0.0
    if stack.forward_operator_s or stack.backward_operator_s:
        unhurried = replace(stack, forward_operator_s=0.0, backward_operator_s=0.0)
        scenario = replace(scenario, stack=unhurried, asked_stack="")
        alone_s = _busy_s(strategy, scenario)
    unslowed_s = alone_s
    if result.expected.collective_s and cluster.overlap_slowdown > 1:
        unslowed_s = _busy_s(strategy, replace(scenario, cluster=replace(cluster, overlap_slowdown=1.0)))
    return max(0.0, busy_s - alone_s) / whole_s, max(0.0, alone_s - unslowed_s) / whole_s


def _busy_s(strategy: AnyStrategy, scenario: AnyScenario) -> float:
    return run_point(strategy, scenario).expected.busy_s


def step_share(scenario: AnyScenario, main: Replayed) -> float:
    """Share of the time in which the optimizer steps on the host; 0 where it steps on the GPUs."""
    if not isinstance(scenario, Scenario) or scenario.workload.offload != "optimizer":
        return 0.0
    part = main()
    if not part.measures.duration_s:
        return 0.0
    ops = (op for row in part.trace.plan.ops for op in row)
    steps = [op for op in ops if isinstance(op.action, StageAction) and op.action.kind == OPTIMIZER]
    return fsum(op.duration_s for op in steps) / part.trace.plan.num_devices / part.measures.duration_s


def _host_reasons(scenario: AnyScenario, stepped: float, host: float) -> Iterator[str]:
    if stepped >= LEAST_PART:
        words = "a larger --batch-size spreads it over more samples"
        yield f"{stepped:.0%} of the time the optimizer steps on the host: {words}"
    if host >= COUNTS:
        graphs = in_graphs(scenario.stack.name)
        helps = "" if scenario.stack.name == graphs else f", --stack {graphs} shortens it"
        yield f"{host:.0%} of the time GPUs wait for their host, which more GPUs do not change{HELP}{helps}"


def _moved_reason(strategy: AnyStrategy, scenario: AnyScenario, result: Result) -> Iterator[str]:
    """Yield the share of the time in which components come from the host's memory, or go back."""
    if isinstance(scenario, SamplingScenario) and scenario.workload.encoders_moved:
        workload = replace(scenario.workload, offload="none", encoders="resident")
        staying_s = _busy_s(strategy, replace(scenario, workload=workload))
        share = (result.expected.busy_s - staying_s) / result.expected.duration_s
        if share >= COUNTS:
            yield f"{share:.0%} of the time components are copied between the host's memory and the GPUs"


def _wire_reasons(main: Replayed, wire: float) -> Iterator[str]:
    """Yield most of the waiting for the wire: the link and the pace."""
    if wire < COUNTS:
        return
    trace = main().trace
    awaited = awaited_s(trace)
    whole_s = left_s = sum(awaited.values())
    for way in sorted(awaited, key=lambda one: -awaited[one]):
        if left_s <= COUNTS * whole_s:
            return
        left_s -= awaited[way]
        share = wire * awaited[way] / whole_s
        yield f"{share:.0%} of the time is spent waiting for {_way_words(trace, way)}: {_pace_words(trace, way)}"


def _slowed_reason(main: Replayed, slowed: float, result: Result) -> Iterator[str]:
    """Yield the slowdown of compute by collectives beside it, and the collectives that slow it most."""
    if slowed < LEAST_SLOWED:
        return
    trace = main().trace
    awaited, numbers = awaited_s(trace), _numbers(trace)
    beside_s = {way: collective_s(trace, of_way) - awaited.get(way, 0.0) for way, of_way in numbers.items()}
    most = max(beside_s, key=lambda way: beside_s[way])
    lost = timed(slowed * result.expected.duration_s, unit_of(result))
    yield f"overlapped {_way_words(trace, most)} slows compute by {slowed:.0%} of the time ({lost})"


def _link_of(trace: Trace, way: Way) -> Link:
    cluster = trace.plan.placement.cluster
    return cluster.inter_node if way.between_nodes and cluster.inter_node else cluster.intra_node


def _numbers(trace: Trace) -> dict[Way, list[int]]:
    """Return the numbers of the collectives of each way."""
    numbers: dict[Way, list[int]] = {}
    for number, one in enumerate(trace.plan.collectives):
        numbers.setdefault(Way(one.operation, between_nodes(trace, members(trace, one))), []).append(number)
    return numbers


def _largest(trace: Trace, way: Way) -> Collective:
    """Return the largest of the collectives of a way."""
    collectives = (trace.plan.collectives[number] for number in _numbers(trace)[way])
    return max(collectives, key=lambda one: one.size_bytes)


def _way_words(trace: Trace, way: Way) -> str:
    """Return an operation with its GPUs and its link in words."""
    where = "between nodes" if way.between_nodes else f"in a node ({_link_of(trace, way).kind})"
    if way.operation == MESSAGE:
        return f"messages {where}"
    name = "rounds of a ring" if way.operation == "send_recv" else way.operation.replace("_", "-")
    return f"{name} of {len(members(trace, _largest(trace, way)))} GPUs {where}"


def _pace_words(trace: Trace, way: Way) -> str:
    """Return the pace of the largest collective of a way, beside that of its link."""
    there = plain(_link_of(trace, way).bandwidth_bytes_per_s / GB, 3)
    if way.operation == MESSAGE:
        return f"the link moves {there} GB/s"
    largest = _largest(trace, way)
    gpus, route = len(members(trace, largest)), Network(trace.plan.placement).collective(largest)
    pace = sent_bytes(way.operation, largest.size_bytes, gpus) / (route.wire_s + route.fixed_s)
    of = f"{there} GB/s of each node" if way.between_nodes else f"the link's {there}"
    return f"each moves {plain(pace / GB, 2)} GB/s, of {of}"


def _idle_reason(strategy: AnyStrategy, scenario: AnyScenario, result: Result, idle: float) -> Iterator[str]:
    """Yield the stages of the pipeline of the first job, where they wait for one another, or GPUs beside a decoder."""
    if idle < COUNTS:
        return
    alone, gpus = result.phases.get("decode_s", 0.0) / result.expected.duration_s, result.num_gpus
    if gpus > 1 and getattr(scenario.workload, "vae_parallel", 1) <= 1 and alone * (1 - 1 / gpus) >= idle / 2:
        yield f"{idle:.0%} idle: {gpus - 1} of {gpus} GPUs wait while one decodes"
    first_job, *_ = strategy.jobs(scenario)
    devices = (tuple(stage["devices"]) for stage in result.stages)
    stages = {gpus for gpus in devices if gpus[0] < first_job[1].workload.num_gpus}
    if len(stages) > 1:
        yield f"{idle:.0%} of the time the {len(stages)} stages of the pipeline wait for one another"


def account_of_best(sweep: Sweep, best: Point, runner_up: Point | None) -> tuple[Account, str]:
    """Return the account of the best point of a sweep with reasons, and what a runner-up does longer and shorter."""
    account = account_of(sweep.result_of(best))
    difference = "" if runner_up is None else _difference_words(sweep, account, best, runner_up)
    return replace(account, reasons=(*account.reasons, *fewer_reason(sweep, best))), difference


def _difference_words(sweep: Sweep, account: Account, best: Point, runner_up: Point) -> str:
    """Return the parts of the difference between the best point and the runner-up; empty where they hardly differ."""
    strategy, other = runner_up.strategy, runner_up.result
    assert strategy is not None and other is not None
    there = runner_up.candidate(sweep.scenario).at(sweep.scenario)
    main = cache(lambda: main_part(measured_parts(strategy, there)))
    ours_s, theirs_s = (point.score(sweep.objective) for point in (best, runner_up))
    split, _ = split_of(strategy, there, other, main)
    ours, theirs = account.seconds(ours_s), split.seconds(theirs_s)
    if abs(theirs_s - ours_s) < LEAST_TOLD * ours_s:
        return ""
    unit = "GPU-s" if sweep.objective == "cost" else unit_of(other)
    more_s = {name: theirs[name] - ours[name] for name in ours}
    least_s = LEAST_PART * fsum(map(abs, more_s.values()))
    return ", ".join(
        f"{timed(abs(more_s[name]), unit)} {'less' if more_s[name] < 0 else 'more'} {PARTS.get(name, name)}"
        for name in sorted(more_s, key=lambda one: -more_s[one])
        if abs(more_s[name]) > least_s
    )


def fewer_reason(sweep: Sweep, best: Point) -> Iterator[str]:
    """Yield the time on all GPUs, where the answer does not use all of them."""
    most = sweep.scenario.workload.num_gpus
    if best.result is None or best.result.num_gpus == most:
        return
    there = [p for p in sweep.points if p.name == best.name and not p.reason and p.num_gpus == most]
    fastest = swept(sweep, map(replace, there), sweep.scenario, "latency").fastest_point()
    if fastest is not None:
        result = sweep.result_of(fastest)
        first, *_ = account_of(result).reasons
        yield f"{best.name} on all {most} GPUs takes {duration(result)}: {first.partition(HELP)[0]}"
