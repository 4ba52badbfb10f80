"""Waits: idle seconds of a trace by the operation and the link that devices wait for."""

from collections.abc import Iterable, Iterator
from typing import Final, NamedTuple

from sim.replay.metrics import wire_spans
from strategies.plans.plan import Collective
from strategies.plans.traces import Trace
from strategies.plans.wiring import Transfer

MESSAGE: Final = "message"
"""Stands for the operation where one device sends to another."""


class Way(NamedTuple):
    """An operation of collectives, or ``MESSAGE``, and whether it crosses nodes."""

    operation: str
    between_nodes: bool


def awaited_s(trace: Trace) -> dict[Way, float]:
    """Return the mean idle seconds of a device while something it waits for is on the wire, by operation.

    Together they are the exposed communication; of several things awaited at once the last to arrive counts.
    """
    wire, ways = wire_spans(trace), _ways(trace)
    seconds: dict[Way, float] = {}
    for slots, since, start in _idle(trace):
        until = start
        awaited = sorted(
            ((wire[slot], ways[slot]) for slot in slots if slot in ways), key=lambda pair: pair[0][1]
        )
        for (sent, arrived), way in reversed(awaited):
            begin, end = max(sent, since), min(arrived, until)
            if end > begin:
                seconds[way] = seconds.get(way, 0.0) + (end - begin) / trace.plan.num_devices
                until = begin
    return seconds


def _idle(trace: Trace) -> Iterator[tuple[Iterable[int], float, float]]:
    """Yield slots that a device waits for and the span: before its ops, and after the last for kept tensors."""
    for device, waits in enumerate(trace.wiring.waits):
        before = 0.0
        for slots, start, end in zip(waits, trace.starts[device], trace.ends[device], strict=True):
            if slots and start > before:
                yield slots, before, start
            before = end
        kept = (trace.wiring.slots.get(key) for key in trace.plan.kept if key[1] == device)
        yield [slot for slot in kept if slot is not None], before, trace.end_s


def _ways(trace: Trace) -> dict[int, Way]:
    """Return the way of each slot that goes over the wire."""
    ways = {
        slot: Way(MESSAGE, crosses(trace, (transfer.source, transfer.target)))
        for slot, transfer in enumerate(trace.wiring.transfers)
        if isinstance(transfer, Transfer)
    }
    far: dict[object, bool] = {}
    for slots, collective in zip(trace.wiring.collective_sends, trace.plan.collectives, strict=True):
        key = collective.devices, collective.group, collective.subgroup
        if key not in far:
            far[key] = between_nodes(trace, collective)
        ways |= dict.fromkeys(slots, Way(collective.operation, far[key]))
    return ways


def crosses(trace: Trace, positions: Iterable[int]) -> bool:
    """Return whether the first GPUs of some positions are in several nodes."""
    placement = trace.plan.placement
    return len({placement.node(placement.rank(0, position, 0)) for position in positions}) > 1


def members(trace: Trace, collective: Collective) -> tuple[int, ...]:
    """Return the GPUs that take part in a collective together."""
    return trace.plan.placement.groups(collective.devices, collective.group, collective.subgroup)[0]


def between_nodes(trace: Trace, collective: Collective) -> bool:
    """Return whether the GPUs of a collective are in several nodes."""
    return len(set(map(trace.plan.placement.node, members(trace, collective)))) > 1
