"""Memory: bytes on each device over one iteration, as a consequence of a plan and its times.

A tensor lives on the device that wrote it from its write to its last read there and to the arrival of its last
transfer; on a device that received it from its arrival to its last read. What a collective writes is there from
its start, for it is moved piece by piece. Resident buffers stay. Where one tensor dies in the instant in which
another is born, both count; only a collective finds free what was freed when it starts.
"""

from dataclasses import dataclass
from itertools import chain

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
    devices: IntArray
    sizes: FloatArray
    births: IntArray
    deaths: IntArray
    death_starts: IntArray


def residencies(wiring: Wiring) -> Residencies:
    """The stays of all tensors of a plan; they depend on its order alone, not on its times."""
    clock = _Clock.of(wiring)
    births, deaths = _births_and_deaths(wiring, clock)
    keys = [key for key in births if wiring.plan.tensors[key[0]].size_bytes > 0]
    lists = [deaths.get(key, [births[key]]) for key in keys]
    return Residencies(
        clock,
        np.array([device for _, device in keys], dtype=np.int64),
        np.array([wiring.plan.tensors[tensor].size_bytes for tensor, _ in keys]),
        np.array([births[key] for key in keys], dtype=np.int64),
        np.fromiter(chain.from_iterable(lists), dtype=np.int64),
        np.cumsum([0] + [len(of) for of in lists[:-1]], dtype=np.int64),
    )


def _births_and_deaths(
    wiring: Wiring, clock: _Clock
) -> tuple[dict[tuple[int, int], int], dict[tuple[int, int], list[int]]]:
    plan = wiring.plan
    births = {(tensor, device): clock.ends[device] + at for tensor, (device, at) in wiring.writers.items()}
    births.update(_early_births(wiring, clock))
    births.update(dict.fromkeys(plan.given, clock.zero))
    deaths: dict[tuple[int, int], list[int]] = {}
    for device, ops in enumerate(plan.ops):
        for index, op in enumerate(ops, clock.ends[device]):
            for tensor in op.reads:
                deaths[tensor, device] = [index]
    for slot, transfer in enumerate(wiring.transfers, clock.arrivals):
        if transfer is not None:
            births[transfer.tensor, transfer.target] = slot
            deaths.setdefault((transfer.tensor, transfer.source), []).append(slot)
    for number, collective in enumerate(plan.collectives, clock.collectives):
        for device in collective.devices:
            for tensor in collective.reads:
                deaths.setdefault((tensor, device), []).append(number)
            for tensor in collective.writes:
                births[tensor, device] = clock.starts + number - clock.collectives
                deaths.setdefault((tensor, device), []).append(number)
    for key in plan.kept:
        deaths[key] = [clock.zero + 1]
    return births, deaths


def _early_births(wiring: Wiring, clock: _Clock) -> dict[tuple[int, int], int]:
    """The births of what ops write before they end."""
    keys = [
        (tensor, device)
        for device, early in enumerate(wiring.early)
        for index in sorted(early)
        for _, tensor in wiring.plan.ops[device][index].early
    ]
    return {key: clock.early + number for number, key in enumerate(keys)}


def memory_events(trace: Trace, stays: Residencies | None = None) -> tuple[IntArray, FloatArray, FloatArray]:
    """Return (device, time in seconds, change in bytes) of every birth and death.

    At equal times births come first; those that a collective starts with come after the deaths.
    """
    return _events(trace, stays or residencies(trace.wiring))[:3]


def _events(trace: Trace, stays: Residencies) -> tuple[IntArray, FloatArray, FloatArray, IntArray]:
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
    devices, moments, changes, order = _events(trace, stays)
    births, _ = _births_and_deaths(trace.wiring, stays.clock)
    tensors = [trace.plan.tensors[tensor] for tensor, _ in births]
    roles = [tensor.role for tensor in tensors if tensor.size_bytes > 0]
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
