"""Reasons: where the time of a point goes, and why.

The share of the host is what compute gains on a host that dispatches in no time, for which the point is replayed so,
too, and the optimizer's step where that is on the host.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from math import fsum
from typing import Final

from profiles.checks import sum_in_order
from profiles.errors import InfeasibleError
from profiles.machines.collectives import sent_bytes
from profiles.units import GB
from sim.explore.points import Asked, Point
from sim.explore.sweep import Sweep
from sim.outcomes.parts import Part, main_part, measured_parts, replay_parts
from sim.outcomes.results import Result
from sim.outcomes.runs import run_point, weigh
from sim.replay.waits import MESSAGE, Way, awaited_s, between_nodes, members
from sim.report.numbers import duration
from strategies.plans.actions import OPTIMIZER, FrozenAction, StageAction
from strategies.plans.network import Network
from strategies.plans.traces import Trace
from strategies.scenario import Scenario
from strategies.strategy import AnyScenario, AnyStrategy

COUNTS: Final = 0.1
"""Share of the time from which on it is worth a reason."""
LEAST_STEP: Final = 0.01
"""Share of the time from which on the optimizer's step on the host is one."""
COMPILED: Final = "compiled"
HELP: Final = ": more work for each GPU hides it"
"""What always helps where the host is behind."""
ROUNDS: Final = "send_recv"
"""The operation of a ring, round by round."""


@dataclass(frozen=True, slots=True)
class Account:
    """Shares of the devices' time, which add up to 1, and why they are what they are.

    Attributes:
        compute: in which GPUs compute.
        host: in which an op lasts because its host has not dispatched the next, or steps the optimizer.
        wire: idle, while something awaited is on the wire.
        idle: all other.
        reasons: in words, the most telling first.
    """

    compute: float
    host: float
    wire: float
    idle: float
    reasons: tuple[str, ...] = ()


def shares(result: Result) -> tuple[float, float, float]:
    """Shares of the devices' time in which they compute, wait for data on the wire, and are idle otherwise."""
    whole_s = result.expected.duration_s
    if not whole_s:
        return 1.0, 0.0, 0.0
    wire = min(result.expected.exposed_communication_s / whole_s, result.bubble_ratio)
    return 1 - result.bubble_ratio, wire, result.bubble_ratio - wire


def account_of(strategy: AnyStrategy, scenario: AnyScenario, result: Result) -> Account:
    """The account of a point, from its result and two more replays."""
    busy, wire, idle = shares(result)
    parts = (replay_parts if scenario.task == "train" else measured_parts)(strategy, scenario)
    stepped = min(busy, step_share(scenario, main_part(parts)))
    behind = min(busy - stepped, host_share(strategy, scenario, result))
    host = stepped + behind
    reasons = (
        *_step_reason(stepped),
        *_host_reason(scenario, behind),
        *_wire_reason(main_part(parts), wire),
        *_idle_reason(result, idle, [part for part in parts if part.variant.job == 0]),
        *_encoding_reason(strategy, scenario, main_part(parts)),
    )
    return Account(busy - host, host, wire, idle, reasons)


def host_share(strategy: AnyStrategy, scenario: AnyScenario, result: Result) -> float:
    """Share of the time in which compute is under way only because the host is behind."""
    stack, whole_s = scenario.stack, result.expected.duration_s
    if not whole_s or not (stack.forward_operator_s or stack.backward_operator_s):
        return 0.0
    unhurried = replace(stack, forward_operator_s=0.0, backward_operator_s=0.0)
    there = replace(scenario, stack=unhurried, asked_stack="")
    alone = weigh(strategy, there, measured_parts(strategy, there))
    return max(0.0, (result.expected.busy_s - alone.expected.busy_s) / whole_s)


def step_share(scenario: AnyScenario, part: Part) -> float:
    """Share of the time in which the optimizer steps on the host; 0 where it steps on the GPUs."""
    if not isinstance(scenario, Scenario) or scenario.workload.offload != "optimizer" or not part.duration_s:
        return 0.0
    plan = part.trace.plan
    actions = ((op, op.action) for row in plan.ops for op in row)
    stepped_s = [
        op.duration_s
        for op, action in actions
        if isinstance(action, StageAction) and action.kind == OPTIMIZER
    ]
    return fsum(stepped_s) / plan.num_devices / part.duration_s


def _step_reason(stepped: float) -> Iterator[str]:
    if stepped >= LEAST_STEP:
        words = "a larger --batch-size spreads it over more samples"
        yield f"{stepped:.0%} of the time the optimizer steps on the host: {words}"


