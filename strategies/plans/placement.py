"""Placement: which GPUs the positions of a pipeline stand for.

The GPUs are numbered node by node. A group of ``group_size`` GPUs is a chain in which each position is replicated
on ``group_size / num_positions`` neighbours (DiffusionPipe, section 4.1). All groups are alike, so one is
simulated; the others enter as members of collectives and as load on shared ports.
"""

from collections import Counter
from collections.abc import Hashable, Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import chain, count
from typing import NamedTuple

from profiles.errors import InfeasibleError
from profiles.machines.clusters import Cluster
from profiles.machines.collectives import Group


class Subgroup(NamedTuple):
    """Some of the GPUs of a position, or of several: ``size`` of them, ``stride`` apart; all such groups are alike."""

    size: int
    stride: int


@dataclass(frozen=True, eq=False)
class Placement:
    """The GPUs on which the positions of all pipeline groups lie.

    With ``data_inner`` data-parallel neighbours get neighbouring GPUs, instead of the positions of one pipeline.

    Raises:
        InfeasibleError: sizes do not divide one another, so that replicas would not be alike.
    """

    cluster: Cluster
    num_gpus: int
    group_size: int
    num_positions: int
    data_inner: bool = False

    def __post_init__(self) -> None:
        gpus, group, positions = self.num_gpus, self.group_size, self.num_positions
        if gpus % group:
            # by default a group is one pipeline
            name = "pipeline_degree" if group == positions else "group_size"
            raise InfeasibleError(
                f"`gpus({gpus})` is no multiple of `{name}({group})`", "groups do not divide the GPUs"
            )
        if group % positions:
            raise InfeasibleError(
                f"`group_size({group})` is no multiple of `pipeline_degree({positions})`",
                "positions do not divide the group",
            )
        self._check_alike("devices_per_node", self.cluster.devices_per_node)
        if self.cluster.intra_node.kind == "pcie":
            self._check_alike("switch_size", self.cluster.intra_node.switch_size)

    def _check_alike(self, unit: str, devices: int) -> None:
        """Refuse groups that lie unlike one another over nodes or switches."""
        if self.num_gpus <= devices:
            return
        outer = {"groups({})": self.num_groups, "copies of a position({})": self.copies}
        inner = {"`group_size({})`": self.group_size, "replicas({})": self.replicas}
        sizes = {"`gpus({})`": self.num_gpus} | (outer if self.data_inner else inner)
        for name, size in sizes.items():
            if _divide(size, devices):
                continue
            below = next(less for less in range(size, 0, -1) if _divide(less, devices))
            above = next(more for more in count(size) if _divide(more, devices))
            raise InfeasibleError(
                f"{name.format(size)} and {unit}({devices}) do not divide one another, as {below} or {above} would:"
                " one replica is simulated for all, and these would not lie alike",
                "groups and nodes do not divide one another",
            )

    @cached_property
    def replicas(self) -> int:
        """GPUs on which each position of one group is replicated."""
        return self.group_size // self.num_positions

    @cached_property
    def num_groups(self) -> int:
        """The data-parallel degree."""
        return self.num_gpus // self.group_size

    @property
    def copies(self) -> int:
        """GPUs that each simulated device stands for."""
        return self.num_gpus // self.num_positions

    def rank(self, group: int, position: int, replica: int) -> int:
        """The number of a GPU."""
        each, apart = self._strides
        return (position * self.replicas + replica) * each + group * apart

    @cached_property
    def _strides(self) -> tuple[int, int]:
        """Distances between neighbouring GPUs of a group, and between the first of two groups."""
        return (self.num_groups, 1) if self.data_inner else (1, self.group_size)

    def node(self, rank: int) -> int:
        """The node a GPU is in."""
        return rank // self.cluster.devices_per_node

    def socket(self, rank: int) -> tuple[int, int]:
        """The node a GPU is in, and the number of its socket there; 0 where sockets make no difference."""
        node, place = divmod(rank, self.cluster.devices_per_node)
        return node, place // (self.cluster.intra_node.socket_size or self.cluster.devices_per_node)

    def switch(self, rank: int) -> int:
        """Number of the switch that a GPU is under, where the GPUs of a node meet over PCIe."""
        return rank // self.cluster.intra_node.switch_size

    def ranks(self, position: int) -> list[int]:
        """The GPUs of all groups that hold a position."""
        slots, apart = self.devices(position), self._strides[1]
        return [slot + group * apart for group in range(self.num_groups) for slot in slots]

    def group(self, *positions: int, subgroup: Subgroup | None = None) -> Group:
        """Return the group of all GPUs, or of a subgroup of those, that hold one of some positions."""
        ranks = self.groups((), positions, subgroup)[0]
        each = self.cluster.devices_per_node
        if subgroup is None:
            return self.group_of(ranks)
        nodes = Counter(map(self.node, ranks))
        if len(set(nodes.values())) > 1:
            raise InfeasibleError(
                f"groups of {subgroup.size} GPUs, {subgroup.stride} apart, lie unevenly on nodes of"
                f" devices_per_node({each})",
                "groups and nodes do not divide one another",
            )
        return self.group_of(ranks)

    def group_of(self, ranks: Sequence[int]) -> Group:
        """Return the group that some GPUs are."""
        nodes = len(set(map(self.node, ranks)))
        return Group(len(ranks), nodes, len(set(map(self.socket, ranks))) > nodes)

    def groups(
        self, devices: Sequence[int], positions: Sequence[int] | None, subgroup: Subgroup | None = None
    ) -> list[tuple[int, ...]]:
        """Return the GPUs of each alike group of a collective: replicas of positions, or each replica of devices."""
        if positions is None:
            return list(zip(*map(self.ranks, devices), strict=True))
        ranks = tuple(chain.from_iterable(zip(*map(self.ranks, positions), strict=True)))
        if subgroup is None:
            return [ranks]
        size, stride = subgroup
        if len(ranks) % (size * stride):
            raise InfeasibleError(
                f"`gpus({len(ranks)})` is no multiple of {size} GPUs that are {stride} apart",
                "groups do not divide the GPUs",
            )
        starts = (first + offset for first in range(0, len(ranks), size * stride) for offset in range(stride))
        return [ranks[start : start + size * stride : stride] for start in starts]

    def devices(self, position: int) -> list[int]:
        """The GPUs of the first group that hold a position."""
        return [self.rank(0, position, i) for i in range(self.replicas)]

    def path(self, source: int, target: int) -> Iterator[tuple[Hashable, float]]:
        """Yield the ports between two GPUs, each with its bandwidth in bytes per second."""
        link = self.cluster.intra_node
        nodes = self.node(source), self.node(target)
        if nodes[0] != nodes[1]:
            link = self.cluster.inter_node or link
            ends: tuple[int, int] = nodes
        else:
            ends = source, target
        if link.kind == "ideal":
            return
        for way, end in zip(("out", "in"), ends, strict=True):
            yield (link.kind, way, end), link.bandwidth_bytes_per_s
        if link.message_bytes_per_s < link.bandwidth_bytes_per_s:
            for way, rank in zip(("out", "in"), (source, target), strict=True):
                yield ("adapter", way, rank), link.message_bytes_per_s
        if link.kind == "pcie" and self.switch(source) != self.switch(target):
            for way, end in zip(("out", "in"), ends, strict=True):
                yield ("switch", way, self.switch(end)), link.switch_bandwidth_bytes_per_s
            yield ("host", nodes[0]), link.host_bandwidth_bytes_per_s

    def delay_s(self, source: int, target: int) -> float:
        """Latency and call time of a message between two GPUs."""
        inside = self.node(source) == self.node(target)
        link = self.cluster.intra_node if inside else self.cluster.inter_node
        return 0.0 if link is None else link.latency_s + link.call_s


def _divide(one: int, other: int) -> bool:
    """Whether one of two numbers divides the other."""
    return one % other == 0 or other % one == 0
