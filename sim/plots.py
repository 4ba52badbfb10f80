"""Plots: each is a pair, ``plot_x_info`` (plain values) and ``plot_x`` (their drawing).

Figures are made without ``pyplot``: no global state, no display needed, and nothing of a notebook's is touched.
Colours are those of Okabe and Ito, which the colour-blind tell apart.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from io import BytesIO
from math import ceil, isfinite
from pathlib import Path
from typing import Any, Final

import matplotlib as mpl
import numpy as np
from matplotlib.axes import Axes
from matplotlib.collections import PolyCollection
from matplotlib.colors import to_rgb
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.patches import Patch

from profiles.errors import InputError
from profiles.units import GIB, MILLISECOND
from sim.metrics import idle_s
from sim.timelines import (
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
from strategies.actions import FrozenAction, StageAction
from strategies.traces import Span, Trace

ENDINGS: Final = (".png", ".svg", ".pdf")
COLOURS: Final = {
    "forward": "#0072B2",
    "extra forward": "#56B4E9",
    "backward": "#E69F00",
    "input backward": "#E69F00",
    "weight backward": "#F0E442",
    "optimizer": "#CC79A7",
    FROZEN: "#009E73",
    COLLECTIVE: "#D55E00",
}
IDLE_FACE: Final = "#F6F6F6"
IDLE_HATCH: Final = "#C4C4C4"
INK: Final = "#222222"
FRONT: Final = "#9A9A9A"
STRATEGY_COLOURS: Final = ("#0072B2", "#E69F00", "#009E73", "#CC79A7", "#56B4E9", "#D55E00", "#222222")
STRATEGY_MARKERS: Final = "osD^vP<X>*p"
DOTS_PER_INCH: Final = 150

Row = Mapping[str, Any]
Box = tuple[float, float, float, float]
"""Left, right, upper and lower edge."""


class Chart(Figure):
    """A figure that a notebook displays although ``pyplot`` never saw it."""

    def _repr_png_(self) -> bytes:
        buffer = BytesIO()
        self.savefig(buffer, format="png", dpi=DOTS_PER_INCH)
        return buffer.getvalue()


def save_figure(figure: Figure, path: Path) -> None:
    """Write a figure in the format of the path's ending; the same figure gives the same bytes.

    Raises:
        InputError: the ending is unknown, or the file cannot be written.
    """
    path = Path(path)
    ending = path.suffix.lower()
    if ending not in ENDINGS:
        raise InputError(f"figure '{path}' must end in {', '.join(ENDINGS[:-1])} or {ENDINGS[-1]}")
    metadata = {".svg": {"Date": None}, ".pdf": {"CreationDate": None}}.get(ending, {})
    try:
        with mpl.rc_context({"svg.hashsalt": "diffusim"}):
            figure.savefig(path, format=ending[1:], dpi=DOTS_PER_INCH, metadata=metadata)
    except OSError as error:
        raise InputError(f"figure '{path}' cannot be written: {error.strerror or error}") from None


def _chart(width: float, height: float) -> tuple[Chart, Axes]:
    figure = Chart(figsize=(width, height), layout="constrained")
    axes = figure.add_subplot()
    axes.spines[["top", "right"]].set_visible(False)
    return figure, axes


def _set_title(axes: Axes, *parts: str) -> None:
    axes.set_title("  |  ".join(part for part in parts if part), loc="left", fontsize=11, color=INK)


def _milliseconds(time_s: float) -> str:
    value = time_s / MILLISECOND
    return f"{value:,.0f} ms" if value >= 1000 else f"{value:.4g} ms"


# ---- timeline


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


def plot_timeline_info(trace: Trace) -> TimelineInfo:
    """Return what ``plot_timeline`` draws."""
    return TimelineInfo(
        bars=compute_bars(trace),
        idle=idle_spans(trace),
        collectives=collective_bars(trace),
        end_s=trace.end_s,
        bubble_ratio=max(0.0, idle_s(trace) / trace.end_s) if trace.end_s else 0.0,
        cross_iteration=trace.plan.cross_iteration,
    )


def plot_timeline(trace: Trace, title: str = "") -> Figure:
    """Return the Gantt chart of one iteration: one row per simulated device, collectives in a lane below."""
    info = plot_timeline_info(trace)
    num_devices = len(info.idle)
    width, row_height = 12.0, max(0.16, min(0.62, 18 / num_devices))
    figure, axes = _chart(width, 1.35 + row_height * num_devices)
    foot = 0.2 if info.collectives else 0.42
    _draw_idle(axes, info, foot)
    _draw_bars(axes, info, foot)
    _draw_collectives(axes, info)
    _number_bars(axes, info, foot, (width - 1.0) / max(info.end_s, 1e-12), row_height)
    _dress_timeline(axes, info, (foot - 0.42) / 2, row_height)
    handles = _timeline_legend(info)
    figure.legend(handles=handles, loc="outside lower center", ncols=len(handles), frameon=False, fontsize=9)
    _set_title(axes, title, _milliseconds(info.end_s), f"bubble ratio {100 * info.bubble_ratio:.1f} %")
    return figure


def _boxes(boxes: Iterable[Box], **style: Any) -> PolyCollection:  # noqa: ANN401
    """Return rectangles; their times are given in seconds and drawn in milliseconds."""
    corners = []
    for start_s, end_s, top, bottom in boxes:
        left, right = start_s / MILLISECOND, end_s / MILLISECOND
        corners.append([(left, top), (right, top), (right, bottom), (left, bottom)])
    return PolyCollection(corners, **style)


def _draw_idle(axes: Axes, info: TimelineInfo, foot: float) -> None:
    boxes = [(*span, row - 0.42, row + foot) for row, spans in enumerate(info.idle) for span in spans]
    axes.add_collection(_boxes(boxes, facecolor=IDLE_FACE, edgecolor=IDLE_HATCH, hatch="////", linewidth=0.0))


def _draw_bars(axes: Axes, info: TimelineInfo, foot: float) -> None:
    """Draw the ops; white lines part them, except where bars are so narrow that nothing else would be seen."""
    narrow_s = info.end_s / 400
    groups: dict[tuple[str, int, bool], list[Box]] = {}
    for bar in info.bars:
        if bar.duration_s > 0:
            box = (bar.start_s, bar.end_s, bar.device - 0.42, bar.device + foot)
            groups.setdefault((bar.category, bar.chunk, bar.duration_s > narrow_s), []).append(box)
    for (category, chunk, wide), boxes in groups.items():
        face = _shade(COLOURS[category], chunk)
        edge, width = ("white", 0.5) if wide else (face, 0.1)
        axes.add_collection(_boxes(boxes, facecolor=face, edgecolor=edge, linewidth=width))


def _draw_collectives(axes: Axes, info: TimelineInfo) -> None:
    boxes = [(bar.start_s, bar.end_s, bar.device + 0.25, bar.device + 0.42) for bar in info.collectives]
    axes.add_collection(
        _boxes(boxes, facecolor=COLOURS[COLLECTIVE], edgecolor=COLOURS[COLLECTIVE], linewidth=0.5)
    )


def _shade(colour: str, chunk: int) -> tuple[float, float, float]:
    """Return a colour, lighter for later stages of the same device."""
    share = 1.0 - 0.6 ** min(chunk, 4)
    red, green, blue = (value + (1.0 - value) * share for value in to_rgb(colour))
    return red, green, blue


def _contrast(colour: Sequence[float]) -> str:
    """Return the colour in which text on a background (red, green, blue, ...) can be read."""
    red, green, blue = colour[:3]
    return "white" if 0.299 * red + 0.587 * green + 0.114 * blue < 0.55 else INK


def _number_bars(axes: Axes, info: TimelineInfo, foot: float, inches_per_s: float, row_height: float) -> None:
    """Write the micro-batch, or the patch, into each bar that is wide enough."""
    size = min(8.0, 72 * row_height * 0.4)
    for bar in info.bars:
        text = _number(bar)
        width = 72 * bar.duration_s * inches_per_s
        if size >= 4 and text and width > size * (0.65 * len(text) + 0.3):
            middle = (bar.start_s + bar.end_s) / 2 / MILLISECOND
            colour = _contrast(_shade(COLOURS[bar.category], bar.chunk))
            axes.text(
                middle, bar.device + (foot - 0.42) / 2, text,
                ha="center", va="center_baseline", fontsize=size, color=colour, clip_on=True,
            )  # fmt: skip


def _number(bar: Bar) -> str:
    if isinstance(bar.action, FrozenAction):
        return ""
    number = bar.action.micro_batch if isinstance(bar.action, StageAction) else bar.action.patch
    return str(number) if number >= 0 else ""


def _dress_timeline(axes: Axes, info: TimelineInfo, middle: float, row_height: float) -> None:
    devices = range(0, len(info.idle), max(1, ceil(0.16 / row_height)))
    axes.set_xlim(0.0, max(info.end_s, 1e-12) / MILLISECOND)
    axes.set_ylim(len(info.idle) - 0.45, -0.55)
    axes.set_yticks([device + middle for device in devices], [f"device {device}" for device in devices])
    axes.tick_params(axis="y", length=0)
    axes.spines["left"].set_visible(False)
    axes.set_xlabel("time in ms")


def _timeline_legend(info: TimelineInfo) -> list[Patch]:
    present = {bar.category for bar in info.bars if bar.duration_s > 0}
    names = {FROZEN: "frozen layers of the next iteration" if info.cross_iteration else "frozen layers"}
    handles = [
        Patch(facecolor=colour, label=names.get(name, name))
        for name, colour in COLOURS.items()
        if name in present
    ]
    if info.collectives:
        handles.append(Patch(facecolor=COLOURS[COLLECTIVE], label="collective"))
    if any(info.idle):
        handles.append(
            Patch(facecolor=IDLE_FACE, edgecolor=IDLE_HATCH, hatch="////", linewidth=0.0, label="idle")
        )
    return handles


# ---- memory


@dataclass(frozen=True, slots=True)
class MemoryInfo:
    """Memory of every device over one iteration, and what a device has; None: unlimited."""

    curves: list[MemoryCurve]
    capacity_bytes: float | None


def plot_memory_info(trace: Trace) -> MemoryInfo:
    """Return what ``plot_memory`` draws."""
    return MemoryInfo(memory_curves(trace), trace.plan.placement.cluster.device.memory_bytes)


def plot_memory(trace: Trace, title: str = "") -> Figure:
    """Return the memory of each device over one iteration, as steps."""
    info = plot_memory_info(trace)
    figure, axes = _chart(10.0, 4.6)
    every = ceil(len(info.curves) / 16)
    colours = mpl.colormaps["viridis"]
    for number, curve in enumerate(info.curves):
        axes.step(
            [time / MILLISECOND for time in curve.times_s], [size / GIB for size in curve.sizes_bytes],
            where="post", linewidth=1.4, color=colours(0.9 * number / max(1, len(info.curves) - 1)),
            label=f"device {curve.device}" if number % every == 0 else None,
        )  # fmt: skip
    if info.capacity_bytes is not None:
        axes.axhline(info.capacity_bytes / GIB, color=COLOURS[COLLECTIVE], linestyle="--", label="capacity")
    axes.set_xlim(0.0, max(trace.end_s, 1e-12) / MILLISECOND)
    axes.set_ylim(bottom=0.0)
    axes.set_xlabel("time in ms")
    axes.set_ylabel("memory in GiB")
    axes.grid(axis="y", color="#E6E6E6", linewidth=0.8)
    figure.legend(loc="outside right upper", frameon=False, fontsize=9)
    top = max(info.curves, key=lambda curve: curve.peak_bytes)
    _set_title(axes, title, f"peak {top.peak_bytes / GIB:.1f} GiB on device {top.device}")
    return figure


# ---- bubble ratios


@dataclass(frozen=True, slots=True)
class BubbleRatioInfo:
    """Bubble ratios by stages (rows) and micro-batches (columns); None where there is no result."""

    stages: list[int]
    micro_batches: list[int]
    ratios: list[list[float | None]]


def plot_bubble_ratios_info(rows: Iterable[Row]) -> BubbleRatioInfo:
    """Return what ``plot_bubble_ratios`` draws; of several results at one point, the smallest ratio.

    Args:
        rows: results under their public keys; those without stages, micro-batches or a ratio are left out.

    Raises:
        InputError: no row is left.
    """
    best: dict[tuple[int, int], float] = {}
    for row in rows:
        parameters = row.get("parameters", {})
        key = parameters.get("pipeline_degree"), parameters.get("micro_batches")
        if all(map(_is_number, (*key, row.get("bubble_ratio")))):
            best[key] = min(best.get(key, 1.0), float(row["bubble_ratio"]))
    if not best:
        raise InputError("no row has a pipeline_degree, micro_batches and a bubble_ratio: nothing to plot")
    stages = sorted({degree for degree, _ in best})
    counts = sorted({count for _, count in best})
    return BubbleRatioInfo(stages, counts, [[best.get((p, m)) for m in counts] for p in stages])


def plot_bubble_ratios(rows: Iterable[Row], title: str = "") -> Figure:
    """Return the bubble ratios as a map with the percentages written in its cells.

    Source: DiffusionPipe, Figure 4.
    """
    info = plot_bubble_ratios_info(rows)
    figure, axes = _chart(2.4 + 0.85 * len(info.micro_batches), 1.6 + 0.6 * len(info.stages))
    percent = np.ma.masked_invalid([[np.nan if r is None else 100 * r for r in row] for row in info.ratios])
    highest = float(percent.max()) or 1.0
    colours = mpl.colormaps["Blues"].with_extremes(bad=IDLE_FACE)
    cells = axes.pcolormesh(percent, cmap=colours, vmin=0.0, vmax=highest, edgecolors="white", linewidth=2.0)
    for (y, x), value in np.ndenumerate(percent.filled(np.nan)):
        known = isfinite(value)
        colour = _contrast(colours(value / highest)) if known else IDLE_HATCH
        text = f"{value:.1f}" if known else "-"
        axes.text(x + 0.5, y + 0.5, text, ha="center", va="center", color=colour)
    axes.set_xticks(np.arange(len(info.micro_batches)) + 0.5, list(map(str, info.micro_batches)))
    axes.set_yticks(np.arange(len(info.stages)) + 0.5, list(map(str, info.stages)))
    axes.invert_yaxis()
    axes.tick_params(length=0)
    axes.spines[:].set_visible(False)
    axes.set_xlabel("micro-batches")
    axes.set_ylabel("stages")
    figure.colorbar(cells, ax=axes, label="bubble ratio in %")
    _set_title(axes, title)
    return figure


def _is_number(value: object) -> bool:
    return isinstance(value, int | float) and isfinite(value)


# ---- sweep


@dataclass(frozen=True, slots=True)
class SweepPoint:
    """One simulated point: samples per second against the peak memory of a device."""

    strategy: str
    peak_memory_bytes: float
    samples_per_s: float
    fits_memory: bool


@dataclass(frozen=True, slots=True)
class SweepInfo:
    """The points of a sweep in the order of its rows, and the Pareto front of those that fit, by memory."""

    points: list[SweepPoint]
    front: list[SweepPoint]


def plot_sweep_info(results: Iterable[Row]) -> SweepInfo:
    """Return what ``plot_sweep`` draws.

    Args:
        results: results under their public keys; rows that were not simulated are left out.

    Raises:
        InputError: no row is left.
    """
    points = [_sweep_point(row) for row in results if _is_number(row.get("peak_memory_bytes"))]
    if not points:
        raise InputError("no row has been simulated: nothing to plot")
    return SweepInfo(points, _pareto_front(points))


def _sweep_point(row: Row) -> SweepPoint:
    """Return the point of a row; an image's latency gives the throughput of sampling."""
    throughput = row["samples_per_s"] if "samples_per_s" in row else row["batch_size"] / row["latency_s"]
    return SweepPoint(
        row["strategy"], row["peak_memory_bytes"], throughput, bool(row.get("fits_memory", True))
    )


