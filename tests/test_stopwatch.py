"""The stopwatch: the clocks of a team, by hand and against replays."""

from math import prod

import pytest
from exchanging import EXCHANGES, WORK, cluster_of, tell
from hypothesis import HealthCheck, assume, example, given, settings
from hypothesis import strategies as st

from profiles.machines.hosts import Calls
from sim.replay.engine import simulate
from strategies.bounds.stopwatch import Courses, Stopwatch
from strategies.patching.builder import GroupCollectives, SamplingBuilder
from strategies.patching.grid import Team
from strategies.plans.network import Network
from strategies.plans.placement import Placement

ALL = (0, 1, 2, 3)
GATHER = GroupCollectives("all_gather", (ALL,), (4.0,))
PAIRS = ((0, 2), (1, 3))


@pytest.fixture
def watch(make):
    """Four devices; a collective of n bytes gathers in 3/4 n seconds, and needs 0.5 seconds before."""

    def start(slowdown=1.0):
        cluster = make.cluster(make.link(bandwidth=1.0), slowdown=slowdown, call_s=0.5)
        return Stopwatch(Courses(Network(Placement(cluster, 4, 4, 4)), shared=False), ALL)

    return start


@pytest.fixture
def two_nodes(make):
    """Nodes of two devices, by default two, whose pairs across nodes share the card of each."""

    def start(*, shared=True, slowdown=1.0, behind_s=0.0, call_s=0.0, devices=ALL):
        cluster = make.cluster(
            make.link(bandwidth=100.0),
            make.link("nic", 1.0),
            slowdown=slowdown,
            devices_per_node=2,
            call_s=call_s,
        )
        courses = Courses(Network(Placement(cluster, *[len(devices)] * 3)), shared=shared)
        return Stopwatch(courses, devices, behind_s=behind_s)

    return start


@pytest.mark.parametrize("slowdown", [1.0, 2.0])
def test_ops_follow_one_another(watch, slowdown):
    clock = watch(slowdown)
    clock.compute_together(ALL, WORK, 2.0)
    clock.compute_together(ALL, WORK, 1.0)
    assert (clock.ended_s, clock.free_s) == (3.0, 3.0)


def test_the_next_op_waits_for_a_blocking_collective_and_what_was_computed_does_not(watch):
    clock = watch()
    clock.compute_together(ALL, WORK, 2.0)
    clock.exchange(GATHER, WORK)
    assert (clock.ended_s, clock.free_s) == (2.0, 5.5)
    clock.compute_together(ALL, WORK, 1.0)
    assert clock.ended_s == 6.5


def test_collectives_follow_one_another(watch):
    one_by_one, at_once = watch(), watch()
    one_by_one.exchange(GATHER, WORK)
    one_by_one.exchange(GATHER, WORK)
    at_once.exchange(GATHER._replace(sizes_bytes=(4.0, 4.0)), WORK)
    assert one_by_one.free_s == at_once.free_s == 7.0


def test_the_host_pays_for_each_collective_as_for_the_operation_that_it_is_dispatched_as(watch):
    courses, calls = watch().courses, Calls(slowness=1.0)
    twice = GATHER._replace(sizes_bytes=(4.0, 4.0), calls=3)
    for dispatched_as, operation in (("", "all_gather"), ("all_to_all", "all_to_all")):
        clock = Stopwatch(courses, ALL, calls)
        clock.exchange(twice._replace(dispatched_as=dispatched_as), WORK)
        assert clock.host_s == 2 * calls.collective_s(operation, 3)


@pytest.mark.parametrize(
    ("slowdown", "work_s", "free_s"),
    [
        (1.0, 1.0, 3.5),  # hidden by the collective
        (1.0, 5.0, 5.0),  # hides it
        (2.0, 1.0, 3.5),  # twice as long, and still hidden
        (2.0, 5.0, 5.0 + 3.5 / 2),  # of 3.5 s beside it half is lost
    ],
)
def test_compute_beside_a_collective_is_slowed_down(watch, slowdown, work_s, free_s):
    clock = watch(slowdown)
    passed_on = clock.exchange(GATHER._replace(wait=False), WORK)
    clock.compute_together(ALL, WORK, work_s)
    clock.expect_each([ALL], passed_on)
    assert clock.free_s == free_s


def test_of_groups_that_share_a_card_one_is_late_and_once_all_have_exchanged_everybody(two_nodes):
    clock, alone = two_nodes(), two_nodes(shared=False)
    for each in (clock, alone):
        each.exchange(GroupCollectives("all_gather", PAIRS, (4.0,)), WORK)
        each.compute_together(ALL, WORK, 1.0)
    assert clock.free_s == alone.free_s == 2.0 + 1.0  # half of four bytes each way; nobody knows who is late
    for each in (clock, alone):
        each.exchange(GroupCollectives("all_gather", ((0, 1), (2, 3)), (4.0,)), WORK)
    inside_s = alone.free_s - 3.0
    assert clock.free_s == 4.0 + 1.0 + inside_s


