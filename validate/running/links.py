"""Links of a run: one clock for all processes of a machine, and which rank carries out which device.

A message arrives a fixed time after it was sent, and its reader waits until then. The real message travels in that
time. So the delay is known to the microsecond however busy the machine is, as long as the real message takes no longer;
and a simulation that omits it, or counts it twice, is far off.
"""

import time
from itertools import product
from typing import Final, NamedTuple

from profiles.machines.clusters import Cluster, Link
from profiles.machines.devices import Device
from profiles.machines.fabrics import OPERATIONS, Collectives
from strategies.plans.placement import Placement
from strategies.plans.plan import Collective

SPIN_S: Final = 2e-4  # the end of a wait is spun away: a sleep oversleeps by about 0.1 ms
DEVICE: Final = "ideal"  # times of a model on it are those of the run
MOST: Final = 4096  # devices of the one node


def now() -> float:
    """Return seconds on a clock that all processes of a machine share (Linux: CLOCK_MONOTONIC)."""
    return time.perf_counter()


def sleep_until(at: float) -> None:
    """Wait until a moment."""
    left = at - now() - SPIN_S
    if left > 0:
        time.sleep(left)
    while now() < at:
        pass


def emulated_cluster(delay_s: float) -> Cluster:
    """One node whose links carry any number of messages at once, each in the same time."""
    source = f"processes of one machine; every message arrives {delay_s:g} s after it was sent"
    device, link = Device(DEVICE, "a process", None, None), Link("nvswitch", float("inf"), delay_s, 0.0)
    free = Collectives(0.0, tuple((operation, ((1.0, 1.0),)) for operation in OPERATIONS), ((1.0, 1.0),))
    return Cluster("emulated", source, device, MOST, 1, 1.0, link, None, free)


class RankSeat(NamedTuple):
    """The place of one rank: its group, its device (a position of the pipeline), and which replica of it it is."""

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
        groups = self.placement.groups((), collective.group, collective.subgroup)
        rank = self.peer(self.device)
        return tuple(sorted(next((group for group in groups if rank in group), groups[0])))


def seats(placement: Placement) -> list[RankSeat]:
    """The seat of each rank."""
    axes = (placement.num_groups, placement.num_positions, placement.replicas)
    every = [RankSeat(placement, *place) for place in product(*map(range, axes))]
    return sorted(every, key=lambda seat: placement.rank(seat.group, seat.device, seat.replica))
