"""Metrics of plans small enough to reckon by hand."""

from dataclasses import replace

import pytest

from sim.replay.engine import simulate
from sim.replay.metrics import bubbles, busy_s, collective_s, exposed_communication_s, idle_s
from strategies.plans.bubbles import Bubble
from strategies.plans.placement import Placement


@pytest.fixture
def slow(make):
    """A cluster whose ports move a byte a second."""
    return make.cluster(make.link("nvswitch", bandwidth=1.0), devices_per_node=8)


def replicated(make, rows, reductions, slowdown=1.0, **rest):
    """One position on two GPUs, or as many as there are rows; an all-reduce of b bytes takes b seconds."""
    cluster = make.cluster(make.link("nvswitch", bandwidth=1.0), slowdown=slowdown)
    degree = len(rows)
    placement = Placement(cluster, 2 * degree, degree, degree)
    return simulate(make.plan(rows, placement=placement, collectives=reductions, **rest))


def test_the_classic_bubbles_of_two_positions(make):
    rows = [
        [make.op("0F0", 1.0, writes="h"), make.op("0B0", 2.0, "g")],
        [make.op("1F0", 1.0, "h", "s"), make.op("1B0", 2.0, "s", "g")],
    ]
    trace = simulate(make.plan(rows))
    assert bubbles(trace) == [Bubble(0.0, 1.0, (1,)), Bubble(1.0, 4.0, (0,)), Bubble(4.0, 6.0, (1,))]
    assert (busy_s(trace), idle_s(trace)) == (3.0, 3.0)
    assert idle_s(trace) / trace.end_s == 0.5


def test_a_collective_behind_compute_is_not_exposed(make):
    rows = [[make.op("0B0", 1.0, writes="g"), make.op("0F1", 2.0), make.op("0O", 1.0, "r")]]
    trace = replicated(make, rows, [((0,), 3.0, 0, "g", "r")])
    assert exposed_communication_s(trace) == pytest.approx(1.0)
    assert collective_s(trace) == pytest.approx(3.0)


def test_waiting_for_a_collective_is_waiting_for_all_of_the_queue_before_it(make):
    # The three follow one another from 1 s on; only the last, from 6 to 7 s, is awaited.
    rows = [[make.op("0B0", 1.0, writes="g h i"), make.op("0O", 1.0, "r")]]
    reductions = [((0,), 3.0, 0, "g", "q"), ((0,), 2.0, 0, "h", "p"), ((0,), 1.0, 0, "i", "r")]
    trace = replicated(make, rows, reductions)
    assert trace.starts[0] == pytest.approx((0.0, 7.0))
    assert exposed_communication_s(trace) == idle_s(trace) == pytest.approx(6.0)


def test_waiting_for_a_collective_is_waiting_for_the_one_whose_result_it_reads(make):
    # The first runs from 1 to 4 s, and what reads its result, on another stream, from 4 to 5 s.
    rows = [[make.op("0B0", 1.0, writes="g"), make.op("0O", 1.0, "r")]]
    reductions = [((0,), 3.0, 0, "g", "q"), ((0,), 1.0, 0, "q", "r")]
    plan = replicated(make, rows, reductions).plan
    first, second = plan.collectives
    trace = simulate(replace(plan, collectives=(first, second._replace(stream=1))))
    assert trace.starts[0] == pytest.approx((0.0, 5.0))
    assert exposed_communication_s(trace) == idle_s(trace) == pytest.approx(4.0)


def test_waiting_for_what_a_collective_reads_is_not_waiting_for_the_one_before_it(make):
    # The one awaited is reduced from 6 to 7 s, as soon as its gradient is there; the one before it ended at 4 s.
    rows = [[make.op("0B0", 1.0, writes="g"), make.op("0O", 1.0, "r")], [make.op("1B0", 6.0, writes="h")]]
    trace = replicated(make, rows, [((0,), 3.0, 0, "g", "q"), ((0,), 1.0, 0, "h", "r")])
    assert trace.starts[0] == pytest.approx((0.0, 7.0))
    assert exposed_communication_s(trace) == pytest.approx(1.0 / 2)


def test_only_the_time_on_the_wire_is_exposed_communication(make, slow):
    # Device 1 waits 5 s: 4 s for the writer, 1 s for the wire.
    rows = [[make.op("0F0", 4.0, writes="a")], [make.op("1F0", 1.0, "a")]]
    trace = simulate(make.plan(rows, cluster=slow, sizes={"a": 1.0}))
    assert trace.starts[1] == (5.0,)
    assert exposed_communication_s(trace) == 0.5


def test_time_behind_other_messages_at_a_port_is_not_on_the_wire(make, slow):
    # Device 2 waits for b, which leaves the port of device 0 only after a, from 4 to 5 s.
    rows = [[make.op("0F0", 1.0, writes="a b")], [make.op("1F0", 1.0, "a")], [make.op("2F0", 1.0, "b")]]
    trace = simulate(make.plan(rows, cluster=slow, sizes={"a": 3.0, "b": 1.0}))
    assert trace.starts[2] == (5.0,)
    assert exposed_communication_s(trace) == pytest.approx((3.0 + 1.0) / 3)


def test_a_blocking_sender_is_exposed_too(make, slow):
    rows = [[make.op("0F0", 1.0, writes="a"), make.op("0F1", 1.0)], [make.op("1F0", 1.0, "a")]]
    trace = simulate(make.plan(rows, cluster=slow, sizes={"a": 2.0}, blocking=True))
    assert trace.starts == ((0.0, 3.0), (3.0,))
    assert exposed_communication_s(trace) == 2.0
