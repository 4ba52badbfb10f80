"""Messages between ranks, every byte of which is counted when it is handed to the network.

Collectives are carried out by point-to-point stand-ins, so that their bytes can be counted: each member sends what the
ring algorithm would have it send (nccl-tests, doc/PERFORMANCE.md), straight to whom it is for. The tensors are the
passes' own; that a library's collective sends as often is not shown by this.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import timedelta
from typing import Any, Final

import torch
from torch import Tensor
from torch import distributed as dist

from profiles.collectives import sent_bytes
from strategies.plans.plan import Collective
from strategies.plans.wiring import Transfer
from validate.sampling_runs.script import Direction
from validate.sampling_runs.settings import WIDENING

PATIENCE_S: Final = 25.0
"""After this long without an answer a rank gives up on the others."""

Group = Sequence[int]


@dataclass(slots=True)
class Sent:
    """What one rank sent in one message of a plan, or as its part of a collective.

    Attributes:
        kind: the tensor's role, or the operation.
        step: the denoising step that it counts to.
        planned_bytes: what the plan says, in the precision of the run.
        size_bytes: what was handed to the network.
    """

    kind: str
    step: int
    planned_bytes: float
    size_bytes: int = 0


class Pending:
    """A collective under way."""

    def __init__(self, finish: Callable[[], list[Tensor]]) -> None:
        self.wait = finish


class Messages:
    """The messages of one rank.

    Args:
        rank: the device of the plan that it is.
        plan_tensors: tags below this are those of the plan's own tensors.
        device: where the tensors lie.

    Attributes:
        sent: what it sent, in order.
    """

    def __init__(self, rank: int, plan_tensors: int, device: torch.device) -> None:
        self.rank, self.sent = rank, list[Sent]()
        self._first_tag, self._device = plan_tensors, device
        self._groups: dict[Direction, dist.ProcessGroup] = {}
        self._under_way: list[tuple[Any, Tensor]] = []
        self._posted: dict[int, tuple[Any, Tensor]] = {}

    def open(self, direction: Direction | None) -> None:
        """Connect both ends of a direction by a word, or all ranks; all of them call this, in the same order.

        A direction has a process group of its own: NCCL runs what one group sends and receives in line.
        """
        word = torch.zeros(1, device=self._device)
        if direction is None:
            dist.all_reduce(word)
            return
        group = dist.new_group(list(direction), timeout=timedelta(seconds=PATIENCE_S))
        source, target = direction
        if self.rank in direction:
            self._groups[direction] = group
        if self.rank == source:
            dist.send(word, target, group=group)
        elif self.rank == target:
            dist.recv(word, source, group=group)

    def send(self, transfer: Transfer, tensor: Tensor, kind: str, step: int) -> None:
        """Send a tensor in the place of one of the plan."""
        assert transfer.source == self.rank
        group = self._groups[self.rank, transfer.target]
        work = dist.isend(tensor, transfer.target, group=group, tag=transfer.tensor)
        self.sent.append(Sent(kind, step, WIDENING * transfer.size_bytes, tensor.nbytes))
        self._under_way.append((work, tensor))

    def post(self, transfer: Transfer, empty: Tensor) -> None:
        """Be ready to receive a tensor of the plan."""
        group = self._groups[transfer.source, self.rank]
        work = dist.irecv(empty, transfer.source, group=group, tag=transfer.tensor)
        self._posted[transfer.tensor] = (work, empty)

    def receive(self, transfer: Transfer) -> Tensor:
        """Wait for a tensor of the plan."""
        work, tensor = self._posted.pop(transfer.tensor)
        work.wait()
        return tensor

    def start(self, number: int, collective: Collective, parts: Sequence[Tensor], step: int) -> Pending:
        """Start a collective.

        Args:
            number: its own, the same on all members.
            collective: its operation and its members; its size is only noted.
            parts: for ``all_to_all`` one tensor for each member; else one.
            step: what its bytes count to.

        Returns:
            What is under way; its result is one tensor of each member for ``all_gather`` and ``all_to_all``, else one.
        """
        operation, group = collective.operation, collective.devices
        sent = Sent(operation, step, WIDENING * sent_bytes(operation, collective.size_bytes, len(group)))
        self.sent.append(sent)
        tag, place = self._first_tag + 2 * number, group.index(self.rank)
        if operation == "send_recv":
            ahead, behind = group[(place + 1) % len(group)], group[place - 1]
            return self._exchange({ahead: parts[0]}, {behind: parts[0].new_empty(parts[0].shape)}, tag, sent)
        if operation == "all_reduce":
            return self._all_reduce(group, parts[0], tag, sent)
        if operation not in ("all_gather", "all_to_all"):
            raise ValueError(f"no such operation: {operation}")
        return self._to_all(group, list(parts) * (1 if len(parts) > 1 else len(group)), tag, sent)

    def _to_all(self, group: Group, parts: Sequence[Tensor], tag: int, sent: Sent) -> Pending:
        """Send each member its part; all parts have the same shape."""
        others = [member for member in group if member != self.rank]
        outgoing = {member: parts[place] for place, member in enumerate(group) if member != self.rank}
        own = parts[list(group).index(self.rank)]
        exchange = self._exchange(
            outgoing, {member: own.new_empty(own.shape) for member in others}, tag, sent
        )

        def finish() -> list[Tensor]:
            arrived = dict(zip(others, exchange.wait(), strict=True))
            return [arrived.get(member, own) for member in group]

        return Pending(finish)

    def _all_reduce(self, group: Group, tensor: Tensor, tag: int, sent: Sent) -> Pending:
        """Let each member sum its share of all, and gather the shares; the second half runs when it is waited for."""
        size = len(group)
        if tensor.numel() % size:
            raise ValueError(f"{tensor.numel()} numbers are no multiple of {size} members")
        first = self._to_all(group, list(tensor.flatten().chunk(size)), tag, sent)

        def finish() -> list[Tensor]:
            share = torch.stack(first.wait()).sum(0)
            shares = self._to_all(group, [share] * size, tag + 1, sent).wait()
            return [torch.cat(shares).view_as(tensor)]

        return Pending(finish)

    def _exchange(
        self, outgoing: dict[int, Tensor], incoming: dict[int, Tensor], tag: int, sent: Sent
    ) -> Pending:
        outgoing = {member: tensor.contiguous() for member, tensor in outgoing.items()}
        sends = [dist.P2POp(dist.isend, tensor, member, tag=tag) for member, tensor in outgoing.items()]
        receives = [dist.P2POp(dist.irecv, tensor, member, tag=tag) for member, tensor in incoming.items()]
        works = dist.batch_isend_irecv(sends + receives)
        sent.size_bytes += sum(tensor.nbytes for tensor in outgoing.values())

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
