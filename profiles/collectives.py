"""Collective formulas: what each operation puts on the ports of a device and of a node.

Rings run over all members of the group and cross each node's port once, so the port carries the same bus volume
as a member's own. The bus bandwidth is that of nccl-tests: bus volume over time.
"""

from dataclasses import dataclass

from profiles.clusters import Cluster


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
    """Return the bytes each member sends over the bytes of the whole operation, ring algorithm.

    Source: nccl-tests, doc/PERFORMANCE.md.
    """
    share = (group_size - 1) / group_size
    return 2 * share if operation == "all_reduce" else share


def sent_bytes(operation: str, size_bytes: float, group_size: int) -> float:
    """Return the bytes each member of a group sends."""
    return bus_volume(operation, group_size) * size_bytes


def collective_time(cluster: Cluster, operation: str, size_bytes: float, group: Group) -> CollectiveTime:
    """Return what one collective costs.

    Args:
        cluster: its links and efficiencies.
        operation: one of ``all_reduce``, ``all_gather``, ``reduce_scatter``, ``all_to_all``.
        size_bytes: bytes of the whole operation: the reduced, gathered or scattered buffer.
        group: the members.

    A group over several nodes takes the hierarchical latency: steps inside the node and steps between nodes.
    """
    if group.size == 1:
        return CollectiveTime(0.0, 0.0, 0.0)
    collectives = cluster.collectives
    volume = sent_bytes(operation, size_bytes, group.size)
    volume /= collectives.efficiency_of(operation, group.size, group.num_nodes)
    members = group.size // group.num_nodes
    rounds = 2 if operation == "all_reduce" else 1
    fixed_s = collectives.call_s + rounds * (members - 1) * cluster.intra_node.latency_s
    device_port_s = volume / cluster.intra_node.bandwidth_bytes_per_s if members > 1 else 0.0
    node_port_s = 0.0
    if group.num_nodes > 1 and cluster.inter_node is not None:
        node_port_s = volume / cluster.inter_node.bandwidth_bytes_per_s
        fixed_s += rounds * (group.num_nodes - 1) * cluster.inter_node.latency_s
    return CollectiveTime(device_port_s, node_port_s, fixed_s)
