"""Collective formulas: what each operation puts on the ports of a device and of a node.

An operation that is passed on in pieces takes ``F + m * sqrt(F * W) + W``: ``F`` seconds until a byte has gone all
steps, ``W`` seconds on the wire, and between the two a middle. Cut into k pieces, the last arrives ``k - 1`` pieces
after the first, which has gone all steps: at the best k that is ``2 * sqrt(F * W)`` more than ``F + W``, less where
several paths run side by side, more where pieces are not cut at best. Pieces have a largest size: the middle ends at
some ``F``. It is waiting for pieces on their way, in which the ports are free for others: like ``F``, no port sees it.

A gather or a scatter over several nodes takes ``(F ** p + W ** p) ** (1 / p)``: its ring pipelines latency under the
wire. ``F`` is the number of members times the seconds that each adds, and ``p`` is ``PIPELINED``.

Rings run over all members of the group and cross each node's port once, so the port carries the same bus volume
as a member's own; a tree between nodes carries what the nodes must exchange. The bus bandwidth is that of
nccl-tests: bus volume over time.
"""

from dataclasses import dataclass, replace
from math import ceil, inf, log2, sqrt
from typing import Final, NamedTuple

from profiles.machines.clusters import Cluster, Link
from profiles.machines.fabrics import SWITCH, Between, Collectives, at, interpolate

RING_FLOWS: Final = 2
"""Connections between two nodes that the rings of a collective use: NCCL opens no fewer than two channels."""
PIPELINED: Final = 1.5
"""Exponent by which a ring over several nodes hides latency under the wire; 1 would add the two, infinity take the
longer. Source: all-gathers over 2, 4 and 8 p5: with 1.5 the median error of a number of nodes that is left out is 5 %
(``python -m validate fit-collectives``), with an exponent fitted to the others, which is 1.0 to 1.5, it is 6 %."""
RANK_STEPS: Final = 0.37
"""Seconds that each member adds to a gather over several nodes where none was measured, in steps between nodes. An
estimate: 10.9 of 29.5 us on p5; at least 0.15, where steps inside nodes take no longer than there, at most 1."""
RANK_STEPS_CHANGES: Final = (-0.8, 3.3)
"""Change of a run in which gathers are awaited if ``RANK_STEPS`` were 0.15, and 1, over its share of exposed
communication. Source: fsdp and zero3 of sd21 on 64 to 1,024 GPUs of h100-ib, replayed at both: -0.5 to -1.1, 2.4 to
4.9."""
CHAIN: Final = 8
"""Members up to which an all-reduce passes along a chain; NCCL's trees are chains inside a host."""


@dataclass(frozen=True, slots=True)
class Group:
    """The devices of one collective: how many, and over how many nodes they spread evenly.

    ``across``: whether those of a node hang under several sockets though one would hold them.
    """

    size: int
    num_nodes: int
    across: bool = False

    @property
    def members(self) -> int:
        """Devices in one node."""
        return self.size // self.num_nodes


class CollectiveTime(NamedTuple):
    """Seconds for which a collective holds each device's port and each node's port, and seconds that no port sees.

    ``flow_s`` are the seconds of its connections and adapters, which it has to itself.
    """

    device_port_s: float
    node_port_s: float
    fixed_s: float
    flow_s: float = 0.0

    @property
    def wire_s(self) -> float:
        """Seconds on the slowest of ports, connections and adapters."""
        return max(self.device_port_s, self.node_port_s, self.flow_s)

    @property
    def total_s(self) -> float:
        """Duration on ports that nobody else uses."""
        return self.wire_s + self.fixed_s


