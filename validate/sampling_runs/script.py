"""The script: what one rank of a plan does, event by event.

It begins with the opening of every way that messages take, in one order that all ranks share: NCCL connects two ranks
at their first message, and who comes first waits there for the other, whatever it was meant to do meanwhile.
Ops stand in their order. After each come the sends of what it wrote, the receives that are posted now, and, in the
order of the plan, collectives that may start and results that the next op reads. A rank never starts a collective
before its next op's results of earlier ones are there: on a device's communication stream they end first in any case.
"""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass

from profiles.errors import InputError
from strategies.plans.actions import PatchAction
from strategies.plans.plan import Collective, Op, Plan
from strategies.plans.wiring import Transfer, wire

Direction = tuple[int, int]
"""Source and target of messages."""


@dataclass(frozen=True, slots=True)
class Open:
    """Connect source and target of a direction, or, for collectives, all ranks; every rank does it at once."""

    direction: Direction | None


@dataclass(frozen=True, slots=True)
class Compute:
    """Carry out an op."""

    action: PatchAction


@dataclass(frozen=True, slots=True)
class Send:
    """Hand a tensor of the plan to another device."""

    transfer: Transfer
    action: PatchAction


@dataclass(frozen=True, slots=True)
class Post:
    """Be ready to receive a tensor of the plan; ``action`` is that of the op that reads it."""

    transfer: Transfer
    action: PatchAction


@dataclass(frozen=True, slots=True)
class Receive:
    """Wait for a tensor of the plan."""

    transfer: Transfer


@dataclass(frozen=True, slots=True)
class Start:
    """Take part in a collective; ``action`` is that of the next op, or of the last one at the end."""

    number: int
    collective: Collective
    action: PatchAction


@dataclass(frozen=True, slots=True)
class Wait:
    """Wait for the result of a collective."""

    number: int


Event = Open | Compute | Send | Post | Receive | Start | Wait


def script(plan: Plan, device: int) -> list[Event]:
    """Return what a device does.

    Raises:
        DeadlockError: the plan reads what nobody writes.
        InputError: the plan has what a rank cannot do.
    """
    return list(_Reader(plan, device).events())


def opening(plan: Plan, transfers: Iterable[Transfer]) -> Iterator[Open]:
    """Yield what every rank of a plan opens, in the order of all."""
    if plan.collectives:
        yield Open(None)
    yield from map(Open, sorted({(transfer.source, transfer.target) for transfer in transfers}))


class _Reader:
    """Reads a plan with the eyes of one device."""

    def __init__(self, plan: Plan, device: int) -> None:
        self.plan, self.device, self.wiring = plan, device, wire(plan)
        self.ops = plan.ops[device]
        if not self.ops:
            raise InputError(f"device {device} of the plan has nothing to do")
        self.transfers = [transfer for transfer in self.wiring.transfers if transfer is not None]
        self.results = {tensor: n for n, c in enumerate(plan.collectives) for tensor in c.writes}
        self.done: set[int] = set()

    def events(self) -> Iterator[Event]:
        yield from opening(self.plan, self.transfers)
        starts = self._starts()
        for index in range(-1, len(self.ops)):
            if index >= 0:
                yield Compute(self._action(index))
                yield from self._sends(index)
            yield from self._posts(index)
            reads = self._reads(index + 1)
            yield from self._receives(reads)
            yield from self._collectives(starts.get(index, []), reads, index + 1)

    def _action(self, index: int) -> PatchAction:
        op: Op = self.ops[min(index, len(self.ops) - 1)]
        if not isinstance(op.action, PatchAction) or op.early:
            raise InputError(f"{op.action} is no plain pass of a patch")
        return op.action

    def _reads(self, index: int) -> Sequence[int]:
        """Return what an op reads; after the last one, what must lie there at the end."""
        if index < len(self.ops):
            return self.ops[index].reads
        return [tensor for tensor, device in self.plan.kept if device == self.device]

    def _sends(self, index: int) -> Iterator[Event]:
        for tensor in self.ops[index].writes:
            for transfer in self.transfers:
                if transfer.tensor == tensor and transfer.source == self.device:
                    yield Send(transfer, self._action(index))

    def _posts(self, index: int) -> Iterator[Event]:
        for transfer in self.transfers:
            if transfer.target == self.device:
                after = self.plan.posted_after.get((transfer.tensor, self.device), -1)
                if after == index:
                    yield Post(transfer, self._action(self._reader(transfer.tensor)))

    def _reader(self, tensor: int) -> int:
        """Return the first op that reads a tensor; the end, where none does."""
        found = (index for index, op in enumerate(self.ops) if tensor in op.reads)
        return next(found, len(self.ops))

    def _receives(self, reads: Sequence[int]) -> Iterator[Event]:
        for tensor in reads:
            for transfer in self.transfers:
                if transfer.tensor == tensor and transfer.target == self.device:
                    yield Receive(transfer)

    def _starts(self) -> dict[int, list[int]]:
        """Return the own collectives by the op after which they start, not before those that precede them."""
        found: dict[int, list[int]] = {}
        after = -1
        for number, collective in enumerate(self.plan.collectives):
            if self.device in collective.devices:
                writers = [self.wiring.writers[tensor] for tensor in collective.reads]
                after = max([after, *(index for device, index in writers if device == self.device)])
                found.setdefault(after, []).append(number)
        return found

    def _collectives(self, starts: Sequence[int], reads: Sequence[int], index: int) -> Iterator[Event]:
        """Yield what starts and what is waited for, in the order of the plan."""
        awaited = {self.results[tensor] for tensor in reads if tensor in self.results} - self.done
        self.done |= awaited
        for number in sorted(awaited | set(starts)):
            if number in starts:
                yield Start(number, self.plan.collectives[number], self._action(index))
            if number in awaited:
                yield Wait(number)
