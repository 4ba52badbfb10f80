"""Seats: which rank carries out which device of a plan, and with whom it talks."""

from dataclasses import dataclass

from strategies.plans.placement import Placement
from strategies.plans.plan import Collective


@dataclass(frozen=True, slots=True)
class RankSeat:
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
        return tuple(sorted(rank for position in collective.group for rank in self.placement.ranks(position)))


def seats(placement: Placement) -> list[RankSeat]:
    """The seat of each rank."""
    found = {
        placement.rank(group, device, replica): RankSeat(placement, group, device, replica)
        for group in range(placement.num_groups)
        for device in range(placement.num_positions)
        for replica in range(placement.replicas)
    }
    return [found[rank] for rank in sorted(found)]
