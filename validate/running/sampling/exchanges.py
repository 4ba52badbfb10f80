"""Exchanges: collectives between ranks, every byte of which is counted when it is handed to the network.

They are carried out by point-to-point stand-ins, so that their bytes can be counted: each member sends what the ring
algorithm would have it send (nccl-tests, doc/PERFORMANCE.md), straight to whom it is for. The tensors are the passes'
own; that a library's collective sends as often is not shown by this.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Final

import torch
from torch import Tensor
from torch import distributed as dist

from profiles.collectives import sent_bytes
from strategies.plans.plan import Collective
from validate.running.sampling.settings import WIDENING

FIRST_TAG: Final = 1 << 20
"""Tags from here on are those of exchanges."""


@dataclass(slots=True)
class Sent:
    """What one rank sent in one message of a plan, or as its part of a collective, in bytes.

    It counts to a denoising step; ``planned_bytes`` is what the plan says, in the precision of the run.
    """

    kind: str
    step: int
    planned_bytes: float
    size_bytes: int = 0

    @classmethod
    def of(cls, collective: Collective, step: int) -> "Sent":
        """What a member of a collective is to send, of which nothing is sent yet."""
        operation, size = collective.operation, len(collective.devices)
        return cls(operation, step, WIDENING * sent_bytes(operation, collective.size_bytes, size))


@dataclass(frozen=True, slots=True)
class Pending:
    """An exchange under way; what it brings is waited for."""

    wait: Callable[[], list[Tensor]]


def start_exchange(
    collective: Collective, rank: int, parts: Sequence[Tensor], sent: Sent, tag: int
) -> Pending:
    """Start what a collective does; ``all_gather`` and ``all_to_all`` bring one tensor of each member, all else one.

    ``all_to_all`` takes one part for each member, any other one. What is sent is added to ``sent``; messages take
    ``tag`` and the one after it, the same on all members.
    """
    operation, members = collective.operation, collective.devices
    exchange = _Exchange(members, rank, sent, FIRST_TAG + tag)
    if operation == "send_recv":
        place = members.index(rank)
        ahead, behind = members[(place + 1) % len(members)], members[place - 1]
        return exchange.messages({ahead: parts[0]}, [behind])
    if operation == "all_reduce":
        return exchange.sum(parts[0])
    if operation not in ("all_gather", "all_to_all"):
        raise ValueError(f"no such operation: {operation}")
    return exchange.to_all(list(parts) * (1 if len(parts) > 1 else len(members)))


@dataclass(frozen=True, slots=True)
class _Exchange:
    members: Sequence[int]
    rank: int
    sent: Sent
    tag: int

    def to_all(self, parts: Sequence[Tensor]) -> Pending:
        """Send each member its part; all parts have the same shape."""
        outgoing = dict(zip(self.members, parts, strict=True))
        own = outgoing.pop(self.rank)
        exchange = self.messages(outgoing, list(outgoing))

        def finish() -> list[Tensor]:
            arrived = dict(zip(outgoing, exchange.wait(), strict=True))
            return [arrived.get(member, own) for member in self.members]

        return Pending(finish)

    def sum(self, tensor: Tensor) -> Pending:
        """Let each member sum its share of all, and gather the shares; the second half runs when it is waited for."""
        size = len(self.members)
        if tensor.numel() % size:
            raise ValueError(f"{tensor.numel()} numbers are no multiple of {size} members")
        first = self.to_all(list(tensor.flatten().chunk(size)))

        def finish() -> list[Tensor]:
            share = torch.stack(first.wait()).sum(0)
            second = _Exchange(self.members, self.rank, self.sent, self.tag + 1)
            return [torch.cat(second.to_all([share] * size).wait()).view_as(tensor)]

        return Pending(finish)

    def messages(self, outgoing: Mapping[int, Tensor], sources: Sequence[int]) -> Pending:
        """Send tensors, and get one of the same shape from each source."""
        leaving = {member: tensor.contiguous() for member, tensor in outgoing.items()}
        like = next(iter(leaving.values()))
        arriving = {member: like.new_empty(like.shape) for member in sources}
        works = dist.batch_isend_irecv(
            [dist.P2POp(dist.isend, tensor, member, tag=self.tag) for member, tensor in leaving.items()]
            + [dist.P2POp(dist.irecv, tensor, member, tag=self.tag) for member, tensor in arriving.items()]
        )
        self.sent.size_bytes += sum(tensor.nbytes for tensor in leaving.values())

        def finish() -> list[Tensor]:
            for work in works:
                work.wait()
            leaving.clear()  # they had to live until now
            return list(arriving.values())

        return Pending(finish)
