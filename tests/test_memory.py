"""What lies on each device at which time: births and deaths of tensors, and what stays."""

import numpy as np
import pytest

from sim.replay.engine import simulate
from sim.replay.memory import memory_events, peak_memory_bytes, resident_bytes
from strategies.plans.placement import Placement
from strategies.plans.plan import Buffer
from strategies.registry import make as make_strategy


def curve(trace, device):
    """The bytes on a device from each time on, resident ones apart."""
    devices, times, changes, _ = memory_events(trace)
    own = devices == device
    held = {}
    for time, size in zip(times[own], np.cumsum(changes[own]), strict=True):
        held[float(time)] = float(size)
    return held


def test_a_tensor_lives_from_its_write_to_its_last_read(make):
    rows = [
        [
            make.op("0F0", 1.0, writes="a"),
            make.op("0F1", 1.0, "a"),
            make.op("0B0", 2.0, "a"),
            make.op("0B1", 1.0),
        ]
    ]
    trace = simulate(make.plan(rows, sizes={"a": 8.0}))
    assert curve(trace, 0) == {1.0: 8.0, 4.0: 0.0}


def test_a_sent_tensor_stays_until_its_last_transfer_has_arrived(make):
    cluster = make.cluster(make.link("nvswitch", bandwidth=2.0))
    rows = [[make.op("0F0", 1.0, writes="a")], [make.op("1F0", 1.0, "a")], [make.op("2F0", 1.0, "a")]]
    trace = simulate(make.plan(rows, cluster=cluster, sizes={"a": 8.0}))
    assert curve(trace, 0) == {1.0: 8.0, 9.0: 0.0}
    assert curve(trace, 1) == {5.0: 8.0, 6.0: 0.0}
    assert curve(trace, 2) == {9.0: 8.0, 10.0: 0.0}


def test_what_was_given_is_there_from_the_start_and_what_is_kept_to_the_end(make):
    rows = [[make.op("0F0", 1.0, "old", "new"), make.op("0B0", 2.0)]]
    trace = simulate(make.plan(rows, sizes={"old": 4.0, "new": 6.0}, given=[("old", 0)], kept=[("new", 0)]))
    assert curve(trace, 0) == {0.0: 4.0, 1.0: 6.0, 3.0: 0.0}


def test_what_a_collective_reads_lives_until_it_ends(make):
    cluster = make.cluster(make.link("nvswitch", bandwidth=1.0), devices_per_node=2)
    rows = [[make.op("0B0", 1.0, writes="g"), make.op("0O", 1.0, "r")]]
    plan = make.plan(
        rows, placement=Placement(cluster, 2, 1, 1), sizes={"g": 4.0, "r": 2.0},
        collectives=[((0,), 4.0, 0, "g", "r")],
    )  # fmt: skip
    held = curve(simulate(plan), 0)
    assert list(held) == pytest.approx([1.0, 5.0, 6.0])
    assert list(held.values()) == [4.0 + 2.0, 2.0, 0.0]


def gathers(make, reads):
    """Two gathers of 4 s, each used by one op of 1 s; the second gather waits for what ``reads`` names."""
    cluster = make.cluster(make.link("nvswitch", bandwidth=1.0), devices_per_node=2)
    rows = [[make.op("0F0", 1.0, "a", "done"), make.op("1F0", 1.0, "b")]]
    plan = make.plan(
        rows, placement=Placement(cluster, 2, 1, 1), sizes={"a": 3.0, "b": 5.0},
        collectives=[((0,), 4.0, 0, "", "a"), ((0,), 4.0, 0, reads, "b")],
    )  # fmt: skip
    return simulate(plan)


def test_what_a_collective_writes_is_there_from_its_start(make):
    trace = gathers(make, "")
    assert list(curve(trace, 0)) == pytest.approx([0.0, 4.0, 5.0, 9.0])
    assert list(curve(trace, 0).values()) == [3.0, 3.0 + 5.0, 5.0, 0.0]


def test_a_collective_that_waited_for_an_op_finds_free_what_the_op_freed(make):
    trace = gathers(make, "done")
    assert list(curve(trace, 0)) == pytest.approx([0.0, 5.0, 10.0])
    assert list(curve(trace, 0).values()) == [3.0, 5.0, 0.0]
    assert peak_memory_bytes(trace).tolist() == [5.0]


def test_what_a_collective_of_no_duration_writes_is_there_before_it_goes(make):
    rows = [[make.op("0B0", 1.0, writes="g")]]
    plan = make.plan(
        rows, placement=Placement(make.cluster(devices_per_node=2), 2, 1, 1), sizes={"g": 0.0, "r": 2.0},
        collectives=[((0,), 0.0, 0, "g", "r")],
    )  # fmt: skip
    assert peak_memory_bytes(simulate(plan)).tolist() == [2.0]


def test_what_an_op_writes_early_is_there_from_then_on(make):
    rows = [[make.op("0B0", 4.0, writes="b", early=[(1.0, "g"), (3.0, "h")]), make.op("0B1", 1.0, "g h b")]]
    trace = simulate(make.plan(rows, sizes={"g": 4.0, "h": 2.0, "b": 1.0}))
    assert curve(trace, 0) == {1.0: 4.0, 3.0: 6.0, 4.0: 7.0, 5.0: 0.0}


def test_buffers_stay_throughout(make):
    rows = [[make.op("0F0", 1.0, writes="a")], [make.op("1F0", 1.0)]]
    resident = [(Buffer("weights", 10.0), Buffer("gradients", 20.0)), (Buffer("weights", 5.0),)]
    trace = simulate(make.plan(rows, sizes={"a": 1.0}, resident=resident))
    assert resident_bytes(trace).tolist() == [30.0, 5.0]
    assert peak_memory_bytes(trace).tolist() == [31.0, 5.0]


def test_checkpointing_keeps_the_input_of_a_stage_and_one_layer(make):
    unet = make.component(
        "unet", [1.0] * 4, output_bytes=1.0, saved_bytes=100.0, carried_bytes=0.5, skips=[(0, 2)]
    )
    scenario = make.scenario(make.model(unet), make.cluster(), 2, 6, checkpointing="full")
    trace = simulate(make_strategy("gpipe", {"pipeline_degree": 2, "micro_batches": 3}).plan(scenario))
    assert resident_bytes(trace).tolist() == [200.0, 200.0]
    # Local batch 2. After its third forward, stage 1 has kept the hidden state, a skip and what is carried thrice.
    assert curve(trace, 1)[trace.ends[1][2]] == 3 * 2 * (1.0 + 1.0 + 0.5)