def _pareto_front(points: Iterable[SweepPoint]) -> list[SweepPoint]:
    """Return the fitting points that no other beats in memory and throughput, by memory."""
    front: list[SweepPoint] = []
    fitting = (point for point in points if point.fits_memory)
    for point in sorted(fitting, key=lambda p: (p.peak_memory_bytes, -p.samples_per_s)):
        if not front or point.samples_per_s > front[-1].samples_per_s:
            front.append(point)
    return front


def plot_sweep(results: Iterable[Row], title: str = "") -> Figure:
    """Return throughput against peak memory, one marker per strategy; hollow ones do not fit the device."""
    info = plot_sweep_info(results)
    figure, axes = _chart(9.0, 5.4)
    if info.front:
        memory_gib = [point.peak_memory_bytes / GIB for point in info.front]
        throughput = [point.samples_per_s for point in info.front]
        axes.step(memory_gib, throughput, where="post", color=FRONT, linewidth=1.6, zorder=1)
        _label_best(axes, info.front[-1])
    names = list(dict.fromkeys(point.strategy for point in info.points))
    for number, name in enumerate(names):
        _scatter(axes, number, [point for point in info.points if point.strategy == name])
    axes.margins(0.08)
    axes.set_xlabel("peak memory of a device in GiB")
    axes.set_ylabel("samples per second")
    axes.set_xlim(left=0.0)
    axes.set_ylim(bottom=0.0)
    axes.grid(color="#E6E6E6", linewidth=0.8)
    axes.set_axisbelow(True)
    handles = _sweep_legend(names, info)
    figure.legend(handles=handles, loc="outside right upper", frameon=False, fontsize=9)
    _set_title(axes, title)
    return figure


