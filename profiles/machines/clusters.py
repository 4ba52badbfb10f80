"""Clusters: which devices, how many, and the links between them.

A cluster file names a shipped device, or the file of another by its path from the cluster file
(``device = "my-gpu.toml"``), or holds its keys in a table ``[device]``.
"""

from collections.abc import Mapping
from dataclasses import dataclass, fields, replace
from math import inf
from pathlib import Path
from typing import Annotated, Any, Final

from profiles.checks import (
    AT_LEAST_1,
    FINITE,
    POSITIVE,
    RATE,
    Count,
    Span,
    check_choice,
    check_fields,
    is_number,
)
from profiles.errors import InputError, counted, shown, wrong
from profiles.files import Table, path_kind
from profiles.machines.devices import Device, device_names, device_of, load_device, read_device
from profiles.machines.fabrics import OPERATIONS, Between, Collectives, Curves
from profiles.machines.hosts import BOX, FREE, Host, read_host
from profiles.names import file_of, names_in
from profiles.units import GB, MICROSECOND

CLUSTERS: Final = Path(__file__).parents[1] / "clusters"
IDEAL: Final = "ideal"
INTRA_NODE: Final = ("nvswitch", "mesh", "pcie", IDEAL)
INTER_NODE: Final = ("nic", IDEAL)
LINKS: Final = ("nvswitch", "mesh", "pcie", "nic", IDEAL)
EVIDENCE: Final = ("measured", "derived", "data sheet", "")
NARROWER: Final[dict[str, Span]] = dict.fromkeys(("flow_bytes_per_s", "rail_bytes_per_s"), RATE)
OWN_FIELDS: Final[dict[str, dict[str, Span]]] = {
    "mesh": {"flow_bytes_per_s": POSITIVE},
    "nic": NARROWER,
    "pcie": {
        **{"switch_size": AT_LEAST_1, "socket_size": FINITE, "other_socket_size": FINITE},
        **dict.fromkeys(("switch_bandwidth_bytes_per_s", "host_bandwidth_bytes_per_s"), RATE),
    },
}
"""Fields that a link of a kind has beside those of all, and their spans."""


@dataclass(frozen=True, slots=True)
class Link:
    """Connection of the GPUs of a node, or of nodes.

    Attributes:
        kind: ``nvswitch``, ``mesh`` (a link from each GPU to each other), ``pcie``, ``nic`` or ``ideal`` (free).
        bandwidth_bytes_per_s: of a port in each direction.
        latency_s: seconds of a message on the wire beside its bytes.
        call_s: seconds of the software for a message.
        switch_size: of ``pcie``, devices under one switch.
        switch_bandwidth_bytes_per_s: of ``pcie``, what devices under one switch share.
        host_bandwidth_bytes_per_s: of ``pcie``, what all switches of a host share.
        socket_size: of ``pcie``, neighbouring devices under one socket of the host; 0 where it makes no difference.
        other_socket_size: what it may be as well, where nobody looked; 0 where it is known.
        flow_bytes_per_s: what one connection carries: of ``nic`` as a TCP connection fills only part of a fast port, of
            ``mesh`` as it is one of the links.
        rail_bytes_per_s: of ``nic``, what one device reaches of its node's port, through its own adapter.
    """

    kind: Annotated[str, LINKS]
    bandwidth_bytes_per_s: Annotated[float, RATE]
    latency_s: float
    call_s: float
    switch_size: int = 0
    switch_bandwidth_bytes_per_s: float = 0.0
    host_bandwidth_bytes_per_s: float = 0.0
    flow_bytes_per_s: float = inf
    rail_bytes_per_s: float = inf
    socket_size: int = 0
    other_socket_size: int = 0

    def __post_init__(self) -> None:
        owner, own = f"{self.kind} link", OWN_FIELDS.get(self.kind, {})
        check_fields(owner, self, **NARROWER | own)
        for field in fields(self)[4:]:
            if field.name not in own and getattr(self, field.name) != field.default:
                raise InputError(f"{owner}: {field.name} must be left out")

    def scaled(self, factor: float) -> "Link":
        """Link of the same latencies and calls, with every bandwidth multiplied."""
        bandwidths = [key for key in self.__slots__ if key.endswith("bytes_per_s")]
        return replace(self, **{key: factor * getattr(self, key) for key in bandwidths})

    @property
    def message_bytes_per_s(self) -> float:
        """Bytes per second of one message: the least of the port's, its adapter's and one connection's bandwidth."""
        return min(self.bandwidth_bytes_per_s, self.flow_bytes_per_s, self.rail_bytes_per_s)


