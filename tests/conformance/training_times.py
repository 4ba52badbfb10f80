"""When a training plan runs, and what it holds: nothing before what it needs, or longer; no iteration below a bound."""

from collections import Counter
from graphlib import TopologicalSorter
from itertools import pairwise

import numpy as np
import pytest
from conformance.checks import Checks
from conformance.training_points import (
    ROUNDING,
    TOLERANCE_S,
    is_sharded,
    keeps_weights,
    parts_of,
    shares_step,
    travel_s,
    writes,
)

from sim.outcomes.parts import replay
from sim.outcomes.runs import bound, least_memory_bytes
from sim.replay.memory import memory_events, peak_memory_bytes, resident_bytes

check = Checks()
check_whole = Checks()
"""Checks of whole points: a strategy with all the iterations and jobs that occur."""
check_again = Checks()
"""Checks of whole points that replay them anew, for which a few of a scene are enough."""


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
    for node in TopologicalSorter({at: [n for n, _ in of] for at, of in after.items()}).static_order():
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


@check_again
def two_replays_are_identical_to_the_bit(whole):
    for variant, point in whole.again():
        first, second = point.trace, replay(variant.strategy, variant.scenario)
        assert second.plan.order == first.plan.order
        assert (second.starts, second.ends, second.sent, second.arrived, second.collectives) == (
            first.starts, first.ends, first.sent, first.arrived, first.collectives,
        )  # fmt: skip


@check
def memory_never_falls_below_what_stays_and_ends_there(point):
    devices, times, changes, _ = memory_events(point.trace)
    for device in range(point.plan.num_devices):
        own = devices == device
        held = np.cumsum(changes[own])
        assert np.all(np.diff(times[own]) >= 0)
        assert np.all(held >= -1e-3), device
        assert not len(held) or held[-1] == pytest.approx(0.0, abs=1e-3), device
    assert np.all(peak_memory_bytes(point.trace) >= resident_bytes(point.trace))


@check
def all_parameters_are_resident(point):
    model, recipe = point.scenario.model, point.scenario.workload.recipe
    frozen = sum(model.components[i].parameters for i in model.frozen)
    for device, resident in enumerate(resident_bytes(point.trace)):
        held = {(s.component, i) for s in point.plan.stages if s.position == device
                for i in range(s.first_layer, s.last_layer + 1)}  # fmt: skip
        layers = [model.components[component].layers[i] for component, i in held]
        trained = sum(layer.parameters for layer in layers if layer.backward == "full")
        locked = sum(layer.parameters for layer in layers) - trained
        own = recipe.optimizer_bytes / (point.plan.placement.copies if shares_step(point) else 1)
        state_bytes = trained * (recipe.gradient_bytes + own)
        weight_bytes = trained * recipe.weight_bytes
        if is_sharded(point):
            parts = parts_of(point)
            state_bytes /= parts
            if keeps_weights(point):
                state_bytes += trained * recipe.weight_bytes  # whole ones in half precision, too
            else:
                weight_bytes /= parts
        if "weights" not in {buffer.name for buffer in point.plan.resident[device]}:
            assert recipe.master_bytes and not keeps_weights(point)  # what is gathered is cast from masters
            weight_bytes = 0
        needed = state_bytes + weight_bytes + 2 * (frozen + locked)
        assert resident >= needed * (1 - ROUNDING), device
        if point.scenario.workload.checkpointing == "none":
            assert resident == pytest.approx(needed), device


@check_whole
def no_result_takes_less_memory_than_its_strategy_says(whole):
    peak_bytes = max(float(peak_memory_bytes(point.trace).max()) for _, point in whole.parts)
    assert least_memory_bytes(whole.strategy, whole.scenario) <= peak_bytes * (1 + ROUNDING)
