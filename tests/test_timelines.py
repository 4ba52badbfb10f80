"""Timelines of small plans, value by value."""

from notation import parse_action

from sim.replay.engine import simulate
from sim.replay.memory import peak_memory_bytes
from sim.replay.timelines import Bar, CollectiveBar, collective_bars, compute_bars, idle_spans, memory_curves
from strategies.plans.plan import Buffer


def test_bars_are_the_ops_with_their_times_and_the_place_of_their_stage_on_the_device(make):
    rows = [[make.op("0F0", 1.0, writes="h"), make.op("3F0", 2.0)], [make.op("X0.1:8", 0.5, reads="h")]]
    assert compute_bars(simulate(make.plan(rows))) == [
        Bar(0, 0.0, 1.0, "forward", parse_action("0F0"), 0),
        Bar(0, 1.0, 3.0, "forward", parse_action("3F0"), 1),
        Bar(1, 1.0, 1.5, "frozen", parse_action("X0.1:8"), 0),
    ]


def test_a_collective_has_a_bar_on_each_of_its_devices(make):
    cluster = make.cluster(make.link(bandwidth=1.0))
    rows = [[make.op("0B0", 1.0, writes="g0")], [make.op("1B0", 1.0, writes="g1")]]
    plan = make.plan(rows, cluster=cluster, collectives=[((0, 1), 3.0, None, "g0 g1", "")])
    trace = simulate(plan)
    assert trace.collectives == ((1.0, 4.0),)
    assert collective_bars(trace) == [CollectiveBar(device, 1.0, 4.0, "all_reduce", 3.0) for device in (0, 1)]


def test_idle_spans_of_a_device_are_joined_where_only_other_devices_come_and_go(make):
    rows = [[make.op("0F0", 1.0, writes="h"), make.op("0F1", 4.0)], [make.op("1F0", 1.0, reads="h")], []]
    assert idle_spans(simulate(make.plan(rows))) == [[], [(0.0, 1.0), (2.0, 5.0)], [(0.0, 5.0)]]


def test_a_memory_curve_starts_with_the_resident_bytes_and_its_largest_value_is_the_peak(make):
    rows = [
        [
            make.op("0F0", 1.0, writes="a"),
            make.op("0B0", 2.0, reads="a", writes="b"),
            make.op("0O", 1.0, reads="b"),
        ]
    ]
    plan = make.plan(rows, sizes={"a": 10.0, "b": 5.0}, resident=[(Buffer("weights", 100.0),)])
    trace = simulate(plan)
    (curve,) = memory_curves(trace)
    assert list(zip(curve.times_s, curve.sizes_bytes, strict=True)) == [
        (0.0, 100.0),
        (1.0, 110.0),
        (3.0, 115.0),
        (3.0, 105.0),
        (4.0, 100.0),
        (4.0, 100.0),
    ]
    assert curve.peak_bytes == peak_memory_bytes(trace)[0] == 115.0
