"""The network under a plan: what collectives share above the cards of a PCIe machine, by sums done by hand."""

from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from notation import parse_action
from oracle import evaluate

from profiles.machines.clusters import load_cluster
from profiles.machines.fabrics import OPERATIONS, Collectives
from sim.replay.engine import CHUNK_S, MAX_CHUNKS, simulate
from strategies.plans.network import Network
from strategies.plans.placement import Placement
from strategies.plans.plan import Collective, Op, Plan, Tensor

SIZE = 1e9
RING = ((2.0, 0.84), (4.0, 0.75), (8.0, 0.6))
COLLAPSING = ((2.0, 1.0), (4.0, 0.16), (8.0, 0.038))


@pytest.fixture(scope="module")
def cards(make):
    """A function that gives a node of cards with ports of 1 GB/s."""

    def cards(switch_size, *, host=1e9, switch=1e9, count=8, efficiency=((1.0, 1.0),), max_nodes=1):
        above = {"switch_bandwidth_bytes_per_s": switch, "host_bandwidth_bytes_per_s": host}
        link = make.link("pcie", 1e9, switch_size=switch_size, **above)
        outer = make.link("nic", 1e9) if max_nodes > 1 else None
        cluster = make.cluster(link, outer, devices_per_node=count, max_nodes=max_nodes)
        curves = tuple((operation, efficiency) for operation in OPERATIONS)
        return replace(cluster, collectives=Collectives(0.0, curves, ((1.0, 1.0),)))

    return cards


def seconds(cluster, num_cards, *groups, operation="all_to_all", size=SIZE, evaluated=False, placement=None):
    """Seconds until collectives of some groups of cards are done that start together."""
    placement = placement or Placement(cluster, num_cards, num_cards, num_cards)
    collectives = tuple(Collective(operation, tuple(group), size, None, (), ()) for group in groups)
    plan = Plan(((),) * placement.num_positions, (), placement, collectives=collectives)
    return (evaluate(plan, Network(placement)) if evaluated else simulate(plan)).end_s


PAIRS = ((0, 4), (1, 5), (2, 6), (3, 7))
"""Pairs of cards under two switches of four."""


def test_four_all_to_alls_through_one_bridge_take_four_times_one(cards):
    cluster = cards(4)
    one = seconds(cluster, 8, PAIRS[0])
    assert one == pytest.approx(SIZE / 2 / 1e9)
    for count in (2, 3, 4):
        assert seconds(cluster, 8, *PAIRS[:count]) == pytest.approx(count * one)


def test_a_wide_bridge_carries_all_groups_as_one(cards):
    cluster = cards(4, host=1e12, switch=1e12)
    for operation in OPERATIONS:
        together = seconds(cluster, 8, *PAIRS, operation=operation)
        assert together == pytest.approx(seconds(cluster, 8, PAIRS[0], operation=operation))


@pytest.mark.parametrize("operation", OPERATIONS)
@pytest.mark.parametrize(("bandwidth", "efficiency"), [(1e7, RING), (1e11, COLLAPSING)])
@pytest.mark.parametrize("group", [(0, 1), (0, 1, 4, 5)])
def test_alone_a_collective_takes_what_its_efficiency_says(cards, operation, bandwidth, efficiency, group):
    cluster = cards(4, host=bandwidth, switch=bandwidth, efficiency=efficiency)
    volume = {"send_recv": 1.0, "all_reduce": 2 * (len(group) - 1) / len(group)}
    share = volume.get(operation, (len(group) - 1) / len(group))
    expected = share * SIZE / dict(efficiency)[len(group)] / 1e9
    assert seconds(cluster, 8, group, operation=operation) == pytest.approx(expected)
    assert seconds(cluster, 8, group, operation=operation, evaluated=True) == pytest.approx(expected)


