"""The design space: speed against memory, which strategy wins where, and how throughput scales along one axis."""

from collections.abc import Iterable, Sequence
from math import log2
from operator import itemgetter
from typing import Any, Final, NamedTuple

from matplotlib.axes import Axes
from matplotlib.colors import to_rgb
from matplotlib.figure import Figure
from matplotlib.patches import Patch, Rectangle

from profiles.errors import InputError
from profiles.units import GIB
from sim.explore.sweep import pareto_front
from sim.outcomes.tasks import TASKS
from sim.report.plots import charts
from sim.report.plots.charts import FADED, RECOMMENDED, Drawable, label_of, plot_rows, strategy_look

__all__ = ["plot_scaling", "plot_sweep", "plot_sweep_info", "plot_winners", "plot_winners_info"]

PLAIN: Final = {"train": ("ddp", "fsdp"), "sample": ("ulysses", "single")}
"""Strategies that take the least trouble, by task."""
LEAST: Final = 0.01
"""Share of the speed below which nothing is lost."""


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

    def places(self, points: Sequence[SweepPoint]) -> dict[str, list[float]]:
        """Return the GiB, and the latencies or throughputs, at which points are drawn."""
        heights = [(point.latency_s or 0.0) if self.by_latency else point.samples_per_s for point in points]
        return {"x": [point.peak_memory_bytes / GIB for point in points], "y": heights}


def plot_sweep_info(results: Drawable) -> SweepInfo:
    """Return the values that ``plot_sweep`` draws; what was not simulated is left out."""
    rows = plot_rows(results, "strategy", "samples_per_s")
    rows = [row for row in rows if charts.is_finite(row.get("peak_memory_bytes"))]
    if not rows:
        raise InputError("no row has been simulated: nothing to plot")
    front = pareto_front(rows)
    best = next((row for row in rows if row.get("tie")), front[-1] if front else None)
    points, fronts = (list(map(_sweep_point, group)) for group in (rows, front))
    return SweepInfo(points, fronts, None if best is None else _sweep_point(best))


def _sweep_point(row: charts.ChartRow) -> SweepPoint:
    """Return the point of a row; its band is of the latency, or of the throughput."""
    speed, latency_s = row["samples_per_s"], row.get("latency_s")
    key = "iteration_s" if latency_s is None else "latency_s"
    band = None
    if all(charts.is_finite(row.get(f"{key}_{end}")) for end in ("low", "high")):
        low, high = row[f"{key}_low"], row[f"{key}_high"]
        band = (speed * row[key] / high, speed * row[key] / low) if latency_s is None else (low, high)
    gpus = None if latency_s is None else row.get("num_gpus")
    named = row["strategy"], row["peak_memory_bytes"], speed, bool(row["fits_memory"])
    return SweepPoint(*named, latency_s, gpus, band, bool(row["recommended"]))


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
        (x,), (y,) = info.places([best]).values()
        axes.plot(
            x, y, "o", markersize=13, markerfacecolor="none", markeredgewidth=1.8, markeredgecolor=BEST_COLOUR,
            zorder=3, label=RECOMMENDED,
        )  # fmt: skip
        number = f"{best.latency_s:.4g} s" if info.by_latency else f"{best.samples_per_s:.4g}/s"
        axes.annotate(
            f"{best.strategy}, {number}", (x, y), textcoords="offset points", ha="center", fontsize=9,
            zorder=4, xytext=(0, -19 if info.by_latency else 12), color=charts.ink(),
            bbox={"facecolor": axes.get_facecolor(), "alpha": 0.8, "linewidth": 0, "pad": 1},
        )  # fmt: skip
    if info.front:
        look: dict[str, Any] = {"where": "post", "color": charts.FRONT, "linewidth": 1.6, "zorder": 1}
        axes.step(*info.places(info.front).values(), label="Pareto front", **look)
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
            x, y = info.places(alike).values()
            axes.scatter(
                x, y,
                s=[42 if point.num_gpus is None else 18 + 14 * log2(point.num_gpus) for point in alike],
                marker=marker, facecolor=colour if fits else "none", edgecolor=charts.ink() if fits else colour,
                linewidth=0.5 if fits else 1.2, alpha=FADED if seams else None, zorder=2, label=label,
            )  # fmt: skip
            label = None
    for point in points:
        if point.band is not None:
            axes.vlines(
                point.peak_memory_bytes / GIB, *point.band, colors=colour, linewidth=0.8, alpha=0.35, zorder=1
            )


