"""The network under a plan: which ports a transfer or a collective holds, and for how long."""

from collections import Counter
from collections.abc import Hashable
from dataclasses import dataclass

from profiles.clusters import OPERATIONS
from profiles.collectives import Group, collective_time, sent_bytes
from strategies.parameters import check_choice
from strategies.placement import Placement
from strategies.plan import Collective
from strategies.scenario import Scenario

Ports = tuple[tuple[int, float], ...]


@dataclass(frozen=True, slots=True)
class Route:
    """How one transfer travels.

    Args:
        ports: (port, seconds per byte) that it holds from its start on; alike messages of folded replicas that
            share a port are included.
        wire_s_per_byte: seconds per byte on the slowest port.
        delay_s: latency and call time, which hold no port.
    """

    ports: Ports
    wire_s_per_byte: float
    delay_s: float


@dataclass(frozen=True, slots=True)
class CollectiveRoute:
    """How one collective runs: ports it holds in seconds, seconds beside them, bytes all its members send."""

    ports: Ports
    wire_s: float
    fixed_s: float
    sent_bytes: float


class Network:
    """Routes between the simulated devices of one placement; ports are numbered as they are met."""

    def __init__(self, placement: Placement) -> None:
        self.placement = placement
        self._ports: dict[Hashable, int] = {}
        self._routes: dict[tuple[int, int], Route] = {}
        self._groups: dict[tuple[int, ...], Group] = {}
        self._collectives: dict[Hashable, CollectiveRoute] = {}

    @property
    def num_ports(self) -> int:
        """Ports met so far."""
        return len(self._ports)

    def route(self, source: int, target: int) -> Route:
        """Return the route between two positions."""
        key = (source, target)
        if key not in self._routes:
            self._routes[key] = self._find_route(source, target)
        return self._routes[key]

    def _find_route(self, source: int, target: int) -> Route:
        placement = self.placement
        pairs = list(zip(placement.ranks(source), placement.ranks(target), strict=True))
        first, near = pairs[0], {placement.node(rank) for rank in pairs[0]}
        sharing = [pair for pair in pairs if not near.isdisjoint(map(placement.node, pair))]
        load = Counter(port for pair in sharing for port, _ in placement.path(*pair))
        ports = tuple(
            (self._port(port), load[port] / bandwidth) for port, bandwidth in placement.path(*first)
        )
        return Route(ports, max((hold for _, hold in ports), default=0.0), placement.delay_s(*first))

    def _port(self, key: Hashable) -> int:
        return self._ports.setdefault(key, len(self._ports))

    def collective(self, collective: Collective) -> CollectiveRoute:
        """Return how a collective runs.

        Its members' ports are those of the simulated devices; what folded replicas do on other ports is alike.
        """
        key = (
            collective.operation,
            collective.devices,
            collective.size_bytes,
            collective.group,
            collective.calls,
        )
        if key not in self._collectives:
            self._collectives[key] = self._find_collective(collective)
        return self._collectives[key]

    def _find_collective(self, collective: Collective) -> CollectiveRoute:
        check_choice("operation of a collective", collective.operation, OPERATIONS)
        placement = self.placement
        group = self._group(collective)
        time = collective_time(
            placement.cluster, collective.operation, collective.size_bytes, group, collective.calls
        )
        ports: dict[int, float] = {}
        for device in collective.devices:
            rank = placement.rank(0, device, 0)
            for way in ("out", "in"):
                if time.device_port_s:
                    ports[self._port((placement.cluster.intra_node.kind, way, rank))] = time.device_port_s
                if time.node_port_s:
                    ports[self._port(("nic", way, placement.node(rank)))] = time.node_port_s
        groups = placement.copies if collective.group is None else 1
        sent = sent_bytes(collective.operation, collective.size_bytes, group.size) * group.size * groups
        return CollectiveRoute(
            tuple(ports.items()), max(time.device_port_s, time.node_port_s), time.fixed_s, sent
        )

    def _group(self, collective: Collective) -> Group:
        positions = collective.group
        if positions is None:
            nodes = {self.placement.node(self.placement.rank(0, d, 0)) for d in collective.devices}
            return Group(len(collective.devices), len(nodes))
        if positions not in self._groups:
            self._groups[positions] = self.placement.group(*positions)
        return self._groups[positions]


def network_of(scenario: Scenario, placement: Placement) -> Network:
    """Return the network of a placement, the same one whenever a scenario asks for it."""
    return scenario.remember(("network", placement), lambda: Network(placement))
