"""Uneven teams: the clocks of their devices, by hand, against replays and in the bounds of runs."""

from math import prod

import numpy as np
import pytest
from exchanging import EXCHANGES, WORK, cluster_of, tell
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st

import sim
from sim.outcomes.runs import bound
from sim.replay.engine import simulate
from strategies.bounds.uneven_teams import Crossings, TeamClocks, _Round
from strategies.bounds.uneven_ways import UnevenWays
from strategies.patching.builder import GroupCollectives, SamplingBuilder
from strategies.patching.grid import Team
from strategies.patching.layer_runs import run_layers
from strategies.plans.network import CollectiveRoute, Network
from strategies.plans.placement import Placement

SIX = tuple(range(6))
INSIDE = ((0, 1, 2), (3, 4, 5))
ACROSS = ((0, 3), (1, 4), (2, 5))
SOME_ACROSS = ((0, 1), (2, 3), (4, 5))


@pytest.fixture
def clocks(make):
    """Six devices in nodes of three; inside a node nothing takes time, and a card carries a byte a second each way."""

    def start(free_s=(0.0,) * 6, devices_per_node=3):
        nic = make.link("nic", 1.0)
        cluster = make.cluster(make.link(bandwidth=1e18), nic, devices_per_node=devices_per_node)
        return TeamClocks(Crossings(Network(Placement(cluster, 6, 6, 6))), SIX, np.array(free_s))

    return start


def gather(groups, *, wait=True):
    """Four bytes, half of which a pair across nodes moves in two seconds."""
    return GroupCollectives("all_gather", groups, (4.0,), wait=wait)


def test_a_group_begins_when_the_last_of_its_members_is_there(clocks):
    team = clocks((0.0, 5.0, 1.0, 0.0, 0.0, 2.0))
    team.exchange(gather(INSIDE), WORK)
    assert team.free_s == pytest.approx([5, 5, 5, 2, 2, 2])


def test_only_a_group_that_lies_across_nodes_takes_long_and_who_exchanges_with_it_next_is_late(clocks):
    team = clocks()
    team.exchange(gather(SOME_ACROSS), WORK)
    assert team.free_s == pytest.approx([0, 0, 2, 2, 0, 0])
    team.compute_together(SIX, WORK, 1.0)
    team.exchange(gather(INSIDE), WORK)
    assert team.free_s == pytest.approx([3] * 6)


def test_of_groups_that_share_a_card_one_is_late_and_those_who_met_it_whichever_it_is(clocks):
    team = clocks()
    team.exchange(gather(ACROSS), WORK)
    assert team.free_s == pytest.approx([2] * 6)  # each alone; together they hold each card for six
    team.compute_together(SIX, WORK, 1.0)
    team.exchange(gather(SOME_ACROSS), WORK)
    assert team.free_s == pytest.approx([3, 3, 5, 5, 3, 3])  # nobody has met all three
    team.exchange(gather(INSIDE), WORK)
    assert team.free_s == pytest.approx([6 + 1] * 6)


def test_nobody_is_late_before_an_exchange_is_awaited_nor_with_what_is_computed_beside_it(clocks):
    team = clocks()
    passed_on = team.exchange(gather(ACROSS, wait=False), WORK)
    team.compute_together(SIX, WORK, 1.0)
    assert team.free_s == pytest.approx([1] * 6)
    team.expect_each(ACROSS, passed_on)
    assert team.free_s == pytest.approx([2] * 6)
    team.exchange(gather(INSIDE), WORK)
    assert team.free_s == pytest.approx([6] * 6)


def test_groups_of_which_each_two_share_another_card_take_turns_all_the_same(clocks):
    team = clocks(devices_per_node=2)
    team.exchange(gather(((0, 2), (1, 4), (3, 5))), WORK)
    team.exchange(gather((SIX,)), WORK)
    assert team.free_s == pytest.approx([3 * 2 + 4 / 6 * 5] * 6)