class Winner(NamedTuple):
    """The best strategy of a scenario; ``lost``: the share of its speed that the fastest plain one loses."""

    strategy: str
    samples_per_s: float
    plain: str | None = None
    lost: float = 0.0


class WinnersInfo(NamedTuple):
    """Winners by two axes: ``winners[i][j]`` at ``down[i]`` and ``across[j]``; None where nothing is feasible.

    ``plain`` are the strategies whose loss is told; ``unit`` is what is counted: samples, images or videos.
    """

    down: list[Any]
    across: list[Any]
    winners: list[list[Winner | None]]
    plain: tuple[str, ...] = ()
    unit: str = "samples"

    @property
    def strategies(self) -> list[str]:
        """The strategies that win somewhere, in the order of the cells."""
        return list(dict.fromkeys(winner.strategy for line in self.winners for winner in line if winner))


def plot_winners_info(rows: Drawable, across: str, down: str) -> WinnersInfo:
    """Return the values that ``plot_winners`` draws.

    Args:
        rows: a sweep, a scaling, several of them, their rows, or a frame of these. What was not simulated,
            or is not recommended, leaves its cell empty.
        across: the key along the horizontal axis.
        down: the key along the vertical axis.
    """
    cells: dict[tuple[Any, Any], list[charts.ChartRow]] = {}
    scenarios: dict[tuple[Any, Any], tuple[Any, ...]] = {}
    points = plot_rows(rows, "strategy", "samples_per_s", across=across, down=down)
    if not points:
        raise InputError("there is no row: nothing to plot")
    for row in points:
        cell, scenario = (row[down], row[across]), tuple(map(row.get, TASKS[row["task"]].keys))
        if (other := scenarios.setdefault(cell, scenario)) != scenario:
            both = f"{down} {row[down]} and {across} {row[across]}"
            raise InputError(f"two scenarios have {both}: {other} and {scenario}")
        simulated = cells.setdefault(cell, [])
        if row["status"] == "simulated" and row["recommended"]:
            simulated.append(row)
    units = {TASKS[row["task"]].sample_words(row)[1] for row in points}
    over = tuple(name for task in dict.fromkeys(row["task"] for row in points) for name in PLAIN[task])
    vertical, horizontal = (_values(cell[i] for cell in cells) for i in (0, 1))
    winners = [[_winner(cells.get((y, x), ()), over) for x in horizontal] for y in vertical]
    return WinnersInfo(vertical, horizontal, winners, over, units.pop() if len(units) == 1 else "samples")


def _values(values: Iterable[Any]) -> list[Any]:
    """Return the distinct values: numbers ascending, words in the order in which they come."""
    distinct = list(dict.fromkeys(values))
    return distinct if any(isinstance(value, str) for value in distinct) else sorted(distinct)


def _winner(rows: Sequence[charts.ChartRow], over: Sequence[str]) -> Winner | None:
    """Return what a sweep recommends of the rows of a scenario; of other rows the fastest."""
    if not rows:
        return None
    ranked = sorted(rows, key=itemgetter("samples_per_s"), reverse=True)
    best = next((row for row in rows if row.get("tie")), ranked[0])  # the recommended row stands first
    name, speed = best["strategy"], best["samples_per_s"]
    for row in ranked:
        if row["strategy"] in over:
            return Winner(name, speed, row["strategy"], max(0.0, 1 - row["samples_per_s"] / speed))
    return Winner(name, speed)