def test_a_card_carries_one_exchange_of_its_groups_after_the_other(two_nodes):
    clock = two_nodes()
    for _ in range(2):
        passed_on = clock.exchange(GroupCollectives("all_gather", PAIRS, (4.0,), wait=False), WORK)
        clock.expect_each(PAIRS, passed_on)
    clock.exchange(GroupCollectives("all_gather", ((0, 1), (2, 3)), (0.0,)), WORK)
    assert clock.free_s == 2 * 2 * 2.0  # two pairs, twice, two of four bytes each


def test_groups_of_which_each_two_share_another_card_take_turns_all_the_same(two_nodes):
    clock = two_nodes(devices=tuple(range(6)))
    clock.exchange(GroupCollectives("all_gather", ((0, 2), (1, 4), (3, 5)), (4.0,)), WORK)
    clock.exchange(GroupCollectives("all_gather", (tuple(range(6)),), (0.0,)), WORK)
    assert clock.free_s == 3 * 2.0


@pytest.mark.parametrize("shared", [True, False])
@pytest.mark.parametrize("wait", [True, False])
def test_what_is_done_again_and_again_takes_as_long_as_when_it_is_followed_to_the_end(
    two_nodes, shared, wait
):
    quick, slow = two_nodes(shared=shared, slowdown=1.5), two_nodes(shared=shared, slowdown=1.5)

    def layer(clock, work_s):
        passed_on = clock.exchange(GroupCollectives("all_gather", PAIRS, (4.0,), wait=wait), WORK)
        clock.compute_together(ALL, WORK, work_s, 0.25)
        if not wait:
            clock.expect_each(PAIRS, passed_on)
        clock.exchange(GroupCollectives("all_gather", ((0, 1), (2, 3)), (40.0,)), WORK)

    followed = []
    for work_s in (1.0, 5.0, 0.5):
        quick.repeat(20, lambda work_s=work_s: (followed.append(work_s), layer(quick, work_s)))
        for _ in range(20):
            layer(slow, work_s)
    quick.compute_together(ALL, WORK, 1.0)
    slow.compute_together(ALL, WORK, 1.0)
    assert (quick.free_s, quick.host_s) == pytest.approx((slow.free_s, slow.host_s), rel=1e-12)
    assert len(followed) <= 3 * 3


def late_s(clock, *before):
    """Seconds by which all are free after exchanges that nobody waits for, and one of everybody that takes none."""
    for operation, groups, size_bytes in before:
        clock.exchange(GroupCollectives(operation, groups, (size_bytes,), wait=False), WORK)
    clock.exchange(GroupCollectives("all_gather", (tuple(sorted(clock.devices)),), (0.0,)), WORK)
    return clock.free_s


def test_an_exchange_holds_a_card_after_those_before_it_at_the_card(two_nodes):
    both = ("all_gather", PAIRS, 4.0), ("all_gather", PAIRS, 6.0)
    assert late_s(two_nodes(), *both) == 4.0 + 6.0


def test_an_exchange_holds_a_card_once_it_is_on_the_wire_behind_those_before_it_on_the_stream(two_nodes):
    inside = ("all_gather", ((0, 1), (2, 3)), 400.0)  # half of it in two seconds, on no card
    calls_s = late_s(two_nodes(call_s=0.5))
    assert (
        late_s(two_nodes(call_s=0.5), inside, ("all_gather", PAIRS, 4.0)) == 0.5 + 2.0 + 0.5 + 4.0 + calls_s
    )


def test_groups_that_share_a_host_alone_do_not_take_turns(make):
    switches = make.link(
        kind="pcie",
        bandwidth=8.0,
        switch_size=2,
        switch_bandwidth_bytes_per_s=2.0,
        host_bandwidth_bytes_per_s=1.0,
    )
    courses = Courses(Network(Placement(make.cluster(switches), 4, 4, 4)))
    ((_, load_s),) = courses[GroupCollectives("all_gather", PAIRS, (4.0,))].loads_s
    assert load_s > 0


def test_whoever_is_late_at_one_card_stays_so_where_another_is_through_before(two_nodes):
    first, second = ((0, 2), (1, 3), (4,), (5,)), ((2, 4), (3, 5), (0,), (1,))
    clock = two_nodes(devices=tuple(range(6)))
    assert late_s(clock, ("all_gather", first, 20.0), ("all_gather", second, 4.0)) == 20.0 + 2.0


