"""The mailbox of one rank: every delivery is one message of its own tag, with the moment it was sent in front."""

from collections.abc import Callable, Sequence

import torch
from torch import Tensor
from torch import distributed as dist

from strategies.plans.wiring import Wiring
from validate.running.clock import ALWAYS, Instant
from validate.running.errors import LostRankError
from validate.running.ordered import OrderedMessages
from validate.running.seats import RankSeat

STAMPS = 2
"""Numbers in front of a message: the moment it was sent, in wall and in virtual time."""


class Mailbox:
    """Sends and receives the deliveries of one device; the slot is the tag.

    Args:
        wiring: the plan's deliveries.
        seat: the device that the rank carries out.
        numel: gives how many numbers a tensor's message holds.
        link_s: what every message takes.
        payloads: what carries payloads where messages have no tags; the moments alone then travel here.
    """

    def __init__(
        self,
        wiring: Wiring,
        seat: RankSeat,
        numel: Callable[[int], int],
        link_s: float,
        payloads: OrderedMessages | None = None,
    ) -> None:
        self._wiring, self._device, self._peer, self._payloads = wiring, seat.device, seat.peer, payloads
        self._numel = (lambda tensor: 0) if payloads else numel
        transfers = enumerate(wiring.transfers)
        self._transfers = {slot: transfer for slot, transfer in transfers if transfer is not None}
        self._link_s = link_s
        sources = ((transfer.source, slot) for slot, transfer in self._transfers.items())
        awaited = {(d, slot) for d, rows in enumerate(wiring.waits) for slots in rows for slot in slots}
        self._awaited_by_sender = {slot for source, slot in sources if (source, slot) in awaited}

    def open(self) -> None:
        """Post the receives of one iteration; slots are posted in order at both ends."""
        self._sending: list[tuple[dist.Work | None, Tensor]] = []
        self._sent: dict[int, Instant] = {}
        self._posted: dict[int, Instant] = {}
        self._arrived: dict[int, Instant] = {}
        self._expected: dict[int, tuple[dist.Work | None, Tensor]] = {}
        if self._payloads:
            self._payloads.open()
        for slot, transfer in self._transfers.items():
            if transfer.target == self._device:
                self._expect(slot, transfer.source, slot, STAMPS + self._numel(transfer.tensor))
            elif self._reports(slot) and transfer.source == self._device:
                self._expect(slot, transfer.target, slot + len(self._wiring.transfers), STAMPS)

    def _expect(self, slot: int, device: int, tag: int, numel: int) -> None:
        buffer = torch.empty(numel, dtype=torch.float64)
        self._expected[slot] = dist.irecv(buffer, self._peer(device), tag=tag), buffer

    def _reports(self, slot: int) -> bool:
        """Whether the sender waits for a delivery whose receive waits for an op: it must be told when that was."""
        return slot in self._awaited_by_sender and self._wiring.posted[slot]

    def send(self, slot: int, at: Instant, payload: Sequence[Tensor]) -> None:
        """Send a delivery that was written at a moment; a signal stays here."""
        self._sent[slot] = at
        if self._payloads:
            self._payloads.send(slot, payload)
            payload = ()
        self._dispatch(self._peer(self._transfers[slot].target), slot, at, payload)

    def post(self, slot: int, at: Instant) -> None:
        """Note that a receive was posted at a moment; tell the sender if it waits for the delivery."""
        self._posted[slot] = at
        if self._reports(slot):
            tag = slot + len(self._wiring.transfers)
            self._dispatch(self._peer(self._transfers[slot].source), tag, at, ())

    def _dispatch(self, rank: int, tag: int, at: Instant, payload: Sequence[Tensor]) -> None:
        stamps = torch.tensor(at, dtype=torch.float64)
        message = torch.cat([stamps, *(piece.reshape(-1) for piece in payload)])
        self._sending.append((dist.isend(message, rank, tag=tag), message))

    def arrival(self, slot: int) -> tuple[Instant, Tensor | None]:
        """Wait for a delivery, or, of one's own, for word that it was posted; return when it arrives, and what."""
        if slot in self._arrived:
            return self._arrived[slot], None
        message = self._receive(slot)
        told = ALWAYS if message is None else Instant(*message[:STAMPS].tolist())
        if self._transfers[slot].source == self._device:
            written, posted = self._sent[slot], told
        else:
            written, posted = told, self._posted.get(slot, ALWAYS)
        self._arrived[slot] = written.later(posted).after(self._link_s)
        return self._arrived[slot], None if message is None else self._payload(slot, message)

    def _payload(self, slot: int, message: Tensor) -> Tensor | None:
        if slot in self._sent:
            return None
        return self._payloads.receive(slot) if self._payloads else message[STAMPS:]

    def _receive(self, slot: int) -> Tensor | None:
        if slot not in self._expected:
            return None
        work, buffer = self._expected.pop(slot)
        transfer = self._transfers[slot]
        other = transfer.target if transfer.source == self._device else transfer.source
        try:
            if work is not None:
                work.wait()
        except RuntimeError:
            raise LostRankError(self._peer(other)) from None
        return buffer

    def close(self) -> None:
        """Wait until all that was sent has left."""
        if self._payloads:
            self._payloads.close()
        for work, _ in self._sending:
            if work is not None:
                work.wait()
