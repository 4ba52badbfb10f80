"""Ordered messages: payloads between ranks whose backend knows no tags, as NCCL.

Every direction between two ranks has a process group of its own, so that nothing that waits there holds up anything
else, and both ends go through its messages in the order in which the sender's list sends them.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import timedelta

import torch
from torch import Tensor
from torch import distributed as dist

from strategies.plans.wiring import Wiring
from validate.running.seats import RankSeat

Groups = Mapping[tuple[int, int], dist.ProcessGroup]
"""The process group of each direction, by the ranks of sender and receiver."""


def directions(wiring: Wiring) -> dict[tuple[int, int], list[int]]:
    """Return the deliveries from one device to another in the order in which they are sent, by both devices."""
    found: dict[tuple[int, int], list[int]] = {}
    for rows in wiring.sends:
        for slot in (slot for slots in rows for slot in slots):
            transfer = wiring.transfers[slot]
            if transfer is not None:
                found.setdefault((transfer.source, transfer.target), []).append(slot)
    return found


def make_groups(
    wiring: Wiring, everyone: Sequence[RankSeat], device: torch.device, timeout: timedelta
) -> Groups:
    """Make the groups of all directions, the same at every rank, and open each: NCCL connects at the first message."""
    pairs = {(seat.peer(a), seat.peer(b)) for a, b in directions(wiring) for seat in everyone}
    groups = {}
    for source, target in sorted(pairs):
        group = dist.new_group([source, target], timeout=timeout)
        if dist.get_rank() in (source, target):
            groups[source, target] = group
            word = torch.zeros(1, dtype=torch.float64, device=device)
            if dist.get_rank() == source:
                dist.send(word, target, group=group)
            else:
                dist.recv(word, source, group=group)
    return groups


@dataclass(frozen=True, slots=True, eq=False)
class _Lane:
    """One direction: the rank at its other end, its group, its deliveries in order."""

    rank: int
    group: dist.ProcessGroup
    slots: tuple[int, ...]


class OrderedMessages:
    """Sends and receives the payloads of one device.

    Args:
        wiring: the plan's deliveries.
        seat: the device that the rank carries out.
        groups: those of the directions from and to this rank.
        numel: for each delivery, how many numbers it carries.
        device: where they lie.
    """

    def __init__(
        self,
        wiring: Wiring,
        seat: RankSeat,
        groups: Groups,
        numel: Mapping[int, int],
        device: torch.device,
    ) -> None:
        self._numel, self._device = numel, device
        own = seat.peer(seat.device)
        self._incoming, self._outgoing = [], []
        for (source, target), slots in sorted(directions(wiring).items()):
            if target == seat.device:
                rank = seat.peer(source)
                self._incoming.append(_Lane(rank, groups[rank, own], tuple(slots)))
            elif source == seat.device:
                rank = seat.peer(target)
                self._outgoing.append(_Lane(rank, groups[own, rank], tuple(slots)))

    def open(self) -> None:
        """Begin an iteration: of each direction one receive is posted, as those of NCCL spin on the GPU."""
        self._due = {slot: lane for lane in self._outgoing for slot in lane.slots}
        self._sending: list[tuple[dist.Work | None, Tensor]] = []
        self._expected: dict[int, tuple[dist.Work | None, Tensor]] = {}
        self._arrived: dict[int, Tensor] = {}
        self._lane = {slot: lane for lane in self._incoming for slot in lane.slots}
        self._left = {lane: list(lane.slots) for lane in self._incoming}
        for lane in self._incoming:
            self._post(lane)

    def _post(self, lane: _Lane) -> None:
        if self._left[lane]:
            slot = self._left[lane].pop(0)
            buffer = torch.empty(self._numel[slot], dtype=torch.float64, device=self._device)
            self._expected[slot] = dist.irecv(buffer, lane.rank, group=lane.group), buffer

    def send(self, slot: int, payload: Sequence[Tensor]) -> None:
        """Send a delivery; it must be the next of its direction."""
        lane = self._due.pop(slot)
        assert not any(other in self._due for other in lane.slots[: lane.slots.index(slot)]), "out of order"
        message = torch.cat([piece.reshape(-1) for piece in payload])
        self._sending.append((dist.isend(message, lane.rank, group=lane.group), message))

    def receive(self, slot: int) -> Tensor:
        """Return what a delivery carried, once it is there; others of its direction may come before."""
        lane = self._lane[slot]
        while slot not in self._arrived:
            (following,) = (number for number in lane.slots if number in self._expected)
            work, buffer = self._expected.pop(following)
            if work is not None:
                work.wait()
            if buffer.is_cuda:  # there, waiting means that the stream waits
                torch.cuda.current_stream().synchronize()
            self._arrived[following] = buffer
            self._post(lane)
        return self._arrived.pop(slot)

    def close(self) -> None:
        """Wait until all that was sent has left."""
        for work, _ in self._sending:
            if work is not None:
                work.wait()
