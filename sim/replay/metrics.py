"""Metrics: the quantities of a result, each a function of a trace."""

from collections.abc import Iterable, Iterator, Sequence
from itertools import chain
from operator import sub
from typing import Final, NamedTuple

from strategies.plans.bubbles import Bubble, find_bubbles
from strategies.plans.plan import Collective, Op
from strategies.plans.traces import Span, Trace
from strategies.plans.wiring import Transfer


def bubbles(trace: Trace) -> list[Bubble]:
    """Return the spans in which the same set of devices is idle, in order of time."""
    return find_bubbles([trace.busy(device) for device in range(trace.plan.num_devices)], trace.end_s)


def busy_s(trace: Trace) -> float:
    """Return the mean over devices of the seconds in which compute runs."""
    ends, starts = chain.from_iterable(trace.ends), chain.from_iterable(trace.starts)
    return float(sum(map(sub, ends, starts))) / trace.plan.num_devices


def idle_s(trace: Trace) -> float:
    """Return the mean over devices of the seconds in which no compute runs."""
    return max(0.0, trace.end_s - busy_s(trace))  # a sum of spans may round up


def bubble_ratio(trace: Trace) -> float:
    """Return the share of the devices' time in which they are idle."""
    return idle_s(trace) / trace.end_s if trace.end_s else 0.0


def collective_s(trace: Trace, numbers: Iterable[int] | None = None) -> float:
    """Return the mean over devices of the seconds in which one of some, or all, collectives runs, exposed or not."""
    spans: list[list[Span]] = [[] for _ in trace.plan.ops]
    for number in range(len(trace.collectives)) if numbers is None else numbers:
        span = trace.collectives[number]
        for device in trace.plan.collectives[number].devices:
            spans[device].append(span)
    return sum(map(_union_s, spans)) / trace.plan.num_devices


def dispatch_s(ops: Iterable[Sequence[Op]]) -> float:
    """Return the most seconds in which the host of one device dispatches its ops."""
    return max((sum(op.host_s for op in row) for row in ops), default=0.0)


def exposed_communication_s(trace: Trace) -> float:
    """Return the mean over devices of idle seconds while something awaited, or ahead of it, is on the wire.

    Waiting for a port that others hold is idle time, but not this.
    """
    return sum(waited_s(trace)) / trace.plan.num_devices


def waited_s(trace: Trace, ops: Sequence[range] | None = None) -> Iterator[float]:
    """Yield for each of ``waits`` the seconds in which what is awaited is on the wire."""
    wire = wire_spans(trace)
    for slots, before, _ in waits(trace, ops):
        yield _union_s((max(wire[s][0], before), wire[s][1]) for s in slots)


def waits(trace: Trace, ops: Sequence[range] | None = None) -> Iterator[tuple[Sequence[int], float, float]]:
    """Yield the slots for which a device waits, and the span: before each of its ops, or some, and at its end.

    ``ops`` are for each device those that may wait; by default all, and one after the last that waits for what is kept.
    """
    for device, span in enumerate(ops or [range(len(ends) + 1) for ends in trace.ends]):
        ends, part = trace.ends[device], slice(span.start, span.stop)
        before = ends[span.start - 1] if span.start else 0.0
        times = trace.wiring.waits[device][part], trace.starts[device][part], ends[part]
        for slots, start, end in zip(*times, strict=True):
            if slots and start > before:
                yield slots, before, start
            before = end
        if span.stop > len(ends):
            kept = (trace.wiring.slots.get(key) for key in trace.plan.kept if key[1] == device)
            yield [slot for slot in kept if slot is not None], before, trace.end_s


def wire_spans(trace: Trace) -> list[Span]:
    """Return the span of each slot on the wire; of a collective's result from the start of those ahead of it."""
    spans = list(zip(trace.sent, trace.arrived, strict=True))
    if not trace.collectives:
        return spans
    since = _queued_since(trace)
    for slots, begin, (_, end) in zip(trace.wiring.collective_sends, since, trace.collectives, strict=True):
        for slot in slots:
            spans[slot] = begin, end
    return spans


def _queued_since(trace: Trace) -> list[float]:
    """Return for each collective when the unbroken run of collectives that it waited for began, or its start.

    It waits for those before it on its stream, and for those whose results it reads.
    """
    wiring, spans = trace.wiring, trace.collectives
    writers = {slot: number for number, slots in enumerate(wiring.collective_sends) for slot in slots}
    since: list[float] = []
    for number, before in enumerate(wiring.before):
        start = spans[number][0]
        read = [writers[slot] for slot in wiring.collective_waits[number] if slot in writers]
        since.append(min([start, *[since[one] for one in (*before, *read) if spans[one][1] == start]]))
    return since


def _union_s(spans: Iterable[Span]) -> float:
    """Return the seconds that spans cover together; empty and inverted ones cover none."""
    total, reach = 0.0, float("-inf")
    for start, end in sorted(spans):
        begin = start if start > reach else reach
        if end > begin:
            total += end - begin
            reach = end
    return total


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
    rank = trace.plan.placement.rank
    ways = {
        slot: Way(
            MESSAGE, between_nodes(trace, [rank(0, end, 0) for end in (transfer.source, transfer.target)])
        )
        for slot, transfer in enumerate(trace.wiring.transfers)
        if isinstance(transfer, Transfer)
    }
    far: dict[object, bool] = {}
    for slots, collective in zip(trace.wiring.collective_sends, trace.plan.collectives, strict=True):
        key = collective.devices, collective.group, collective.subgroup
        if key not in far:
            far[key] = between_nodes(trace, members(trace, collective))
        ways |= dict.fromkeys(slots, Way(collective.operation, far[key]))
    return ways


def members(trace: Trace, collective: Collective) -> tuple[int, ...]:
    """Return the GPUs that take part in a collective together."""
    return trace.plan.placement.groups(collective.devices, collective.group, collective.subgroup)[0]


def between_nodes(trace: Trace, gpus: Iterable[int]) -> bool:
    """Return whether some GPUs are in several nodes."""
    return len(set(map(trace.plan.placement.node, gpus))) > 1
