"""Memory: bytes on each device over one iteration, as a consequence of a plan and its times.

A tensor lives on the device that wrote it from its write to its last read there and to the arrival of its last
transfer; on a device that received it from its arrival to its last read. What a collective writes is there from
its start, for it is moved piece by piece. Resident buffers stay. Where one tensor dies in the instant in which
another is born, both count; only a collective finds free what was freed when it starts.
"""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import chain
from operator import attrgetter, itemgetter

import numpy as np
from numpy.typing import NDArray

from strategies.plans.traces import Trace
from strategies.plans.wiring import Wiring

FloatArray = NDArray[np.float64]
IntArray = NDArray[np.int64]


@dataclass(frozen=True, slots=True)
class _Clock:
    """Offsets of the times of a trace in one flat list.

    Op ends by device, arrivals, collectives' ends, 0 and the end, collectives' starts, early writes by device.
    """

    ends: list[int]
    arrivals: int
    collectives: int
    zero: int
    starts: int
    early: int

    @classmethod
    def of(cls, wiring: Wiring) -> "_Clock":
        ends = [0]
        for ops in wiring.plan.ops:
            ends.append(ends[-1] + len(ops))
        count = len(wiring.plan.collectives)
        collectives = ends[-1] + len(wiring.transfers)
        zero = collectives + count
        return cls(ends, ends[-1], collectives, zero, zero + 2, zero + 2 + count)

    def times(self, trace: Trace) -> FloatArray:
        starts, ends = ([span[i] for span in trace.collectives] for i in (0, 1))
        early = chain.from_iterable(trace.early)
        return np.fromiter(
            chain(chain.from_iterable(trace.ends), trace.arrived, ends, (0.0, trace.end_s), starts, early),
            dtype=np.float64,
        )


@dataclass(frozen=True, slots=True)
class Residencies:
    """All stays of all tensors: where, how many bytes, when born and when dead (indices into the clock)."""

    clock: _Clock
    tensors: IntArray
    devices: IntArray
    sizes: FloatArray
    births: IntArray
    deaths: IntArray
    death_starts: IntArray


def residencies(wiring: Wiring) -> Residencies:
    """The stays of all tensors of a plan; they depend on its order alone, not on its times.

    A stay is known by one number, ``device * tensors + tensor``; of several births the last counts.
    """
    plan, clock = wiring.plan, _Clock.of(wiring)
    sizes = np.fromiter(map(attrgetter("size_bytes"), plan.tensors), np.float64, len(plan.tensors))
    sent = _sent(wiring)
    keys, moments = _events(_births(wiring, clock, sent), len(sizes))
    known, first, number = np.unique(keys, return_index=True, return_inverse=True)
    births = np.empty_like(known)
    births[number] = moments
    stays = np.argsort(first)
    stays = stays[sizes[known[stays] % max(1, len(sizes))] > 0]
    keys, births = known[stays], births[stays]
    owners, deaths = _deaths(wiring, clock, sent, keys, births)
    return Residencies(
        clock,
        keys % max(1, len(sizes)),
        keys // max(1, len(sizes)),
        sizes[keys % max(1, len(sizes))],
        births,
        deaths,
        np.searchsorted(owners, np.arange(len(keys))),
    )


Events = tuple[IntArray, IntArray, IntArray]
"""Tensors, devices and moments of the clock, arrays of one length."""


def _events(found: Sequence[Events], num_tensors: int) -> tuple[IntArray, IntArray]:
    """Keys and moments of some events."""
    tensors, devices, moments = (np.concatenate(arrays) for arrays in zip(*found, strict=True))
    return devices * num_tensors + tensors, moments


def _table(rows: Iterable[Sequence[int]]) -> Events:
    """Rows of a tensor, a device and a moment as arrays."""
    table = np.fromiter(chain.from_iterable(rows), np.int64).reshape(-1, 3)
    return table[:, 0], table[:, 1], table[:, 2]


def _sent(wiring: Wiring) -> tuple[IntArray, IntArray, IntArray, IntArray]:
    """Tensor, source, target and slot of all transfers."""
    slots = [slot for slot, transfer in enumerate(wiring.transfers) if transfer is not None]
    messages = [transfer for transfer in wiring.transfers if transfer is not None]
    tensors, sources, targets = (
        np.fromiter(map(itemgetter(of), messages), np.int64, len(messages)) for of in range(3)
    )
    return tensors, sources, targets, np.array(slots, np.int64)


def _births(wiring: Wiring, clock: _Clock, sent: tuple[IntArray, ...]) -> list[Events]:
    """The births of all tensors where they are written, and where they arrive."""
    plan, (tensors, _, targets, slots) = wiring.plan, sent
    writers = np.fromiter(chain.from_iterable(wiring.writers.values()), np.int64).reshape(-1, 2)
    written = np.fromiter(wiring.writers, np.int64, len(wiring.writers))
    return [
        (written, writers[:, 0], np.array(clock.ends)[writers[:, 0]] + writers[:, 1]),
        _table(_early_births(wiring, clock)),
        _table((*key, clock.zero) for key in plan.given),
        (tensors, targets, slots + clock.arrivals),
        _table(
            (tensor, device, number)
            for number, collective in enumerate(plan.collectives, clock.starts)
            for device in collective.devices
            for tensor in collective.writes
        ),
    ]


