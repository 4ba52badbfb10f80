"""The figure: every predicted number against the published one, on logarithmic axes, training beside sampling."""

from collections.abc import Sequence
from math import inf
from typing import Any, Final

from profiles.errors import InputError
from profiles.measuring.writing import grouped
from sim.report.plots import charts
from validate.published.ledger import NEAR, Ledger, independent_errors, near
from validate.published.records import LATENCY, TASKS, Record, Standing, source_names

TITLES: Final = {"train": ("training", "each in its own unit"), "sample": ("sampling", "latency in s")}
"""Title and unit of the panel of a task."""
COLOURS: Final = ("#0072B2", "#E69F00", "#009E73", "#CC79A7", "#56B4E9", "#D55E00", "#222222")
SHAPES: Final = "osD^vP<X>*p"
"""Colours and markers of the sources."""
DRAWN: Final = (Standing.INDEPENDENT, Standing.IN_VIEW, Standing.FITTED)


def plot_published_info(ledger: Ledger) -> dict[str, list[Record]]:
    """Return the numbers that are plotted, by task: all predicted ones but formulas and those apart.

    For sampling, only latencies; anchors, which lie on the diagonal, are left out.
    """
    drawn: dict[str, list[Record]] = {task: [] for task in TASKS}
    for one in ledger.records:
        task, start = one.row.task, one.row.num_gpus == 1 and one.standing is Standing.FITTED
        latency = one.row.quantity == LATENCY and not start
        if one.standing in DRAWN and 0 < (one.predicted or 0) < inf and (task == TASKS[0] or latency):
            drawn[task].append(one)
    return drawn


def plot_published(ledger: Ledger) -> charts.Chart:
    """Predicted against published numbers by source; hollow ones are not independent, the band is 15 % each way."""
    panels = [(task, records) for task, records in plot_published_info(ledger).items() if records]
    if not panels:
        raise InputError("no published number is predicted: nothing to plot")
    figure = charts.Chart(figsize=(6.6 * len(panels), 7.6), layout="constrained")
    for number, (task, records) in enumerate(panels, start=1):
        _draw(figure.add_subplot(1, len(panels), number), *TITLES[task], records)
    return figure


def _draw(axes: Any, title: str, unit: str, records: Sequence[Record]) -> None:  # noqa: ANN401  only plots know axes
    axes.spines[["top", "right"]].set_visible(False)
    values = [value for one in records for value in (one.row.value, one.predicted) if value]
    ends = (min(values) / 1.3, max(values) * 1.3)
    low, high = ([factor * end for end in ends] for factor in (1 - NEAR, 1 + NEAR))
    axes.plot(ends, ends, color=charts.INK, linewidth=1.0, zorder=1)  # both agree
    axes.fill_between(ends, low, high, color=charts.FRONT, alpha=0.25, linewidth=0, zorder=0)
    axes.set(xlim=ends, ylim=ends)
    groups = grouped(records, lambda one: one.row.group)
    for number, name in enumerate(filter(groups.__contains__, source_names())):
        _scatter(axes, groups[name], name, number)
    hollow = "hollow: fitted or in view, not independent"
    axes.scatter([], [], s=34, facecolor="none", edgecolor=charts.INK, label=hollow)
    for which in ("x", "y"):
        charts.scale_logarithmically(axes, which)
    axes.set(xlabel=f"published, {unit}", ylabel=f"predicted, {unit}")
    axes.grid(color=charts.GRID, linewidth=0.8)
    axes.set_axisbelow(True)
    axes.legend(loc="upper center", bbox_to_anchor=(0.5, -0.1), ncols=2, frameon=False, fontsize=8.5)
    errors = independent_errors(records)
    charts.set_title(axes, title, f"{near(errors)} of {len(errors)} independent within {NEAR:.0%}")


def _scatter(axes: Any, records: Sequence[Record], group: str, number: int) -> None:  # noqa: ANN401  as above
    """Draw one source: hollow markers for what was fitted or in view, above them filled ones for the independent."""
    colour = COLOURS[number % len(COLOURS)]
    marker = SHAPES[number % len(SHAPES)]
    looks = {
        False: {"facecolor": "none", "edgecolor": colour, "linewidth": 1.0, "zorder": 2},
        True: {"facecolor": colour, "edgecolor": "white", "linewidth": 0.5, "zorder": 3},
    }
    for independent, look in looks.items():
        points = [one for one in records if (one.standing is Standing.INDEPENDENT) is independent]
        values = [one.row.value for one in points], [one.predicted for one in points]
        axes.scatter(*values, s=34, marker=marker, **look)
    axes.scatter([], [], s=34, marker=marker, color=colour, label=f"{group} ({len(records)})")
