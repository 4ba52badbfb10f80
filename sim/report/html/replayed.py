"""Replayed: a trace as values that a page draws: what every device does, and what the fullest holds."""

import re
from collections.abc import Iterator, Sequence
from typing import Any, Final

import numpy as np

from profiles.units import GIB, MILLISECOND
from sim.replay.memory import FloatArray, IntArray
from sim.replay.timelines import (
    COLLECTIVE,
    Bar,
    CollectiveBar,
    collective_bars,
    compute_bars,
    memory_curves,
    memory_kinds,
)
from sim.report.plots.timeline import COLOURS
from strategies.plans.actions import PatchAction, StageAction
from strategies.plans.traces import Trace

MOST_BARS: Final = 6000
"""Bars that are drawn one by one; of more, neighbours of a kind become one."""
MOST_TIMES: Final = 1500
"""Times at which memory is drawn; of more, the fullest of each span."""
DIGITS: Final = 6
"""Decimals of times in milliseconds."""
ROLES: Final = (
    (r"saved", "saved activations"),
    (r"hidden", "hidden states"),
    (r"gradient", "gradients of hidden states"),
    (r"frozen", "frozen layers' tensors"),
    (r"input \d+", "inputs of the backbone"),
    (r"skip gradient to .*", "gradients of skips"),
    (r"skip to .*", "skips"),
)
"""Roles of tensors and what a page calls them; what stands nowhere here keeps its name."""


def timeline_of(trace: Trace) -> dict[str, Any]:
    """The bars of each kind of work: devices, starts and durations in milliseconds, words."""
    bars = compute_bars(trace)
    merged = len(bars) > MOST_BARS
    kinds: dict[str, dict[str, list[Any]]] = {}
    for bar in _joined(bars, trace.end_s / MOST_BARS) if merged else bars:
        _add(kinds, bar.category, bar, "" if merged else _words(bar))
    for one in collective_bars(trace):
        _add(kinds, COLLECTIVE, one, one.operation.replace("_", "-"))
    return {
        "devices": trace.plan.num_devices,
        "end_ms": trace.end_s / MILLISECOND,
        "merged": merged,
        "kinds": [
            {"name": name, "colour": COLOURS[name], **kinds[name]} for name in COLOURS if name in kinds
        ],
    }


def _add(kinds: dict[str, dict[str, list[Any]]], name: str, bar: Bar | CollectiveBar, words: str) -> None:
    if bar.end_s > bar.start_s:
        own = kinds.setdefault(name, {"device": [], "start": [], "took": [], "words": []})
        own["device"].append(bar.device)
        own["start"].append(round(bar.start_s / MILLISECOND, DIGITS))
        own["took"].append(round((bar.end_s - bar.start_s) / MILLISECOND, DIGITS))
        own["words"].append(words)


def _words(bar: Bar) -> str:
    """What a bar is, in a few letters."""
    action = bar.action
    if isinstance(action, PatchAction):
        return f"patch {action.patch}, step {action.step}"
    if isinstance(action, StageAction) and action.micro_batch >= 0:
        return f"stage {action.stage}, micro-batch {action.micro_batch}"
    return str(action)


def _joined(bars: Sequence[Bar], gap_s: float) -> Iterator[Bar]:
    """Bars of which neighbours of a kind, less than a gap apart, are one."""
    last: Bar | None = None
    for bar in bars:
        if (
            last
            and (bar.device, bar.category) == (last.device, last.category)
            and bar.start_s - last.end_s < gap_s
        ):
            last = Bar(last.device, last.start_s, bar.end_s, last.category, last.action, last.chunk)
            continue
        if last:
            yield last
        last = bar
    if last:
        yield last


def memory_of(trace: Trace) -> dict[str, Any]:
    """The memory of the fullest device over time, by what it holds, and the peak of each device; in GiB."""
    peaks = [curve.peak_bytes for curve in memory_curves(trace)]
    fullest = int(np.argmax(peaks))
    times_s, found = memory_kinds(trace, fullest)
    kinds: dict[str, FloatArray] = {}
    for role, sizes in found.items():
        kinds[_called(role)] = kinds.get(_called(role), np.zeros(len(times_s))) + sizes
    kept = _kept(times_s, np.sum(list(kinds.values()), axis=0))
    there = trace.plan.placement.cluster.device.memory_bytes
    steady = sorted(kinds, key=lambda kind: (np.ptp(kinds[kind]) > 0, -float(kinds[kind].max())))
    return {
        "device": fullest,
        "times": np.round(times_s[kept] / MILLISECOND, 6).tolist(),
        "kinds": [{"name": kind, "sizes": np.round(kinds[kind][kept] / GIB, 6).tolist()} for kind in steady],
        "peaks": [round(peak / GIB, 4) for peak in peaks],
        "capacity": None if there is None else there / GIB,
    }


def _called(role: str) -> str:
    return next((name for pattern, name in ROLES if re.fullmatch(pattern, role)), role.replace("_", "-"))


def _kept(times_s: FloatArray, total: FloatArray) -> IntArray:
    """Indices of the times that are drawn: all of few, of many the fullest of each span, the first and the last."""
    if len(times_s) <= MOST_TIMES:
        return np.arange(len(times_s))
    spans = np.minimum((times_s / times_s[-1] * MOST_TIMES).astype(int), MOST_TIMES - 1)
    order = np.lexsort((-total, spans))
    first = np.flatnonzero(np.diff(spans[order], prepend=-1))
    return np.unique(np.concatenate([[0], order[first], [len(times_s) - 1]]))
