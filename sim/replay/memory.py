"""Memory: bytes on each device over one iteration, as a consequence of a plan and its times.

A tensor lives on the device that wrote it from its write to its last read there and to the arrival of its last
transfer; on a device that received it, from its arrival to its last read. What a collective writes takes memory from
the collective's start, as it arrives piece by piece. Resident buffers stay. Where one tensor dies in the instant in
which another is born, both count; only the results of a collective can take memory freed at its start.
"""

from collections.abc import Iterable, Iterator, Sequence
from itertools import chain, product

import numpy as np
from numpy.typing import ArrayLike, NDArray

from profiles.units import FloatArray
from strategies.plans.traces import Trace

IntArray = NDArray[np.int64]
Moments = tuple[ArrayLike, ArrayLike, ArrayLike]
"""Tensors, the device on which each lies, and a time in seconds."""


def _births(trace: Trace) -> Iterator[Moments]:
    """Yield when tensors are born, but for those that collectives write."""
    for device, (ops, ends, early) in enumerate(zip(trace.plan.ops, trace.ends, trace.early, strict=True)):
        yield _of_ops([op.writes for op in ops], device, ends)
        yield [tensor for op in ops for _, tensor in op.early], device, early
    yield *_columns(trace.plan.given), 0.0
    tensors, _, targets, arrived = _messages(trace)
    yield tensors, targets, arrived


def _uses(trace: Trace) -> Iterator[Moments]:
    """Yield until when tensors are in use."""
    plan, ends = trace.plan, [end for _, end in trace.collectives]
    for device, ops in enumerate(plan.ops):
        yield _of_ops([op.reads for op in ops], device, trace.ends[device])
    tensors, sources, _, arrived = _messages(trace)
    yield tensors, sources, arrived
    yield _of_collectives(
        trace, [(*collective.reads, *collective.writes) for collective in plan.collectives], ends
    )
    yield *_columns(plan.kept), trace.end_s


def _of_ops(tensors: Sequence[Sequence[int]], device: int, ends: Sequence[float]) -> Moments:
    return np.fromiter(chain.from_iterable(tensors), np.int64), device, np.repeat(ends, [*map(len, tensors)])


def _of_collectives(trace: Trace, tensors: Sequence[Sequence[int]], times: Sequence[float]) -> Moments:
    known, collectives = trace.plan.tensors, trace.plan.collectives
    # most only say that something is there
    sized = ([tensor for tensor in row if known[tensor].size_bytes] for row in tensors)
    pairs = [[*product(row, collective.devices)] for row, collective in zip(sized, collectives, strict=True)]
    return *_columns(chain.from_iterable(pairs)), np.repeat(times, [*map(len, pairs)])


def _messages(trace: Trace) -> tuple[IntArray, IntArray, IntArray, FloatArray]:
    """Return of each message its tensor, the devices that send and receive it, and when it has arrived."""
    sources = np.array([-1 if source is None else source for source in trace.wiring.sources], np.int64)
    tensors, targets = _columns(trace.wiring.slots)
    sent = sources >= 0
    return tensors[sent], sources[sent], targets[sent], np.array(trace.arrived)[sent]


def _columns(pairs: Iterable[tuple[int, int]]) -> IntArray:
    return np.fromiter(chain.from_iterable(pairs), np.int64).reshape(-1, 2).T


def _joined(moments: Iterable[Moments], num_devices: int) -> tuple[IntArray, FloatArray]:
    """Return places, tensor x devices + device, and times."""
    rows = [np.broadcast_arrays(*moment) for moment in moments]
    places = [tensors.astype(np.int64) * num_devices + devices for tensors, devices, _ in rows]
    return np.concatenate(places).astype(np.int64), np.concatenate([times for _, _, times in rows])


def memory_events(trace: Trace) -> tuple[IntArray, FloatArray, FloatArray, IntArray]:
    """Return device, time in seconds, change in bytes and tensor of every birth and death; four arrays.

    At equal times births come first; those at the start of a collective come after the deaths. Tensors without bytes
    have no events.
    """
    num_devices, collectives = trace.plan.num_devices, trace.plan.collectives
    own, born = _joined(_births(trace), num_devices)
    begun = _of_collectives(
        trace, [collective.writes for collective in collectives], [start for start, _ in trace.collectives]
    )
    written, started = _joined([begun], num_devices)
    # of what is written twice the later birth counts
    places, last = np.unique(np.concatenate([own, written])[::-1], return_index=True)
    born, late = np.concatenate([born, started])[::-1][last], (last < len(written)).astype(np.int8)
    used, until = _joined(_uses(trace), num_devices)
    at = np.minimum(np.searchsorted(places, used), len(places) - 1)
    there = places[at] == used
    dead = born.copy()  # an op of no duration may end before its input arrived
    np.maximum.at(dead, at[there], until[there])
    tensors, devices = np.divmod(places, num_devices)
    sizes = np.array(trace.plan.sizes_bytes, np.float64)[tensors]
    turns = np.concatenate([late * 2, 3 - (dead > born).astype(np.int8) * 2])
    moments, changes = np.concatenate([born, dead]), np.concatenate([sizes, -sizes])
    few = np.min_scalar_type(num_devices)  # small integers are sorted by digits
    order = np.lexsort((turns, moments, np.tile(devices, 2).astype(few)))
    order = order[changes[order] != 0]
    return np.tile(devices, 2)[order], moments[order], changes[order], np.tile(tensors, 2)[order]


def resident_bytes(trace: Trace) -> FloatArray:
    """Return the bytes that stay on each device, shape (devices,)."""
    return np.array([sum(b.size_bytes for b in buffers) for buffers in trace.plan.resident])


def peak_memory_bytes(trace: Trace) -> FloatArray:
    """Return the largest memory of each device in bytes, shape (devices,)."""
    devices, _, changes, _ = memory_events(trace)
    peaks = np.zeros(trace.plan.num_devices)
    if len(changes):
        held = np.cumsum(changes)
        first = np.concatenate([[0], np.flatnonzero(devices[1:] != devices[:-1]) + 1])
        before = held[first] - changes[first]
        peaks[devices[first]] = np.maximum.reduceat(held, first) - before
    return peaks + resident_bytes(trace)