def test_a_card_carries_one_exchange_of_its_groups_after_the_other(clocks):
    team = clocks()
    for _ in range(2):
        passed_on = team.exchange(gather(ACROSS, wait=False), WORK)
        team.compute_together(SIX, WORK, 1.0)
        team.expect_each(ACROSS, passed_on)
    assert team.free_s == pytest.approx([4] * 6)
    team.exchange(gather(INSIDE), WORK)
    assert team.free_s == pytest.approx([2 * 3 * 2] * 6)


def test_who_is_surely_late_begins_the_next_exchange_as_late(clocks):
    team = clocks()
    for groups in (ACROSS, INSIDE):
        team.exchange(gather(groups), WORK)
    assert team.free_s == pytest.approx([6] * 6)
    team.exchange(gather(SOME_ACROSS), WORK)
    assert team.free_s == pytest.approx([6, 6, 8, 8, 6, 6])


def test_who_is_late_and_computes_for_longer_than_an_exchange_takes_does_not_catch_up_by_waiting_for_it(
    clocks,
):
    team = clocks()
    team.exchange(gather(ACROSS), WORK)
    passed_on = team.exchange(gather(ACROSS, wait=False), WORK)
    team.compute_together(SIX, WORK, 7.0)
    team.expect_each(ACROSS, passed_on)
    team.exchange(gather(INSIDE), WORK)
    assert team.free_s == pytest.approx([6 + 7] * 6)


def test_of_shared_ports_those_held_longest_are_looked_at_one_for_each_set_of_groups():
    held = {
        0: (1.0, 1.0, 0.0),
        1: (3.0, 2.0, 0.0),
        2: (2.0, 2.0, 0.0),
        3: (0.0, 0.5, 0.5),
        4: (4.0, 0.0, 4.0),
    }
    routes = [
        CollectiveRoute(
            tuple((port, own[group]) for port, own in held.items() if own[group]), (), 4.0, 0.0, 0.0
        )
        for group in range(3)
    ]
    assert _Round.of(routes).shared == [(8.0, (0, 2), 4), (5.0, (0, 1), 1)]


class Hosts(Network):
    """A network in which all-gathers hold one port above all cards for a tenth of a millisecond, all else another."""

    def collective(self, collective):
        port = self._port(collective.operation if collective.operation == "all_gather" else "else")
        return CollectiveRoute((), ((port, 1e-4),), 1e-4, 0.0, 0.0)


def test_two_ports_that_the_same_groups_share_are_held_at_once(clocks):
    network = Hosts(clocks()._crossings.network.placement)
    builder, team = SamplingBuilder(network.placement), TeamClocks(Crossings(network), SIX, np.zeros(6))
    for recorder in (builder, team):
        for operation in ("all_gather", "all_to_all"):
            what = gather(ACROSS, wait=False)._replace(operation=operation)
            recorder.expect_each(ACROSS, recorder.exchange(what, WORK))
        recorder.exchange(gather((SIX,)), WORK)
        recorder.compute_together(SIX, WORK, 0.0)
    ends_s = [ends[-1] for ends in simulate(builder.build((), [()] * 6), network).ends]
    assert team.free_s.max() == pytest.approx(min(ends_s)) == pytest.approx(5e-4)  # 7e-4 if in turn


def test_an_exchange_of_two_teams_is_found_for_each_of_them(clocks):
    crossings, what = clocks()._crossings, gather(((0, 1, 3, 5), (2, 4)))
    members = [crossings.of(what, devices).members.tolist() for devices in ((0, 1, 2, 4), (3, 5, 2, 4))]
    assert members == [[[0, 1], [2, 3]]] * 2
    assert crossings.of(what, (1, 3, 4, 2)).members.tolist() == [[0, 1], [3, 2]]


TEAMS = [
    (2, 2, 3), (3, 2, 2), (1, 4, 3), (3, 4, 1), (2, 1, 6), (1, 3, 4), (2, 3, 2), (6, 2, 1), (1, 2, 6), (4, 3, 1),
]  # fmt: skip
"""Ring, Ulysses and tensor parallelism."""
SWITCHES = {"switch_bandwidth_bytes_per_s": 2.0, "host_bandwidth_bytes_per_s": 3.0}
CLUSTERS = {
    "nodes of four": {"devices_per_node": 4},
    "nodes of two": {"devices_per_node": 2},
    "nodes of six": {"devices_per_node": 6},
    "switches": {"kind": "pcie", "switch_size": 4, "devices_per_node": 12, **SWITCHES},
    "nodes of switches": {"kind": "pcie", "switch_size": 2, "devices_per_node": 4, **SWITCHES},
}


