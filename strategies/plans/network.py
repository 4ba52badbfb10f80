"""The network under a plan: which ports a transfer or a collective holds, and for how long."""

from collections import Counter
from collections.abc import Callable, Hashable, Iterator, Sequence
from dataclasses import replace
from functools import cache
from itertools import chain, groupby
from typing import NamedTuple

from profiles.machines.collectives import collective_law, crossing_bytes, sent_bytes
from profiles.machines.fabrics import OPERATIONS
from strategies.parameters import check_option
from strategies.plans.placement import Placement
from strategies.plans.plan import Collective
from strategies.scenario import Scenario

Ports = tuple[tuple[int, float], ...]


class Route(NamedTuple):
    """The ports of a transfer with seconds per byte, those of the slowest, and latency and calls, which hold no port.

    Alike messages of folded replicas that share a port are included.
    """

    ports: Ports
    wire_s_per_byte: float
    delay_s: float


class CollectiveRoute(NamedTuple):
    """The ports and times of one collective.

    Args:
        ports: (port, seconds) of the members' cards and nodes, which it holds from its start on.
        shared: (port, seconds) of the switches and hosts above the cards. Others may begin to use them meanwhile, but
            it ends no sooner than they have carried it; alike collectives of folded replicas are included.
        wire_s: seconds on the slowest port.
        fixed_s: seconds beside the ports.
        sent_bytes: bytes that all members send.
    """

    ports: Ports
    shared: Ports
    wire_s: float
    fixed_s: float
    sent_bytes: float


class Network:
    """Routes between the simulated devices of one placement; ports are numbered as they are met."""

    def __init__(self, placement: Placement) -> None:
        self.placement = placement
        self._ranks = cache(placement.ranks)
        self.ports: dict[Hashable, int] = {}
        self.route = cache(self._route)
        self._group_of = cache(placement.group)
        self._collective = cache(self._find_collective)

    def _route(self, source: int, target: int) -> Route:
        placement = self.placement
        (one, two), *others = zip(self._ranks(source), self._ranks(target), strict=True)
        near, each = {placement.node(one), placement.node(two)}, placement.cluster.devices_per_node
        path = [*placement.path(one, two)]
        held = [port for port, _ in path]
        for pair in others:
            if pair[0] // each in near or pair[1] // each in near:
                held += [port for port, _ in placement.path(*pair)]
        ports = tuple([(self._port(port), held.count(port) / bandwidth) for port, bandwidth in path])
        return Route(ports, max([hold for _, hold in ports], default=0.0), placement.delay_s(one, two))

    def _port(self, key: Hashable) -> int:
        return self.ports.setdefault(key, len(self.ports))

    def collective(self, collective: Collective) -> CollectiveRoute:
        """Return the route of a collective: its ports, seconds and bytes.

        Its members' ports are those of the simulated devices; folded replicas do the same on other ports.
        """
        return self._collective(collective._replace(reads=(), writes=(), stream=0))

    def _find_collective(self, collective: Collective) -> CollectiveRoute:
        check_option("operation of a collective", collective.operation, OPERATIONS)
        placement = self.placement
        if collective.group is None:
            group = placement.group_of([placement.rank(0, device, 0) for device in collective.devices])
        else:
            group = self._group_of(*collective.group, subgroup=collective.subgroup)
        law = collective_law(placement.cluster, collective.operation, group)
        if collective.subgroup and collective.group and group.num_nodes > 1:
            whole = self._group_of(*collective.group)
            beside = whole.members // group.members  # which share the nodes' ports
            law = replace(law, node_port_s_per_byte=law.node_port_s_per_byte * beside)
        time = law.time(collective.size_bytes, collective.calls)
        ports: dict[int, float] = {}
        for device in collective.devices:
            rank = placement.rank(0, device, 0)
            for way in ("out", "in"):
                if time.device_port_s:
                    ports[self._port((placement.cluster.intra_node.kind, way, rank))] = time.device_port_s
                if time.node_port_s:
                    ports[self._port(("nic", way, placement.node(rank)))] = time.node_port_s
        members = len(collective.group or collective.devices)
        groups = members * placement.copies // group.size
        sent = sent_bytes(collective.operation, collective.size_bytes, group.size) * group.size * groups
        shared = tuple(self._shared(collective, group.size, time.device_port_s))
        wire_s = max([time.wire_s] + [hold for _, hold in shared])
        return CollectiveRoute(tuple(ports.items()), shared, wire_s, time.fixed_s, sent)

    def _shared(
        self, collective: Collective, group_size: int, device_port_s: float
    ) -> Iterator[tuple[int, float]]:
        """The ports that a collective holds above its cards, together with its folded replicas."""
        placement = self.placement
        if placement.cluster.intra_node.kind != "pcie" or not device_port_s:
            return
        near = {placement.node(placement.rank(0, device, 0)) for device in collective.devices}
        held: list[dict[Hashable, float]] = []
        for ranks in placement.groups(collective.devices, collective.group, collective.subgroup):
            nodes = groupby(sorted(rank for rank in ranks if placement.node(rank) in near), placement.node)
            above = (self._above_cards(collective, group_size, device_port_s, [*group]) for _, group in nodes)
            held.append(dict(chain.from_iterable(above)))
        for port in held[0]:
            yield self._port(port), sum(ports.get(port, 0.0) for ports in held)

    def _above_cards(
        self, collective: Collective, group_size: int, device_port_s: float, members: Sequence[int]
    ) -> Iterator[tuple[Hashable, float]]:
        """The ports above the members in one node, each with the seconds for which it is held.

        None of them delays a collective that is alone. Besides switches and the host the collective takes its load
        (``Collectives.load_of``) of what all cards under the smallest unit around it reach together.
        """
        placement, operation = self.placement, collective.operation
        link, node = placement.cluster.intra_node, placement.node(members[0])
        switches = Counter(map(placement.switch, members))
        across = len(set(map(placement.socket, members))) > 1
        unit: Callable[[int], Hashable] = (
            placement.switch if across or not link.socket_size else placement.socket
        )
        if len(switches) > 1:
            unit = placement.node
        first = unit(members[0])
        cards = sum(
            placement.node(rank) == node and unit(rank) == first for rank in range(placement.num_gpus)
        )
        load_s = device_port_s * placement.cluster.collectives.load_of(
            operation, len(members), cards, across=across
        )
        if len(switches) == 1:
            yield ("within", node, first), load_s
            return
        host_s = 0.0
        for switch, inside in switches.items():
            size = crossing_bytes(operation, collective.size_bytes, group_size, inside, len(members) - inside)
            held_s = min(device_port_s, size / link.switch_bandwidth_bytes_per_s)
            yield from ((("switch", way, switch), held_s) for way in ("out", "in"))
            host_s += size / link.host_bandwidth_bytes_per_s
        yield ("host", node), min(device_port_s, max(load_s, host_s))


def network_of(scenario: Scenario, placement: Placement) -> Network:
    """The network of a placement, made once for a scenario."""
    return scenario.remember(("network", placement), lambda: Network(placement))