@dataclass(frozen=True, slots=True)
class Cluster:
    """Equal nodes of equal devices.

    Attributes:
        name: by which a shipped cluster is asked for.
        max_nodes: the most nodes there may be.
        overlap_slowdown: factor on compute while a collective runs beside it, at least 1.
        intra_node: the link between GPUs of a node.
        inter_node: the link between nodes; None for a single node.
        collectives: what collectives reach of these links.
        links: evidence of its links, one of ``EVIDENCE``: ``measured`` here, ``derived`` from another cluster's, or of
            a ``data sheet``; empty where its file does not say.
        changes: the what-ifs that made it, each with the value of its flag; empty where it is as its file says.
    """

    name: str
    source: str
    device: Device
    devices_per_node: Count
    max_nodes: Count
    overlap_slowdown: Annotated[float, AT_LEAST_1]
    intra_node: Link
    inter_node: Link | None
    collectives: Collectives
    host: Host = BOX
    links: Annotated[str, EVIDENCE] = ""
    changes: tuple[tuple[str, int | str], ...] = ()

    def __post_init__(self) -> None:
        owner = f"cluster {self.name}"
        check_fields(owner, self)
        check_choice(owner, "intra_node.kind", self.intra_node.kind, INTRA_NODE)
        if self.inter_node is not None:
            check_choice(
                owner, "inter_node.kind (nic: InfiniBand, RoCE, EFA)", self.inter_node.kind, INTER_NODE
            )
        elif self.max_nodes > 1:
            raise InputError(f"{owner}: inter_node is missing, and max_nodes is {self.max_nodes}")
        if self.collectives.across and not self.intra_node.socket_size:
            raise InputError(
                f"{owner}: collectives.across needs intra_node.socket_size, the cards under one socket"
            )

    def __repr__(self) -> str:
        nodes = "one node" if self.max_nodes == 1 else f"up to {counted(self.max_nodes, 'node')}"
        links = [link for link in (self.intra_node, self.inter_node) if link is not None]
        speeds = ", ".join(f"{link.kind} {link.bandwidth_bytes_per_s / GB:.4g} GB/s" for link in links)
        return f"<Cluster {self.name}: {nodes} of {self.devices_per_node} {self.device.name}, {speeds}>"

    @property
    def max_devices(self) -> int:
        """Devices of the whole cluster."""
        return self.devices_per_node * self.max_nodes

    @property
    def gathers_measured(self) -> bool | None:
        """Whether gathers or scatters between nodes were measured; None for a single node."""
        between = self.collectives.between
        return None if self.inter_node is None else between is not None and bool(between.rank_s)

    def check_gpus(self, num_gpus: int) -> None:
        """Refuse more GPUs than there are."""
        if num_gpus > self.max_devices:
            most = f"max_nodes({self.max_nodes}) * devices_per_node({self.devices_per_node}) = {self.max_devices}"
            shipped = map(load_cluster, cluster_names() if self.name in cluster_names() else ())
            like = [
                peer.name for peer in shipped if peer.device == self.device and peer.max_devices >= num_gpus
            ]
            more = f"; {' or '.join(like)} has more of them" if like else ""
            raise wrong("gpus", f"is {num_gpus}, but cluster {self.name} has at most {most}{more}")

    def scaled(self, *, intra_node: float = 1.0, inter_node: float = 1.0) -> "Cluster":
        """Cluster with the bandwidth of its links multiplied; latencies, call times and efficiencies stay.

        Args:
            intra_node: factor of the bandwidth inside a node.
            inter_node: factor of the bandwidth between nodes.
        """
        factors = {"intra-node": intra_node, "inter-node": inter_node}
        for word, factor in factors.items():
            if not is_number(factor) or not 0 < factor < inf:
                raise InputError(
                    f"the factor of the {word} bandwidth is {shown(factor)}, must be positive and finite"
                )
        if inter_node != 1.0 and self.inter_node is None:
            raise InputError(f"cluster {self.name} has no inter-node link to multiply")
        changes = ", ".join(f"{word} x {factor:g}" for word, factor in factors.items() if factor != 1.0)
        if not changes:
            return self
        return replace(
            self,
            name=f"{self.name}, {changes}",
            source=f"{self.source} Bandwidth hypothetical: {changes}.",
            intra_node=self.intra_node.scaled(intra_node),
            inter_node=self.inter_node and self.inter_node.scaled(inter_node),
        )


