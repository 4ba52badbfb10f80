"""A sweep: throughput against peak memory, and the Pareto front of the two."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D

from profiles.errors import InputError
from profiles.units import GIB
from sim.plots.charts import FRONT, GRID, INK, Row, chart, is_number, set_title, strategy_look
from sim.space import pareto_front, samples_per_s


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
    rows = [row for row in results if is_number(row.get("peak_memory_bytes"))]
    if not rows:
        raise InputError("no row has been simulated: nothing to plot")
    return SweepInfo(list(map(_sweep_point, rows)), list(map(_sweep_point, pareto_front(rows))))


def _sweep_point(row: Row) -> SweepPoint:
    return SweepPoint(
        row["strategy"],
        row["peak_memory_bytes"],
        samples_per_s(row),
        bool(row.get("fits_memory", True)),
    )


def plot_sweep(results: Iterable[Row], title: str = "") -> Figure:
    """Return throughput against peak memory, one marker per strategy; hollow ones do not fit the device."""
    info = plot_sweep_info(results)
    figure, axes = chart(9.0, 5.4)
    if info.front:
        memory_gib = [point.peak_memory_bytes / GIB for point in info.front]
        throughput = [point.samples_per_s for point in info.front]
        axes.step(memory_gib, throughput, where="post", color=FRONT, linewidth=1.6, zorder=1)
        _label_best(axes, info.front[-1])
    names = list(dict.fromkeys(point.strategy for point in info.points))
    for name in names:
        _scatter(axes, name, [point for point in info.points if point.strategy == name])
    axes.margins(0.08)
    axes.set_xlabel("peak memory of a device in GiB")
    axes.set_ylabel("samples per second")
    axes.set_xlim(left=0.0)
    axes.set_ylim(bottom=0.0)
    axes.grid(color=GRID, linewidth=0.8)
    axes.set_axisbelow(True)
    handles = _sweep_legend(names, info)
    figure.legend(handles=handles, loc="outside right upper", frameon=False, fontsize=9)
    set_title(axes, title)
    return figure


def _label_best(axes: Axes, best: SweepPoint) -> None:
    axes.annotate(
        f"{best.strategy}, {best.samples_per_s:.4g}/s",
        (best.peak_memory_bytes / GIB, best.samples_per_s),
        textcoords="offset points", xytext=(0, 9), ha="center", fontsize=9, color=INK,
    )  # fmt: skip


def _scatter(axes: Axes, name: str, points: Sequence[SweepPoint]) -> None:
    colour, marker = strategy_look(name)
    for fits in (True, False):
        own = [point for point in points if point.fits_memory == fits]
        axes.scatter(
            [point.peak_memory_bytes / GIB for point in own], [point.samples_per_s for point in own],
            s=42, marker=marker, facecolor=colour if fits else "none", edgecolor="white" if fits else colour,
            linewidth=0.6 if fits else 1.2, zorder=2,
        )  # fmt: skip


def _sweep_legend(names: Sequence[str], info: SweepInfo) -> list[Line2D]:
    handles = []
    for name in names:
        colour, marker = strategy_look(name)
        handles.append(Line2D([], [], linestyle="none", color=colour, marker=marker, label=name))
    if info.front:
        handles.append(Line2D([], [], color=FRONT, label="Pareto front"))
    if not all(point.fits_memory for point in info.points):
        hollow = Line2D([], [], linestyle="none", marker="o", markerfacecolor="none", color=INK)
        hollow.set_label("does not fit")
        handles.append(hollow)
    return handles