def _host_reason(scenario: AnyScenario, host: float) -> Iterator[str]:
    if host >= COUNTS:
        helps = "" if scenario.stack.name == COMPILED else f", --stack {COMPILED} shortens it"
        yield f"{host:.0%} of the time GPUs wait for their host, which more GPUs do not change{HELP}{helps}"


def brief(reason: str) -> str:
    """A reason without what would help."""
    return reason.partition(HELP)[0]


def _wire_reason(part: Part, wire: float) -> Iterator[str]:
    """What is awaited most on the wire, how fast it moves, and over which link."""
    awaited = awaited_s(part.trace)
    whole_s = sum_in_order(awaited.values())
    if wire < COUNTS or not whole_s:
        return
    way = max(awaited, key=lambda one: awaited[one])
    yield f"{wire * awaited[way] / whole_s:.0%} of the time waits for {_way_words(part.trace, way)}"


def _way_words(trace: Trace, way: Way) -> str:
    """An operation, over how many GPUs and which link, and the pace of its largest collective."""
    cluster = trace.plan.placement.cluster
    link = cluster.inter_node if way.between_nodes and cluster.inter_node else cluster.intra_node
    where = "between nodes" if way.between_nodes else f"in a node ({link.kind})"
    there = f"{link.bandwidth_bytes_per_s / GB:.3g}"
    if way.operation == MESSAGE:
        return f"messages {where}, of {there} GB/s"
    own = (
        one
        for one in trace.plan.collectives
        if one.operation == way.operation and between_nodes(trace, one) == way.between_nodes
    )
    largest = max(own, key=lambda one: one.size_bytes)
    gpus, route = len(members(trace, largest)), Network(trace.plan.placement).collective(largest)
    pace = sent_bytes(way.operation, largest.size_bytes, gpus) / (route.wire_s + route.fixed_s)
    name = "rounds of a ring" if way.operation == ROUNDS else way.operation.replace("_", "-")
    of = f"{there} GB/s of each node" if way.between_nodes else f"the link's {there}"
    return f"{name} of {gpus} GPUs {where}: each moves {pace / GB:.2g} GB/s, of {of}"


def _idle_reason(result: Result, idle: float, parts: Sequence[Part]) -> Iterator[str]:
    """How many stages the pipeline of the first job has, where they wait for one another."""
    own = result.stages[: len(main_part(parts).phase.plan.stages)]
    stages = {tuple(stage["devices"]) for stage in own}
    if idle >= COUNTS and len(stages) > 1:
        yield f"{idle:.0%} of the time the {len(stages)} stages of the pipeline wait for one another"


def _encoding_reason(strategy: AnyStrategy, scenario: AnyScenario, part: Part) -> Iterator[str]:
    """What GPUs that work on the same samples encode over again."""
    team = getattr(strategy, "context_degree", 1) * getattr(strategy, "tensor_degree", 1)
    if scenario.task != "train" or team == 1:
        return
    ops = [op for row in part.trace.plan.ops for op in row if isinstance(op.action, FrozenAction)]
    encoded_s = sum_in_order(op.duration_s for op in ops) / part.trace.plan.num_devices
    if encoded_s:
        share = encoded_s / part.duration_s
        yield f"all {team} GPUs of a team encode the same samples, {share:.0%} of the time: --frozen cached spares it"


def account_of_best(sweep: Sweep, best: Point) -> Account:
    """Where the time of the best point of a sweep goes, and why it is not less."""
    result = sweep.result_of(best)
    assert result.source is not None
    account = account_of(result.source.strategy, result.source.scenario, result)
    return replace(account, reasons=(*account.reasons, *_fewer_reason(sweep, best)))


def _fewer_reason(sweep: Sweep, best: Point) -> Iterator[str]:
    """What more GPUs would bring, where the answer leaves some of them out."""
    most = sweep.scenario.workload.num_gpus
    if best.result is None or best.result.num_gpus == most:
        return
    whole = [
        point
        for point in sweep.points
        if point.name == best.name
        and point.num_gpus == most
        and point.strategy is not None
        and not point.reason
    ]
    first = min(whole, key=lambda point: point.bound_s, default=None)
    if first is None or first.strategy is None:
        return
    there = Asked(first.strategy, most, first.checkpointing).at(sweep.scenario)
    try:
        result = first.result or run_point(first.strategy, there)
    except InfeasibleError:  # as only its replay tells
        return
    why = "".join(f": {brief(reason)}" for reason in account_of(first.strategy, there, result).reasons[:1])
    yield f"{best.name} on all {most} GPUs takes {duration(result)}{why}"