def cluster_names() -> list[str]:
    """The names of the shipped clusters."""
    return names_in(CLUSTERS)


def load_cluster(name: str) -> Cluster:
    """A shipped cluster by name, or any by the path of its file."""
    return read_cluster(file_of("cluster", name, CLUSTERS))


def read_cluster(path: Path) -> Cluster:
    """Read a cluster file."""
    table = Table.read(path)
    intra_node = _read_link(table.table("intra_node"))
    usual = FREE if intra_node.kind == "ideal" else BOX
    cluster = table.made(
        Cluster,
        device=_find_device(table),
        overlap_slowdown=1.0,
        intra_node=intra_node,
        inter_node=_read_link(table.table("inter_node")) if "inter_node" in table else None,
        collectives=_read_collectives(table.table("collectives", {})),
        host=read_host(table.table("host")) if "host" in table else usual,
    )
    table.finish()
    return cluster


def _find_device(table: Table) -> Device:
    """Device of a cluster file: shipped, of a file of its own, or described in place."""
    if isinstance(table.values().get("device"), Mapping):
        return device_of(table.table("device"))
    name = table.text("device")
    if name in device_names():
        return load_device(name)
    path = table.path.parent / Path(name).expanduser()
    if path_kind(path) != "file":
        names = ", ".join(device_names())
        raise table.fail("device", f"must be one of {names}, a device file or a table; {path} is no file")
    return read_device(path)


def _read_link(table: Table) -> Link:
    link = Link(IDEAL, inf, 0.0, 0.0) if table.text("kind") == IDEAL else table.made(Link)
    table.finish()
    return link


def _read_collectives(table: Table) -> Collectives:
    between = None
    if "between" in table:
        if "nodes" in table:
            raise table.fail("nodes", "must not stand beside collectives.between, which replaces it")
        inner = table.table("between")
        between = inner.made(
            Between,
            tree=inner.curve("tree") if "tree" in inner else (),
            rank_s=_read_terms(inner, "rank_us", MICROSECOND),
            **_read_law(inner),
        )
        inner.finish()
    collectives = table.made(
        Collectives,
        call_s=0.0,
        nodes=table.curve("nodes", 1.0),
        between=between,
        across=_read_terms(table, "across"),
        **_read_law(table),
    )
    table.finish()
    return collectives


def _read_law(table: Table) -> dict[str, Any]:
    """What collectives inside a node and between nodes both have."""
    return {
        "efficiency": tuple((operation, table.curve(operation, 1.0)) for operation in OPERATIONS),
        "middle": _read_terms(table, "middle"),
        "fixed_s": _read_terms(table, "fixed_us", MICROSECOND),
    }


def _read_terms(table: Table, key: str, unit: float = 1.0) -> Curves:
    """Curves of some operations."""
    inner = table.table(key, {})
    curves = [(name, inner.curve(name)) for name in OPERATIONS if name in inner]
    inner.finish()
    return tuple((name, tuple((at, value * unit) for at, value in points)) for name, points in curves)
