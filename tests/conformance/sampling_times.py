"""When a sampling plan runs, what it holds and what is said of it: nothing too early, and no run below its bound."""

import json

import numpy as np
import pytest
from conformance.checks import Checks
from conformance.sampling_points import ROUNDING, TOLERANCE_S
from oracle import evaluate

from sim.outcomes.measures import Measures, in_turn
from sim.outcomes.runs import run_point
from sim.replay.engine import simulate
from sim.replay.memory import memory_events, peak_memory_bytes, resident_bytes
from strategies.registry import make as make_sampler

check = Checks()
check_run = Checks()
"""Checks that run a point as a command does."""


@check
def nothing_is_read_before_it_has_arrived(point):
    plan, trace = point.plan, point.trace
    written_s = {}
    for _, _, op, _, end in point.ops:
        written_s.update(dict.fromkeys(op.writes, end))
    for collective, (start, end) in zip(plan.collectives, trace.collectives, strict=True):
        for tensor in collective.reads:
            assert written_s[tensor] <= start + TOLERANCE_S, collective
        written_s.update(dict.fromkeys(collective.writes, end))
    for device, _, op, start, _ in point.ops:
        for tensor in op.reads:
            assert written_s[tensor] <= start + TOLERANCE_S, op
            slot = trace.wiring.slots.get((tensor, device))
            if slot is not None:
                assert trace.arrived[slot] <= start + TOLERANCE_S, op


@check
def the_phases_take_what_the_whole_run_takes(point):
    whole, times = point.trace, [part.phase.times for part in point.phases]
    parts = in_turn([Measures.of(part.trace) for part in point.phases], times)
    assert parts.duration_s == pytest.approx(whole.end_s, rel=point.exactness)
    assert parts.p2p_bytes == pytest.approx(whole.p2p_bytes)
    assert parts.collective_bytes == pytest.approx(whole.collective_bytes)
    assert parts.peak_memory_bytes == pytest.approx(peak_memory_bytes(whole).max())
    assert sum(phase.times * phase.steps for _, phase, _, _ in point.phases) == point.iterations


@check
def no_run_beats_the_bound(point):
    bound_s = point.sampler.bound(point.scenario)
    assert 0 < bound_s <= point.trace.end_s * (1 + ROUNDING)


@check_run
def two_replays_are_identical_to_the_bit(point):
    again = simulate(point.sampler.plan(point.anew()))
    assert (again.starts, again.ends, again.arrived) == (
        point.trace.starts, point.trace.ends, point.trace.arrived,
    )  # fmt: skip


@check
def without_contention_the_worklist_evaluator_tells_the_same(point):
    if point.scenario.cluster.intra_node.bandwidth_bytes_per_s < float("inf"):
        return
    other = evaluate(point.plan, point.network)
    assert other.end_s == pytest.approx(point.trace.end_s, rel=ROUNDING)
    for ours, theirs in zip(point.trace.ends, other.ends, strict=True):
        assert ours == pytest.approx(theirs, rel=ROUNDING)
    assert other.collective_bytes == point.trace.collective_bytes
    assert other.p2p_bytes == pytest.approx(point.trace.p2p_bytes)


@check
def memory_is_never_negative_and_what_is_kept_stays(point):
    devices, _, changes, _ = memory_events(point.trace)
    largest = max(1.0, float(peak_memory_bytes(point.trace).max()))
    for device in range(point.plan.num_devices):
        held = np.cumsum(changes[devices == device])
        assert not len(held) or held.min() >= -1e-9 * largest, device
        assert not len(held) or held[-1] == pytest.approx(0.0, abs=1e-9 * largest), device


@check
def every_device_holds_its_weights(point):
    held = resident_bytes(point.trace)
    parameters = sum(layer.parameters for layer in point.scenario.backbone.layers)
    names = [{buffer.name for buffer in buffers} for buffers in point.plan.resident]
    assert all("weights" in of for of in names)
    weights = sum(of.size_bytes for row in point.plan.resident for of in row if of.name == "weights")
    assert weights >= 2 * parameters * (1 - ROUNDING)
    assert (peak_memory_bytes(point.trace) >= held).all()


@check_run
def results_are_plain_json_and_reproduce_themselves(point):
    result = run_point(point.sampler, point.scenario)
    given = json.loads(json.dumps(result.to_json()))
    parameters = {k: tuple(v) if isinstance(v, list) else v for k, v in given["parameters"].items()}
    again = run_point(make_sampler(given["strategy"], parameters), point.scenario)
    assert again.to_json() == result.to_json()
    assert given["latency_s"] == pytest.approx(point.trace.end_s, rel=max(1e-3, point.exactness))
    assert 0 <= given["bubble_ratio"] < 1


@check_run
def more_steps_take_longer(point):
    more = point.anew(steps=point.scenario.workload.steps + 1)
    assert run_point(point.sampler, more).latency_s > point.trace.end_s
