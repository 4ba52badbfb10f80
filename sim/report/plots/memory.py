"""The memory of every device over one iteration."""

from dataclasses import dataclass
from math import ceil

import matplotlib as mpl
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from profiles.units import GIB, MILLISECOND
from sim.outcomes.results import Result
from sim.replay.timelines import MemoryCurve, memory_curves
from sim.report.plots.charts import LIMIT, PLAIN, add_grid, add_legend, chart, set_title
from sim.report.plots.plot_data import plot_trace
from strategies.plans.traces import Trace


@dataclass(frozen=True, slots=True)
class MemoryInfo:
    """Memory of every device over one iteration, and what a device has; None: unlimited."""

    curves: list[MemoryCurve]
    capacity_bytes: float | None


def plot_memory_info(trace: Trace | Result) -> MemoryInfo:
    """The values that ``plot_memory`` draws."""
    trace = plot_trace(trace)
    return MemoryInfo(memory_curves(trace), trace.plan.placement.cluster.device.memory_bytes)


def plot_memory(trace: Trace | Result, title: str = "", ax: Axes | None = None) -> Figure:
    """The memory of each device over one iteration, as steps."""
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