def plot_winners(
    rows: Drawable, across: str, down: str, title: str = "", *, ax: Axes | None = None
) -> Figure:
    """Return the strategy of each scenario that its sweep recommends as a map, with what a plain one loses.

    Of rows that are no sweep's the fastest, which a sweep passes over where no runtime starts it.
    Takes what ``plot_winners_info`` takes: the keys of the axes are such as ``num_gpus`` and ``model``.
    """
    info = plot_winners_info(rows, across, down)
    words = [[_words(winner, info) for winner in line] for line in info.winners]
    lines = [cell.splitlines() for cells in words for cell in cells]
    width = (0.25 + 0.068 * max(len(line) for cell in lines for line in cell)) * len(info.across)
    figure, axes = charts.chart(2.4 + width, 1.3 + (0.3 + 0.17 * max(map(len, lines))) * len(info.down), ax)
    for y, line in enumerate(info.winners):
        for x, winner in enumerate(line):
            face = charts.IDLE_FACE if winner is None else strategy_look(winner.strategy)[0]
            axes.add_patch(Rectangle((x, y), 1, 1, facecolor=face, edgecolor="white", linewidth=2.0))
            look: dict[str, Any] = {"ha": "center", "va": "center", "color": charts.contrast(to_rgb(face))}
            axes.text(x + 0.5, y + 0.5, words[y][x], fontsize=8.5, **look)
    axes.set(xlim=(0, len(info.across)), ylim=(len(info.down), 0), xlabel=_label(across), ylabel=_label(down))
    axes.set_xticks([x + 0.5 for x in range(len(info.across))], list(map(charts.tick, info.across)))
    axes.set_yticks([y + 0.5 for y in range(len(info.down))], list(map(charts.tick, info.down)))
    axes.tick_params(length=0)
    axes.spines[:].set_visible(False)
    handles = [Patch(facecolor=strategy_look(name)[0], label=name) for name in info.strategies]
    charts.add_legend(axes, "right", handles)
    charts.set_title(axes, title)
    return figure


def _words(winner: Winner | None, info: WinnersInfo) -> str:
    if winner is None:
        return "nothing fits"
    speed = f"{winner.samples_per_s:,.0f}" if winner.samples_per_s >= 100 else f"{winner.samples_per_s:.3g}"
    lost = f"{winner.plain} loses {winner.lost:.1%}"
    if winner.plain is None:
        lost = f"no {' or '.join(info.plain)}"
    elif winner.lost < LEAST:
        lost = "nothing to gain" + f" over {winner.plain}" * (winner.plain != winner.strategy)
    return f"{winner.strategy}\n{speed} {info.unit}/s\n{lost}"


def _label(key: str) -> str:
    """Return the words of a public key."""
    return {"num_gpus": "GPUs", "resolution": "resolution in pixels"}.get(key, key.replace("_", " "))


def plot_scaling(rows: Drawable, across: str, title: str = "", ax: Axes | None = None) -> Figure:
    """Return the throughput per GPU of the best point of each strategy along one axis, values evenly spaced.

    Strategies stand as their lines end, the fastest first.
    """
    rows = plot_rows(rows, "strategy", "num_gpus", "samples_per_s", across=across)
    best: dict[str, dict[Any, float]] = {}
    for row in rows:
        if row["status"] == "simulated":
            speeds = best.setdefault(row["strategy"], {})
            speeds[row[across]] = max(speeds.get(row[across], 0.0), row["samples_per_s"] / row["num_gpus"])
    if not best:
        raise InputError("no row has been simulated: nothing to plot")
    values = _values(row[across] for row in rows)
    lines = {
        name: [(x, speeds[value]) for x, value in enumerate(values) if value in speeds]
        for name, speeds in best.items()
    }
    figure, axes = charts.chart(8.4, 4.4, ax)
    for name, line in sorted(lines.items(), key=lambda item: (-item[1][-1][1], item[0])):
        colour, marker = strategy_look(name)
        look: dict[str, Any] = {"color": colour, "marker": marker, "markersize": 6, "linewidth": 1.2}
        axes.plot(*zip(*line, strict=True), label=name, **look, **charts.EDGE)
    axes.set_xticks(range(len(values)), list(map(charts.tick, values)))
    axes.set(xlabel=_label(across), ylabel="samples per second and GPU")
    axes.set_ylim(bottom=0.0)
    charts.add_grid(axes)
    charts.add_legend(axes, "right")
    charts.set_title(axes, title)
    return figure
