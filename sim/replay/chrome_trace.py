"""Exports: a trace as Chrome trace events, which Perfetto (https://ui.perfetto.dev) and chrome://tracing open.

Each simulated device is a process with the threads ``compute`` and ``communication``, a memory counter and the
messages that reach it; bubbles have a process of their own. Arrows lead from the op that wrote a message to the one
that first reads it.

Source: Trace Event Format, Google, 2016.
"""

import json
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, Final

from profiles.errors import InputError
from sim.replay.metrics import bubble_ratio, bubbles
from sim.replay.timelines import COLLECTIVE, collective_bars, compute_bars, memory_curves
from strategies.plans.actions import Action, FrozenAction
from strategies.plans.traces import Span, Trace

COMPUTE_THREAD: Final = 1
COMMUNICATION_THREAD: Final = 2
THREADS: Final = {COMPUTE_THREAD: "compute", COMMUNICATION_THREAD: "communication"}

Event = dict[str, Any]


def write_chrome_trace(trace: Trace, path: Path) -> None:
    """Write a trace as Chrome trace events in JSON."""
    try:
        with Path(path).open("w", encoding="utf-8") as file:
            file.write('{"traceEvents":[')
            for number, event in enumerate(_events(trace)):  # one by one: all at once would take much memory
                file.write("," * (number > 0) + _json(event))
            data = {"iteration_s": trace.end_s, "bubble_ratio": bubble_ratio(trace)}
            file.write(f"],{_json({'displayTimeUnit': 'ms', 'otherData': data})[1:]}\n")
    except OSError as error:
        raise InputError(f"trace '{path}' cannot be written: {error.strerror or error}") from None


def _events(trace: Trace) -> Iterator[Event]:
    """Yield names, then the events, kind by kind; ops come before the arrows that touch them."""
    for events in (_names, _spans, _message_events, _memory_events):
        yield from events(trace)


def _json(value: Mapping[str, Any]) -> str:
    return json.dumps(value, allow_nan=False, separators=(",", ":"))


def _process(device: int) -> int:
    """Return a device's process; it is not 0, which some viewers take for the idle process of the operating system."""
    return device + 1


def _nanoseconds(time_s: float) -> int:
    return round(time_s * 1e9)


def _spans(trace: Trace) -> Iterator[Event]:
    """Yield ops, collectives and bubbles, each with a duration."""
    for bar in compute_bars(trace):
        span = bar.start_s, bar.end_s
        yield _span(bar.device, COMPUTE_THREAD, (str(bar.action), bar.category), span, _arguments(bar.action))
    for one in collective_bars(trace):
        names, span = (one.operation, COLLECTIVE), (one.start_s, one.end_s)
        yield _span(one.device, COMMUNICATION_THREAD, names, span, {"bytes": one.size_bytes})
    for bubble in bubbles(trace):
        names = "idle: " + ", ".join(map(str, bubble.positions)), "bubble"
        span, arguments = (bubble.start_s, bubble.end_s), {"devices": list(bubble.positions)}
        yield _span(trace.plan.num_devices, COMPUTE_THREAD, names, span, arguments)


def _span(
    device: int, thread: int, names: tuple[str, str], span: Span, arguments: Mapping[str, Any]
) -> Event:
    """Return an event with a duration; both ends are rounded, so that neighbours never overlap."""
    start, end = map(_nanoseconds, span)
    return {
        "ph": "X", "pid": _process(device), "tid": thread, "name": names[0], "cat": names[1],
        "ts": start / 1e3, "dur": (end - start) / 1e3, "args": arguments,
    }  # fmt: skip


def _arguments(action: Action) -> dict[str, Any]:
    fields = action._asdict()
    kind = fields.pop("kind", None)
    if kind is not None and fields["micro_batch"] < 0:
        del fields["micro_batch"]
    if isinstance(action, FrozenAction):
        fields["samples per device"] = fields.pop("samples")
    return fields


def _message_events(trace: Trace) -> Iterator[Event]:
    """Yield the time of each message on the wire, asynchronous, and an arrow to the op that first reads it.

    An arrow touches both ops at their start, where they are open.
    """
    readers = _first_readers(trace)
    for slot, transfer in enumerate(trace.wiring.transfers):
        if transfer is None:
            continue
        tensor = trace.plan.tensors[transfer.tensor]
        arguments = {"tensor": str(tensor), "bytes": transfer.size_bytes}
        target = {"pid": _process(transfer.target), "id": slot}
        common = {**target, "tid": COMMUNICATION_THREAD, "cat": "transfer"}
        common["name"] = f"{tensor.role} from device {transfer.source}"
        yield {"ph": "b", **common, "ts": _nanoseconds(trace.sent[slot]) / 1e3, "args": arguments}
        yield {"ph": "e", **common, "ts": _nanoseconds(trace.arrived[slot]) / 1e3}
        if slot in readers:
            arrow = {"tid": COMPUTE_THREAD, "cat": "message", "name": tensor.role, "args": arguments}
            source, written = trace.wiring.writers[transfer.tensor]
            start, end = trace.starts[source][written], trace.starts[transfer.target][readers[slot]]
            yield {"ph": "s", "pid": _process(source), "id": slot, "ts": _nanoseconds(start) / 1e3, **arrow}
            yield {"ph": "f", "bp": "e", **target, "ts": _nanoseconds(end) / 1e3, **arrow}


def _first_readers(trace: Trace) -> dict[int, int]:
    """Return for each message the index of the first op on its target that reads it."""
    readers: dict[int, int] = {}
    for device, ops in enumerate(trace.plan.ops):
        for index, op in enumerate(ops):
            for tensor in op.reads:
                slot = trace.wiring.slots.get((tensor, device))
                if slot is not None:
                    readers.setdefault(slot, index)
    return readers


def _memory_events(trace: Trace) -> Iterator[Event]:
    for curve in memory_curves(trace):
        for time_s, size_bytes in zip(curve.times_s, curve.sizes_bytes, strict=True):
            yield {
                "ph": "C", "pid": _process(curve.device), "tid": 0, "name": "memory",
                "ts": _nanoseconds(time_s) / 1e3, "args": {"bytes": size_bytes},
            }  # fmt: skip


def _names(trace: Trace) -> Iterator[Event]:
    """Yield the names of processes and threads, in the order in which they are to be shown."""
    count = trace.plan.num_devices
    processes = [*((device, f"device {device}", THREADS) for device in range(count))]
    for device, title, threads in (*processes, (count, "bubbles", {COMPUTE_THREAD: "idle devices"})):
        for kind, thread, name in (
            ("process", 0, title),
            *(("thread", key, label) for key, label in threads.items()),
        ):
            common = {"ph": "M", "pid": _process(device), "tid": thread, "ts": 0}
            yield {**common, "name": f"{kind}_name", "args": {"name": name}}
            index = thread if kind == "thread" else _process(device)
            yield {**common, "name": f"{kind}_sort_index", "args": {"sort_index": index}}
