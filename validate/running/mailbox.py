"""The mailbox of one rank: every delivery is a payload, and beside it the moment it was sent.

Moments travel by gloo, each under a tag of its own. Payloads do so too, or, as those of NCCL, without tags: then every
direction between two ranks has a process group of its own, so that nothing that waits there holds up anything else,
and both ends go through its messages in the order in which the sender's list sends them.
"""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from datetime import timedelta
from typing import Final

import torch
from torch import Tensor
from torch import distributed as dist

from strategies.plans.wiring import Wiring
from validate.running.clock import ALWAYS, Instant
from validate.running.links import RankSeat

PAYLOADS: Final = 1 << 19  # tags from here on are those of payloads
Posted = tuple[dist.Work | None, Tensor]


@dataclass(frozen=True, slots=True, eq=False)
class Lane:
    """One direction between this rank and another: its messages in order, and the group of the two if there is one."""

    rank: int
    slots: tuple[int, ...]
    incoming: bool
    group: dist.ProcessGroup | None = None


def directions(wiring: Wiring) -> dict[tuple[int, int], list[int]]:
    """Deliveries from one device to another in the order in which they are sent, by both devices."""
    found: dict[tuple[int, int], list[int]] = {}
    for rows in wiring.sends:
        for slot in (slot for slots in rows for slot in slots):
            transfer = wiring.transfers[slot]
            if transfer is not None:
                found.setdefault((transfer.source, transfer.target), []).append(slot)
    return found


def payload_lanes(
    wiring: Wiring, everyone: Sequence[RankSeat], device: torch.device, timeout: timedelta, *, tagged: bool
) -> list[Lane]:
    """Lanes of one rank; without tags each has a group, which all ranks make alike.

    A group is opened by a word: NCCL connects at the first message.
    """
    rank, groups = dist.get_rank(), {}
    ways = directions(wiring)
    pairs = {(seat.peer(a), seat.peer(b)) for a, b in ways for seat in everyone if not tagged}
    for source, target in sorted(pairs):
        group = dist.new_group([source, target], timeout=timeout)
        if rank in (source, target):
            groups[source, target] = group
            word = torch.zeros(1, dtype=torch.float64, device=device)
            if rank == source:
                dist.send(word, target, group=group)
            else:
                dist.recv(word, source, group=group)
    seat, lanes = everyone[rank], []
    for (source, target), slots in sorted(ways.items()):
        if seat.device in (source, target):
            incoming = target == seat.device
            peer = seat.peer(source if incoming else target)
            way = (peer, rank) if incoming else (rank, peer)
            lanes.append(Lane(peer, tuple(slots), incoming, groups.get(way)))
    return lanes


class Messages:
    """Sends and receives what lanes carry.

    If messages carry tags, all receives are posted when an iteration begins; else one of each direction, as those of
    NCCL spin on the GPU.
    """

    def __init__(
        self, lanes: Iterable[Lane], room: Callable[[int], Tensor], *, tagged: bool, first_tag: int = 0
    ) -> None:
        self._lanes, self._room, self._tagged, self._first_tag = tuple(lanes), room, tagged, first_tag
        self._lane = {(slot, lane.incoming): lane for lane in self._lanes for slot in lane.slots}

    def open(self) -> None:
        """Begin an iteration."""
        self._sending: list[Posted] = []
        self._posted: dict[int, Posted] = {}
        self._arrived: dict[int, Tensor] = {}
        self._left = {lane: list(lane.slots) for lane in self._lanes}
        for lane in self._lanes:
            if lane.incoming:
                for _ in lane.slots if self._tagged else lane.slots[:1]:
                    self._post(lane)

    def _post(self, lane: Lane) -> None:
        if self._left[lane]:
            slot = self._left[lane].pop(0)
            room = self._room(slot)
            self._posted[slot] = dist.irecv(room, lane.rank, group=lane.group, tag=self._tag(slot)), room

    def _tag(self, slot: int) -> int:
        return self._first_tag + slot if self._tagged else 0

    def send(self, slot: int, message: Tensor) -> None:
        """Send a message; without tags it must be the next of its direction."""
        lane = self._lane[slot, False]
        if not self._tagged:
            assert self._left[lane].pop(0) == slot, "out of order"
        work = dist.isend(message, lane.rank, group=lane.group, tag=self._tag(slot))
        self._sending.append((work, message))

    def receive(self, slot: int) -> Tensor:
        """What a message brings, once it is there; without tags others of its direction may come before."""
        lane = self._lane[slot, True]
        while slot not in self._arrived:
            following = slot if self._tagged else next(s for s in lane.slots if s in self._posted)
            work, message = self._posted.pop(following)
            if work is not None:
                work.wait()
            if message.is_cuda:  # there, waiting means that the stream waits
                torch.cuda.current_stream().synchronize()
            self._arrived[following] = message
            if not self._tagged:
                self._post(lane)
        return self._arrived.pop(slot)

    def close(self) -> None:
        """Wait until all that was sent has left."""
        for work, _ in self._sending:
            if work is not None:
                work.wait()