def _label_best(axes: Axes, best: SweepPoint) -> None:
    axes.annotate(
        f"{best.strategy}, {best.samples_per_s:.4g}/s",
        (best.peak_memory_bytes / GIB, best.samples_per_s),
        textcoords="offset points", xytext=(0, 9), ha="center", fontsize=9, color=INK,
    )  # fmt: skip


def _look(number: int) -> tuple[str, str]:
    """Return the colour and the marker of a strategy; no two alike among the first 77."""
    return STRATEGY_COLOURS[number % 7], STRATEGY_MARKERS[number % 11]


def _scatter(axes: Axes, number: int, points: Sequence[SweepPoint]) -> None:
    colour, marker = _look(number)
    for fits in (True, False):
        own = [point for point in points if point.fits_memory == fits]
        axes.scatter(
            [point.peak_memory_bytes / GIB for point in own], [point.samples_per_s for point in own],
            s=42, marker=marker, facecolor=colour if fits else "none", edgecolor="white" if fits else colour,
            linewidth=0.6 if fits else 1.2, zorder=2,
        )  # fmt: skip


def _sweep_legend(names: Sequence[str], info: SweepInfo) -> list[Line2D]:
    handles = []
    for number, name in enumerate(names):
        colour, marker = _look(number)
        handles.append(Line2D([], [], linestyle="none", color=colour, marker=marker, label=name))
    if info.front:
        handles.append(Line2D([], [], color=FRONT, label="Pareto front"))
    if not all(point.fits_memory for point in info.points):
        hollow = Line2D([], [], linestyle="none", marker="o", markerfacecolor="none", color=INK)
        hollow.set_label("does not fit")
        handles.append(hollow)
    return handles
