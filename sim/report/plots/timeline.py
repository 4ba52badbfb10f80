"""One trace over time: a Gantt chart with its idle spans and collectives, and the memory of its devices."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from math import ceil
from typing import TYPE_CHECKING, Any, Final

import numpy as np

from profiles.errors import InputError
from profiles.units import GIB, MILLISECOND
from sim.outcomes.results import Result
from sim.replay.metrics import idle_s
from sim.replay.timelines import (
    COLLECTIVE,
    FROZEN,
    Bar,
    CollectiveBar,
    MemoryCurve,
    collective_bars,
    compute_bars,
    idle_spans,
    memory_curves,
)
from sim.report.numbers import milliseconds
from sim.report.plots.charts import (
    IDLE_FACE,
    IDLE_HATCH,
    INK,
    LIMIT,
    PLAIN,
    add_grid,
    add_legend,
    chart,
    contrast,
    inches,
    set_title,
)
from sim.report.plots.plot_data import plot_trace
from strategies.plans.actions import PatchAction, StageAction
from strategies.plans.traces import Span, Trace

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure
    from matplotlib.patches import Patch

COLOURS: Final = {
    "forward": "#0072B2",
    "extra forward": "#56B4E9",
    "backward": "#E69F00",
    "input backward": "#8C510A",
    "weight backward": "#F0E442",
    "optimizer": "#CC79A7",
    FROZEN: "#009E73",
    COLLECTIVE: "#D55E00",
}
SHADES: Final = 8
"""Stages of a device that shades still tell apart; the units of a shard are more."""
IDLE: Final = "idle"
FINEST: Final = 4000
"""Parts of the axis of time that can be told apart, at most: twice the dots of a picture."""
Box = tuple[float, float, float, float]
"""Left, right, upper and lower edge."""
Colour = tuple[float, float, float]


WHOLE: Final = "#7A7A7A"
ALONE: Final = "#0072B2"
"""The colour of an image that is never divided, that of forward passes."""
WHOLE_IMAGE: Final = "whole image"
MOST: Final = 8
"""Patches with an entry in the legend; of so many or fewer each has the same colour in every picture."""


@dataclass(frozen=True, slots=True)
class PatchColours:
    """Colours of the patches of a timeline.

    Attributes:
        whole_steps: steps in which the whole image passes at once.
        colours: of the whole image and of all patches, by name.
        named: what the legend names.
    """

    whole_steps: frozenset[int]
    colours: Mapping[str, str]
    named: list[str]

    @classmethod
    def of(cls, bars: Iterable[Bar]) -> PatchColours:
        """Return the colours of some bars; a step that has one patch alone is one of the whole image."""
        import matplotlib as mpl
        from matplotlib.colors import to_hex

        patches: dict[int, set[int]] = {}
        for bar in bars:
            if isinstance(bar.action, PatchAction):
                patches.setdefault(bar.action.step, set()).add(bar.action.patch)
        count = max((max(numbers) for numbers in patches.values()), default=-1) + 1
        whole_steps = frozenset(step for step, numbers in patches.items() if numbers == {0})
        shades = mpl.colormaps["viridis"](np.arange(count) * 0.95 / (max(MOST, count) - 1))
        several = {f"patch {number}": to_hex(shade) for number, shade in enumerate(shades) if count > 1}
        named = [*[WHOLE_IMAGE] * bool(whole_steps), *list(several)[:: max(1, ceil(count / MOST))]]
        return cls(whole_steps, {WHOLE_IMAGE: WHOLE if count > 1 else ALONE} | several, named)

    def name(self, action: PatchAction) -> str:
        """Return the label of a patch in the legend."""
        return WHOLE_IMAGE if action.step in self.whole_steps else f"patch {action.patch}"

    def label(self, action: PatchAction, room: float) -> str:
        """Return the label of a bar: patch and step, or less where there is no room for so many letters."""
        step = f"@{action.step}"
        words = [step] if action.step in self.whole_steps else [f"{action.patch}{step}", str(action.patch)]
        return next((word for word in words if len(word) <= room), "")


@dataclass(frozen=True, slots=True)
class TimelineInfo:
    """One iteration as a Gantt chart; times in seconds.

    Attributes:
        bars: what each device computes.
        idle: for each device when it is idle.
        collectives: what runs on the communication streams.
        end_s: the end of the iteration.
        bubble_ratio: share of the devices' time in which they are idle.
        cross_iteration: the frozen work belongs to the next iteration.
    """

    bars: list[Bar]
    idle: list[list[Span]]
    collectives: list[CollectiveBar]
    end_s: float
    bubble_ratio: float
    cross_iteration: bool

    @property
    def shaded(self) -> bool:
        """Whether stages of the same device differ in shade."""
        return max((bar.chunk for bar in self.bars), default=0) < SHADES


def plot_timeline_info(trace: Trace | Result) -> TimelineInfo:
    """Return the values that ``plot_timeline`` draws."""
    trace = plot_trace(trace)
    return TimelineInfo(
        bars=compute_bars(trace),
        idle=idle_spans(trace),
        collectives=collective_bars(trace),
        end_s=trace.end_s,
        bubble_ratio=max(0.0, idle_s(trace) / trace.end_s) if trace.end_s else 0.0,
        cross_iteration=trace.plan.cross_iteration,
    )


def plot_timeline(trace: Trace | Result, title: str = "", ax: Axes | None = None) -> Figure:
    """Return the Gantt chart of one iteration: one row per simulated device, collectives in a lane below."""
    info = plot_timeline_info(trace)
    num_devices = len(info.idle)
    width, row_height = 12.0, max(0.16, min(0.62, 18 / num_devices))
    figure, axes = chart(width, 1.35 + row_height * num_devices, ax)
    if ax is not None:
        width, height = inches(ax)
        width, row_height = width + 1.0, height / num_devices
    _draw_timeline(axes, info, (width - 1.0) / max(info.end_s, 1e-12), row_height)
    add_legend(axes, "below", _timeline_legend(info))
    set_title(axes, title, *_figures(info))
    return figure


def plot_timelines_info(traces: Mapping[str, Trace | Result]) -> dict[str, TimelineInfo]:
    """Return the values that ``plot_timelines`` draws, by name.

    Raises:
        InputError: there is no trace.
    """
    if not traces:
        raise InputError("there is no trace: nothing to plot")
    return {name: plot_timeline_info(trace) for name, trace in traces.items()}


def plot_timelines(traces: Mapping[str, Trace | Result], title: str = "", columns: int = 2) -> Figure:
    """Return the Gantt charts of several traces side by side, on one axis of time and with one legend.

    Args:
        traces: what is drawn, by its name.
        title: of the figure.
        columns: charts that stand in a row.
    """
    from sim.report.plots.chart import Chart

    infos = plot_timelines_info(traces)
    lines, devices = ceil(len(infos) / columns), max(len(info.idle) for info in infos.values())
    end_s, width = max(info.end_s for info in infos.values()), 14.0 / columns
    row_height = max(0.1, min(0.3, 4 / devices))
    figure = Chart(figsize=(14.0, 0.9 + lines * (0.75 + row_height * devices)), layout="constrained")
    for number, (name, info) in enumerate(infos.items(), start=1):
        _, axes = chart(0.0, 0.0, figure.add_subplot(lines, columns, number))
        _draw_timeline(axes, info, (width - 0.9) / max(end_s, 1e-12), row_height)
        axes.set_xlim(0.0, max(end_s, 1e-12) / MILLISECOND)
        axes.set_ylim(devices - 0.45, -0.55)
        axes.set_xlabel("time in ms" if number > len(infos) - columns else "")
        set_title(axes, name, *_figures(info))
    entries = {str(patch.get_label()): patch for info in infos.values() for patch in _timeline_legend(info)}
    add_legend(axes, "below", sorted(entries.values(), key=lambda patch: patch.get_label() == IDLE))
    figure.suptitle(title, x=0.01, ha="left", fontsize=12, color=INK)
    return figure


def _figures(info: TimelineInfo) -> tuple[str, str]:
    """Duration and bubble ratio in words."""
    return milliseconds(info.end_s), f"bubble ratio {100 * info.bubble_ratio:.1f} %"


def _draw_timeline(axes: Axes, info: TimelineInfo, inches_per_s: float, row_height: float) -> None:
    """Draw idle spans, ops and collectives; lines part what is so wide that they do not hide it."""
    foot, narrow_s, end_s = 0.2 if info.collectives else 0.42, info.end_s / 400, info.end_s
    idle = [(*span, row - 0.42, row + foot) for row, spans in enumerate(info.idle) for span in spans]
    wide = [box for box in idle if box[1] - box[0] > narrow_s]
    _add_boxes(axes, wide, facecolor=IDLE_FACE, edgecolor=IDLE_HATCH, hatch="////", linewidth=0.0)
    if narrow := _seen([box for box in idle if box[1] - box[0] <= narrow_s], end_s):
        _add_boxes(axes, narrow, facecolor=IDLE_FACE, linewidth=0.0)
    patches, groups = PatchColours.of(info.bars), dict[tuple[Colour, bool], list[Box]]()
    for bar in info.bars:
        if bar.duration_s > 0:
            box = (bar.start_s, bar.end_s, bar.device - 0.42, bar.device + foot)
            look = _face(bar, patches, shaded=info.shaded), bar.duration_s > narrow_s
            groups.setdefault(look, []).append(box)
    for (face, is_wide), boxes in groups.items():
        edge, width = ("white", 0.5) if is_wide else (face, 0.1)
        _add_boxes(
            axes, boxes if is_wide else _seen(boxes, end_s), facecolor=face, edgecolor=edge, linewidth=width
        )
    lanes = [(bar.start_s, bar.end_s, bar.device + 0.25, bar.device + 0.42) for bar in info.collectives]
    _add_boxes(axes, lanes, facecolor=COLOURS[COLLECTIVE], edgecolor=COLOURS[COLLECTIVE], linewidth=0.5)
    _number_bars(axes, info, patches, (foot - 0.42) / 2, (inches_per_s, row_height))
    devices = range(0, len(info.idle), max(1, ceil(0.16 / row_height)))
    axes.set(
        xlim=(0.0, max(end_s, 1e-12) / MILLISECOND), ylim=(len(info.idle) - 0.45, -0.55), xlabel="time in ms"
    )
    axes.set_yticks(
        [device + (foot - 0.42) / 2 for device in devices], [f"GPU {device}" for device in devices]
    )
    axes.tick_params(axis="y", length=0)
    axes.spines["left"].set_visible(False)
    axes.xaxis.set_major_formatter(PLAIN)


def _add_boxes(axes: Axes, boxes: Iterable[Box], **style: Any) -> None:  # noqa: ANN401
    """Draw rectangles; their times are given in seconds and drawn in milliseconds."""
    from matplotlib.collections import PolyCollection

    corners = [
        [(left * 1e3, top), (right * 1e3, top), (right * 1e3, bottom), (left * 1e3, bottom)]
        for left, right, top, bottom in boxes
    ]
    axes.add_collection(PolyCollection(corners, **style))


def _seen(boxes: Iterable[Box], end_s: float) -> list[Box]:
    """Boxes of which those too near to one another to be told apart are one; row by row, in order of time."""
    near_s, joined = end_s / FINEST, list[Box]()
    for box in boxes:
        if joined and joined[-1][2:] == box[2:] and box[1] - joined[-1][0] <= near_s:
            joined[-1] = (joined[-1][0], *box[1:])
        else:
            joined.append(box)
    return joined


def _face(bar: Bar, patches: PatchColours, *, shaded: bool) -> Colour:
    from matplotlib.colors import to_rgb

    if isinstance(bar.action, PatchAction):
        return to_rgb(patches.colours[patches.name(bar.action)])
    return _shade(COLOURS[bar.category], bar.chunk if shaded else 0)


def _shade(colour: str, chunk: int) -> Colour:
    """Return a colour, lighter for later stages of the same device, but never as light as idle time."""
    from matplotlib.colors import to_rgb

    share = 0.65 * (1.0 - 0.55**chunk)
    red, green, blue = (value + (1.0 - value) * share for value in to_rgb(colour))
    return red, green, blue


def _number_bars(
    axes: Axes, info: TimelineInfo, patches: PatchColours, middle: float, scale: tuple[float, float]
) -> None:
    """Write the micro-batch, or the patch and its step, into each bar that is wide enough."""
    inches_per_s, row_height = scale
    size = min(8.0, 72 * row_height * 0.4)
    look: dict[str, Any] = {"ha": "center", "va": "center_baseline", "fontsize": size, "clip_on": True}
    for bar in info.bars:
        room = (72 * bar.duration_s * inches_per_s / size - 0.3) / 0.65
        text = _number(bar, patches, room)
        if size >= 4 and text and len(text) < room:
            time_ms, colour = (
                (bar.start_s + bar.end_s) / 2 / MILLISECOND,
                _face(bar, patches, shaded=info.shaded),
            )
            axes.text(time_ms, bar.device + middle, text, color=contrast(colour), **look)


def _number(bar: Bar, patches: PatchColours, room: float) -> str:
    if isinstance(bar.action, PatchAction):
        return patches.label(bar.action, room)
    if isinstance(bar.action, StageAction) and bar.action.micro_batch >= 0:
        return str(bar.action.micro_batch)
    return ""


def _timeline_legend(info: TimelineInfo) -> list[Patch]:
    from matplotlib.patches import Patch

    present = {
        bar.category for bar in info.bars if bar.duration_s > 0 and not isinstance(bar.action, PatchAction)
    }
    names = {FROZEN: "frozen layers of the next iteration" if info.cross_iteration else "frozen layers"}
    handles = [
        Patch(facecolor=colour, label=names.get(name, name))
        for name, colour in COLOURS.items()
        if name in present
    ]
    patches = PatchColours.of(info.bars)
    handles += [Patch(facecolor=patches.colours[name], label=name) for name in patches.named]
    if info.collectives:
        handles.append(Patch(facecolor=COLOURS[COLLECTIVE], label="collective"))
    if any(info.idle):
        hatch: dict[str, Any] = {
            "facecolor": IDLE_FACE,
            "edgecolor": IDLE_HATCH,
            "hatch": "////",
            "linewidth": 0.0,
        }
        handles.append(Patch(label=IDLE, **hatch))
    return handles


@dataclass(frozen=True, slots=True)
class MemoryInfo:
    """Memory of every device over one iteration, and what a device has; None: unlimited."""

    curves: list[MemoryCurve]
    capacity_bytes: float | None


def plot_memory_info(trace: Trace | Result) -> MemoryInfo:
    """Return the values that ``plot_memory`` draws."""
    trace = plot_trace(trace)
    return MemoryInfo(memory_curves(trace), trace.plan.placement.cluster.device.memory_bytes)


def plot_memory(trace: Trace | Result, title: str = "", ax: Axes | None = None) -> Figure:
    """Return the memory of each device over one iteration, as steps."""
    import matplotlib as mpl

    trace = plot_trace(trace)
    info = plot_memory_info(trace)
    figure, axes = chart(10.0, 4.6, ax)
    every = ceil(len(info.curves) / 16)
    colours = mpl.colormaps["viridis"]
    for number, curve in enumerate(info.curves):
        axes.step(
            [time / MILLISECOND for time in curve.times_s], [size / GIB for size in curve.sizes_bytes],
            where="post", linewidth=1.4, color=colours(0.9 * number / max(1, len(info.curves) - 1)),
            label=f"GPU {curve.device}" if number % every == 0 else None,
        )  # fmt: skip
    if info.capacity_bytes is not None:
        axes.axhline(info.capacity_bytes / GIB, color=LIMIT, linestyle="--", label="capacity")
    axes.set(xlim=(0.0, max(trace.end_s, 1e-12) / MILLISECOND), xlabel="time in ms", ylabel="memory in GiB")
    axes.set_ylim(bottom=0.0)
    axes.xaxis.set_major_formatter(PLAIN)
    add_grid(axes)
    add_legend(axes, "right")
    top = max(info.curves, key=lambda curve: curve.peak_bytes)
    set_title(axes, title, f"peak {top.peak_bytes / GIB:.1f} GiB on GPU {top.device}")
    return figure