def test_a_device_that_begins_behind_counts_once_all_have_exchanged_with_it_and_nobody_knows_which(two_nodes):
    behind, punctual = two_nodes(behind_s=2.0), two_nodes()
    for each in (behind, punctual):
        each.compute_together(ALL, WORK, 1.0)
        each.exchange(GroupCollectives("all_to_all", ((0, 1), (2, 3)), (4.0,)), WORK)
    assert behind.free_s == punctual.free_s
    for each in (behind, punctual):
        each.exchange(GroupCollectives("all_to_all", (ALL,), (4.0,)), WORK)
    assert behind.free_s == pytest.approx(2.0 + punctual.free_s)


def test_slowdown_counts_on_ports_of_their_own_alone(two_nodes):
    shared, alone = two_nodes(slowdown=2.0), two_nodes(slowdown=2.0, shared=False)
    for clock in (shared, alone):
        passed_on = clock.exchange(GroupCollectives("all_gather", PAIRS, (4.0,), wait=False), WORK)
        clock.compute_together(ALL, WORK, 3.0)
        clock.expect_each(PAIRS, passed_on)
    assert (shared.free_s, alone.free_s) == (3.0, 3.0 + 2.0 / 2)


def test_groups_that_take_longer_than_others_are_noticed(two_nodes):
    clock = two_nodes()
    clock.exchange(GroupCollectives("all_gather", ((0, 1), (2, 3)), (4.0,)), WORK)
    assert clock.even
    clock.exchange(GroupCollectives("all_gather", ((0, 1, 2), (3,)), (4.0,)), WORK)
    assert not clock.even


CLUSTERS = {
    "cards of nodes": {"devices_per_node": 4},
    "cards of pairs": {"devices_per_node": 2},
    "one node": {},
    "switches": {
        "kind": "pcie", "switch_size": 2, "switch_bandwidth_bytes_per_s": 2.0, "host_bandwidth_bytes_per_s": 3.0,
    },
    "nodes of switches": {
        "kind": "pcie", "switch_size": 4, "switch_bandwidth_bytes_per_s": 4.0, "host_bandwidth_bytes_per_s": 1.0,
        "devices_per_node": 8,
    },
}  # fmt: skip
TEAMS = [
    (2, 2, 2), (4, 2, 1), (2, 1, 4), (2, 4, 2), (1, 4, 2), (2, 2, 1), (4, 1, 2), (2, 2, 4), (4, 1, 4), (4, 4, 1),
]  # fmt: skip
"""Ring, Ulysses and tensor parallelism."""


SPREAD_FROM_SOMEBODY = [
    ("ulysses", "all_to_all", [1.0], True, 0.5),
    ("ring", "all_to_all", [1.0], False, 3.0),
    ("tensor", "all_reduce", [1.0], True, 0.0),
]
"""Who exchanges with somebody late does not wait for it, and must not count as late with what it computes beside it."""


@given(
    st.sampled_from([*CLUSTERS]),
    st.sampled_from(TEAMS),
    st.sampled_from([1.0, 1.3, 1.6, 2.0]),
    st.booleans(),
    EXCHANGES,
    st.tuples(st.sampled_from([0.0, 0.3, 4.0, 30.0]), st.integers(0, 15)),
)
@example("switches", (2, 2, 2), 1.0, True, SPREAD_FROM_SOMEBODY, (0.0, 0))
@example("one node", (1, 4, 2), 1.0, True, SPREAD_FROM_SOMEBODY[:1], (4.0, 3))
@settings(max_examples=350, suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_no_replay_of_what_both_are_told_lets_a_device_go_on_sooner(
    make, name, degrees, slowdown, shared, told, late
):
    team = Team(tuple(range(prod(degrees))), *degrees)
    link = dict(CLUSTERS[name])
    per_node = link.pop("devices_per_node", 16)
    placement = Placement(cluster_of(make, link, slowdown, per_node), *[len(team.devices)] * 3)
    behind_s = late[0] if shared else 0.0
    watch = Stopwatch(Courses(Network(placement), shared=shared), team.devices, behind_s=behind_s)
    builder = SamplingBuilder(placement)
    builder.compute(late[1] % len(team.devices), WORK, behind_s)
    for recorder in (builder, watch):
        recorder.compute_together(team.devices, WORK, 0.5)
        tell(recorder, team, told)
    resident = [()] * len(team.devices)
    ends_s = [ends[-1] for ends in simulate(builder.build((), resident)).ends]
    assume(watch.even)
    assert watch.free_s <= (min(ends_s) if shared else ends_s[0]) * (1 + 1e-12)
