"""Memory: bytes on each device over one iteration, as a consequence of a plan and its times.

A tensor lives on the device that wrote it from its write to its last read there and to the arrival of its last
transfer; on a device that received it, from its arrival to its last read. What a collective writes takes memory from
the collective's start, as it arrives piece by piece. Resident buffers stay. Where one tensor dies in the instant in
which another is born, both count; only the results of a collective can take memory freed at its start.
"""

from collections.abc import Iterable
from itertools import repeat

import numpy as np
from numpy.typing import NDArray

from profiles.checks import sum_in_order
from strategies.plans.traces import Trace

FloatArray = NDArray[np.float64]
IntArray = NDArray[np.int64]
Key = tuple[int, int]
"""A tensor, and a device on which it lies."""


def _births(trace: Trace) -> tuple[dict[Key, float], set[Key]]:
    """Return the birth of each tensor on each device, in seconds, and the keys that collectives write."""
    plan, wiring, ends = trace.plan, trace.wiring, trace.ends
    born = {(tensor, device): ends[device][op] for tensor, (device, op) in wiring.writers.items()}
    for device, (ops, early) in enumerate(zip(plan.ops, wiring.early, strict=True)):
        if early:
            tensors = (tensor for index in sorted(early) for _, tensor in ops[index].early)
            born |= {(tensor, device): at for tensor, at in zip(tensors, trace.early[device], strict=True)}
    born |= dict.fromkeys(plan.given, 0.0)
    for key, slot in wiring.slots.items():
        if wiring.sources[slot] is not None:
            born[key] = trace.arrived[slot]
    collected: dict[Key, float] = {}
    for collective, (start, _) in zip(plan.collectives, trace.collectives, strict=True):
        for device in collective.devices:
            collected |= zip(zip(collective.writes, repeat(device)), repeat(start))
    return born | collected, set(collected)


def _deaths(trace: Trace, born: dict[Key, float]) -> dict[Key, float]:
    """Return the last use of each tensor on each device, in seconds."""
    plan, wiring, dead = (
        trace.plan,
        trace.wiring,
        dict(born),
    )  # an op of no duration may end before its input arrived

    def need(keys: Iterable[Key], until: float) -> None:
        for key in keys:
            if key in dead and until > dead[key]:
                dead[key] = until

    for device, (ops, ends) in enumerate(zip(plan.ops, trace.ends, strict=True)):
        for op, end in zip(ops, ends, strict=True):
            need([(tensor, device) for tensor in op.reads], end)
    for (tensor, _), slot in wiring.slots.items():
        if wiring.sources[slot] is not None and tensor in wiring.writers:
            need([(tensor, wiring.writers[tensor][0])], trace.arrived[slot])
    for collective, (_, end) in zip(plan.collectives, trace.collectives, strict=True):
        for device in collective.devices:
            need([(tensor, device) for tensor in (*collective.reads, *collective.writes)], end)
    need(plan.kept, trace.end_s)
    return dead


def memory_events(trace: Trace) -> tuple[IntArray, FloatArray, FloatArray]:
    """Return device, time in seconds and change in bytes of every birth and death, three arrays.

    At equal times births come first; those at the start of a collective come after the deaths.
    """
    return _events(trace)[:3]


def memory_events_by_role(trace: Trace) -> tuple[IntArray, FloatArray, FloatArray, list[str]]:
    """Return the events of ``memory_events``, and of each the role of its tensor."""
    devices, moments, changes, tensors = _events(trace)
    return devices, moments, changes, [trace.plan.roles[tensor] for tensor in tensors.tolist()]


def _events(trace: Trace) -> tuple[IntArray, FloatArray, FloatArray, IntArray]:
    """Return the events, and of each its tensor; tensors without bytes have none."""
    births, collected = _births(trace)
    deaths, sizes_bytes = _deaths(trace, births), trace.plan.sizes_bytes
    keys = [key for key in births if sizes_bytes[key[0]] > 0]
    born, dead = (np.array([of[key] for key in keys], np.float64) for of in (births, deaths))
    tensors, places = (np.array([key[i] for key in keys], np.int64) for i in (0, 1))
    sizes = np.array([sizes_bytes[tensor] for tensor, _ in keys], np.float64)
    late = np.array([key in collected for key in keys], np.int8)
    devices, moments, changes = (
        np.tile(places, 2),
        np.concatenate([born, dead]),
        np.concatenate([sizes, -sizes]),
    )
    turns = np.concatenate([late * 2, 3 - (dead > born).astype(np.int8) * 2])
    few = np.min_scalar_type(trace.plan.num_devices)  # small integers are sorted by digits
    order = np.lexsort((turns, moments, devices.astype(few)))
    return devices[order], moments[order], changes[order], np.tile(tensors, 2)[order]


def resident_bytes(trace: Trace) -> FloatArray:
    """Return the bytes that stay on each device, shape (devices,)."""
    return np.array([sum_in_order(b.size_bytes for b in buffers) for buffers in trace.plan.resident])


def peak_memory_bytes(trace: Trace) -> FloatArray:
    """Return the largest memory of each device in bytes, shape (devices,)."""
    devices, _, changes = memory_events(trace)
    peaks = np.zeros(trace.plan.num_devices)
    if len(changes):
        held = np.cumsum(changes)
        first = np.concatenate([[0], np.flatnonzero(devices[1:] != devices[:-1]) + 1])
        before = held[first] - changes[first]
        peaks[devices[first]] = np.maximum.reduceat(held, first) - before
    return peaks + resident_bytes(trace)