@dataclass(frozen=True, slots=True)
class CollectiveLaw:
    """Costs of one operation in a group, whatever its bytes.

    Attributes:
        call_s: software, per call.
        latency_s: seconds until a byte has gone all steps, per call.
        middle: how much of the geometric mean of latency and wire time comes on top.
        middle_most: the most that comes on top, in latencies.
        overlap: exponent by which latency and wire time hide one another: 1 adds the two.
        flow_s_per_byte: seconds per byte on its connections and adapters.
    """

    call_s: float = 0.0
    latency_s: float = 0.0
    middle: float = 0.0
    middle_most: float = inf
    overlap: float = 1.0
    device_port_s_per_byte: float = 0.0
    node_port_s_per_byte: float = 0.0
    flow_s_per_byte: float = 0.0

    @property
    def wire_s_per_byte(self) -> float:
        """Seconds per byte on the slowest of ports, connections and adapters."""
        return max(self.device_port_s_per_byte, self.node_port_s_per_byte, self.flow_s_per_byte)

    def time(self, size_bytes: float, calls: int = 1) -> CollectiveTime:
        """The time of equal calls, one after the other, that carry these bytes together."""
        each_s = self.call_s + self.beside_s(size_bytes / calls)
        return CollectiveTime(
            size_bytes * self.device_port_s_per_byte,
            size_bytes * self.node_port_s_per_byte,
            calls * each_s,
            size_bytes * self.flow_s_per_byte,
        )

    def beside_s(self, size_bytes: float) -> float:
        """Seconds of a call beside its software and the wire."""
        if self.overlap == 1:
            return self.latency_s + self.middle_s(size_bytes)
        wire_s, power = size_bytes * self.wire_s_per_byte, self.overlap
        return max(0.0, float((self.latency_s**power + wire_s**power) ** (1 / power)) - wire_s)

    def middle_s(self, size_bytes: float) -> float:
        """Seconds beside latency and wire: they grow with the root of the bytes, up to ``middle_most``."""
        if not self.middle or not self.latency_s:
            return 0.0
        latencies, most = size_bytes * self.wire_s_per_byte / self.latency_s, self.middle_most
        return self.latency_s * self.middle * sqrt(latencies / (1 + latencies * (self.middle / most) ** 2))

    def least_s(self, size_bytes: float, calls: int) -> float:
        """Seconds that calls of these bytes together take at least, however the bytes are divided.

        The middle of several calls is least where all but one carry nothing; most is hidden where all carry alike.
        """
        if self.overlap > 1:
            return self.time(size_bytes, calls).total_s
        return (calls - 1) * (self.call_s + self.latency_s) + self.time(size_bytes).total_s


def bus_volume(operation: str, group_size: int) -> float:
    """Ratio of the bytes that each member sends to those of the whole operation, in the ring algorithm.

    Source: nccl-tests, doc/PERFORMANCE.md.
    """
    if operation == "send_recv":
        return 1.0
    share = (group_size - 1) / group_size
    return 2 * share if operation == "all_reduce" else share


def sent_bytes(operation: str, size_bytes: float, group_size: int) -> float:
    """The bytes each member of a group sends."""
    return bus_volume(operation, group_size) * size_bytes


def collective_time(cluster: Cluster, operation: str, size_bytes: float, group: Group) -> CollectiveTime:
    """The time of one collective.

    Args:
        cluster: its links and efficiencies.
        operation: one of ``all_reduce``, ``all_gather``, ``reduce_scatter``, ``all_to_all``, ``send_recv``.
        size_bytes: bytes of the whole operation: the reduced, gathered or scattered buffer; for ``all_to_all``, what
            one member holds and divides; for ``send_recv``, what one member sends.
        group: the members.
    """
    return collective_law(cluster, operation, group).time(size_bytes)


def collective_law(cluster: Cluster, operation: str, group: Group) -> CollectiveLaw:
    """The law of an operation in a group; all is 0 for a device alone."""
    if group.size == 1:
        return CollectiveLaw()
    if group.num_nodes == 1:
        return _inside(cluster, operation, group)
    between = cluster.collectives.between
    return (
        _by_factor(cluster, operation, group)
        if between is None
        else _between(cluster, operation, group, between)
    )


def _inside(cluster: Cluster, operation: str, group: Group) -> CollectiveLaw:
    """The law of a group in one node."""
    collectives = cluster.collectives
    steps_s = _hops(operation, group.size) * _step_s(collectives, cluster.intra_node)
    return CollectiveLaw(
        call_s=collectives.call_s,
        latency_s=at(collectives.fixed_s, operation, group.size) + steps_s,
        middle=at(collectives.middle, operation, group.size),
        middle_most=collectives.middle_most,
        device_port_s_per_byte=_device_port_s_per_byte(cluster, operation, group),
    )


def crosses_sockets(cluster: Cluster, group: Group) -> bool:
    """Return whether members of a group in one node hang under several sockets."""
    return group.across or 0 < cluster.intra_node.socket_size < group.members


def _device_port_s_per_byte(cluster: Cluster, operation: str, group: Group) -> float:
    """Seconds per byte on each device's port; a switch that sums takes each byte once, and a part kept may count."""
    collectives = cluster.collectives
    if group.members == 1:
        return 0.0
    summed = operation == "all_reduce" and collectives.all_reduce_by == SWITCH
    volume = 1.0 if summed else bus_volume(operation, group.size)
    if operation == "all_to_all":
        volume += collectives.own_part / group.size
    share = collectives.efficiency_of(operation, group.members, across=crosses_sockets(cluster, group))
    return volume / share / cluster.intra_node.bandwidth_bytes_per_s


