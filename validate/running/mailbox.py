"""The mailbox of one rank: every delivery is a payload, and the moment at which it was sent.

Messages travel by gloo, each under a tag of its own; all receives are posted when an iteration begins.
"""

from collections.abc import Callable
from typing import Final

import torch
from torch import Tensor
from torch import distributed as dist

from strategies.plans.wiring import Wiring
from validate.running.links import ALWAYS, Instant, RankSeat

SENT, BROUGHT, POSTED = range(3)
"""Contents of a message about a delivery: when it was sent, its payload, when its receive was posted."""
KINDS: Final = 3
MOMENT: Final = torch.empty(2, dtype=torch.float64)


class Mailbox:
    """Sends and receives the deliveries of one device; ``room`` makes the buffer for a payload."""

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
        """Deliveries that the sender waits for and whose receives wait for an op: the sender is told when they post."""

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
        """Wait for a delivery: the moment at which it arrives, and its payload, None for its own sender."""
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
