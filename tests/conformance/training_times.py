"""When a training plan runs: nothing before what it needs, and no iteration below any bound."""

from collections import Counter
from graphlib import TopologicalSorter
from itertools import pairwise

import pytest
from conformance.checks import Checks
from conformance.training_points import ROUNDING, TOLERANCE_S, travel_s, writes

from sim.outcomes.parts import replay
from sim.outcomes.runs import bound

check = Checks()
check_whole = Checks()
"""Checks of whole points: a strategy with all the iterations and jobs that occur."""


@check
def no_device_computes_two_things_at_once(point):
    for device in range(point.plan.num_devices):
        spans = point.trace.busy(device)
        assert all(start >= 0 for start, _ in spans)
        assert all(end >= start - TOLERANCE_S for start, end in spans)
        for (_, end), (start, _) in pairwise(spans):
            assert start >= end - TOLERANCE_S


@check
def nothing_is_read_before_it_is_written_and_has_arrived(point):
    written, given = writes(point), set(point.plan.given)
    for device, _, op, start, _ in point.ops:
        for tensor in op.reads:
            if tensor not in written:
                assert (tensor, device) in given
                continue
            earliest_s = min(at + travel_s(point, tensor, source, device) for source, at in written[tensor])
            assert start >= earliest_s - TOLERANCE_S, (op, point.plan.tensors[tensor])
    for collective, (start, _) in zip(point.plan.collectives, point.trace.collectives, strict=True):
        assert all(start >= min(written[tensor])[1] - TOLERANCE_S for tensor in collective.reads)


@check
def what_the_next_iteration_needs_lies_there_at_the_end(point):
    written = writes(point)
    for tensor, device in point.plan.kept:
        source, at = written[tensor][0]
        assert at + travel_s(point, tensor, source, device) <= point.trace.end_s + TOLERANCE_S


@check
def compute_takes_its_duration_and_no_longer_than_the_slowdown_allows(point):
    slowdown = point.plan.placement.cluster.overlap_slowdown if point.plan.collectives else 1.0
    for *_, op, start, end in point.ops:
        assert op.duration_s - TOLERANCE_S <= end - start <= op.duration_s * slowdown + TOLERANCE_S, op


@check
def no_iteration_is_shorter_than_its_busiest_device(point):
    for device, ops in enumerate(point.plan.ops):
        assert point.trace.end_s >= sum(op.duration_s for op in ops) - TOLERANCE_S, device
        assert point.trace.end_s >= max(point.trace.ends[device], default=0.0) - TOLERANCE_S
    assert all(end <= point.trace.end_s + TOLERANCE_S for _, end in point.trace.collectives)


def critical_path_s(point):
    """The longest path through ops, messages and collectives, on ports that nobody shares."""
    plan = point.plan
    writers, after = {}, {}
    for device, index, op, _, _ in point.ops:
        writers.update(dict.fromkeys(op.writes, ((device, index), op.duration_s)))
        writers.update({tensor: ((device, index), offset) for offset, tensor in op.early})
        after[device, index] = (
            [((device, index - 1), plan.ops[device][index - 1].duration_s)] if index else []
        )
    results, last, duration_s = {}, {}, {}
    for number, collective in enumerate(plan.collectives):
        route = point.network.collective(collective)
        duration_s[number] = route.wire_s + route.fixed_s
        streams = [(device, collective.stream) for device in collective.devices]
        before = [last[stream] for stream in streams if stream in last]
        before += [results[tensor] for tensor in collective.reads if tensor in results]
        after[number] = [(other, duration_s[other]) for other in before]
        after[number] += [writers[tensor] for tensor in collective.reads if tensor in writers]
        last.update(dict.fromkeys(streams, number))
        results.update(dict.fromkeys(collective.writes, number))
    for device, index, op, _, _ in point.ops:
        duration_s[device, index] = op.duration_s
        for tensor in op.reads:
            if tensor in results:
                after[device, index].append((results[tensor], duration_s[results[tensor]]))
            elif tensor in writers:
                node, offset_s = writers[tensor]
                after[device, index].append((node, offset_s + travel_s(point, tensor, node[0], device)))
    earliest_s = {}
    for node in TopologicalSorter(
        {node: [n for n, _ in before] for node, before in after.items()}
    ).static_order():
        earliest_s[node] = max((earliest_s[n] + delay_s for n, delay_s in after[node]), default=0.0)
    return max(earliest_s[node] + duration_s[node] for node in earliest_s)


@check
def no_iteration_is_shorter_than_its_critical_path(point):
    path_s = critical_path_s(point)
    assert point.trace.end_s >= path_s - TOLERANCE_S
    if point.plan.placement.cluster.intra_node.kind == "ideal" and not point.plan.blocking:
        assert point.trace.end_s == pytest.approx(path_s)


@check
def no_iteration_undercuts_the_bound_of_its_strategy(point):
    for bound_s in (point.strategy.bound(point.scenario), point.strategy.order_bound(point.scenario)):
        assert 0 < bound_s <= point.trace.end_s * (1 + ROUNDING)


@check_whole
def no_expectation_undercuts_the_bound_of_the_experiment(whole):
    jobs = Counter()
    for variant, point in whole.parts:
        jobs[variant.job] += variant.probability * point.trace.end_s
    mean_s = len(jobs) / sum(1 / seconds for seconds in jobs.values())
    for ordered in (False, True):
        assert bound(whole.strategy, whole.scenario, ordered=ordered) <= mean_s * (1 + ROUNDING)


@check_whole
def two_replays_are_identical_to_the_bit(whole):
    for variant, point in whole.again():
        first, second = point.trace, replay(variant.strategy, variant.scenario)
        assert second.plan.order == first.plan.order
        assert (second.starts, second.ends, second.sent, second.arrived, second.collectives) == (
            first.starts, first.ends, first.sent, first.arrived, first.collectives,
        )  # fmt: skip
