"""The figure: every predicted number against the published one, on logarithmic axes, training beside sampling."""

from collections.abc import Sequence
from dataclasses import dataclass
from math import inf
from pathlib import Path
from typing import Any, Final

from profiles.errors import InputError
from sim.plots.charts import (
    ENDINGS,
    FRONT,
    GRID,
    INK,
    STRATEGY_COLOURS,
    STRATEGY_MARKERS,
    Chart,
    save_figure,
    set_title,
)
from validate.published.ledger import NEAR, Ledger, near
from validate.published.records import LATENCY, TASKS, Record, Standing, source_names

TITLES: Final = {"train": ("training", "each in its own unit"), "sample": ("sampling", "latency in s")}
"""Title and unit of the panel of a task."""


@dataclass(frozen=True, slots=True)
class Mark:
    """One number: its source, published, predicted, and whether something was fitted to it."""

    group: str
    published: float
    predicted: float
    fitted: bool

    @property
    def error(self) -> float:
        """Predicted over published, less one."""
        return self.predicted / self.published - 1


def plot_published_info(ledger: Ledger) -> dict[str, list[Mark]]:
    """What ``plot_published`` draws by task: what is judged, and what was fitted.

    Of sampling, latencies alone; those of one GPU that predictions start from lie on the diagonal and are left out.
    """
    marks: dict[str, list[Mark]] = {task: [] for task in TASKS}
    for one in filter(_drawable, ledger.records):
        fitted = one.standing is Standing.FITTED
        marks[one.row.task].append(Mark(one.row.group, one.row.value, one.predicted or 0.0, fitted))
    return marks


def _drawable(one: Record) -> bool:
    if one.standing not in (Standing.JUDGED, Standing.FITTED) or not 0 < (one.predicted or 0) < inf:
        return False
    start = one.row.num_gpus == 1 and one.standing is Standing.FITTED
    return one.row.task == TASKS[0] or (one.row.quantity == LATENCY and not start)


def plot_published(ledger: Ledger) -> Chart:
    """Predicted against published numbers by source; hollow ones were fitted to, within the band 15 % off.

    Raises:
        InputError: nothing is predicted.
    """
    panels = [(task, marks) for task, marks in plot_published_info(ledger).items() if marks]
    if not panels:
        raise InputError("no published number is predicted: nothing to plot")
    figure = Chart(figsize=(6.6 * len(panels), 7.6), layout="constrained")
    for number, (task, marks) in enumerate(panels, start=1):
        _draw(figure.add_subplot(1, len(panels), number), *TITLES[task], marks)
    return figure


def _draw(axes: Any, title: str, unit: str, marks: Sequence[Mark]) -> None:  # noqa: ANN401  only plots know axes
    axes.spines[["top", "right"]].set_visible(False)
    _diagonal(axes, marks)
    sources = [name for name in source_names() if any(mark.group == name for mark in marks)]
    for number, group in enumerate(sources):
        _scatter(axes, [mark for mark in marks if mark.group == group], group, number)
    axes.scatter([], [], s=34, facecolor="none", edgecolor=INK, label="hollow: fitted to it, not judged")
    axes.set_xscale("log")
    axes.set_yscale("log")
    axes.set_xlabel(f"published, {unit}")
    axes.set_ylabel(f"predicted, {unit}")
    axes.grid(color=GRID, linewidth=0.8)
    axes.set_axisbelow(True)
    axes.legend(loc="upper center", bbox_to_anchor=(0.5, -0.1), ncols=2, frameon=False, fontsize=8.5)
    judged = [mark for mark in marks if not mark.fitted]
    right = near(mark.error for mark in judged)
    set_title(axes, title, f"{right} of {len(judged)} judged within {NEAR:.0%}")


def _scatter(axes: Any, marks: Sequence[Mark], group: str, number: int) -> None:  # noqa: ANN401  as above
    """Draw one source: hollow what was fitted, above it filled what is judged."""
    colour = STRATEGY_COLOURS[number % len(STRATEGY_COLOURS)]
    marker = STRATEGY_MARKERS[number % len(STRATEGY_MARKERS)]
    for fitted in (True, False):
        own = [mark for mark in marks if mark.fitted == fitted]
        axes.scatter(
            [mark.published for mark in own], [mark.predicted for mark in own], s=34, marker=marker,
            facecolor="none" if fitted else colour, edgecolor=colour if fitted else "white",
            linewidth=1.0 if fitted else 0.5, zorder=2 if fitted else 3,
        )  # fmt: skip
    axes.scatter([], [], s=34, marker=marker, color=colour, label=f"{group} ({len(marks)})")


def _diagonal(axes: Any, marks: Sequence[Mark]) -> None:  # noqa: ANN401  as above
    """Draw where both agree, and the band of those that are near."""
    values = [value for mark in marks for value in (mark.published, mark.predicted)]
    ends = (min(values) / 1.3, max(values) * 1.3)
    low, high = ([factor * end for end in ends] for factor in (1 - NEAR, 1 + NEAR))
    axes.plot(ends, ends, color=INK, linewidth=1.0, zorder=1)
    axes.fill_between(ends, low, high, color=FRONT, alpha=0.25, linewidth=0, zorder=0)
    axes.set_xlim(*ends)
    axes.set_ylim(*ends)


def check_figure(path: Path | None) -> None:
    """Refuse a file that could not be written at the end.

    Raises:
        InputError: its ending is unknown, or its folder is missing.
    """
    if path is None:
        return
    if path.suffix.lower() not in ENDINGS:
        raise InputError(f"--figure is '{path}', must end in {', '.join(ENDINGS[:-1])} or {ENDINGS[-1]}")
    if not path.parent.is_dir():
        raise InputError(f"--figure is '{path}', but {path.parent} is no folder")


def write_figure(ledger: Ledger, path: Path | None) -> None:
    """Draw the figure into a file if one is given.

    Raises:
        InputError: the file cannot be written.
    """
    if path is not None:
        save_figure(plot_published(ledger), path)
