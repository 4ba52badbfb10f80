"""Collectives and links: closed forms, what all shipped laws keep, and how cluster files are read."""

from dataclasses import replace
from itertools import pairwise, product
from math import ceil, inf, log2

import pytest
from hypothesis import given
from hypothesis import strategies as st
from making import DEVICE, make_cluster, make_link

from profiles.errors import InputError
from profiles.machines.clusters import Link, cluster_names, load_cluster, read_cluster
from profiles.machines.collectives import (
    RANK_STEPS,
    CollectiveLaw,
    Group,
    bus_volume,
    collective_law,
    collective_time,
)
from profiles.machines.fabrics import OPERATIONS, Between, Collectives
from strategies.plans.placement import Placement

FLAT = ((1.0, 1.0),)
ALL = tuple((operation, FLAT) for operation in OPERATIONS)
STEP, HOP = 1e-6, 10e-6
INSIDE, PORT = 100e9, 20e9
RINGS = ("all_reduce", "all_gather", "reduce_scatter")


def machine(between=None, inter=None, **collectives):
    """Nodes of 8 behind a switch, with a network."""
    inter = inter or make_link("nic", PORT, HOP)
    cluster = make_cluster(make_link("nvswitch", INSIDE, STEP), inter, devices_per_node=8, max_nodes=64)
    return replace(cluster, collectives=Collectives(0.0, ALL, FLAT, between=between, **collectives))


def terms(**values):
    return tuple((operation, ((1.0, value),)) for operation, value in values.items())


@pytest.mark.parametrize(("middle", "most", "seconds"), [(0, inf, 5e-6), (1, inf, 7e-6), (2, inf, 9e-6)])
def test_a_collective_takes_latency_wire_and_a_share_of_their_geometric_mean(middle, most, seconds):
    law = CollectiveLaw(latency_s=4e-6, middle=middle, middle_most=most, device_port_s_per_byte=1e-9)
    time = law.time(1000.0)
    assert time.total_s == pytest.approx(seconds)
    assert time.device_port_s == pytest.approx(1e-6)  # no port sees the middle


@pytest.mark.parametrize("size", [8, 72])
def test_an_all_reduce_of_many_members_goes_up_a_tree_of_chains(size):
    steps = 2 * (size - 1) if size <= 8 else 2 * (7 + ceil(log2(size / 8)))
    law = collective_law(make_cluster(make_link("nvswitch", INSIDE, STEP)), "all_reduce", Group(size, 1))
    assert law.latency_s == pytest.approx(steps * STEP)


@pytest.mark.parametrize("operation", RINGS)
@pytest.mark.parametrize("nodes", [2, 16])
def test_rings_carry_their_bus_volume_over_the_port_of_each_node(operation, nodes):
    size, rounds = 8 * nodes, 2 if operation == "all_reduce" else 1
    law = collective_law(machine(Between(ALL)), operation, Group(size, nodes))
    assert law.node_port_s_per_byte == pytest.approx(rounds * (size - 1) / size / PORT)
    latency_s = 14 * STEP + 2 * log2(nodes) * HOP if operation == "all_reduce" else size * RANK_STEPS * HOP
    assert law.latency_s == pytest.approx(latency_s)


@pytest.mark.parametrize("operation", ["all_gather", "reduce_scatter"])
def test_a_ring_over_nodes_hides_latency_under_the_wire(operation):
    """Latency and wire of 1 s each take 2 ** (2 / 3) s; an older file's middle keeps the law it was fitted for."""
    between = Between(ALL, rank_s=terms(**{operation: 1 / 16}))
    law = collective_law(machine(between), operation, Group(16, 2))
    size_bytes = PORT * 16 / 15
    assert law.time(size_bytes).wire_s == pytest.approx(1.0)
    assert law.time(size_bytes).total_s == pytest.approx(2 ** (2 / 3))
    assert law.time(4 * size_bytes, 4).total_s == pytest.approx(4 * 2 ** (2 / 3))
    uneven = law.time(3.9 * size_bytes).total_s + law.time(0.1 * size_bytes).total_s
    assert law.least_s(4 * size_bytes, 2) <= uneven
    older = collective_law(machine(Between(ALL, middle=terms(**{operation: 2.0}))), operation, Group(16, 2))
    assert older.latency_s == pytest.approx(14 * STEP + HOP) and older.overlap == 1


