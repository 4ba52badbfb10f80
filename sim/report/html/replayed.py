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
from sim.report.plots.patches import PatchColours
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

HELD: Final = {
    "weights": "#0072B2",
    "frozen weights": "#56B4E9",
    "text encoders and VAE": "#56B4E9",
    "optimizer": "#004C7A",
    "gradients": "#D55E00",
    "gathered": "#F0E442",
    "saved activations": "#E69F00",
    "activations": "#E69F00",
    "hidden states": "#B15928",
    "gradients of hidden states": "#8A5A00",
    "frozen layers' tensors": "#009E73",
    "inputs of the backbone": "#66C2A5",
    "skips": "#CC79A7",
    "gradients of skips": "#882E72",
    "runtime": "#7A7A7A",
    "moving average": "#7570B3",
    "recomputed block": "#FDBF6F",
    "recomputed layer": "#FDBF6F",
    "decoded rows": "#66A61E",
    "keys and values": "#882E72",
    "joined keys and values": "#CC79A7",
    "latents": "#F0E442",
    "latents of the window": "#F0E442",
    "text encoder": "#A6CEE3",
    "all-gather": "#D55E00",
    "all-to-all": "#D55E00",
    "send-recv": "#D55E00",
}
"""Colours of what memory holds: weights blue, what backward needs orange, frozen layers green."""
OTHERS: Final = ("#B3B3B3", "#5E4FA2", "#A6761D", "#666666")
"""Colours of what stands nowhere above."""


def timeline_of(trace: Trace) -> dict[str, Any]:
    """The bars of each kind of work: devices, starts and durations in milliseconds, words; colours as in pictures.

    Kinds that are not named have no entry in the legend, which would be too long.
    """
    bars = compute_bars(trace)
    merged, patches = len(bars) > MOST_BARS, PatchColours.of(bars)
    colours = patches.colours() | COLOURS
    named, kinds = {*COLOURS, *patches.named()}, dict[str, dict[str, list[Any]]]()
    for bar in _joined(bars, trace.end_s / MOST_BARS, patches) if merged else bars:
        _add(kinds, _kind(bar, patches), bar, "" if merged else _words(bar))
    for one in collective_bars(trace):
        _add(kinds, COLLECTIVE, one, one.operation.replace("_", "-"))
    order = [name for name in colours if name in kinds]
    return {
        "devices": trace.plan.num_devices,
        "end_ms": trace.end_s / MILLISECOND,
        "merged": merged,
        "kinds": [
            {"name": name, "colour": colours[name], "named": name in named, **kinds[name]} for name in order
        ],
    }


def _kind(bar: Bar, patches: PatchColours) -> str:
    """The kind of work of a bar; of a sampler the patch."""
    return patches.name(bar.action) if isinstance(bar.action, PatchAction) else bar.category


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


def _joined(bars: Sequence[Bar], gap_s: float, patches: PatchColours) -> Iterator[Bar]:
    """Bars of which neighbours of a kind, less than a gap apart, are one."""
    last: Bar | None = None
    for bar in bars:
        if (
            last
            and (bar.device, _kind(bar, patches)) == (last.device, _kind(last, patches))
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
        "kinds": [
            {"name": kind, "colour": _colour(kind), "sizes": np.round(kinds[kind][kept] / GIB, 6).tolist()}
            for kind in steady
        ],
        "peaks": [round(peak / GIB, 4) for peak in peaks],
        "capacity": None if there is None else there / GIB,
    }


def _colour(kind: str) -> str:
    """The colour of what memory holds, the same on every page."""
    return HELD.get(kind) or OTHERS[sum(map(ord, kind)) % len(OTHERS)]


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