@given(
    st.sampled_from([*CLUSTERS]),
    st.sampled_from(TEAMS),
    st.sampled_from([1.0, 1.6]),
    EXCHANGES,
    st.lists(st.sampled_from([0.0, 0.3, 4.0, 30.0]), min_size=12, max_size=12),
)
@example(
    "nodes of four",
    (1, 4, 3),
    1.0,
    [("tensor", "all_reduce", [20.0], False, 12.0), ("ulysses", "all_to_all", [1.0], False, 9.0)],
    [0.0] * 12,
)
@settings(max_examples=300, suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_no_replay_of_what_both_are_told_lets_a_device_go_on_sooner(
    make, name, degrees, slowdown, told, free_s
):
    team, link = Team(tuple(range(prod(degrees))), *degrees), dict(CLUSTERS[name])
    per_node = link.pop("devices_per_node")
    cluster = cluster_of(make, link, slowdown, per_node)
    placement = Placement(cluster, *[team.size] * 3)
    builder = SamplingBuilder(placement)
    for device, begin_s in enumerate(free_s):
        builder.compute(device, WORK, begin_s)
    clocks = TeamClocks(Crossings(Network(placement)), team.devices, np.array(free_s))
    for recorder in (builder, clocks):
        tell(recorder, team, told)
    ends_s = [ends[-1] for ends in simulate(builder.build((), [()] * team.size)).ends]
    assert (clocks.free_s <= np.array(ends_s) * (1 + 1e-12)).all()


@pytest.mark.parametrize(
    ("strategy", "degrees", "least"),
    [
        ("hybrid", {"guidance": 2, "ulysses": 2, "ring": 2, "pipeline": 3, "tensor": 3}, 0.75),
        ("hybrid", {"guidance": 1, "ulysses": 4, "pipeline": 6, "tensor": 3}, 0.78),
        ("hybrid", {"guidance": 2, "ulysses": 2, "ring": 3, "tensor": 6}, 0.67),
        ("attention2d", {"rows": 3, "columns": 4, "ulysses": 6}, 0.85),
    ],
)
def test_runs_of_teams_that_straddle_nodes_are_bounded_closely_and_never_above(strategy, degrees, least):
    given_degrees = {
        name if name in ("rows", "columns") else f"{name}_degree": n for name, n in degrees.items()
    }
    given_degrees |= {"patches": degrees["pipeline"]} if "pipeline" in degrees else {}
    result = sim.run("wan2.1-1.3b", gpus=72, strategy=strategy, **given_degrees)
    bound_s = bound(result.source.strategy, result.source.scenario)
    assert least * result.times["latency_s"] < bound_s <= result.times["latency_s"]


@pytest.mark.parametrize("degrees", [(2, 4, 1, 3, 3), (1, 4, 1, 6, 3), (2, 1, 2, 3, 6), (2, 2, 2, 3, 3)])
def test_as_much_goes_by_with_each_pass_of_a_stage_however_many_follow_one_another(degrees):
    names = ("guidance_degree", "ulysses_degree", "ring_degree", "pipeline_degree", "tensor_degree")
    given_degrees = dict(zip(names, degrees, strict=True))
    source = sim.run("wan2.1-1.3b", gpus=72, strategy="hybrid", **given_degrees).source
    pipeline = source.strategy.layout(source.scenario)
    ways, team, passes = UnevenWays(pipeline), pipeline.grid.team(0, 0), 8
    crossings = Crossings(pipeline.network)
    for patch, way in zip((None, 0), ways.all(displaced=True), strict=False):
        free_s = np.zeros(team.size)
        for _ in range(passes):
            clocks = TeamClocks(crossings, team.devices, free_s)
            for work in pipeline.works(0, patch):
                run_layers(clocks, team, work, WORK)
            free_s = clocks.free_s
        assert 0.75 < passes * way[0].held_s / free_s.max() <= 1 + 1e-12