@pytest.mark.parametrize("nodes", [2, 8])
def test_all_to_all_sends_over_the_port_of_a_node_what_its_members_have_for_others(nodes):
    law = collective_law(machine(Between(ALL)), "all_to_all", Group(8 * nodes, nodes))
    assert law.node_port_s_per_byte == pytest.approx(8 * (8 * nodes - 8) / (8 * nodes) / PORT)
    assert law.device_port_s_per_byte == pytest.approx((8 * nodes - 1) / (8 * nodes) / INSIDE)


@pytest.mark.parametrize(
    ("operation", "flows"), [("send_recv", 1), ("all_reduce", 2), ("all_gather", 2), ("all_to_all", 64)]
)
@pytest.mark.parametrize("between", [None, Between(ALL)])
def test_connections_bound_what_an_operation_reaches_of_a_port(operation, flows, between):
    """A connection fills a tenth of the port: of 20 GB/s, a message and a ring have 2, two rings 4, all-to-all 20."""
    cluster = machine(between, replace(make_link("nic", PORT, HOP), flow_bytes_per_s=PORT / 10))
    law, free = (collective_law(of, operation, Group(16, 2)) for of in (cluster, machine(between)))
    assert law.flow_s_per_byte == pytest.approx(free.node_port_s_per_byte * 10 / flows)
    assert law.wire_s_per_byte == pytest.approx(
        max(free.wire_s_per_byte, free.node_port_s_per_byte * 10 / flows)
    )
    assert law.node_port_s_per_byte == free.node_port_s_per_byte  # others may use the port meanwhile


@pytest.mark.parametrize(
    ("positions", "stride", "reached"), [(4, 1, 0.8), (8, 1, 0.1), (2, 1, 0.8), (2, 4, 0.4), (4, 2, 0.2)]
)
def test_all_to_all_over_two_sockets_reaches_what_the_way_between_lets_through(positions, stride, reached):
    """Four cards lie under a socket: neighbours share one, and those further apart do not."""
    link = Link("pcie", INSIDE, 0.0, 0.0, 8, INSIDE, INSIDE, socket_size=4)
    efficiency = tuple((name, ((1.0, 0.8),)) for name in OPERATIONS)
    across = (("all_to_all", ((2.0, 0.4), (4.0, 0.2), (8.0, 0.1))),)
    cluster = replace(
        make_cluster(link, devices_per_node=8), collectives=Collectives(0.0, efficiency, FLAT, across=across)
    )
    group = Placement(cluster, 8, 8, 8).group_of(range(0, positions * stride, stride))
    law = collective_law(cluster, "all_to_all", group)
    assert law.device_port_s_per_byte == pytest.approx((positions - 1) / positions / reached / INSIDE)
    rings = collective_law(cluster, "all_gather", group)
    assert rings.device_port_s_per_byte == pytest.approx((positions - 1) / positions / 0.8 / INSIDE)


# Ports


BUSY = machine()
BUSY = replace(BUSY, collectives=replace(BUSY.collectives, call_s=50e-6))


def test_inside_a_node_only_the_devices_ports_are_held():
    time = collective_time(BUSY, "all_reduce", 1e9, Group(8, 1))
    assert time.device_port_s == pytest.approx(2 * 7 / 8 * 1e9 / INSIDE)
    assert time.node_port_s == 0
    assert time.fixed_s == pytest.approx(50e-6 + 2 * 7 * STEP)
    assert time.total_s == pytest.approx(0.0175 + time.fixed_s)


def test_over_nodes_the_slower_port_decides():
    time = collective_time(BUSY, "all_reduce", 1e9, Group(16, 2))
    assert time.device_port_s == pytest.approx(2 * 15 / 16 * 1e9 / INSIDE)
    assert time.node_port_s == pytest.approx(2 * 15 / 16 * 1e9 / PORT)
    assert time.fixed_s == pytest.approx(50e-6 + 2 * 7 * STEP + 2 * HOP)
    assert time.total_s == pytest.approx(time.node_port_s + time.fixed_s)


@pytest.mark.parametrize(("nodes", "crossing"), [(2, 1.0), (4, 2 * 31 / 32)])
def test_two_nodes_exchange_each_byte_once_over_their_adapters_where_an_all_reduce_is_a_tree(nodes, crossing):
    """A ring's members pass 1.875 times the bytes between two nodes."""
    rails = replace(make_link("nic", PORT, HOP), rail_bytes_per_s=PORT / 8)
    cluster = machine(Between(ALL, tree=((2.0, 1.0),)), rails)
    time = collective_time(cluster, "all_reduce", 1e9, Group(8 * nodes, nodes))
    assert time.node_port_s == time.flow_s == pytest.approx(crossing * 1e9 / PORT)


