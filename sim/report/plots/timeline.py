"""One trace over time: a Gantt chart with its idle spans and collectives, and what memory holds."""

import re
from collections.abc import Iterable, Mapping
from math import ceil
from typing import Any, Final, NamedTuple

import matplotlib as mpl
import numpy as np
from matplotlib.axes import Axes
from matplotlib.collections import PolyCollection
from matplotlib.colors import to_hex, to_rgb
from matplotlib.figure import Figure
from matplotlib.patches import Patch

from profiles.errors import InputError, counted, shown
from profiles.units import GIB, MILLISECOND, FloatArray
from sim.outcomes.results import Result
from sim.replay import timelines
from sim.replay.metrics import bubble_ratio
from sim.replay.timelines import COLLECTIVE, FROZEN, Bar
from sim.report.plots import charts
from sim.report.plots.charts import LOOKS, plot_trace
from sim.report.words import milliseconds
from strategies.plans.actions import PatchAction, StageAction
from strategies.plans.traces import Trace

__all__ = ["plot_memory", "plot_timeline", "plot_timelines"]

COLOURS: Final = LOOKS["work"]
COLLECTIVE_COLOUR: Final = "#D55E00"
WHOLE_IMAGE: Final = "whole image"
WHOLE, ALONE = "#7A7A7A", "#0072B2"
"""Colours of a whole image: before it is divided, and of one that never is, which is that of forward passes."""
MOST: Final = 8
"""Patches with an entry in the legend; of so many or fewer each has the same colour in every picture."""
SHADES: Final = 8
"""Stages of a device that shades still tell apart; the units of a shard are more."""
NARROW: Final = 1 / 400
"""Share of the time below which a bar has no white edge, which would hide it."""
Box = tuple[float, float, float, float]
"""Left, right, upper and lower edge."""


class Kind(NamedTuple):
    """The bars of one kind of work, or of one patch, with their colour, and whether the legend names them."""

    name: str
    colour: str
    bars: list[Bar]
    named: bool = True


def bar_kinds(bars: Iterable[Bar]) -> list[Kind]:
    """Return the bars that take time by kind; a step of a sampler with a single patch is one of the whole image."""
    bars = [bar for bar in bars if bar.duration_s > 0]
    patches: dict[int, set[int]] = {}
    for bar in bars:
        if isinstance(bar.action, PatchAction):
            patches.setdefault(bar.action.step, set()).add(bar.action.patch)
    kinds: dict[str, list[Bar]] = {}
    for bar in bars:
        name = bar.category
        if isinstance(action := bar.action, PatchAction):
            name = WHOLE_IMAGE if patches[action.step] == {0} else f"patch {action.patch}"
        kinds.setdefault(name, []).append(bar)
    count = 1 + max((max(numbers) for numbers in patches.values()), default=0)
    shades = mpl.colormaps["viridis"](np.arange(count) * 0.95 / (max(MOST, count) - 1))
    several = {f"patch {number}": to_hex(shade) for number, shade in enumerate(shades)}
    named = {*COLOURS, WHOLE_IMAGE, *list(several)[:: ceil(count / MOST)]}
    colours = COLOURS | {WHOLE_IMAGE: WHOLE if count > 1 else ALONE} | several
    return [Kind(name, shade, kinds[name], name in named) for name, shade in colours.items() if name in kinds]


def plot_timeline(trace: Trace | Result, title: str = "", ax: Axes | None = None) -> Figure:
    """Return the Gantt chart of one iteration: one row per simulated device, collectives in a lane below."""
    trace = plot_trace(trace)
    devices = trace.plan.num_devices
    figure, axes = charts.chart(12.0, 1.35 + max(0.16, min(0.62, 18 / devices)) * devices, ax)
    charts.add_legend(axes, "below", _draw_timeline(axes, title, trace, trace.end_s, devices))
    return figure


