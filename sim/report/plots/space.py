"""The design space: which strategy wins where, and how throughput scales with one of its axes."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

from matplotlib.axes import Axes
from matplotlib.colors import to_rgb
from matplotlib.figure import Figure
from matplotlib.patches import Rectangle

from profiles.errors import InputError
from sim.explore.space import samples_per_s
from sim.report.plots.charts import (
    GRID,
    IDLE_FACE,
    IDLE_HATCH,
    Row,
    add_legend,
    chart,
    contrast,
    set_title,
    strategy_look,
)
from strategies.registry import baselines

ASKED: Final[Mapping[str, tuple[str, ...]]] = {
    "train": ("model", "cluster", "stack", "num_gpus", "batch_size"),
    "sample": ("model", "cluster", "stack", "batch_size", "resolution", "steps", "guidance"),
}
"""Keys by which scenarios of a task differ; a sampler may use fewer GPUs than there are."""


@dataclass(frozen=True, slots=True)
class Winner:
    """The fastest strategy of a scenario.

    Attributes:
        strategy: its name.
        samples_per_s: its throughput.
        lead: how much faster it is than a baseline, 0.1 for 10 %; None where the baseline has no result.
    """

    strategy: str
    samples_per_s: float
    lead: float | None


@dataclass(frozen=True, slots=True)
class WinnersInfo:
    """Winners by two axes: ``winners[i][j]`` at ``down[i]`` and ``across[j]``; None where nothing is feasible.

    ``baselines`` are the strategies that their lead is over.
    """

    down: list[Any]
    across: list[Any]
    winners: list[list[Winner | None]]
    baselines: tuple[str, ...] = ()


def plot_winners_info(
    rows: Iterable[Row], across: str, down: str, baseline: str | None = None
) -> WinnersInfo:
    """The values that ``plot_winners`` draws.

    Args:
        rows: results under their public keys; those not simulated, or not recommended, leave their cell empty.
        across: the key along the horizontal axis.
        down: the key along the vertical axis.
        baseline: the strategy that the lead is over; by default the best of those that are known as baselines.

    Raises:
        InputError: there are no rows, or two scenarios share a cell.
    """
    cells: dict[tuple[Any, Any], dict[str, float]] = {}
    scenarios: dict[tuple[Any, Any], tuple[Any, ...]] = {}
    tasks: dict[str, None] = {}
    for row in rows:
        tasks[row.get("task", "train")] = None
        cell = row[down], row[across]
        _check_alone(scenarios, cell, row, (down, across))
        speeds = cells.setdefault(cell, {})
        if row.get("status", "simulated") == "simulated" and row.get("recommended", True):
            speeds[row["strategy"]] = max(speeds.get(row["strategy"], 0.0), samples_per_s(row))
    if not cells:
        raise InputError("there is no row: nothing to plot")
    vertical, horizontal = (_values(cell[i] for cell in cells) for i in (0, 1))
    over = (baseline,) if baseline else tuple(name for task in tasks for name in baselines(task))
    winners = [[_winner(cells.get((y, x), {}), over) for x in horizontal] for y in vertical]
    return WinnersInfo(vertical, horizontal, winners, over)


def _check_alone(
    scenarios: dict[tuple[Any, Any], tuple[Any, ...]], cell: tuple[Any, Any], row: Row, axes: tuple[str, str]
) -> None:
    scenario = tuple(row.get(key) for key in ASKED[row.get("task", "train")])
    if scenarios.setdefault(cell, scenario) != scenario:
        both = " and ".join(f"{key} {value}" for key, value in zip(axes, cell, strict=True))
        raise InputError(f"two scenarios have {both}: {scenarios[cell]} and {scenario}")


def _values(values: Iterable[Any]) -> list[Any]:
    """Different values: numbers ascending, words in the order in which they come."""
    found = list(dict.fromkeys(values))
    return found if any(isinstance(value, str) for value in found) else sorted(found)


def _winner(speeds: dict[str, float], over: Sequence[str]) -> Winner | None:
    if not speeds:
        return None
    name = max(speeds, key=lambda name: speeds[name])
    against = max((speeds[other] for other in over if other in speeds), default=None)
    return Winner(name, speeds[name], None if against is None else speeds[name] / against - 1)


def plot_winners(
    rows: Iterable[Row],
    across: str,
    down: str,
    title: str = "",
    *,
    baseline: str | None = None,
    ax: Axes | None = None,
) -> Figure:
    """The fastest strategy of each scenario as a map, with its throughput and its lead over a baseline."""
    info = plot_winners_info(rows, across, down, baseline)
    words = [[_words(winner, info.baselines) for winner in line] for line in info.winners]
    longest = max(len(line) for cells in words for cell in cells for line in cell.splitlines())
    figure, axes = chart(1.6 + (0.35 + 0.085 * longest) * len(info.across), 1.3 + 0.72 * len(info.down), ax)
    for y, line in enumerate(info.winners):
        for x, winner in enumerate(line):
            _draw_cell(axes, x, y, winner, words[y][x])
    axes.set_xlim(0, len(info.across))
    axes.set_ylim(len(info.down), 0)
    axes.set_xticks([x + 0.5 for x in range(len(info.across))], list(map(_tick, info.across)))
    axes.set_yticks([y + 0.5 for y in range(len(info.down))], list(map(_tick, info.down)))
    axes.tick_params(length=0)
    axes.spines[:].set_visible(False)
    axes.set_xlabel(_label(across))
    axes.set_ylabel(_label(down))
    set_title(axes, title)
    return figure


def _draw_cell(axes: Axes, x: int, y: int, winner: Winner | None, words: str) -> None:
    face = IDLE_FACE if winner is None else strategy_look(winner.strategy)[0]
    axes.add_patch(Rectangle((x, y), 1, 1, facecolor=face, edgecolor="white", linewidth=2.0))
    colour = IDLE_HATCH if winner is None else contrast(to_rgb(face))
    axes.text(x + 0.5, y + 0.5, words, ha="center", va="center", color=colour, fontsize=8.5)


def _words(winner: Winner | None, over: Sequence[str]) -> str:
    if winner is None:
        return "nothing fits"
    speed = f"{winner.strategy}\n{winner.samples_per_s:,.4g}/s"
    if winner.strategy in over or not over:
        return speed
    names = " or ".join(over)
    return f"{speed}\n" + (
        f"no {names}" if winner.lead is None else f"{100 * winner.lead:+.1f} % over {names}"
    )


def _label(key: str) -> str:
    """The words of a public key."""
    return {"num_gpus": "GPUs", "samples_per_gpu": "samples per GPU", "batch_size": "batch size"}.get(
        key, key
    )


def _tick(value: object) -> str:
    return f"{value:g}" if isinstance(value, float) else str(value)


@dataclass(frozen=True, slots=True)
class ScalingInfo:
    """Samples per second and GPU of each strategy along one axis; None where it has no feasible point."""

    across: list[Any]
    speeds: dict[str, list[float | None]]


def plot_scaling_info(rows: Iterable[Row], across: str) -> ScalingInfo:
    """The values that ``plot_scaling`` draws: of several results at one place, the fastest.

    Args:
        rows: results under their public keys; strategies that have none are left out.
        across: the key along the horizontal axis.

    Raises:
        InputError: no row was simulated.
    """
    rows = list(rows)
    best: dict[str, dict[Any, float]] = {}
    for row in rows:
        if row.get("status", "simulated") == "simulated":
            own = best.setdefault(row["strategy"], {})
            own[row[across]] = max(own.get(row[across], 0.0), samples_per_s(row) / row["num_gpus"])
    if not best:
        raise InputError("no row has been simulated: nothing to plot")
    values = _values(row[across] for row in rows)
    return ScalingInfo(values, {name: [best[name].get(x) for x in values] for name in sorted(best)})


def plot_scaling(rows: Iterable[Row], across: str, title: str = "", ax: Axes | None = None) -> Figure:
    """The throughput per GPU of the best point of each strategy along one axis, values evenly spaced."""
    info = plot_scaling_info(rows, across)
    figure, axes = chart(8.4, 4.4, ax)
    for name, speeds in info.speeds.items():
        colour, marker = strategy_look(name)
        known = [(x, speed) for x, speed in enumerate(speeds) if speed is not None]
        places, values = zip(*known, strict=True)
        axes.plot(places, values, color=colour, marker=marker, markersize=6, linewidth=1.2, label=name)
    _dress_scaling(axes, info.across, across)
    add_legend(axes, "right")
    set_title(axes, title)
    return figure


def _dress_scaling(axes: Axes, values: Sequence[Any], across: str) -> None:
    axes.set_xticks(range(len(values)), list(map(_tick, values)))
    axes.set_xlabel(_label(across))
    axes.set_ylabel("samples per second and GPU")
    axes.set_ylim(bottom=0.0)
    axes.grid(axis="y", color=GRID, linewidth=0.8)
    axes.set_axisbelow(True)
