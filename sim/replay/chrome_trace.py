"""Exports: a trace as Chrome trace events, which Perfetto (https://ui.perfetto.dev) and chrome://tracing open.

Each simulated device is a process with the threads ``compute`` and ``communication``, a memory counter and the
messages that reach it; bubbles have a process of their own. Arrows lead from the op that wrote a message to the one
that first reads it.

Source: Trace Event Format, Google, 2016.
"""

import json
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any, Final

from profiles.errors import InputError
from sim.replay.metrics import bubbles, idle_s
from sim.replay.timelines import COLLECTIVE, collective_bars, compute_bars, memory_curves
from strategies.plans.actions import Action, FrozenAction
from strategies.plans.traces import Span, Trace

COMPUTE_THREAD: Final = 1
COMMUNICATION_THREAD: Final = 2
THREADS: Final = {COMPUTE_THREAD: "compute", COMMUNICATION_THREAD: "communication"}

Event = dict[str, Any]


def write_chrome_trace(trace: Trace, path: Path) -> None:
    """Write a trace as Chrome trace events in JSON.

    Raises:
        InputError: the file cannot be written.
    """
    try:
        with Path(path).open("w", encoding="utf-8") as file:
            file.write('{"traceEvents":[')
            for number, event in enumerate(_events(trace)):  # one by one: all at once would take much memory
                file.write("," * (number > 0) + _json(event))
            file.write(f"],{_json(_rest(trace))[1:]}\n")
    except OSError as error:
        raise InputError(f"trace '{path}' cannot be written: {error.strerror or error}") from None


def chrome_trace(trace: Trace) -> dict[str, Any]:
    """Return a trace as a Chrome trace object; its times are in microseconds, to the nanosecond."""
    return {"traceEvents": list(_events(trace)), **_rest(trace)}


def _events(trace: Trace) -> Iterator[Event]:
    """Yield names, then the events, kind by kind; ops come before the arrows that touch them."""
    for events in (
        _names, _compute_events, _collective_events, _bubble_events, _transfer_events, _flow_events, _memory_events,
    ):  # fmt: skip
        yield from events(trace)


def _rest(trace: Trace) -> dict[str, Any]:
    """What stands beside the events of a trace."""
    ratio = max(0.0, idle_s(trace) / trace.end_s) if trace.end_s else 0.0
    return {"displayTimeUnit": "ms", "otherData": {"iteration_s": trace.end_s, "bubble_ratio": ratio}}


def _json(value: Mapping[str, Any]) -> str:
    return json.dumps(value, allow_nan=False, separators=(",", ":"))


def _process(device: int) -> int:
    """A device's process; it is not 0, which some viewers take for the idle process of the operating system."""
    return device + 1


def _nanoseconds(time_s: float) -> int:
    return round(time_s * 1e9)


def _complete(
    track: tuple[int, int], name: str, category: str, span: Span, arguments: dict[str, Any]
) -> Event:
    """An event with a duration; both ends are rounded, so that neighbours still meet and never overlap.

    Args:
        track: process and thread.
        name: what stands on it.
        category: by which viewers filter.
        span: start and end in seconds.
        arguments: what viewers list beside it.
    """
    start, end = map(_nanoseconds, span)
    return {
        "ph": "X", "pid": track[0], "tid": track[1], "name": name, "cat": category,
        "ts": start / 1e3, "dur": (end - start) / 1e3, "args": arguments,
    }  # fmt: skip


def _compute_events(trace: Trace) -> Iterator[Event]:
    for bar in compute_bars(trace):
        track = _process(bar.device), COMPUTE_THREAD
        arguments = _arguments(bar.action)
        yield _complete(track, str(bar.action), bar.category, (bar.start_s, bar.end_s), arguments)


def _arguments(action: Action) -> dict[str, Any]:
    fields = action._asdict()
    kind = fields.pop("kind", None)
    if kind is not None and fields["micro_batch"] < 0:
        del fields["micro_batch"]
    if isinstance(action, FrozenAction):
        fields["samples per device"] = fields.pop("samples")
    return fields


def _collective_events(trace: Trace) -> Iterator[Event]:
    for bar in collective_bars(trace):
        track = _process(bar.device), COMMUNICATION_THREAD
        yield _complete(track, bar.operation, COLLECTIVE, (bar.start_s, bar.end_s), {"bytes": bar.size_bytes})


def _bubble_events(trace: Trace) -> Iterator[Event]:
    track = _process(trace.plan.num_devices), COMPUTE_THREAD
    for bubble in bubbles(trace):
        name = "idle: " + ", ".join(map(str, bubble.positions))
        arguments = {"devices": list(bubble.positions)}
        yield _complete(track, name, "bubble", (bubble.start_s, bubble.end_s), arguments)


def _transfer_events(trace: Trace) -> Iterator[Event]:
    """The time of each message on the wire; several may be under way, so they are asynchronous events."""
    for slot, transfer in enumerate(trace.wiring.transfers):
        if transfer is None:
            continue
        tensor = trace.plan.tensors[transfer.tensor]
        common = {
            "pid": _process(transfer.target), "tid": COMMUNICATION_THREAD, "id": slot, "cat": "transfer",
            "name": f"{tensor.role} from device {transfer.source}",
        }  # fmt: skip
        arguments = {"tensor": str(tensor), "bytes": transfer.size_bytes}
        yield {"ph": "b", **common, "ts": _nanoseconds(trace.sent[slot]) / 1e3, "args": arguments}
        yield {"ph": "e", **common, "ts": _nanoseconds(trace.arrived[slot]) / 1e3}


def _flow_events(trace: Trace) -> Iterator[Event]:
    """An arrow for each message that an op reads; it touches both ops at their start, where they are open."""
    readers = _first_readers(trace)
    for slot, transfer in enumerate(trace.wiring.transfers):
        if transfer is None or slot not in readers:
            continue
        tensor = trace.plan.tensors[transfer.tensor]
        common: Event = {"tid": COMPUTE_THREAD, "id": slot, "cat": "message", "name": tensor.role}
        common["args"] = {"tensor": str(tensor), "bytes": transfer.size_bytes}
        source, written = trace.wiring.writers[transfer.tensor]
        start, end = trace.starts[source][written], trace.starts[transfer.target][readers[slot]]
        yield {"ph": "s", "pid": _process(source), "ts": _nanoseconds(start) / 1e3, **common}
        yield {
            "ph": "f", "bp": "e", "pid": _process(transfer.target), "ts": _nanoseconds(end) / 1e3, **common,
        }  # fmt: skip


def _first_readers(trace: Trace) -> dict[int, int]:
    """For each message the index of the first op on its target that reads it."""
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
    """The names of processes and threads, in the order in which they are to be shown."""
    for device in range(trace.plan.num_devices):
        yield from _name(_process(device), f"device {device}", THREADS.items())
    yield from _name(_process(trace.plan.num_devices), "bubbles", [(COMPUTE_THREAD, "idle devices")])


def _name(process: int, name: str, threads: Iterable[tuple[int, str]]) -> Iterator[Event]:
    yield _metadata("process_name", process, 0, {"name": name})
    yield _metadata("process_sort_index", process, 0, {"sort_index": process})
    for thread, title in threads:
        yield _metadata("thread_name", process, thread, {"name": title})
        yield _metadata("thread_sort_index", process, thread, {"sort_index": thread})


def _metadata(name: str, process: int, thread: int, arguments: dict[str, Any]) -> Event:
    return {"ph": "M", "name": name, "pid": process, "tid": thread, "ts": 0, "args": arguments}
