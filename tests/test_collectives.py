"""Collectives against sums done by hand, and against the bus bandwidth of nccl-tests."""

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from profiles.machines.clusters import Cluster, Link
from profiles.machines.collectives import Group, bus_volume, collective_time
from profiles.machines.devices import Device
from profiles.machines.fabrics import OPERATIONS, Between, Collectives

INSIDE, BETWEEN = 100e9, 20e9
"""Bytes per second of each device's port and of each node's."""

CLUSTER = Cluster(
    name="made",
    source="made by a test",
    device=Device("ideal", "made by a test", None, None),
    devices_per_node=8,
    max_nodes=16,
    overlap_slowdown=1.0,
    intra_node=Link("nvswitch", INSIDE, latency_s=5e-6, call_s=9.0),
    inter_node=Link("nic", BETWEEN, latency_s=20e-6, call_s=9.0),
    collectives=Collectives(50e-6, tuple((name, ((1.0, 1.0),)) for name in OPERATIONS), ((1.0, 1.0),)),
)


def test_inside_a_node_only_the_devices_ports_are_held():
    time = collective_time(CLUSTER, "all_reduce", 1e9, Group(8, 1))
    assert time.device_port_s == pytest.approx(2 * 7 / 8 * 1e9 / INSIDE)
    assert time.node_port_s == 0
    assert time.fixed_s == pytest.approx(50e-6 + 2 * 7 * 5e-6)
    assert time.total_s == pytest.approx(0.0175 + 0.00012)


def test_over_nodes_the_slower_port_decides():
    time = collective_time(CLUSTER, "all_reduce", 1e9, Group(16, 2))
    assert time.device_port_s == pytest.approx(2 * 15 / 16 * 1e9 / INSIDE)
    assert time.node_port_s == pytest.approx(2 * 15 / 16 * 1e9 / BETWEEN)
    assert time.fixed_s == pytest.approx(50e-6 + 2 * 7 * 5e-6 + 2 * 1 * 20e-6)
    assert time.total_s == pytest.approx(time.node_port_s + time.fixed_s)


@pytest.mark.parametrize(("nodes", "crossing"), [(2, 1.0), (4, 2 * 31 / 32)])
def test_two_nodes_exchange_each_byte_once_over_their_adapters_where_an_all_reduce_is_a_tree(nodes, crossing):
    """A ring's members pass 1.875 times the bytes between two nodes."""
    whole = tuple((name, ((1.0, 1.0),)) for name in OPERATIONS)
    between = Between(whole, tree=((2.0, 1.0),))
    cluster = replace(
        CLUSTER,
        inter_node=replace(CLUSTER.inter_node, rail_bytes_per_s=BETWEEN / 8),
        collectives=replace(CLUSTER.collectives, between=between),
    )
    time = collective_time(cluster, "all_reduce", 1e9, Group(8 * nodes, nodes))
    assert time.node_port_s == time.flow_s == pytest.approx(crossing * 1e9 / BETWEEN)


@pytest.mark.parametrize("operation", OPERATIONS)
def test_the_bus_bandwidth_is_the_efficiency_times_the_ports(operation):
    curves = tuple((name, ((2.0, 0.9), (8.0, 0.6))) for name in OPERATIONS)
    cluster = replace(CLUSTER, collectives=Collectives(0.0, curves, ((1.0, 1.0),)))
    for size, reached in ((2, 0.9), (4, 0.8), (8, 0.6)):
        time = collective_time(cluster, operation, 1e9, Group(size, 1))
        bandwidth = 1e9 / time.device_port_s * bus_volume(operation, size)
        assert bandwidth == pytest.approx(reached * INSIDE)


@given(st.sampled_from(OPERATIONS), st.floats(0, 1e12), st.sampled_from([1, 2, 4, 8]), st.integers(1, 16))
def test_more_bytes_never_take_less_time(operation, size_bytes, members, nodes):
    group = Group(members * nodes, nodes)
    once = collective_time(CLUSTER, operation, size_bytes, group)
    twice = collective_time(CLUSTER, operation, 2 * size_bytes, group)
    assert 0 <= once.total_s <= twice.total_s
    assert twice.device_port_s == pytest.approx(2 * once.device_port_s)
    assert twice.node_port_s == pytest.approx(2 * once.node_port_s)
    assert twice.fixed_s == once.fixed_s