@pytest.mark.parametrize("operation", OPERATIONS)
def test_the_bus_bandwidth_is_the_efficiency_times_the_ports(operation):
    curves = tuple((name, ((2.0, 0.9), (8.0, 0.6))) for name in OPERATIONS)
    cluster = replace(BUSY, collectives=Collectives(0.0, curves, FLAT))
    for size, reached in ((2, 0.9), (4, 0.8), (8, 0.6)):
        time = collective_time(cluster, operation, 1e9, Group(size, 1))
        bandwidth = 1e9 / time.device_port_s * bus_volume(operation, size)
        assert bandwidth == pytest.approx(reached * INSIDE)


@given(st.sampled_from(OPERATIONS), st.floats(0, 1e12), st.sampled_from([1, 2, 4, 8]), st.integers(1, 16))
def test_more_bytes_never_take_less_time(operation, size_bytes, members, nodes):
    group = Group(members * nodes, nodes)
    once = collective_time(BUSY, operation, size_bytes, group)
    twice = collective_time(BUSY, operation, 2 * size_bytes, group)
    assert 0 <= once.total_s <= twice.total_s
    assert twice.device_port_s == pytest.approx(2 * once.device_port_s)
    assert twice.node_port_s == pytest.approx(2 * once.node_port_s)
    assert twice.fixed_s == once.fixed_s


GROUPS = [Group(2, 1), Group(4, 1), Group(8, 1), Group(16, 2), Group(32, 4), Group(2, 2), Group(64, 8)]


@pytest.mark.parametrize("name", [name for name in cluster_names() if name != "ideal"])
def test_more_bytes_take_longer_on_every_shipped_cluster_and_no_bandwidth_beats_the_ports(name):
    cluster = load_cluster(name)
    for operation, group in product(OPERATIONS, GROUPS):
        if group.num_nodes > cluster.max_nodes or group.members > cluster.devices_per_node:
            continue
        law = collective_law(cluster, operation, group)
        seconds = [law.time(10.0**power).total_s for power in range(1, 12)]
        assert all(less < more for less, more in pairwise(seconds))
        assert seconds[0] > cluster.collectives.call_s
        inside_s = 1e11 * (group.members - 1) / group.size / cluster.intra_node.bandwidth_bytes_per_s
        assert law.time(1e11).wire_s >= inside_s * (1 - 1e-12)


BOX = """\
name = "made"
source = "made by a test"
device = "ideal"
devices_per_node = 8
max_nodes = 4
[intra_node]
kind = "nvswitch"
bandwidth_GB_per_s = 100
latency_us = 1
call_us = 20
[inter_node]
kind = "nic"
bandwidth_GB_per_s = 20
flow_GB_per_s = 2
rail_GB_per_s = 5
latency_us = 10
call_us = 20
[collectives]
call_us = 40
all_reduce_by = "switch"
step_us = 2
middle_most = 7
[collectives.fixed_us]
all_reduce = 3
[collectives.middle]
all_gather = { 2 = 2, 8 = 0 }
[collectives.between]
step_us = 30
all_reduce = 0.9
tree = { 2 = 0.8 }
[collectives.between.fixed_us]
all_to_all = 200
[collectives.between.middle]
all_reduce = 2.5
"""


@pytest.fixture
def read(tmp_path):
    def of(old="", new=""):
        assert old in BOX
        path = tmp_path / "made.toml"
        path.write_text(BOX.replace(old, new, 1))
        return read_cluster(path)

    return of


def test_in_a_mesh_a_message_has_one_link_and_a_group_those_that_lead_into_it():
    cluster = load_cluster("mi300x-8")
    link = cluster.intra_node
    assert link.message_bytes_per_s == pytest.approx(link.bandwidth_bytes_per_s / 7, rel=0.01)
    for operation, share in product(OPERATIONS, (2, 4, 8)):
        reached = load_cluster("a100-nvlink-8").collectives.efficiency_of(operation, share)
        links = 1 if operation == "send_recv" else share - 1
        assert cluster.collectives.efficiency_of(operation, share) == pytest.approx(links / 7 * reached, 0.01)


def test_every_shipped_cluster_says_how_its_links_are_known():
    assert {name for name in cluster_names() if not load_cluster(name).links} == {"ideal"}


