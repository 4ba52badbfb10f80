"""Reasons: the account of the time of a point.

The point is replayed again on a host that dispatches in no time: the host's share is the time by which compute is
shorter then, and the optimizer's step where that is on the host. Where collectives run beside compute, it is replayed
once more as if they did not slow it: what compute loses to them is the time by which it is shorter then.
"""

from collections.abc import Iterator
from dataclasses import dataclass, replace
from functools import cached_property
from math import fsum
from typing import Any, Final

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
from strategies.plans.traces import Trace
from strategies.sampling_scenario import SamplingScenario

COUNTS: Final = 0.1
"""Share of the time from which on it is worth a reason; share of waiting without a reason."""
LEAST_PART: Final = 0.01
"""Share from which on the optimizer's step on the host, or a part of a difference, is a reason."""
LEAST_TOLD, LEAST_SLOWED = 1e-4, 0.02
"""Shares of the time from which on a difference, and a slowdown by collectives, are reasons."""
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

    @property
    def parts(self) -> dict[str, float]:
        """The shares by what the time goes to, in words."""
        return {
            "compute": self.compute - self.slowed,
            "compute slowed by overlap": self.slowed,
            "waiting for the host": self.host,
            "waiting for the network": self.wire,
            "idle": self.idle,
        }


def shares(result: Result) -> tuple[float, float, float]:
    """Shares of the devices' time in which they compute, wait for data on the wire, and are idle otherwise."""
    wire = min(result.exposed_communication_s / result.expected.duration_s, result.bubble_ratio)
    return 1 - result.bubble_ratio, wire, result.bubble_ratio - wire


def account_of(result: Result) -> Account:
    """Return the account of a result, from some more replays; without the host where its source is not known."""
    if result.source is None:
        compute, wire, idle = shares(result)
        return Account(compute, 0.0, wire, idle)
    accounting = Accounting(result)
    account, reasons = accounting.shares, tuple(accounting.reasons())
    busy = f"GPUs compute {account.compute - account.slowed:.0%} of the time; no delay takes a tenth"
    return replace(account, reasons=reasons or (busy,))


