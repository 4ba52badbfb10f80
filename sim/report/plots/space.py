"""The design space: which strategy wins where, and how throughput scales with one of its axes."""

from collections.abc import Iterable, Sequence
from operator import itemgetter
from typing import Any, Final, NamedTuple

from matplotlib.axes import Axes
from matplotlib.colors import to_rgb
from matplotlib.figure import Figure
from matplotlib.patches import Patch, Rectangle

from profiles.errors import InputError, shown
from sim.outcomes.tasks import TASKS
from sim.report.plots import charts
from sim.report.plots.charts import Drawable, plot_rows, strategy_look

__all__ = ["plot_scaling", "plot_scaling_info", "plot_winners", "plot_winners_info"]

PLAIN: Final = {"train": ("ddp", "fsdp"), "sample": ("ulysses", "single")}
"""Strategies that take the least trouble, by task."""
LEAST: Final = 0.01
"""Share of the speed below which nothing is lost."""


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
    if across == down:
        raise InputError(f"across and down are both {shown(across)}, must be two keys, one for each axis")
    cells: dict[tuple[Any, Any], list[charts.ChartRow]] = {}
    scenarios: dict[tuple[Any, Any], tuple[Any, ...]] = {}
    points = plot_rows(rows, "strategy", "samples_per_s", across=across, down=down)
    if not points:
        raise InputError("there is no row: nothing to plot")
    for row in points:
        cell, scenario = (row[down], row[across]), tuple(row.get(key) for key in TASKS[_task(row)].keys)
        if (other := scenarios.setdefault(cell, scenario)) != scenario:
            both = f"{down} {row[down]} and {across} {row[across]}"
            raise InputError(f"two scenarios have {both}: {other} and {scenario}")
        simulated = cells.setdefault(cell, [])
        if row.get("status", "simulated") == "simulated" and row.get("recommended", True):
            simulated.append(row)
    units = {TASKS[_task(row)].sample_words(row.get("options") or row)[1] for row in points}
    tasks = dict.fromkeys(map(_task, points))
    over = tuple(name for task in tasks for name in PLAIN[task])
    vertical, horizontal = (_values(cell[i] for cell in cells) for i in (0, 1))
    winners = [[_winner(cells.get((y, x), ()), over) for x in horizontal] for y in vertical]
    return WinnersInfo(vertical, horizontal, winners, over, units.pop() if len(units) == 1 else "samples")


def _task(row: charts.ChartRow) -> str:
    return str(row.get("task") or "train")


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


class ScalingInfo(NamedTuple):
    """Samples per second and GPU of each strategy along one axis; None where it has no feasible point.

    Strategies stand as their lines end, the fastest first.
    """

    across: list[Any]
    speeds: dict[str, list[float | None]]


def plot_scaling_info(rows: Drawable, across: str) -> ScalingInfo:
    """Return the values that ``plot_scaling`` draws: of several results at one place, the fastest."""
    rows = plot_rows(rows, "strategy", "num_gpus", "samples_per_s", across=across)
    best: dict[str, dict[Any, float]] = {}
    simulated = [row for row in rows if row.get("status", "simulated") == "simulated"]
    for row in simulated:
        speeds = best.setdefault(row["strategy"], {})
        speeds[row[across]] = max(speeds.get(row[across], 0.0), row["samples_per_s"] / row["num_gpus"])
    if not best:
        raise InputError("no row has been simulated: nothing to plot")
    values = _values(row[across] for row in rows)
    last = {name: next(speeds[x] for x in reversed(values) if x in speeds) for name, speeds in best.items()}
    names = sorted(best, key=lambda name: (-last[name], name))
    return ScalingInfo(values, {name: [best[name].get(x) for x in values] for name in names})


def plot_scaling(rows: Drawable, across: str, title: str = "", ax: Axes | None = None) -> Figure:
    """Return the throughput per GPU of the best point of each strategy along one axis, values evenly spaced."""
    info = plot_scaling_info(rows, across)
    figure, axes = charts.chart(8.4, 4.4, ax)
    for name, speeds in info.speeds.items():
        colour, marker = strategy_look(name)
        known = [(x, speed) for x, speed in enumerate(speeds) if speed is not None]
        places, values = zip(*known, strict=True)
        look: dict[str, Any] = {"color": colour, "marker": marker, "markersize": 6, "linewidth": 1.2}
        axes.plot(places, values, label=name, **look, **charts.EDGE)
    axes.set_xticks(range(len(info.across)), list(map(charts.tick, info.across)))
    axes.set(xlabel=_label(across), ylabel="samples per second and GPU")
    axes.set_ylim(bottom=0.0)
    charts.add_grid(axes)
    charts.add_legend(axes, "right")
    charts.set_title(axes, title)
    return figure