def _deaths(
    wiring: Wiring, clock: _Clock, sent: tuple[IntArray, ...], keys: IntArray, births: IntArray
) -> tuple[IntArray, IntArray]:
    """Stays, ascending, and moments before which they do not end, their births among them."""
    num_tensors = len(wiring.plan.tensors)
    ended, moments = _events(_uses(wiring, clock, sent), num_tensors)
    kept, last = _events([_table((*key, clock.zero + 1) for key in wiring.plan.kept)], num_tensors)
    if len(kept):  # nothing but the end counts
        others = ~np.isin(ended, kept)
        ended, moments = ended[others], moments[others]
    ended, moments = np.concatenate([ended, kept]), np.concatenate([moments, last])
    order = np.argsort(keys)
    at = np.searchsorted(keys[order], ended)
    known = at < len(keys)
    known[known] = keys[order[at[known]]] == ended[known]
    owners = np.concatenate([np.arange(len(keys)), order[at[known]]])
    moments = np.concatenate([births, moments[known]])
    order = np.argsort(owners, kind="stable")
    return owners[order], moments[order]


def _uses(wiring: Wiring, clock: _Clock, sent: tuple[IntArray, ...]) -> list[Events]:
    """What needs a tensor where it lies: ops that read it, messages on their way, collectives."""
    plan, (tensors, sources, _, slots) = wiring.plan, sent
    ops = [op for row in plan.ops for op in row]
    read = [*map(attrgetter("reads"), ops)]
    reads = np.fromiter(map(len, read), np.int64, len(ops))
    devices = np.repeat(np.arange(len(plan.ops)), [len(row) for row in plan.ops])
    return [
        (
            np.fromiter(chain.from_iterable(read), np.int64, reads.sum()),
            np.repeat(devices, reads),
            np.repeat(np.arange(len(ops)), reads),
        ),
        (tensors, sources, slots + clock.arrivals),
        _table(
            (tensor, device, number)
            for number, collective in enumerate(plan.collectives, clock.collectives)
            for device in collective.devices
            for tensor in (*collective.reads, *collective.writes)
        ),
    ]


def _early_births(wiring: Wiring, clock: _Clock) -> Iterator[tuple[int, int, int]]:
    """The births of what ops write before they end."""
    keys = (
        (tensor, device)
        for device, early in enumerate(wiring.early)
        for index in sorted(early)
        for _, tensor in wiring.plan.ops[device][index].early
    )
    return ((*key, number) for number, key in enumerate(keys, clock.early))


def memory_events(trace: Trace, stays: Residencies | None = None) -> tuple[IntArray, FloatArray, FloatArray]:
    """Return (device, time in seconds, change in bytes) of every birth and death.

    At equal times births come first; those that a collective starts with come after the deaths.
    """
    return _dated(trace, stays or residencies(trace.wiring))[:3]


def _dated(trace: Trace, stays: Residencies) -> tuple[IntArray, FloatArray, FloatArray, IntArray]:
    """The events, and of each the index of its stay; births are numbered before deaths."""
    times = stays.clock.times(trace)
    born = times[stays.births]
    dead = np.maximum.reduceat(times[stays.deaths], stays.death_starts) if len(stays.sizes) else born
    dead = np.maximum(dead, born)  # an op of no duration may end a rounding before its input arrived
    devices = np.concatenate([stays.devices, stays.devices])
    moments = np.concatenate([born, dead])
    changes = np.concatenate([stays.sizes, -stays.sizes])
    late = (stays.births >= stays.clock.starts) & (stays.births < stays.clock.early)
    turns = np.concatenate([np.where(late, 2, 0), np.where(dead > born, 1, 3)])
    order = np.lexsort((turns, moments, devices))
    return devices[order], moments[order], changes[order], order


def memory_events_by_role(trace: Trace) -> tuple[IntArray, FloatArray, FloatArray, list[str]]:
    """The events of ``memory_events``, and of each the role of its tensor."""
    stays = residencies(trace.wiring)
    devices, moments, changes, order = _dated(trace, stays)
    roles = [trace.plan.tensors[tensor].role for tensor in stays.tensors.tolist()]
    return devices, moments, changes, [roles[stay % len(roles)] for stay in order.tolist()]


def resident_bytes(trace: Trace) -> FloatArray:
    """The bytes that stay on each device, shape (devices,)."""
    return np.array([sum(b.size_bytes for b in buffers) for buffers in trace.plan.resident])


def peak_memory_bytes(trace: Trace, stays: Residencies | None = None) -> FloatArray:
    """The largest memory of each device in bytes, shape (devices,)."""
    devices, _, changes = memory_events(trace, stays)
    peaks = np.zeros(trace.plan.num_devices)
    if len(changes):
        held = np.cumsum(changes)
        first = np.flatnonzero(np.diff(devices, prepend=-1))
        before = held[first] - changes[first]
        peaks[devices[first]] = np.maximum.reduceat(held, first) - before
    return peaks + resident_bytes(trace)
