"""Links of a run: one clock for all processes of a machine, which rank carries out which device, and messages.

A message arrives a fixed time after it was sent, and who reads it waits until then. The real message travels in that
time. So the delay is known to the microsecond however busy the machine is, as long as the real message takes no longer;
and a simulation that leaves it out, or counts it twice, is wrong by a lot. Every delivery is a payload, and beside it
the moment it was sent; messages travel by gloo, each under a tag of its own.
"""

import fcntl
import time
from collections.abc import Callable
from pathlib import Path
from typing import Final, NamedTuple

import torch
from torch import Tensor
from torch import distributed as dist

from profiles.machines.clusters import Cluster, Link
from profiles.machines.devices import Device
from profiles.machines.fabrics import OPERATIONS, Collectives
from strategies.plans.placement import Placement
from strategies.plans.plan import Collective
from strategies.plans.wiring import Wiring

SPIN_S: Final = 2e-4  # the end of a wait is spun away: a sleep oversleeps by about 0.1 ms


class Instant(NamedTuple):
    """A moment in wall time and in virtual time, in seconds."""

    wall: float
    virtual: float

    def later(self, other: "Instant") -> "Instant":
        """The later of two moments, in each time for itself."""
        return Instant(max(self.wall, other.wall), max(self.virtual, other.virtual))

    def after(self, seconds: float) -> "Instant":
        """The moment so much later."""
        return Instant(self.wall + seconds, self.virtual + seconds)


ALWAYS: Final = Instant(float("-inf"), float("-inf"))


def now() -> float:
    """Seconds on a clock that all processes of a machine share (Linux: CLOCK_MONOTONIC)."""
    return time.perf_counter()


def sleep_until(at: float) -> None:
    """Wait until a moment in wall time."""
    left = at - now() - SPIN_S
    if left > 0:
        time.sleep(left)
    while now() < at:
        pass


class Turns:
    """Entered by the rank whose turn it is; the others wait for the lock of a file, of which any will do."""

    def __init__(self) -> None:
        self._file = Path(__file__).open("rb")  # noqa: SIM115  open as long as the rank runs

    def __enter__(self) -> None:
        fcntl.flock(self._file, fcntl.LOCK_EX)

    def __exit__(self, *error: object) -> None:
        fcntl.flock(self._file, fcntl.LOCK_UN)


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


SENT, BROUGHT, POSTED = range(3)
"""What a message tells of a delivery: when it was sent, what it brings, when its receive was posted."""
KINDS: Final = 3
MOMENT: Final = torch.empty(2, dtype=torch.float64)


class Mailbox:
    """Sends and receives the deliveries of one device; ``room`` makes room for what one brings."""

    def __init__(self, wiring: Wiring, seat: RankSeat, link_s: float, room: Callable[[int], Tensor]) -> None:
        self._link_s, self._room = link_s, room
        transfers = {slot: of for slot, of in enumerate(wiring.transfers) if of is not None}
        self._to = {slot: seat.peer(of.target) for slot, of in transfers.items() if of.source == seat.device}
        self._from = {
            slot: seat.peer(of.source) for slot, of in transfers.items() if of.target == seat.device
        }
        awaited = {(d, slot) for d, rows in enumerate(wiring.waits) for slots in rows for slot in slots}
        self._reported = {
            slot for slot, of in transfers.items() if wiring.posted[slot] and (of.source, slot) in awaited
        }
        """Deliveries that the sender waits for, and whose receives wait for an op: it must be told when that was."""

    def open(self) -> None:
        """Begin an iteration."""
        self._sending: list[tuple[dist.Work | None, Tensor]] = []
        self._coming: dict[int, tuple[dist.Work | None, Tensor]] = {}
        self._sent: dict[int, Instant] = {}
        self._posted: dict[int, Instant] = {}
        self._arrived: dict[int, Instant] = {}
        for slot, rank in self._from.items():
            self._expect(slot, SENT, rank, torch.empty_like(MOMENT))
            self._expect(slot, BROUGHT, rank, self._room(slot))
        for slot in self._reported & self._to.keys():
            self._expect(slot, POSTED, self._to[slot], torch.empty_like(MOMENT))

    def send(self, slot: int, at: Instant, payload: Tensor) -> None:
        """Send a delivery that was written at a moment."""
        self._sent[slot] = at
        self._tell(slot, SENT, self._to[slot], torch.tensor(at, dtype=torch.float64))
        self._tell(slot, BROUGHT, self._to[slot], payload)

    def post(self, slot: int, at: Instant) -> None:
        """Note that a receive was posted at a moment; tell the sender if it waits for the delivery."""
        self._posted[slot] = at
        if slot in self._reported:
            self._tell(slot, POSTED, self._from[slot], torch.tensor(at, dtype=torch.float64))

    def arrival(self, slot: int) -> tuple[Instant, Tensor | None]:
        """Moment at which a delivery arrives, which is waited for, and what it brings; nothing to its own sender."""
        payload = None
        if slot not in self._arrived:
            if slot in self._to:
                written = self._sent[slot]
                posted = self._moment(slot, POSTED) if slot in self._reported else ALWAYS
            else:
                written, payload = self._moment(slot, SENT), self._take(slot, BROUGHT)
                posted = self._posted.get(slot, ALWAYS)
            self._arrived[slot] = written.later(posted).after(self._link_s)
        return self._arrived[slot], payload

    def close(self) -> None:
        """Wait until all that was sent has left."""
        for work, _ in self._sending:
            if work is not None:
                work.wait()

    def _expect(self, slot: int, kind: int, rank: int, room: Tensor) -> None:
        self._coming[KINDS * slot + kind] = dist.irecv(room, rank, tag=KINDS * slot + kind), room

    def _tell(self, slot: int, kind: int, rank: int, message: Tensor) -> None:
        self._sending.append((dist.isend(message, rank, tag=KINDS * slot + kind), message))

    def _take(self, slot: int, kind: int) -> Tensor:
        work, message = self._coming.pop(KINDS * slot + kind)
        if work is not None:
            work.wait()
        return message

    def _moment(self, slot: int, kind: int) -> Instant:
        return Instant(*self._take(slot, kind).tolist())
