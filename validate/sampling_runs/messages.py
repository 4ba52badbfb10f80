"""Messages between ranks, every byte of which is counted when it is handed to the network.

Collectives are made of point-to-point messages, so that what is counted is what was sent. Each member sends what the
ring algorithm would have it send (nccl-tests, doc/PERFORMANCE.md), straight to whom it is for.
"""

from collections import Counter
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor
from torch import distributed as dist

from strategies.wiring import Transfer

Group = Sequence[int]


class Pending:
    """A collective under way."""

    def __init__(self, finish: Callable[[], list[Tensor]]) -> None:
        self.wait = finish


class Messages:
    """The messages of one rank.

    Args:
        rank: the device of the plan that it is.
        plan_tensors: tags below this are those of the plan's own tensors.
        pairs: for each (source, target) the process group of its messages, where one for all would wait in line.

    Attributes:
        sent: bytes by denoising step.
    """

    def __init__(
        self, rank: int, plan_tensors: int, pairs: dict[tuple[int, int], dist.ProcessGroup] | None = None
    ) -> None:
        self.rank, self.sent = rank, Counter[int]()
        self._first_tag, self._pairs = plan_tensors, pairs or {}
        self._under_way: list[tuple[Any, Tensor]] = []
        self._posted: dict[int, tuple[Any, Tensor]] = {}

    def send(self, transfer: Transfer, tensor: Tensor, step: int) -> None:
        """Send a tensor of the plan."""
        assert transfer.source == self.rank
        group = self._pairs.get((self.rank, transfer.target))
        work = dist.isend(tensor, transfer.target, group=group, tag=transfer.tensor)
        self.sent[step] += tensor.nbytes
        self._under_way.append((work, tensor))

    def post(self, transfer: Transfer, empty: Tensor) -> None:
        """Be ready to receive a tensor of the plan."""
        group = self._pairs.get((transfer.source, self.rank))
        work = dist.irecv(empty, transfer.source, group=group, tag=transfer.tensor)
        self._posted[transfer.tensor] = (work, empty)

    def receive(self, transfer: Transfer) -> Tensor:
        """Wait for a tensor of the plan."""
        work, tensor = self._posted.pop(transfer.tensor)
        work.wait()
        return tensor

    def start(self, number: int, operation: str, group: Group, parts: Sequence[Tensor], step: int) -> Pending:
        """Start a collective.

        Args:
            number: its own, the same on all members.
            operation: as in ``strategies.plan.Collective``.
            group: the members.
            parts: for ``all_to_all`` one tensor for each member; else one.
            step: what its bytes count to.

        Returns:
            What is under way; its result is one tensor of each member for ``all_gather`` and ``all_to_all``, else one.
        """
        tag, place = self._first_tag + 2 * number, list(group).index(self.rank)
        if operation == "send_recv":
            ahead, behind = group[(place + 1) % len(group)], group[place - 1]
            return self._exchange({ahead: parts[0]}, {behind: parts[0].new_empty(parts[0].shape)}, tag, step)
        if operation == "all_reduce":
            return self._all_reduce(group, parts[0], tag, step)
        if operation not in ("all_gather", "all_to_all"):
            raise ValueError(f"no such operation: {operation}")
        return self._to_all(group, list(parts) * (1 if len(parts) > 1 else len(group)), tag, step)

    def _to_all(self, group: Group, parts: Sequence[Tensor], tag: int, step: int) -> Pending:
        """Send each member its part; all parts have the same shape."""
        others = [member for member in group if member != self.rank]
        outgoing = {member: parts[place] for place, member in enumerate(group) if member != self.rank}
        own = parts[list(group).index(self.rank)]
        exchange = self._exchange(
            outgoing, {member: own.new_empty(own.shape) for member in others}, tag, step
        )

        def finish() -> list[Tensor]:
            arrived = dict(zip(others, exchange.wait(), strict=True))
            return [arrived.get(member, own) for member in group]

        return Pending(finish)

    def _all_reduce(self, group: Group, tensor: Tensor, tag: int, step: int) -> Pending:
        """Let each member sum its share of all, and gather the shares; the second half runs when it is waited for."""
        size = len(group)
        if tensor.numel() % size:
            raise ValueError(f"{tensor.numel()} numbers are no multiple of {size} members")
        first = self._to_all(group, list(tensor.flatten().chunk(size)), tag, step)

        def finish() -> list[Tensor]:
            share = torch.stack(first.wait()).sum(0)
            shares = self._to_all(group, [share] * size, tag + 1, step).wait()
            return [torch.cat(shares).view_as(tensor)]

        return Pending(finish)

    def _exchange(
        self, outgoing: dict[int, Tensor], incoming: dict[int, Tensor], tag: int, step: int
    ) -> Pending:
        outgoing = {member: tensor.contiguous() for member, tensor in outgoing.items()}
        sends = [dist.P2POp(dist.isend, tensor, member, tag=tag) for member, tensor in outgoing.items()]
        receives = [dist.P2POp(dist.irecv, tensor, member, tag=tag) for member, tensor in incoming.items()]
        works = dist.batch_isend_irecv(sends + receives)
        self.sent[step] += sum(tensor.nbytes for tensor in outgoing.values())

        def finish() -> list[Tensor]:
            for work in works:
                work.wait()
            outgoing.clear()  # they had to live until now
            return list(incoming.values())

        return Pending(finish)

    def finish(self) -> None:
        """Wait until all that was sent is on its way."""
        for work, _ in self._under_way:
            work.wait()
        self._under_way.clear()
