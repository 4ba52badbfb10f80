"""Metrics: the quantities of a result, each a function of a trace."""

from collections.abc import Iterable, Iterator, Sequence
from itertools import chain
from operator import sub

from profiles.checks import sum_in_order
from strategies.plans.bubbles import Bubble, find_bubbles
from strategies.plans.traces import Span, Trace


def bubbles(trace: Trace) -> list[Bubble]:
    """Return the spans in which the same set of devices is idle, in order of time."""
    return find_bubbles([trace.busy(device) for device in range(trace.plan.num_devices)], trace.end_s)


def busy_s(trace: Trace) -> float:
    """Return the mean over devices of the seconds in which compute runs."""
    ends, starts = chain.from_iterable(trace.ends), chain.from_iterable(trace.starts)
    return float(sum_in_order(map(sub, ends, starts))) / trace.plan.num_devices


def idle_s(trace: Trace) -> float:
    """Return the mean over devices of the seconds in which no compute runs."""
    return max(0.0, trace.end_s - busy_s(trace))  # a sum of spans may round up


def collective_s(trace: Trace, numbers: Iterable[int] | None = None) -> float:
    """Return the mean over devices of the seconds in which one of some, or all, collectives runs, exposed or not."""
    spans: list[list[Span]] = [[] for _ in trace.plan.ops]
    for number in range(len(trace.collectives)) if numbers is None else numbers:
        span = trace.collectives[number]
        for device in trace.plan.collectives[number].devices:
            spans[device].append(span)
    return sum_in_order(map(_union_s, spans)) / trace.plan.num_devices


def exposed_communication_s(trace: Trace) -> float:
    """Return the mean over devices of idle seconds while something awaited, or ahead of it, is on the wire.

    Waiting for a port that others hold is idle time, but not this.
    """
    wire, total = wire_spans(trace), 0.0
    for device, ends in enumerate(trace.ends):
        for seconds in waited_s(trace, wire, device, range(len(ends))):
            total += seconds
        if trace.plan.kept:
            before = ends[-1] if ends else 0.0
            kept = (trace.wiring.slots.get(key) for key in trace.plan.kept if key[1] == device)
            spans = (wire[slot] for slot in kept if slot is not None)
            total += _union_s((max(a, before), b) for a, b in spans)
    return total / trace.plan.num_devices


def waited_s(trace: Trace, wire: Sequence[Span], device: int, ops: range) -> Iterator[float]:
    """Yield for each op of a device that waits the seconds in which its inputs are on the wire."""
    before = trace.ends[device][ops.start - 1] if ops.start else 0.0
    part = slice(ops.start, ops.stop)
    times = trace.wiring.waits[device][part], trace.starts[device][part], trace.ends[device][part]
    for slots, start, end in zip(*times, strict=True):
        if start > before and slots:
            if len(slots) == 1:  # most often
                sent, arrived = wire[slots[0]]
                awaited_s = arrived - (sent if sent > before else before)
                if awaited_s > 0:
                    yield awaited_s
            else:
                yield _union_s((max(wire[s][0], before), wire[s][1]) for s in slots)
        before = end


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
