"""Links of a run: which rank carries out which device, and when a message from one to another arrives.

A message arrives a fixed time after it was sent, and who reads it waits until then. The real message travels in that
time. So the delay is known to the microsecond however busy the machine is, as long as the real message takes no longer;
and a simulation that leaves it out, or counts it twice, is wrong by a lot.
"""

from typing import Final, NamedTuple

from profiles.machines.clusters import Cluster, Link
from profiles.machines.devices import Device
from profiles.machines.fabrics import OPERATIONS, Collectives
from strategies.plans.placement import Placement
from strategies.plans.plan import Collective

DEVICE: Final = "ideal"  # times of a model on it are those of the run


def emulated_cluster(delay_s: float) -> Cluster:
    """One node whose links carry any number of messages at once, each in the same time."""
    return Cluster(
        name="emulated",
        source=f"processes of one machine; every message arrives {delay_s:g} s after it was sent",
        device=Device(DEVICE, "a process", None, None),
        devices_per_node=4096,
        max_nodes=1,
        overlap_slowdown=1.0,
        intra_node=Link("nvswitch", float("inf"), delay_s, 0.0),
        inter_node=None,
        collectives=Collectives(
            0.0, tuple((operation, ((1.0, 1.0),)) for operation in OPERATIONS), ((1.0, 1.0),)
        ),
    )


class RankSeat(NamedTuple):
    """What one rank stands for: a replica of a simulated device, a position of the pipeline, in a group."""

    placement: Placement
    group: int
    device: int
    replica: int

    def peer(self, device: int) -> int:
        """The rank that carries out another device of the same group and replica."""
        return self.placement.rank(self.group, device, self.replica)

    def members(self, collective: Collective) -> tuple[int, ...]:
        """The ranks that take part in a collective with this one."""
        if collective.group is None:
            return tuple(sorted(self.peer(device) for device in collective.devices))
        groups, own = self.placement.groups((), collective.group, collective.subgroup), self.peer(self.device)
        return tuple(sorted(next((group for group in groups if own in group), groups[0])))


def seats(placement: Placement) -> list[RankSeat]:
    """The seat of each rank."""
    found = {
        placement.rank(group, device, replica): RankSeat(placement, group, device, replica)
        for group in range(placement.num_groups)
        for device in range(placement.num_positions)
        for replica in range(placement.replicas)
    }
    return [found[rank] for rank in sorted(found)]