@pytest.mark.parametrize(("size", "count"), [(2, 4), (4, 2)])
def test_groups_that_fill_the_cards_reach_the_efficiency_of_all_that_are_active(cards, size, count):
    cluster = cards(8, efficiency=RING)
    groups = [range(size * number, size * (number + 1)) for number in range(count)]
    slower = dict(RING)[size] / dict(RING)[8]
    assert seconds(cluster, 8, *groups) == pytest.approx(slower * seconds(cluster, 8, groups[0]))
    assert slower > 1.2


def test_each_call_of_a_collective_takes_its_time(make):
    network = Network(Placement(make.cluster(make.link(bandwidth=1e9), call_s=0.5), 4, 4, 4))
    once = Collective("all_gather", (0, 1), SIZE, None, (), ())
    assert [network.collective(once._replace(calls=calls)).fixed_s for calls in (1, 3)] == [0.5, 1.5]


def test_groups_under_two_switches_or_two_hosts_do_not_disturb_each_other(cards):
    halves = ((0, 1, 2, 3), (4, 5, 6, 7))
    for efficiency in (RING, COLLAPSING):
        two_switches = cards(4, efficiency=efficiency)
        two_hosts = cards(2, count=4, max_nodes=2, efficiency=efficiency)
        for cluster in (two_switches, two_hosts):
            assert seconds(cluster, 8, *halves) == pytest.approx(seconds(cluster, 8, halves[0]))


def test_folded_replicas_share_the_host_with_the_one_that_is_simulated(cards):
    cluster = cards(8, efficiency=RING)
    folded = Placement(cluster, 8, 2, 2)  # four replicas of a pair
    alone = seconds(cluster, 8, (0, 1))
    assert seconds(cluster, 8, (0, 1), placement=folded) == pytest.approx(0.84 / 0.6 * alone)
    assert seconds(cluster, 8, (0, 1), placement=folded, evaluated=True) == pytest.approx(0.84 / 0.6 * alone)


def test_a_message_waits_for_the_bridge_that_a_collective_holds_for_a_chunk_at_most(cards):
    placement = Placement(cards(4), 8, 8, 8)
    sending = Op(parse_action("2F0"), CHUNK_S / 2, writes=(0,))
    reading = Op(parse_action("6F0"), 0.0, reads=(0,))
    rows = ((), (), (sending,), (), (), (), (reading,), ())
    bridge = Collective("all_to_all", (0, 4), SIZE, None, (), ())
    plan = Plan(rows, (Tensor("hidden", 0, 0, 1e3),), placement, collectives=(bridge,))
    trace = simulate(plan)
    assert trace.sent[0] == pytest.approx(SIZE / 2 / 1e9 / MAX_CHUNKS)
    assert trace.end_s == pytest.approx(SIZE / 2 / 1e9 + 1e-6)


@settings(derandomize=True, max_examples=60)
@given(data=st.data())
def test_sharing_only_delays_and_groups_take_at_most_one_after_the_other(cards, data):
    efficiency = data.draw(st.sampled_from([RING, COLLAPSING, ((1.0, 1.0),)]))
    cluster = cards(data.draw(st.sampled_from([1, 2, 4, 8])), host=2e9, efficiency=efficiency)
    order = data.draw(st.permutations(range(8)))
    size = data.draw(st.sampled_from([2, 4]))
    groups = [order[start : start + size] for start in range(0, 8, size)]
    operation = data.draw(st.sampled_from(OPERATIONS))
    one = [seconds(cluster, 8, group, operation=operation) for group in groups]
    together = seconds(cluster, 8, *groups, operation=operation)
    assert max(one) * (1 - 1e-9) <= together <= sum(one) * (1 + 1e-9)


def test_four_cards_on_one_bridge_share_it_among_pairs_as_the_pairs_together():
    cluster = load_cluster("a100-pcie-4")
    for operation in OPERATIONS:
        fixed_s = seconds(cluster, 4, (0, 1), operation=operation, size=0.0)
        one = seconds(cluster, 4, (0, 1), operation=operation) - fixed_s
        both = seconds(cluster, 4, (0, 1), (2, 3), operation=operation) - fixed_s
        assert both == pytest.approx(2 * one, rel=2e-3)
