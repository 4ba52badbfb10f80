"""Which GPUs the positions of a pipeline stand for, and which ports lie between them."""

from itertools import product

import pytest

from profiles.errors import InfeasibleError
from profiles.machines.collectives import Group
from strategies.plans.network import Network
from strategies.plans.placement import Placement
from strategies.plans.plan import Collective


@pytest.fixture
def nodes_of(make):
    """Return a cluster of nodes with so many devices: 1 GB/s between devices, 100 MB/s between nodes."""

    def build(devices):
        intra = make.link("nvswitch", 1e9, 0.001, 0.002)
        return make.cluster(intra, make.link("nic", 1e8, 0.01, 0.02), devices_per_node=devices)

    return build


def test_neighbouring_gpus_go_to_the_positions_of_one_group(nodes_of):
    placement = Placement(nodes_of(8), 8, 4, 2)
    assert [placement.ranks(position) for position in (0, 1)] == [[0, 1, 4, 5], [2, 3, 6, 7]]
    assert [placement.devices(position) for position in (0, 1)] == [[0, 1], [2, 3]]


@pytest.mark.parametrize("data_inner", [False, True])
@pytest.mark.parametrize(("gpus", "group", "positions"), [(8, 2, 2), (16, 8, 2)])
def test_every_gpu_holds_one_position_of_one_group(nodes_of, gpus, group, positions, data_inner):
    placement = Placement(nodes_of(4), gpus, group, positions, data_inner)
    slots = product(range(placement.num_groups), range(positions), range(placement.replicas))
    assert sorted(placement.rank(*slot) for slot in slots) == list(range(gpus))
    assert placement.num_groups * placement.replicas == placement.copies == gpus // positions


@pytest.mark.parametrize(
    ("gpus", "group", "positions", "words"),
    [
        (8, 3, 3, r"gpus\(8\) is no multiple of pipeline_degree\(3\)"),
        (8, 3, 1, r"gpus\(8\) is no multiple of group_size\(3\)"),
        (8, 4, 3, r"group_size\(4\) is no multiple of pipeline_degree\(3\)"),
        (12, 3, 3, r"group_size\(3\) and devices_per_node\(4\) do not divide one another"),
        (10, 2, 2, r"gpus\(10\) and devices_per_node\(4\) do not divide one another"),
        (24, 24, 4, r"replicas\(6\) and devices_per_node\(4\) do not divide one another"),
    ],
)
def test_sizes_that_do_not_divide_are_refused_with_their_numbers(nodes_of, gpus, group, positions, words):
    with pytest.raises(InfeasibleError, match=words):
        Placement(nodes_of(4), gpus, group, positions)


def test_groups_that_lie_unlike_one_another_over_switches_are_refused(make):
    # Positions 0 and 1 are under one switch in the first group (GPUs 0, 1), under two in the second (3, 4).
    rates = {"switch_bandwidth_bytes_per_s": 1.0, "host_bandwidth_bytes_per_s": 1.0}
    cluster = make.cluster(make.link("pcie", 1.0, switch_size=4, **rates))
    with pytest.raises(InfeasibleError, match=r"gpus\(6\) and switch_size\(4\) do not divide one another"):
        Placement(cluster, 6, 3, 3)
    assert Placement(cluster, 8, 4, 2).num_groups == 2


def test_replicas_of_a_position_reduce_over_all_their_nodes(nodes_of):
    assert Placement(nodes_of(4), 16, 4, 4).group(0) == Group(4, 4)
    assert Placement(nodes_of(4), 16, 4, 4, data_inner=True).group(0) == Group(4, 1)
    assert Placement(nodes_of(4), 8, 4, 2).group(1) == Group(4, 2)


def test_inside_a_node_a_message_holds_the_ports_of_both_devices(nodes_of):
    placement = Placement(nodes_of(4), 4, 4, 4)
    assert list(placement.path(1, 2)) == [(("nvswitch", "out", 1), 1e9), (("nvswitch", "in", 2), 1e9)]
    assert placement.delay_s(1, 2) == 0.003


def test_on_pcie_two_switches_meet_at_the_host(make):
    link = make.link(
        "pcie", 8.0, switch_size=2, switch_bandwidth_bytes_per_s=4.0, host_bandwidth_bytes_per_s=2.0
    )
    network = Network(Placement(make.cluster(link), 4, 4, 4))
    assert sorted(hold for _, hold in network.route(1, 2).ports) == [1 / 8, 1 / 8, 1 / 4, 1 / 4, 1 / 2]
    assert network.route(1, 2).wire_s_per_byte == 1 / 2
    assert [hold for _, hold in network.route(0, 1).ports] == [
        1 / 8,
        1 / 8,
    ]  # the switch itself is not shared


def test_folded_replicas_load_the_port_they_share(nodes_of):
    # Two pipelines of two positions, each from node 0 to node 1: their messages leave through one port.
    network = Network(Placement(nodes_of(2), 4, 2, 2, data_inner=True))
    assert [hold for _, hold in network.route(0, 1).ports] == [2 / 1e8, 2 / 1e8]
    assert network.route(0, 1).wire_s_per_byte == 2 / 1e8


def test_a_collective_counts_what_every_member_of_every_group_sends(nodes_of):
    network = Network(Placement(nodes_of(8), 8, 2, 2))
    among_replicas = network.collective(Collective("all_reduce", (0,), 100.0, (0,), (), ()))
    among_positions = network.collective(Collective("all_gather", (0, 1), 100.0, None, (), ()))
    assert among_replicas.sent_bytes == 4 * 2 * 0.75 * 100
    assert among_positions.sent_bytes == 4 * 2 * 0.5 * 100


def test_rings_of_one_node_hold_its_port_both_ways(nodes_of):
    network = Network(Placement(nodes_of(2), 8, 2, 2))
    first = network.collective(Collective("all_reduce", (0,), 1e8, (0,), (), ()))
    second = network.collective(Collective("all_reduce", (1,), 1e8, (1,), (), ()))
    assert first.ports == second.ports
    assert len(first.ports) == 2
    assert first.wire_s == pytest.approx(2 * 0.75)
    assert first.fixed_s == pytest.approx(2 * 3 * 0.01)


def test_data_inner_positions_must_lie_alike_over_the_nodes(nodes_of):
    # Position 0 would have 6 GPUs in node 0 and 3 in node 1, position 1 the other way round.
    with pytest.raises(InfeasibleError, match=r"copies of a position\(9\) and devices_per_node\(6\)"):
        Placement(nodes_of(6), 36, 12, 4, data_inner=True)