def test_the_efficiency_is_that_of_the_size_times_that_of_the_nodes():
    curves = (("all_reduce", ((2.0, 0.9), (8.0, 0.6))), *(curve for curve in ALL if curve[0] != "all_reduce"))
    collectives = Collectives(0.0, curves, ((1.0, 1.0), (3.0, 0.5)))
    assert collectives.efficiency_of("all_reduce", 2, 1) == 0.9
    assert collectives.efficiency_of("all_reduce", 5, 1) == pytest.approx(0.75)
    assert collectives.efficiency_of("all_reduce", 100, 1) == 0.6
    assert collectives.efficiency_of("all_reduce", 8, 2) == pytest.approx(0.6 * 0.75)
    assert collectives.efficiency_of("all_to_all", 8, 1) == 1.0


def test_a_file_says_all_of_it(read):
    cluster = read()
    collectives, between = cluster.collectives, cluster.collectives.between
    assert (cluster.inter_node.flow_bytes_per_s, cluster.inter_node.rail_bytes_per_s) == (2e9, 5e9)
    assert (collectives.all_reduce_by, collectives.middle_most) == ("switch", 7)
    assert (collectives.step_s, between.step_s) == (pytest.approx(2e-6), pytest.approx(30e-6))
    assert collectives.fixed_s == (("all_reduce", ((1.0, pytest.approx(3e-6)),)),)
    assert collectives.middle == (("all_gather", ((2.0, 2.0), (8.0, 0.0))),)
    assert dict(between.efficiency)["all_reduce"] == ((1.0, 0.9),) and between.tree == ((2.0, 0.8),)
    assert dict(between.fixed_s)["all_to_all"][0][1] == pytest.approx(200e-6)
    assert collective_law(cluster, "all_reduce", Group(16, 2)).middle == 2.5
    assert collective_law(cluster, "all_reduce", Group(16, 2)).middle_most == inf


@pytest.mark.parametrize("named", ["my-gpu.toml", "./cards/mine"])
def test_a_device_is_brought_by_its_path_from_the_cluster_file(read, tmp_path, named):
    (tmp_path / "cards").mkdir()
    for path in ("my-gpu.toml", "cards/mine"):
        (tmp_path / path).write_text(DEVICE)
    for name in (named, str(tmp_path / "my-gpu.toml")):
        device = read('device = "ideal"', f'device = "{name}"').device
        assert (device.name, device.memory_bytes) == ("my-gpu", 24 * 2**30)
        assert device.rates.kernel_s == pytest.approx(5e-6)


@pytest.mark.parametrize(
    ("old", "new", "problem"),
    [
        ('device = "ideal"', 'device = "abacus"', "device is 'abacus', must be one of a10-24gb, "),
        ("devices_per_node = 8", "devices_per_node = 0", "devices_per_node is 0, must be at least 1"),
        ('"nvswitch"', '"string"', "link: kind is 'string', must be one of nvswitch, mesh, pcie, nic, ideal"),
        ("latency_us = 1\n", "latency_us = 1\nswitch_size = 2\n", "link: switch_size must be left out"),
        ("all_reduce = 0.9", "all_reduce = { 8 = 1.6 }", "all_reduce[8] is 1.6, must be at most 1"),
        ("tree = { 2", "tree = { 0", "collectives.between.tree key is 0, must be at least 1"),
        ("[inter_node]", "[outer_node]", "inter_node is missing, and max_nodes is 4"),
        ("latency_us = 1\n", "latency_us = 1\nflow_GB_per_s = 2\n", "flow_bytes_per_s must be left out"),
        ('"switch"', '"tree"', "collectives: all_reduce_by is 'tree', must be one of ring, switch"),
        ("all_reduce = 3", "broadcast = 3", "unknown key collectives.fixed_us.broadcast"),
        ("8 = 0 }", "8 = -1 }", "collectives.middle.all_gather.8 is -1, must not be negative"),
        ("call_us = 40", "call_us = 40\nnodes = 0.5", "collectives.nodes is 0.5, must not stand beside"),
        (
            "[collectives]",
            "[host]\npace = 2\nlow = 0.5\nhigh = 1.5\nsource = 'x'\n[collectives]",
            "pace is 2, must be from low, 0.5, to high, 1.5",
        ),
        (
            "[collectives.middle]",
            "[collectives.across]\nall_to_all = 0.1\n[collectives.middle]",
            "needs intra_node.socket_size",
        ),
        (
            "all_reduce = 2.5",
            "all_gather = 2\n[collectives.between.rank_us]\nall_gather = 1",
            "beside rank_s",
        ),
    ],
)
def test_a_broken_rule_is_refused_by_file_key_and_value(read, old, new, problem):
    with pytest.raises(InputError) as error:
        read(old, new)
    assert problem in str(error.value) and "\n" not in str(error.value)