def _by_factor(cluster: Cluster, operation: str, group: Group) -> CollectiveLaw:
    """The law of a group over several nodes by the factor ``Collectives.nodes``: steps in nodes, then between them."""
    collectives, inner, outer = cluster.collectives, cluster.intra_node, cluster.inter_node
    assert outer is not None
    members, across = group.members, crosses_sockets(cluster, group)
    share = collectives.efficiency_of(operation, group.size, group.num_nodes, across=across)
    device_s_per_byte = bus_volume(operation, group.size) / share / inner.bandwidth_bytes_per_s
    if inner.kind == "pcie":  # its table says what cards in one node reach, nothing of the network
        share = interpolate(collectives.nodes, group.num_nodes)
    crossing = crossing_bytes(operation, 1.0, group.size, members, group.size - members)
    steps_s = _hops(operation, members) * _step_s(collectives, inner)
    steps_s += _hops(operation, group.num_nodes) * outer.latency_s
    return CollectiveLaw(
        call_s=collectives.call_s,
        latency_s=at(collectives.fixed_s, operation, group.size) + steps_s,
        middle=at(collectives.middle, operation, group.size),
        middle_most=collectives.middle_most,
        device_port_s_per_byte=device_s_per_byte if members > 1 else 0.0,
        node_port_s_per_byte=crossing / share / outer.bandwidth_bytes_per_s,
        flow_s_per_byte=_flow_s_per_byte(cluster, operation, group, crossing),
    )


def _between(cluster: Cluster, operation: str, group: Group, between: Between) -> CollectiveLaw:
    """The law of a group over several nodes whose efficiencies are given by operation."""
    collectives, outer = cluster.collectives, cluster.inter_node
    assert outer is not None
    members, nodes = group.members, group.num_nodes
    crossing = crossing_bytes(operation, 1.0, group.size, members, group.size - members)
    node_s_per_byte = crossing / at(between.efficiency, operation, nodes) / outer.bandwidth_bytes_per_s
    if operation == "all_reduce" and between.tree and nodes <= between.tree[-1][0]:
        exchanged = bus_volume(operation, nodes)
        tree_s_per_byte = exchanged / interpolate(between.tree, nodes) / outer.bandwidth_bytes_per_s
        if tree_s_per_byte < node_s_per_byte:
            node_s_per_byte, crossing = tree_s_per_byte, exchanged
    law = CollectiveLaw(
        call_s=collectives.call_s,
        device_port_s_per_byte=_device_port_s_per_byte(cluster, operation, group),
        node_port_s_per_byte=node_s_per_byte,
        flow_s_per_byte=_flow_s_per_byte(cluster, operation, group, crossing),
    )
    if between.pipelines(operation):
        rank_s = at(between.rank_s, operation, nodes) or RANK_STEPS * _step_s(between, outer)
        return replace(law, latency_s=group.size * rank_s, overlap=PIPELINED)
    inner_steps, outer_steps = _steps(operation, members, nodes)
    latency_s = inner_steps * _step_s(collectives, cluster.intra_node) + outer_steps * _step_s(between, outer)
    return replace(
        law,
        latency_s=at(between.fixed_s, operation, nodes) + latency_s,
        middle=at(between.middle, operation, nodes),
        middle_most=between.middle_most,
    )


def _step_s(curves: Collectives | Between, link: Link) -> float:
    """Seconds of one step: of the file, else the latency of the link."""
    return link.latency_s if curves.step_s is None else curves.step_s


def _flow_s_per_byte(cluster: Cluster, operation: str, group: Group, crossing: float) -> float:
    """Seconds per byte on the slower of a node's connections and its members' adapters."""
    outer = cluster.inter_node
    assert outer is not None
    members = group.members
    if operation == "all_to_all":
        flows = members * (group.size - members)
    else:
        flows = 1 if operation == "send_recv" else RING_FLOWS
    rails = 1 if operation == "send_recv" else members
    return max(crossing / flows / outer.flow_bytes_per_s, crossing / rails / outer.rail_bytes_per_s)


def crossing_bytes(operation: str, size_bytes: float, group_size: int, members: int, others: int) -> float:
    """Bytes that members under one switch send to the others: each in ``all_to_all``, else one for all as in a ring."""
    if operation == "all_to_all":
        return members * others * size_bytes / group_size
    return sent_bytes(operation, size_bytes, group_size)


def _steps(operation: str, members: int, nodes: int) -> tuple[int, int]:
    """Steps, inside nodes and between nodes, that follow one another.

    All-reduces go up a chain in each node and a tree between them, and back; rings pass all members; in
    ``all_to_all`` each member serves the other nodes one after the other.
    """
    if operation == "all_reduce":
        return 2 * (members - 1), 2 * ceil(log2(nodes))
    if operation == "send_recv":
        return 0, 1
    if operation == "all_to_all":
        return 1, nodes - 1
    return nodes * (members - 1), nodes - 1


def _hops(operation: str, members: int) -> int:
    """Messages that follow one another: those of a ring, or for an all-reduce of many members of a tree over chains.

    One where each member sends to its neighbour, or to all others at once.
    """
    if operation in ("send_recv", "all_to_all"):
        return min(1, members - 1)
    if operation == "all_reduce" and members > CHAIN:
        return 2 * (CHAIN - 1 + ceil(log2(members / CHAIN)))
    return (2 if operation == "all_reduce" else 1) * (members - 1)
