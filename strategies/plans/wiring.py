"""Wiring: the deliveries that a plan implies, and who waits for them.

A delivery is a tensor's way to whoever needs it: a transfer where a device reads what another wrote, a signal
where a collective reads it, the result of a collective, which later collectives of its devices may read.
Communication is a consequence of reads and writes; no strategy lists a message.
"""

import math
from dataclasses import dataclass, field
from itertools import product
from typing import NamedTuple

from profiles.errors import DeadlockError
from strategies.plans.actions import FrozenAction
from strategies.plans.plan import Collective, Plan


class Transfer(NamedTuple):
    """One message: a tensor from the device that wrote it to one that reads it."""

    tensor: int
    source: int
    target: int
    size_bytes: float


Slots = tuple[int, ...]
_TO_COLLECTIVES = -1
UNKNOWN = math.inf


@dataclass(slots=True)
class Wiring:
    """Deliveries, numbered as slots, and for each op and collective the slots it needs and makes.

    Attributes:
        plan: the plan.
        sources: for each slot the device that sends a message, or None: a signal or a collective's result, which takes
            no time.
        waits: for each device and op the slots that must have arrived before it starts.
        sends: for each device and op the slots that start when it ends.
        early: for each device and op (offset_s, slots) that start before it ends.
        receives: for each device and op the slots whose receive is posted when it ends.
        posted: for each slot whether its receive is posted by an op.
        collective_waits: for each collective the slots it needs.
        collective_sends: for each collective the slots it completes.
        before: for each collective those that precede it directly on the streams of its devices.
        writers: for each tensor the device and the op that write it.
        slots: for each (tensor, device) the slot that brings it there; device -1 stands for the collectives.
    """

    plan: Plan
    sources: list[int | None] = field(default_factory=list)
    waits: list[list[Slots]] = field(default_factory=list)
    sends: list[list[Slots]] = field(default_factory=list)
    early: list[dict[int, list[tuple[float, Slots]]]] = field(default_factory=list)
    receives: list[dict[int, list[int]]] = field(default_factory=list)
    posted: list[bool] = field(default_factory=list)
    collective_waits: list[Slots] = field(default_factory=list)
    collective_sends: list[Slots] = field(default_factory=list)
    before: list[list[int]] = field(default_factory=list)
    writers: dict[int, tuple[int, int]] = field(default_factory=dict)
    slots: dict[tuple[int, int], int] = field(default_factory=dict)

    @property
    def transfers(self) -> list[Transfer | None]:
        """For each slot the message, or None."""
        sizes_bytes = self.plan.sizes_bytes
        return [
            None if source is None else Transfer(tensor, source, target, sizes_bytes[tensor])
            for (tensor, target), source in zip(self.slots, self.sources, strict=True)
        ]


def wire(plan: Plan) -> Wiring:
    """Return the deliveries of a plan.

    Raises:
        DeadlockError: an op or a collective reads what nobody writes, or what is written there only later.
    """
    wiring, initial = Wiring(plan, before=_previous(plan.collectives)), set(plan.given)
    writers = wiring.writers
    for device, ops in enumerate(plan.ops):
        for index, op in enumerate(ops):
            at = device, index
            for tensor in op.writes:
                writers[tensor] = at
            for _, tensor in op.early:
                writers[tensor] = at
    _wire_collectives(wiring)
    for device, ops in enumerate(plan.ops):
        wiring.waits.append([])
        for index, op in enumerate(ops):
            slots = [
                slot
                for tensor in op.reads
                if (writer := writers.get(tensor)) is None or writer[0] != device or writer[1] >= index
                if (slot := _deliver(wiring, initial, device, index, tensor)) is not None
            ]
            wiring.waits[-1].append(tuple(slots))
    for tensor, device in plan.kept:
        _deliver(wiring, initial, device, len(plan.ops[device]), tensor)
    if plan.blocking:
        _block(wiring)
    _wire_receives(wiring)
    _wire_sends(wiring)
    return wiring


def _wire_collectives(wiring: Wiring) -> None:
    collectives, writers = wiring.plan.collectives, wiring.writers
    there: dict[int, tuple[int, ...]] = {}
    for collective in collectives:
        waits: list[int] = []
        for tensor in collective.reads:
            if tensor in writers:
                waits.append(_slot(wiring, tensor, _TO_COLLECTIVES))
                continue
            holders = [device for device in collective.devices if device in there.get(tensor, ())]
            if not holders:
                waiting = f"{collective.operation} waits for {wiring.plan.tensors[tensor]}"
                raise DeadlockError(
                    f"deadlock: {waiting}, which no collective before it leaves on its devices"
                )
            waits += [_slot(wiring, tensor, device) for device in holders]
        wiring.collective_waits.append(tuple(waits))
        for tensor in collective.writes:
            there[tensor] = there.get(tensor, ()) + collective.devices
    for collective in collectives:
        results = product(collective.writes, collective.devices)
        wiring.collective_sends.append(tuple([_slot(wiring, *result) for result in results]))


