"""Devices that run ahead of the engine: as if SimPy alone had taken every event, to the bit."""

from dataclasses import fields, replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from sim.replay import engine
from sim.replay.ahead import Ahead, reaches
from sim.replay.engine import simulate
from strategies.plans.placement import Placement
from strategies.plans.wiring import wire
from strategies.registry import make_strategy

STRATEGIES = (
    "1f1b",
    "bidirectional",
    "diffusionpipe",
    "gpipe",
    "interleaved",
    "pulse",
    "wave",
    "zero-bubble",
)

repeatable = settings(derandomize=True, deadline=None, max_examples=120)


def replays(plan, monkeypatch):
    """The plan replayed by devices that run ahead, and by SimPy alone."""
    ahead = simulate(plan)
    with monkeypatch.context() as patch:
        patch.setattr(Ahead, "run", lambda self: None)
        alone = simulate(plan)
    return ahead, alone


def same(one, other):
    """Whether two traces of one plan are equal to the bit."""
    return all(getattr(one, f.name) == getattr(other, f.name) for f in fields(one) if f.name != "wiring")


@repeatable
@given(
    name=st.sampled_from(STRATEGIES),
    degree=st.sampled_from([2, 4]),
    rounds=st.integers(1, 4),
    replicas=st.sampled_from([1, 2]),
    layers_s=st.lists(st.sampled_from([1.0, 1.5, 0.1, 0.7, 0.0]), min_size=16, max_size=16),
    output_bytes=st.sampled_from([0.0, 1e6, 3e8, 2e9]),
    slowdown=st.sampled_from([1.0, 1.5]),
    per_node=st.sampled_from([2, 8]),
)
def test_running_ahead_changes_no_bit(
    make, name, degree, rounds, replicas, layers_s, output_bytes, slowdown, per_node
):
    model = make.model(make.component("net", layers_s, output_bytes=output_bytes, parameters=10**8))
    link, nic = make.link(bandwidth=1e10, latency_s=1e-5), make.link("nic", 3e9, 1e-5)
    cluster = replace(make.cluster(link, nic, devices_per_node=per_node), overlap_slowdown=slowdown)
    gpus, count = degree * replicas, degree * rounds
    scenario = make.scenario(model, cluster, gpus, 8 * gpus * count)
    strategy = make_strategy(name, {"pipeline_degree": degree, "micro_batches": count})
    plan = strategy.plan(scenario)
    with pytest.MonkeyPatch.context() as patch:
        assert same(*replays(plan, patch))


def test_who_sleeps_until_a_message_goes_on_after_all_that_was_due_when_it_was_sent(make, monkeypatch):
    # Positions 1 and 2 come to the card of their node at once; 2 began before 1, whom position 0 had woken.
    cluster = make.cluster(make.link("nvswitch"), make.link("nic", bandwidth=1.0), devices_per_node=4)
    rows = [
        [make.op("0F0", 1.0, writes="a")],
        [make.op("1F0", 1.0, "a", "b")],
        [make.op("2F0", 1.0), make.op("2F1", 1.0, writes="c")],
        [],
        [make.op("4F0", 1.0, "b")],
        [make.op("5F0", 1.0, "c")],
        [],
        [],
    ]
    plan = make.plan(rows, placement=Placement(cluster, 8, 8, 8), sizes={"b": 1.0, "c": 1.0})
    ahead, alone = replays(plan, monkeypatch)
    assert same(ahead, alone)
    assert [ahead.starts[receiver] for receiver in (4, 5)] == [(4.0,), (3.0,)]


@pytest.mark.parametrize("beside_s", [1.0, 2.0])
def test_those_who_slept_until_one_op_ended_go_on_in_the_order_of_what_it_sent(make, monkeypatch, beside_s):
    # Positions 0 to 3 end at 2 s, and come to the card of their node: those who slept for b, c and a, then 0.
    cluster = make.cluster(make.link("nvswitch"), make.link("nic", bandwidth=1.0), devices_per_node=4)
    first = [make.op("0F0", 1.0, writes="b c a"), make.op("0F1", 0.0), make.op("0F2", 1.0, writes="w")]
    sleep = [
        [make.op(f"{n}F0", 1.0, read, sent)]
        for n, read, sent in ((1, "a", "x"), (2, "b", "y"), (3, "c", "z"))
    ]
    reads = [[make.op(f"{n}F0", 1.0, read)] for n, read in enumerate("wxyz", 5)]
    rows = [first, *sleep, [make.op("4F0", beside_s)], *reads, [], [], []]
    plan = make.plan(rows, placement=Placement(cluster, 12, 12, 12), sizes=dict.fromkeys("wxyz", 1.0))
    ahead, alone = replays(plan, monkeypatch)
    assert same(ahead, alone)
    assert [ahead.starts[receiver] for receiver in (5, 6, 7, 8)] == [(6.0,), (5.0,), (3.0,), (4.0,)]


def test_each_of_the_two_ports_of_a_message_is_held_for_its_own_time(make, monkeypatch):
    # Position 2 gets messages of 0 and 1, for each of which its port is held three times as long as theirs.
    leg = engine._leg

    def longer_there(*of):
        (out, (there, hold_s)), travel_s = leg(*of)
        return (out, (there, 3 * hold_s)), travel_s

    monkeypatch.setattr(engine, "_leg", longer_there)
    rows = [
        [make.op("0F0", 1.0, writes="a"), make.op("0F1", 0.5, writes="c")],
        [make.op("1F0", 1.0, writes="b")],
        [make.op("2F0", 1.0, "a b")],
        [make.op("3F0", 1.0, "c")],
    ]
    cluster = make.cluster(make.link(bandwidth=1.0))
    plan = make.plan(rows, placement=Placement(cluster, 4, 4, 4), sizes=dict.fromkeys("abc", 1.0))
    ahead, alone = replays(plan, monkeypatch)
    assert same(ahead, alone)
    assert [ahead.starts[receiver] for receiver in (2, 3)] == [(1.0 + 3.0 + 1.0,), (1.0 + 1.0 + 1.0,)]


def test_without_collectives_devices_run_to_the_end(make):
    model = make.model(make.component("net", [1.0] * 4, output_bytes=1e6))
    scenario = make.scenario(model, make.cluster(make.link(bandwidth=1e10)), 4, 32)
    plan = make_strategy("1f1b", {"pipeline_degree": 4, "micro_batches": 8}).plan(scenario)
    assert reaches(wire(plan)) == [len(ops) for ops in plan.ops]


def test_devices_stop_before_what_a_collective_waits_for(make):
    """Its stage's last backward, which it reads, may begin but not end."""
    model = make.model(make.component("net", [1.0] * 4, output_bytes=1e6, parameters=10**8))
    scenario = make.scenario(model, make.cluster(make.link(bandwidth=1e10)), 8, 64)
    plan = make_strategy("1f1b", {"pipeline_degree": 4, "micro_batches": 8, "group_size": 4}).plan(scenario)
    assert plan.collectives
    assert reaches(wire(plan)) == [15] * 4  # of 16 passes and a step