def plot_timelines(traces: Mapping[str, Trace | Result], title: str = "", columns: int = 2) -> Figure:
    """Return the Gantt charts of several traces side by side, on one axis of time and with one legend.

    ``columns`` charts stand in a row.
    """
    if not isinstance(traces, Mapping) or not traces:
        raise InputError(f"traces is {shown(traces)}, must be a dict of results, or of their traces, by name")
    named = {name: plot_trace(trace) for name, trace in traces.items()}
    lines, devices = ceil(len(named) / columns), max(trace.plan.num_devices for trace in named.values())
    end_s = max(trace.end_s for trace in named.values())
    figure = charts.new_figure(14.0, 0.9 + lines * (0.75 + max(0.1, min(0.3, 4 / devices)) * devices))
    entries: dict[str, Patch] = {}
    for number, (name, trace) in enumerate(named.items(), start=1):
        _, axes = charts.chart(0.0, 0.0, figure.add_subplot(lines, columns, number))
        drawn = _draw_timeline(axes, name, trace, end_s, devices)
        entries |= {str(entry.get_label()): entry for entry in drawn}
        axes.set_xlabel("time in ms" if number > len(named) - columns else "")
    charts.add_legend(axes, "below", sorted(entries.values(), key=lambda entry: entry.get_label() == "idle"))
    figure.suptitle(title, x=0.01, ha="left", fontsize=12, color=charts.ink())
    return figure


def _draw_timeline(axes: Axes, title: str, trace: Trace, end_s: float, devices: int) -> list[Patch]:
    """Draw idle spans, ops and collectives on a chart of so much time and so many rows; return its legend.

    The title ends in the duration, of a sampler with its denoising steps, the bubble ratio and the GPUs of a row.
    """
    every, lanes = timelines.compute_bars(trace), timelines.collective_bars(trace)
    foot, entries = 0.2 if lanes else 0.42, list[Patch]()
    frozen = "frozen layers of the next iteration" if trace.plan.cross_iteration else "frozen layers"
    spans = enumerate(timelines.idle_spans(trace))
    idle = [(*span, row - 0.42, row + foot) for row, of_row in spans for span in of_row]
    hatched: dict[str, Any] = {
        "facecolor": charts.IDLE_FACE,
        "edgecolor": charts.IDLE_HATCH,
        "hatch": "////",
        "linewidth": 0,
    }
    _add_boxes(axes, idle, **hatched)
    width, height = charts.inches(axes)
    per_s, row_height = width / max(end_s, 1e-12), height / devices
    shaded = max((bar.chunk for bar in every), default=0) < SHADES
    for kind in bar_kinds(every):
        for chunk in sorted({bar.chunk for bar in kind.bars}) if shaded else [None]:
            bars = [bar for bar in kind.bars if chunk in (None, bar.chunk)]
            # lighter for later stages, but never as light as idle time
            share = 0.65 * (1.0 - 0.55 ** (chunk or 0))
            face = tuple(value + (1.0 - value) * share for value in to_rgb(kind.colour))
            wide = [bar.duration_s > NARROW * end_s for bar in bars]
            boxes = [(bar.start_s, bar.end_s, bar.device - 0.42, bar.device + foot) for bar in bars]
            edges = ["white" if one else face for one in wide]
            _add_boxes(axes, boxes, facecolor=face, edgecolor=edges, linewidth=[0.1 + 0.4 * w for w in wide])
            _number_bars(axes, bars, face, (foot - 0.42) / 2, (per_s, row_height))
        if kind.named:
            entries.append(Patch(facecolor=kind.colour, label=frozen if kind.name == FROZEN else kind.name))
    below = [(bar.start_s, bar.end_s, bar.device + 0.25, bar.device + 0.42) for bar in lanes]
    _add_boxes(axes, below, facecolor=COLLECTIVE_COLOUR, edgecolor=COLLECTIVE_COLOUR, linewidth=0.5)
    entries += [Patch(facecolor=COLLECTIVE_COLOUR, label=COLLECTIVE)] if lanes else []
    entries += [Patch(label="idle", **hatched)] if idle else []
    rows = range(0, trace.plan.num_devices, max(1, ceil(0.16 / row_height)))
    axes.set(xlim=(0.0, max(end_s, 1e-12) / MILLISECOND), ylim=(devices - 0.45, -0.55), xlabel="time in ms")
    axes.set_yticks([row + (foot - 0.42) / 2 for row in rows], [f"GPU {row}" for row in rows])
    axes.tick_params(axis="y", length=0)
    axes.spines["left"].set_visible(False)
    axes.xaxis.set_major_formatter(charts.PLAIN)
    steps, copies = {getattr(bar.action, "step", None) for bar in every} - {None}, trace.plan.placement.copies
    took = f"{counted(len(steps), 'step')} of " * bool(steps) + milliseconds(trace.end_s)
    ratio = f"bubble ratio {100 * bubble_ratio(trace):.1f} %"
    charts.set_title(axes, title, took, ratio, f"each row stands for {copies} GPUs" * (copies > 1))
    return entries


