"""Memory: bytes on each device over one iteration, as a consequence of a plan and its times.

A tensor lives on the device that wrote it from its write to its last read there and to the arrival of its last
transfer; on a device that received it, from its arrival to its last read. What a collective writes takes memory from
the collective's start, as it arrives piece by piece. Resident buffers stay. Where one tensor dies in the instant in
which another is born, both count; only the results of a collective can take memory freed at its start.
"""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import chain
from operator import attrgetter

import numpy as np
from numpy.typing import NDArray

from profiles.checks import sum_in_order
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
        collectives = ends[-1] + len(wiring.sources)
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
    """All stays of all tensors: where, how many bytes, when born, and until when needed at least.

    Attributes:
        clock: of the plan.
        tensors: of each stay.
        devices: of each stay.
        sizes: bytes of each stay.
        births: of each stay, an index into the clock.
        needed: stays, once for each time at which one is still needed.
        needs: these times, indices into the clock.
    """

    clock: _Clock
    tensors: IntArray
    devices: IntArray
    sizes: FloatArray
    births: IntArray
    needed: IntArray
    needs: IntArray


Events = tuple[IntArray, IntArray, IntArray]
"""Tensors, devices and moments of the clock, arrays of one length."""


def residencies(wiring: Wiring) -> Residencies:
    """The stays of all tensors of a plan; they depend on its order alone, not on its times."""
    plan, clock, sent = wiring.plan, _Clock.of(wiring), _sent(wiring)
    tensors, devices, births = _joined([_written(wiring, clock), *_births_elsewhere(wiring, clock, sent)])
    stays = _Stays.of(tensors, devices, len(wiring.writers), len(plan.tensors))
    sizes = np.array(plan.sizes_bytes, np.float64)[tensors]
    needed, needs = stays.of_events(_joined(_uses(wiring, clock, stays.homes, sent)))
    if plan.kept:
        kept, ends = stays.of_events(_table((*key, clock.zero + 1) for key in plan.kept))
        needed, needs = np.concatenate([needed, kept]), np.concatenate([needs, ends])
    real = sizes > 0
    number = np.cumsum(real) - 1
    counted = real[needed]
    return Residencies(
        clock,
        tensors[real],
        devices[real],
        sizes[real],
        births[real],
        number[needed[counted]],
        needs[counted],
    )


@dataclass(frozen=True, slots=True)
class _Stays:
    """The numbers of stays: first of tensors where they are written, then of those that lie elsewhere.

    Attributes:
        homes: for each tensor the device that writes it; -1: none.
        first: for each tensor the number of its stay there.
        keys: ``device * tensors + tensor`` of the other stays, ascending.
        numbers: of these.
    """

    homes: IntArray
    first: IntArray
    keys: IntArray
    numbers: IntArray

    @classmethod
    def of(cls, tensors: IntArray, devices: IntArray, written: int, num_tensors: int) -> "_Stays":
        homes, first = np.full((2, num_tensors), -1)
        homes[tensors[:written]] = devices[:written]
        first[tensors[:written]] = np.arange(written)
        keys = devices[written:] * num_tensors + tensors[written:]
        order = np.argsort(keys)
        return cls(homes, first, keys[order], order + written)

    def of_events(self, events: Events) -> tuple[IntArray, IntArray]:
        """For each event of a known stay the number of the stay, and the moment."""
        tensors, devices, moments = events
        found = np.where(self.homes[tensors] == devices, self.first[tensors], -1)
        away = np.flatnonzero(found < 0)
        if len(away) and len(self.keys):
            keys = devices[away] * len(self.homes) + tensors[away]
            at = np.minimum(np.searchsorted(self.keys, keys), len(self.keys) - 1)
            found[away] = np.where(self.keys[at] == keys, self.numbers[at], -1)
        known = found >= 0
        return found[known], moments[known]


def _joined(events: Iterable[Events]) -> Events:
    tensors, devices, moments = (np.concatenate(arrays) for arrays in zip(*events, strict=True))
    return tensors, devices, moments


def _table(rows: Iterable[Sequence[int]]) -> Events:
    """Rows of a tensor, a device and a moment as arrays."""
    table = np.fromiter(chain.from_iterable(rows), np.int64).reshape(-1, 3)
    return table[:, 0], table[:, 1], table[:, 2]


def _sent(wiring: Wiring) -> Events:
    """Tensor, target and slot of all transfers."""
    count = len(wiring.slots)
    table = np.fromiter(chain.from_iterable(wiring.slots), np.int64, 2 * count).reshape(-1, 2)
    slots = np.flatnonzero([source is not None for source in wiring.sources])
    return table[slots, 0], table[slots, 1], slots


def _written(wiring: Wiring, clock: _Clock) -> Events:
    """The births of tensors on the devices that write them, by the end of an op or before it."""
    count = len(wiring.writers)
    writers = np.fromiter(chain.from_iterable(wiring.writers.values()), np.int64, 2 * count).reshape(-1, 2)
    tensors = np.fromiter(wiring.writers, np.int64, count)
    births = np.array(clock.ends)[writers[:, 0]] + writers[:, 1]
    if early := dict(_early_births(wiring, clock)):
        place = {tensor: number for number, tensor in enumerate(wiring.writers)}
        for tensor, moment in early.items():
            births[place[tensor]] = moment
    return tensors, writers[:, 0], births


