"""A sweep: throughput, or the latency of sampling, against peak memory, and the Pareto front of the two."""

from math import log2
from typing import Final, NamedTuple

from matplotlib.axes import Axes
from matplotlib.figure import Figure

from profiles.errors import InputError
from profiles.units import GIB
from sim.explore.sweep import pareto_front
from sim.report.plots import charts
from sim.report.plots.charts import FADED, RECOMMENDED, Drawable, label_of, plot_rows, strategy_look

__all__ = ["plot_sweep", "plot_sweep_info"]

NEAR: Final = 0.6
"""Share of a device's memory from which on points are near it."""
BEST_COLOUR: Final = "#0072B2"


class SweepPoint(NamedTuple):
    """One simulated point: samples per second against the peak memory of a device.

    Of sampling, where a sweep looks at several numbers of GPUs, also the latency and that number. ``band`` is the low
    and the high of what is drawn; None where the row has none. ``recommended`` is false where seams show.
    """

    strategy: str
    peak_memory_bytes: float
    samples_per_s: float
    fits_memory: bool
    latency_s: float | None = None
    num_gpus: int | None = None
    band: tuple[float, float] | None = None
    recommended: bool = True


class SweepInfo(NamedTuple):
    """The points of a sweep in the order of its rows, and the Pareto front of those that fit, by memory.

    ``best`` is what the sweep recommends; of results that are no sweep's the fastest of the front. None where nothing
    that is recommended fits.
    """

    points: list[SweepPoint]
    front: list[SweepPoint]
    best: SweepPoint | None = None

    @property
    def by_latency(self) -> bool:
        """Whether all points are of sampling, so that they are drawn by their latency."""
        return all(point.latency_s is not None for point in self.points)

    @property
    def label(self) -> str:
        """Label of the vertical axis."""
        return "latency in s" if self.by_latency else "samples per second"

    @property
    def memory_label(self) -> str:
        """Label of the horizontal axis, which says what sizes, whiskers and hollow markers are."""
        notes = ["whiskers: 80 % range"] if any(point.band for point in self.points) else []
        notes += ["larger: more GPUs"] if len({point.num_gpus for point in self.points}) > 1 else []
        notes += ["hollow: does not fit"] if not all(point.fits_memory for point in self.points) else []
        return "peak memory of a GPU in GiB" + (f" ({', '.join(notes)})" if notes else "")

    @property
    def strategies(self) -> list[str]:
        """The strategies, in the order of the points."""
        return list(dict.fromkeys(point.strategy for point in self.points))

    def height(self, point: SweepPoint) -> float:
        """Return the coordinates at which a point is drawn."""
        return (point.latency_s or 0.0) if self.by_latency else point.samples_per_s


def plot_sweep_info(results: Drawable) -> SweepInfo:
    """Return the values that ``plot_sweep`` draws; what was not simulated is left out."""
    rows = plot_rows(results, "strategy", "samples_per_s")
    rows = [row for row in rows if charts.is_finite(row.get("peak_memory_bytes"))]
    if not rows:
        raise InputError("no row has been simulated: nothing to plot")
    front = pareto_front(rows)
    best = next((row for row in rows if row.get("tie")), front[-1] if front else None)
    points, fronts = (list(map(_sweep_point, of)) for of in (rows, front))
    return SweepInfo(points, fronts, None if best is None else _sweep_point(best))


def _sweep_point(row: charts.ChartRow) -> SweepPoint:
    speed = row["samples_per_s"]
    named = row["strategy"], row["peak_memory_bytes"], speed, bool(row.get("fits_memory", True))
    gpus = row.get("num_gpus") if "latency_s" in row else None
    return SweepPoint(
        *named, row.get("latency_s"), gpus, _band(row, speed), bool(row.get("recommended", True))
    )


def _band(row: charts.ChartRow, speed: float) -> tuple[float, float] | None:
    """Band of the latency, or of the throughput."""
    key = "latency_s" if "latency_s" in row else "iteration_s"
    if not all(charts.is_finite(row.get(name)) for name in (key, f"{key}_low", f"{key}_high")):
        return None
    low, high = row[f"{key}_low"], row[f"{key}_high"]
    return (low, high) if key == "latency_s" else (speed * row[key] / high, speed * row[key] / low)


def plot_sweep(
    results: Drawable, title: str = "", memory_bytes: float | None = None, ax: Axes | None = None
) -> Figure:
    """Throughput against peak memory, one marker per strategy, a ring around the best; axes hold what there is.

    Hollow points do not fit the device, pale ones are not recommended. Of sampling, latency on a logarithmic axis
    against peak memory: the larger a marker, the more GPUs.

    ``memory_bytes`` is what a device has, drawn as a line where points come near it.
    """
    info = plot_sweep_info(results)
    figure, axes = charts.chart(9.0, 5.4, ax)
    for name in info.strategies:
        _scatter(axes, info, name)
    if (best := info.best) is not None:
        place = best.peak_memory_bytes / GIB, info.height(best)
        axes.plot(
            *place, "o", markersize=13, markerfacecolor="none", markeredgewidth=1.8, markeredgecolor=BEST_COLOUR,
            zorder=3, label=RECOMMENDED,
        )  # fmt: skip
        number = f"{best.latency_s:.4g} s" if info.by_latency else f"{best.samples_per_s:.4g}/s"
        axes.annotate(
            f"{best.strategy}, {number}", place, textcoords="offset points", ha="center", fontsize=9, zorder=4,
            xytext=(0, -19 if info.by_latency else 12), color=charts.ink(),
            bbox={"facecolor": axes.get_facecolor(), "alpha": 0.8, "linewidth": 0, "pad": 1},
        )  # fmt: skip
    if info.front:
        front = [(point.peak_memory_bytes / GIB, info.height(point)) for point in info.front]
        across, up = zip(*front, strict=True)
        axes.step(across, up, where="post", color=charts.FRONT, linewidth=1.6, zorder=1, label="Pareto front")
    if memory_bytes and max(point.peak_memory_bytes for point in info.points) >= NEAR * memory_bytes:
        x, label = memory_bytes / GIB, "memory of a GPU"
        axes.axvline(x, label=label, color=charts.LIMIT, linestyle="--", linewidth=1.2, zorder=0)
    axes.margins(0.06)
    axes.set(xlabel=info.memory_label, ylabel=info.label)
    if info.by_latency:
        charts.scale_logarithmically(axes, "y")
    charts.add_grid(axes, "both")
    charts.add_legend(axes, "right")
    charts.set_title(axes, title)
    return figure


def _scatter(axes: Axes, info: SweepInfo, name: str) -> None:
    """Draw the points of a strategy, with their bands as thin lines behind them."""
    colour, marker = strategy_look(name)
    points = [point for point in info.points if point.strategy == name]
    seams = not all(point.recommended for point in points)
    label: str | None = label_of(name, seams=seams)
    for fits in (True, False):
        alike = [point for point in points if point.fits_memory == fits]
        if alike:
            axes.scatter(
                [point.peak_memory_bytes / GIB for point in alike], [info.height(point) for point in alike],
                s=[42 if point.num_gpus is None else 18 + 14 * log2(point.num_gpus) for point in alike],
                marker=marker, facecolor=colour if fits else "none", edgecolor=charts.ink() if fits else colour,
                linewidth=0.5 if fits else 1.2, alpha=FADED if seams else None, zorder=2, label=label,
            )  # fmt: skip
            label = None
    for point in points:
        if point.band is not None:
            place = point.peak_memory_bytes / GIB
            axes.vlines(place, *point.band, colors=colour, linewidth=0.8, alpha=0.35, zorder=1)
