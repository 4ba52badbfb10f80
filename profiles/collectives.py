"""Collective formulas: what each operation puts on the ports of a device and of a node.

Rings run over all members of the group and cross each node's port once, so the port carries the same bus volume
as a member's own. The bus bandwidth is that of nccl-tests: bus volume over time.
"""

from dataclasses import dataclass

from profiles.clusters import Cluster, interpolate


@dataclass(frozen=True, slots=True)
class Group:
    """The devices of one collective: how many, and over how many nodes they spread evenly."""

    size: int
    num_nodes: int


@dataclass(frozen=True, slots=True)
class CollectiveTime:
    """Seconds a collective holds each device's port and each node's port, and seconds that no port sees."""

    device_port_s: float
    node_port_s: float
    fixed_s: float

    @property
    def total_s(self) -> float:
        """Duration on ports that nobody else uses."""
        return max(self.device_port_s, self.node_port_s) + self.fixed_s


def bus_volume(operation: str, group_size: int) -> float:
    """The bytes each member sends over the bytes of the whole operation, ring algorithm.

    Source: nccl-tests, doc/PERFORMANCE.md.
    """
    if operation == "send_recv":
        return 1.0
    share = (group_size - 1) / group_size
    return 2 * share if operation == "all_reduce" else share


def sent_bytes(operation: str, size_bytes: float, group_size: int) -> float:
    """The bytes each member of a group sends."""
    return bus_volume(operation, group_size) * size_bytes


def collective_time(
    cluster: Cluster, operation: str, size_bytes: float, group: Group, calls: int = 1
) -> CollectiveTime:
    """The costs of one collective.

    Args:
        cluster: its links and efficiencies.
        operation: one of ``all_reduce``, ``all_gather``, ``reduce_scatter``, ``all_to_all``, ``send_recv``.
        size_bytes: bytes of the whole operation: the reduced, gathered or scattered buffer; what one member holds
            and divides, of ``all_to_all``; what one member sends, of ``send_recv``.
        group: the members.
        calls: calls that carry these bytes, one after the other.

    A group over several nodes takes the hierarchical latency: steps inside the node and steps between nodes.
    """
    if group.size == 1:
        return CollectiveTime(0.0, 0.0, 0.0)
    collectives, inner, outer = cluster.collectives, cluster.intra_node, cluster.inter_node
    efficiency = collectives.efficiency_of(operation, group.size, group.num_nodes)
    members = group.size // group.num_nodes
    fixed_s = collectives.call_s + _hops(operation, members) * inner.latency_s
    device_port_s = node_port_s = 0.0
    if members > 1:
        volume = sent_bytes(operation, size_bytes, group.size)
        device_port_s = volume / efficiency / inner.bandwidth_bytes_per_s
    if group.num_nodes > 1 and outer is not None:
        if inner.kind == "pcie":  # its table says what cards in one node reach, nothing of the network
            efficiency = interpolate(collectives.nodes, group.num_nodes)
        volume = crossing_bytes(operation, size_bytes, group.size, members, group.size - members)
        node_port_s = volume / efficiency / outer.bandwidth_bytes_per_s
        fixed_s += _hops(operation, group.num_nodes) * outer.latency_s
    return CollectiveTime(device_port_s, node_port_s, calls * fixed_s)


def crossing_bytes(operation: str, size_bytes: float, group_size: int, members: int, others: int) -> float:
    """Bytes that some members under one switch send to other members: a ring's once, of ``all_to_all`` all of them."""
    if operation == "all_to_all":
        return members * others * size_bytes / group_size
    return sent_bytes(operation, size_bytes, group_size)


def _hops(operation: str, members: int) -> int:
    """Messages that follow one another along a ring; one where each member sends to its neighbour."""
    if operation == "send_recv":
        return min(1, members - 1)
    return (2 if operation == "all_reduce" else 1) * (members - 1)