def _slot(wiring: Wiring, tensor: int, device: int, source: int | None = None) -> int:
    """The slot of a message from a source, of a signal, or of a collective's result."""
    slot = wiring.slots.setdefault((tensor, device), len(wiring.sources))
    if slot == len(wiring.sources):
        wiring.sources.append(source)
    return slot


def _deliver(
    wiring: Wiring, initial: set[tuple[int, int]], device: int, index: int, tensor: int
) -> int | None:
    """The slot that brings a tensor to a device, or None where it lies there already."""
    writer = wiring.writers.get(tensor)
    if writer is None:
        if (slot := wiring.slots.get((tensor, device))) is None and (tensor, device) not in initial:
            raise DeadlockError(
                f"deadlock: device {device} waits for {wiring.plan.tensors[tensor]}, which nobody writes"
            )
        return slot
    source, at = writer
    if source != device:
        return _slot(wiring, tensor, device, source)
    if at >= index:
        ops = wiring.plan.ops[device]
        raise DeadlockError(
            f"deadlock: device {device} waits in {ops[index].action} for {wiring.plan.tensors[tensor]},"
            f" which it writes only later, in {ops[at].action}"
        )
    return None


def _block(wiring: Wiring) -> None:
    """Let each device wait, between two ops of the pipeline, for all it sends and receives there.

    Frozen work in between waits for none of it, or two devices that fill the same bubble would wait for each other.
    """
    outgoing: dict[tuple[int, int], list[int]] = {}
    for ((tensor, _), slot), source in zip(wiring.slots.items(), wiring.sources, strict=True):
        if source is not None:
            outgoing.setdefault(wiring.writers[tensor], []).append(slot)
    for device, ops in enumerate(wiring.plan.ops):
        sent: list[int] = []
        for index, op in enumerate(ops):
            if sent and not isinstance(op.action, FrozenAction):
                wiring.waits[device][index] += tuple(sent)
                sent = []
            sent += outgoing.get((device, index), ())


def _wire_receives(wiring: Wiring) -> None:
    plan = wiring.plan
    wiring.posted = [False] * len(wiring.sources)
    wiring.receives = [{} for _ in plan.ops]
    conditions = dict(plan.posted_after.items())
    if plan.blocking:
        for device, ops in enumerate(plan.ops):
            before = -1
            for index, op in enumerate(ops):
                if not isinstance(op.action, FrozenAction):
                    for tensor in op.reads:
                        conditions.setdefault((tensor, device), before)
                    before = index
    for (tensor, device), index in conditions.items():
        slot = wiring.slots.get((tensor, device))
        if slot is not None and wiring.sources[slot] is not None and index >= 0:
            wiring.posted[slot] = True
            wiring.receives[device].setdefault(index, []).append(slot)


def _wire_sends(wiring: Wiring) -> None:
    """Note for each op what it sends."""
    of_tensor: dict[int, Slots] = {}
    for (tensor, _), slot in wiring.slots.items():
        if tensor in wiring.writers:
            of_tensor[tensor] = (*of_tensor.get(tensor, ()), slot)
    for ops in wiring.plan.ops:
        wiring.sends.append([tuple([s for t in op.writes for s in of_tensor.get(t, ())]) for op in ops])
        wiring.early.append(
            {
                index: [(offset, of_tensor.get(tensor, ())) for offset, tensor in op.early]
                for index, op in enumerate(ops)
                if op.early
            }
        )


def _previous(collectives: tuple[Collective, ...]) -> list[list[int]]:
    """For each collective those that precede it directly on the streams of its devices."""
    last: dict[tuple[int, int], int] = {}
    before = []
    for number, collective in enumerate(collectives):
        streams = [(device, collective.stream) for device in collective.devices]
        before.append(sorted({last[stream] for stream in streams if stream in last}))
        last.update(dict.fromkeys(streams, number))
    return before


def describe_deadlock(wiring: Wiring, done: list[int], arrived: list[float]) -> str:
    """Return a line that names the tensors each device of a plan waits for."""
    names = {slot: (tensor, device) for (tensor, device), slot in wiring.slots.items()}
    stuck = []
    for device, ops in enumerate(wiring.plan.ops):
        if done[device] == len(ops):
            continue
        missing = [slot for slot in wiring.waits[device][done[device]] if arrived[slot] == UNKNOWN]
        tensors = ", ".join(str(wiring.plan.tensors[names[slot][0]]) for slot in missing)
        stuck.append(f"device {device} waits in {ops[done[device]].action} for {tensors}")
    return "deadlock: " + "; ".join(stuck)