class Mailbox:
    """Sends and receives the deliveries of one device."""

    def __init__(
        self, wiring: Wiring, seat: RankSeat, link_s: float, lanes: Sequence[Lane], payloads: Messages
    ) -> None:
        self._device, self._link_s, self._payloads = seat.device, link_s, payloads
        self._count, self._posts_late = len(wiring.transfers), wiring.posted
        self._sources = {slot: transfer.source for slot, transfer in enumerate(wiring.transfers) if transfer}
        awaited = {(d, slot) for d, rows in enumerate(wiring.waits) for slots in rows for slot in slots}
        self._awaited_by_sender = {
            slot for slot, source in self._sources.items() if (source, slot) in awaited
        }
        there = [replace(lane, group=None) for lane in lanes]
        back = [
            Lane(
                lane.rank,
                tuple(self._count + slot for slot in lane.slots if self._reports(slot)),
                not lane.incoming,
            )
            for lane in lanes
        ]
        self._moments = Messages(there + back, lambda _: torch.empty(2, dtype=torch.float64), tagged=True)

    def _reports(self, slot: int) -> bool:
        """Whether the sender waits for a delivery whose receive waits for an op: it must be told when that was."""
        return slot in self._awaited_by_sender and self._posts_late[slot]

    def open(self) -> None:
        """Begin an iteration."""
        self._sent: dict[int, Instant] = {}
        self._posted: dict[int, Instant] = {}
        self._arrived: dict[int, Instant] = {}
        self._payloads.open()
        self._moments.open()

    def send(self, slot: int, at: Instant, payload: Tensor) -> None:
        """Send a delivery that was written at a moment."""
        self._sent[slot] = at
        self._moments.send(slot, torch.tensor(at, dtype=torch.float64))
        self._payloads.send(slot, payload)

    def post(self, slot: int, at: Instant) -> None:
        """Note that a receive was posted at a moment; tell the sender if it waits for the delivery."""
        self._posted[slot] = at
        if self._reports(slot):
            self._moments.send(self._count + slot, torch.tensor(at, dtype=torch.float64))

    def arrival(self, slot: int) -> tuple[Instant, Tensor | None]:
        """Moment at which a delivery arrives, which is waited for, and what it brings; nothing to its own sender."""
        if slot in self._arrived:
            return self._arrived[slot], None
        if self._sources[slot] == self._device:
            written, payload = self._sent[slot], None
            posted = self._moment(self._count + slot) if self._reports(slot) else ALWAYS
        else:
            written, payload = self._moment(slot), self._payloads.receive(slot)
            posted = self._posted.get(slot, ALWAYS)
        self._arrived[slot] = written.later(posted).after(self._link_s)
        return self._arrived[slot], payload

    def _moment(self, message: int) -> Instant:
        return Instant(*self._moments.receive(message).tolist())

    def close(self) -> None:
        """Wait until all that was sent has left."""
        self._payloads.close()
        self._moments.close()