def _births_elsewhere(wiring: Wiring, clock: _Clock, sent: Events) -> list[Events]:
    """The births of tensors that are given, arrive, or are a collective's."""
    plan, (tensors, targets, slots) = wiring.plan, sent
    return [
        _table((*key, clock.zero) for key in plan.given),
        (tensors, targets, slots + clock.arrivals),
        _table(
            (tensor, device, number)
            for number, collective in enumerate(plan.collectives, clock.starts)
            for device in collective.devices
            for tensor in collective.writes
        ),
    ]


def _uses(wiring: Wiring, clock: _Clock, homes: IntArray, sent: Events) -> list[Events]:
    """What needs a tensor where it lies: ops that read it, messages on their way, collectives."""
    plan, (tensors, _, slots) = wiring.plan, sent
    sizes_bytes = plan.sizes_bytes
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
        (tensors, homes[tensors], slots + clock.arrivals),
        _table(
            (tensor, device, number)
            for number, collective in enumerate(plan.collectives, clock.collectives)
            for tensor in (*collective.reads, *collective.writes)
            if sizes_bytes[tensor]  # the others only say that somebody is ready
            for device in collective.devices
        ),
    ]


def _early_births(wiring: Wiring, clock: _Clock) -> Iterator[tuple[int, int]]:
    """Tensors that ops write before they end, and when."""
    tensors = (
        tensor
        for ops, early in zip(wiring.plan.ops, wiring.early, strict=True)
        for index in sorted(early)
        for _, tensor in ops[index].early
    )
    return ((tensor, number) for number, tensor in enumerate(tensors, clock.early))


def memory_events(trace: Trace, stays: Residencies | None = None) -> tuple[IntArray, FloatArray, FloatArray]:
    """Device, time in seconds and change in bytes of every birth and death, three arrays.

    At equal times births come first; those at the start of a collective come after the deaths.
    """
    return _dated(trace, stays or residencies(trace.wiring))[:3]


def _dated(trace: Trace, stays: Residencies) -> tuple[IntArray, FloatArray, FloatArray, IntArray]:
    """The events, and for each the index of its stay; births are numbered before deaths."""
    times = stays.clock.times(trace)
    born = times[stays.births]
    dead = born.copy()  # an op of no duration may end a rounding before its input arrived
    np.maximum.at(dead, stays.needed, times[stays.needs])
    devices = np.concatenate([stays.devices, stays.devices])
    moments = np.concatenate([born, dead])
    changes = np.concatenate([stays.sizes, -stays.sizes])
    late = (stays.births >= stays.clock.starts) & (stays.births < stays.clock.early)
    turns = np.concatenate([late.view(np.int8) * 2, 3 - (dead > born).view(np.int8) * 2])
    few = np.min_scalar_type(trace.plan.num_devices)  # small integers are sorted by digits
    order = np.lexsort((turns, moments, devices.astype(few)))
    return devices[order], moments[order], changes[order], order


def memory_events_by_role(trace: Trace) -> tuple[IntArray, FloatArray, FloatArray, list[str]]:
    """The events of ``memory_events``, and of each the role of its tensor."""
    stays = residencies(trace.wiring)
    devices, moments, changes, order = _dated(trace, stays)
    roles, tensors = trace.plan.roles, stays.tensors.tolist()
    return devices, moments, changes, [roles[tensors[stay % len(tensors)]] for stay in order.tolist()]


def resident_bytes(trace: Trace) -> FloatArray:
    """The bytes that stay on each device, shape (devices,)."""
    return np.array([sum_in_order(b.size_bytes for b in buffers) for buffers in trace.plan.resident])


def held_bytes(trace: Trace, device: int, moments: FloatArray) -> FloatArray:
    """The bytes of tensors on a device at some moments, in seconds."""
    devices, times, changes = memory_events(trace)
    own = devices == device
    held = np.concatenate([[0.0], np.cumsum(changes[own])])
    return held[np.searchsorted(times[own], moments, side="right")]


def peak_memory_bytes(trace: Trace, stays: Residencies | None = None) -> FloatArray:
    """The largest memory of each device in bytes, shape (devices,)."""
    devices, _, changes = memory_events(trace, stays)
    return _peaks(trace, devices, changes)


def _peaks(trace: Trace, devices: IntArray, changes: FloatArray) -> FloatArray:
    """The largest memory of each device, from all changes of each in the order of time."""
    peaks = np.zeros(trace.plan.num_devices)
    if len(changes):
        held = np.cumsum(changes)
        first = np.concatenate([[0], np.flatnonzero(devices[1:] != devices[:-1]) + 1])
        before = held[first] - changes[first]
        peaks[devices[first]] = np.maximum.reduceat(held, first) - before
    return peaks + resident_bytes(trace)