def _add_boxes(axes: Axes, boxes: Iterable[Box], **style: Any) -> None:  # noqa: ANN401
    """Draw rectangles; their times are given in seconds and drawn in milliseconds."""
    corners = [
        [(left * 1e3, top), (right * 1e3, top), (right * 1e3, bottom), (left * 1e3, bottom)]
        for left, right, top, bottom in boxes
    ]
    axes.add_collection(PolyCollection(corners, **style))


def _number_bars(
    axes: Axes, bars: Iterable[Bar], face: tuple[float, ...], middle: float, scale: tuple[float, float]
) -> None:
    """Write the micro-batch, or the patch and its step, into each bar that is wide enough."""
    inches_per_s, row_height = scale
    size = min(8.0, 72 * row_height * 0.4)
    for bar in bars if size >= 4 else ():
        room, action = (72 * bar.duration_s * inches_per_s / size - 0.3) / 0.65, bar.action
        words = []
        if isinstance(action, PatchAction):
            words = [f"{action.patch}@{action.step}", str(action.patch)]
        elif isinstance(action, StageAction) and action.micro_batch >= 0:
            words = [str(action.micro_batch)]
        if fitting := [word for word in words if len(word) < room]:
            time_ms = (bar.start_s + bar.end_s) / 2 / MILLISECOND
            axes.text(
                time_ms, bar.device + middle, fitting[0], color=charts.contrast(face), fontsize=size,
                ha="center", va="center_baseline", clip_on=True,
            )  # fmt: skip


def plot_memory(trace: Trace | Result, title: str = "", ax: Axes | None = None) -> Figure:
    """Return the memory of the fullest device over one iteration by what it holds, with that of the others."""
    trace = plot_trace(trace)
    curves, there = timelines.memory_curves(trace), trace.plan.placement.cluster.device.memory_bytes
    fullest = max(curves, key=lambda curve: curve.peak_bytes)
    times_s, by_role = timelines.memory_kinds(trace, fullest.device)
    kinds: dict[str, FloatArray] = {}
    for role, sizes in by_role.items():
        name = LOOKS["roles"].get(re.sub(r" (\d+|to .*|gradient .*)$", "", role), role.replace("_", "-"))
        kinds[name] = kinds.get(name, 0.0) + sizes / GIB
    steady = sorted(kinds, key=lambda kind: (np.ptp(kinds[kind]) > 0, -kinds[kind].max()))
    figure, axes = charts.chart(12.0, 4.6, ax)
    stacked = [kinds[kind] for kind in steady]
    axes.stackplot(times_s / MILLISECOND, *stacked, labels=steady, step="post", colors=charts.COLOURS)
    for curve in curves if len(curves) > 1 else ():
        sizes_gib = [size / GIB for size in curve.sizes_bytes]
        times_ms = [time / MILLISECOND for time in curve.times_s]
        axes.step(
            times_ms,
            sizes_gib,
            where="post",
            linewidth=0.6,
            color=charts.ink(),
            label="each GPU" if curve is fullest else None,
        )
    if there is not None:
        axes.axhline(there / GIB, color=charts.LIMIT, linestyle="--", label="capacity")
    axes.set(xlim=(0.0, max(trace.end_s, 1e-12) / MILLISECOND), xlabel="time in ms", ylabel="memory in GiB")
    axes.set_ylim(bottom=0.0)
    axes.xaxis.set_major_formatter(charts.PLAIN)
    charts.add_grid(axes)
    charts.add_legend(axes, "below")
    charts.set_title(axes, title, f"peak {fullest.peak_bytes / GIB:.1f} GiB on GPU {fullest.device}")
    return figure
