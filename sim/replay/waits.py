"""Waits: idle seconds of a trace by the operation and the link that devices wait for."""

from collections.abc import Iterable
from typing import Final, NamedTuple

from sim.replay.metrics import waits, wire_spans
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
    for slots, since, start in waits(trace):
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
