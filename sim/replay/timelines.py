"""Timelines: the work of every device over time, as plain values for plots and exports."""

from typing import Final, NamedTuple

import numpy as np

from profiles.units import FloatArray
from sim.replay.memory import memory_events, resident_bytes
from sim.replay.metrics import bubbles
from strategies.plans.actions import (
    BACKWARD,
    BACKWARD_INPUT,
    BACKWARD_WEIGHT,
    EXTRA_FORWARD,
    FORWARD,
    OPTIMIZER,
    Action,
    FrozenAction,
    StageAction,
)
from strategies.plans.traces import Span, Trace

CATEGORIES: Final = {
    FORWARD: "forward",
    EXTRA_FORWARD: "extra forward",
    BACKWARD: "backward",
    BACKWARD_INPUT: "input backward",
    BACKWARD_WEIGHT: "weight backward",
    OPTIMIZER: "optimizer",
}
FROZEN: Final = "frozen"
COLLECTIVE: Final = "collective"


class Bar(NamedTuple):
    """One op on a device's compute stream; its times in seconds from the start of the iteration.

    Attributes:
        chunk: the place of its stage among those of its device; 0 where it has no stage.
    """

    device: int
    start_s: float
    end_s: float
    category: str
    action: Action
    chunk: int = 0

    @property
    def duration_s(self) -> float:
        """Seconds it runs."""
        return self.end_s - self.start_s


class CollectiveBar(NamedTuple):
    """One collective on the communication stream of one of its devices."""

    device: int
    start_s: float
    end_s: float
    operation: str
    size_bytes: float


class MemoryCurve(NamedTuple):
    """Bytes on one device over time: from each time on, the bytes beside it.

    A time stands as often as tensors are born or die at it, births first, so the largest value is the peak.
    """

    device: int
    times_s: tuple[float, ...]
    sizes_bytes: tuple[float, ...]

    @property
    def peak_bytes(self) -> float:
        """The most bytes held at any time."""
        return max(self.sizes_bytes)


def category(action: Action) -> str:
    """Return the kind of work of an action in words; a patch is a forward."""
    if isinstance(action, FrozenAction):
        return FROZEN
    return CATEGORIES[action.kind] if isinstance(action, StageAction) else CATEGORIES[FORWARD]


def compute_bars(trace: Trace) -> list[Bar]:
    """Return all ops, device by device, in order of time."""
    bars = []
    for device, row in enumerate(trace.plan.order):
        stages = sorted({action.stage for action in row if not isinstance(action, FrozenAction)})
        for action, (start, end) in zip(row, trace.busy(device), strict=True):
            chunk = 0 if isinstance(action, FrozenAction) else stages.index(action.stage)
            bars.append(Bar(device, start, end, category(action), action, chunk))
    return bars


def collective_bars(trace: Trace) -> list[CollectiveBar]:
    """Return all collectives, once for each of their devices, in the order of the plan."""
    return [
        CollectiveBar(device, start, end, collective.operation, collective.size_bytes)
        for collective, (start, end) in zip(trace.plan.collectives, trace.collectives, strict=True)
        for device in collective.devices
    ]


def idle_spans(trace: Trace) -> list[list[Span]]:
    """Return the idle spans of each device: its bubbles, those that touch joined."""
    spans: list[list[Span]] = [[] for _ in trace.plan.ops]
    for bubble in bubbles(trace):
        for device in bubble.positions:
            idle = spans[device]
            if idle and idle[-1][1] == bubble.start_s:
                idle[-1] = (idle[-1][0], bubble.end_s)
            else:
                idle.append((bubble.start_s, bubble.end_s))
    return spans


def memory_curves(trace: Trace) -> list[MemoryCurve]:
    """Return the bytes on each device, from its resident buffers at 0 to the end of the iteration."""
    devices, times, changes, _ = memory_events(trace)
    curves = []
    for device, resident in enumerate(resident_bytes(trace)):
        here = devices == device
        held = float(resident) + np.cumsum(changes[here])
        moments = (0.0, *times[here].tolist(), trace.end_s)
        sizes = (float(resident), *held.tolist())
        curves.append(MemoryCurve(device, moments, (*sizes, sizes[-1])))
    return curves


def memory_kinds(trace: Trace, device: int) -> tuple[FloatArray, dict[str, FloatArray]]:
    """Return the bytes on one device over time, by names of resident buffers and roles of tensors.

    Returns:
        Times in seconds, as of ``memory_curves``, and for each kind the bytes from each time on.
    """
    devices, moments, changes, tensors = memory_events(trace)
    here = np.flatnonzero(devices == device)
    times = np.concatenate([[0.0], moments[here], [trace.end_s]])
    kinds: dict[str, FloatArray] = {}
    for buffer in trace.plan.resident[device]:
        kinds[buffer.name] = kinds.get(buffer.name, np.zeros(len(times))) + buffer.size_bytes
    named = np.array([trace.plan.roles[tensor] for tensor in tensors[here].tolist()])
    for role in dict.fromkeys(named.tolist()):
        held = np.cumsum(np.where(named == role, changes[here], 0.0))
        kinds[role] = kinds.get(role, np.zeros(len(times))) + np.concatenate([[0.0], held, held[-1:]])
    return times, kinds
