"""When a sampling plan runs: nothing before what it needs, and no run below its bound; phases are the whole run."""

import pytest
from conformance.checks import Checks
from conformance.sampling_points import ROUNDING, TOLERANCE_S

from sim.outcomes.measures import Measures, in_turn
from sim.replay.engine import simulate
from sim.replay.memory import peak_memory_bytes
from strategies.plans.worklist import evaluate

check = Checks()


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


@check
def no_run_is_faster_than_its_compute_on_all_devices(point):
    total_s = sum(op.duration_s for ops in point.plan.ops for op in ops)
    busiest_s = max(sum(op.duration_s for op in ops) for ops in point.plan.ops)
    assert total_s / point.plan.num_devices <= busiest_s * (1 + ROUNDING)
    assert busiest_s <= point.trace.end_s * (1 + ROUNDING)


@check
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