class Accounting:
    """The replays that account for a result."""

    def __init__(self, result: Result) -> None:
        self.result, self.whole_s = result, result.expected.duration_s
        self.strategy, self.scenario = result.origin.strategy, result.origin.scenario

    @cached_property
    def main(self) -> Part:
        """The main part of the point."""
        return main_part(measured_parts(self.strategy, self.scenario))

    @property
    def trace(self) -> Trace:
        """The trace of the main part of the point."""
        return self.main.trace

    def busy_s(self, **changes: Any) -> float:  # noqa: ANN401
        """Return the seconds of compute where some of the scenario is changed."""
        return run_point(self.strategy, replace(self.scenario, **changes)).expected.busy_s

    @cached_property
    def shares(self) -> Account:
        """The account without reasons."""
        (busy, wire, idle), stack, cluster = shares(self.result), self.scenario.stack, self.scenario.cluster
        busy_s = alone_s = self.result.expected.busy_s
        changes: dict[str, Any] = {}
        if stack.forward_operator_s or stack.backward_operator_s:
            unhurried = replace(stack, forward_operator_s=0.0, backward_operator_s=0.0)
            changes = {"stack": unhurried, "asked_stack": ""}
            alone_s = self.busy_s(**changes)
        unslowed_s = alone_s
        if self.result.collective_s and cluster.overlap_slowdown > 1:
            unslowed_s = self.busy_s(**changes, cluster=replace(cluster, overlap_slowdown=1.0))
        behind, slowed = (max(0.0, part) / self.whole_s for part in (busy_s - alone_s, alone_s - unslowed_s))
        host = self.stepped + min(busy - self.stepped, behind)
        return Account(busy - host, host, wire, idle, slowed=min(busy - host, slowed))

    @cached_property
    def stepped(self) -> float:
        """Share of the time in which the optimizer steps on the host; 0 where it steps on the GPUs."""
        if getattr(self.scenario.workload, "offload", "") != "optimizer":
            return 0.0
        ops = (op for row in self.trace.plan.ops for op in row)
        steps = [op for op in ops if isinstance(op.action, StageAction) and op.action.kind == OPTIMIZER]
        return (
            fsum(op.duration_s for op in steps) / self.trace.plan.num_devices / self.main.measures.duration_s
        )

    def reasons(self) -> Iterator[str]:
        """Yield what delays compute: the host, the wire, collectives beside it, and idle stages."""
        account, stepped, stack = self.shares, self.stepped, self.scenario.stack.name
        if stepped >= LEAST_PART:
            words = "a larger --batch-size spreads it over more samples"
            yield f"{stepped:.0%} of the time the optimizer steps on the host: {words}"
        if (host := account.host - stepped) >= COUNTS:
            helps = "" if stack == in_graphs(stack) else f", --stack {in_graphs(stack)} shortens it"
            yield f"{host:.0%} of the time GPUs wait for their host, which more GPUs do not change{HELP}{helps}"
        if isinstance(self.scenario, SamplingScenario) and self.scenario.workload.encoders_moved:
            staying = replace(self.scenario.workload, offload="none", encoders="resident")
            moved = (self.result.expected.busy_s - self.busy_s(workload=staying)) / self.whole_s
            if moved >= COUNTS:
                yield f"{moved:.0%} of the time components are copied between the host's memory and the GPUs"
        if account.wire >= COUNTS:
            yield from self._wire_reasons(account.wire)
        if account.slowed >= LEAST_SLOWED:
            awaited = awaited_s(self.trace)
            beside_s = {
                way: collective_s(self.trace, numbers) - awaited.get(way, 0.0)
                for way, numbers in self._numbers.items()
            }
            most = self._way_words(max(beside_s, key=lambda way: beside_s[way]))
            lost = timed(account.slowed * self.whole_s, unit_of(self.result))
            yield f"overlapped {most} slows compute by {account.slowed:.0%} of the time ({lost})"
        if account.idle >= COUNTS:
            yield from self._idle_reasons(account.idle)

    def _wire_reasons(self, wire: float) -> Iterator[str]:
        """Yield most of the waiting for the wire: the link and the pace."""
        awaited = awaited_s(self.trace)
        whole_s = left_s = sum(awaited.values())
        for way in sorted(awaited, key=lambda one: -awaited[one]):
            if left_s <= COUNTS * whole_s:
                return
            left_s -= awaited[way]
            share = f"{wire * awaited[way] / whole_s:.0%} of the time is spent"
            yield f"{share} waiting for {self._way_words(way)}: {self._pace_words(way)}"

    def _idle_reasons(self, idle: float) -> Iterator[str]:
        """Yield the stages of the first job's pipeline, where they wait for one another, or GPUs beside a decoder."""
        alone, gpus = self.result.phases.get("decode_s", 0.0) / self.whole_s, self.result.num_gpus
        one_decodes = gpus > 1 and getattr(self.scenario.workload, "vae_parallel", 1) <= 1
        if one_decodes and alone * (1 - 1 / gpus) >= idle / 2:
            yield f"{idle:.0%} idle: {gpus - 1} of {gpus} GPUs wait while one decodes"
        first_job, *_ = self.strategy.jobs(self.scenario)
        devices = (tuple(stage["devices"]) for stage in self.result.stages)
        stages = {gpus for gpus in devices if gpus[0] < first_job[1].workload.num_gpus}
        if len(stages) > 1:
            yield f"{idle:.0%} of the time the {len(stages)} stages of the pipeline wait for one another"

    @cached_property
    def _numbers(self) -> dict[Way, list[int]]:
        """The numbers of the collectives of each way, the largest first."""
        numbers: dict[Way, list[int]] = {}
        every = self.trace.plan.collectives
        for number, one in sorted(enumerate(every), key=lambda item: -item[1].size_bytes):
            way = Way(one.operation, between_nodes(self.trace, members(self.trace, one)))
            numbers.setdefault(way, []).append(number)
        return numbers

    def _link_of(self, way: Way) -> Link:
        cluster = self.trace.plan.placement.cluster
        return cluster.inter_node if way.between_nodes and cluster.inter_node else cluster.intra_node

    def _way_words(self, way: Way) -> str:
        """Return an operation with its GPUs and its link in words."""
        where = "between nodes" if way.between_nodes else f"in a node ({self._link_of(way).kind})"
        if way.operation == MESSAGE:
            return f"messages {where}"
        name = "rounds of a ring" if way.operation == "send_recv" else way.operation.replace("_", "-")
        largest = self.trace.plan.collectives[self._numbers[way][0]]
        return f"{name} of {len(members(self.trace, largest))} GPUs {where}"

    def _pace_words(self, way: Way) -> str:
        """Return the pace of the largest collective of a way, beside that of its link."""
        there = plain(self._link_of(way).bandwidth_bytes_per_s / GB, 3)
        if way.operation == MESSAGE:
            return f"the link moves {there} GB/s"
        largest = self.trace.plan.collectives[self._numbers[way][0]]
        gpus, route = (
            len(members(self.trace, largest)),
            Network(self.trace.plan.placement).collective(largest),
        )
        pace = sent_bytes(way.operation, largest.size_bytes, gpus) / (route.wire_s + route.fixed_s)
        limit = f"{there} GB/s of each node" if way.between_nodes else f"the link's {there}"
        return f"each moves {plain(pace / GB, 2)} GB/s, of {limit}"


def account_of_best(sweep: Sweep, best: Point, runner_up: Point | None) -> tuple[Account, str]:
    """Return the account of the best point of a sweep with reasons, and what a runner-up does longer and shorter.

    A point that does not use all GPUs has the time on all of them among its reasons.
    """
    account, most = account_of(sweep.result_of(best)), sweep.scenario.workload.num_gpus
    difference = "" if runner_up is None else _difference_words(sweep, account, best, runner_up)
    if best.num_gpus == most:
        return account, difference
    there = [p for p in sweep.points if p.name == best.name and not p.reason and p.num_gpus == most]
    fastest = swept(sweep, map(replace, there), sweep.scenario, "latency").fastest_point()
    if fastest is None:
        return account, difference
    result = sweep.result_of(fastest)
    first, *_ = account_of(result).reasons
    words = f"{best.name} on all {most} GPUs takes {duration(result)}: {first.partition(HELP)[0]}"
    return replace(account, reasons=(*account.reasons, words)), difference


def _difference_words(sweep: Sweep, account: Account, best: Point, runner_up: Point) -> str:
    """Return the parts of the difference between the best point and the runner-up; empty where they hardly differ."""
    ours_s, theirs_s = (point.score(sweep.objective) for point in (best, runner_up))
    if abs(theirs_s - ours_s) < LEAST_TOLD * ours_s:
        return ""
    other = sweep.result_of(runner_up)
    unit = "GPU-s" if sweep.objective == "cost" else unit_of(other)
    theirs = Accounting(other).shares.parts
    more_s = {name: theirs[name] * theirs_s - ours * ours_s for name, ours in account.parts.items()}
    least_s = LEAST_PART * fsum(map(abs, more_s.values()))
    return ", ".join(
        f"{timed(abs(seconds), unit)} {'less' if seconds < 0 else 'more'} {name}"
        for name, seconds in sorted(more_s.items(), key=lambda item: -item[1])
        if abs(seconds) > least_s
    )
