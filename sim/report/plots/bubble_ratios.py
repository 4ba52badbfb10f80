"""Bubble ratios over stages and micro-batches."""

from dataclasses import dataclass
from math import isfinite
from typing import Any

import matplotlib as mpl
import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from profiles.errors import InputError
from sim.report.plots.charts import IDLE_FACE, IDLE_HATCH, chart, contrast, is_finite, label_cells, set_title
from sim.report.plots.plot_data import Drawable, plot_rows


@dataclass(frozen=True, slots=True)
class BubbleRatioInfo:
    """Bubble ratios by stages (rows) and micro-batches (columns); None where there is no result."""

    stages: list[int]
    micro_batches: list[int]
    ratios: list[list[float | None]]


def plot_bubble_ratios_info(rows: Drawable) -> BubbleRatioInfo:
    """The values that ``plot_bubble_ratios`` draws; of several results at one point, the smallest ratio.

    Args:
        rows: sweeps, results, or their rows; those without stages, micro-batches or a ratio are left out.

    Raises:
        InputError: no row is left.
    """
    best: dict[tuple[int, int], float] = {}
    for row in plot_rows(rows):
        parameters = row.get("parameters") or row  # a frame has a column of each
        key: tuple[Any, Any] = parameters.get("pipeline_degree"), parameters.get("micro_batches")
        if all(map(is_finite, (*key, row.get("bubble_ratio")))):
            best[key] = min(best.get(key, 1.0), float(row["bubble_ratio"]))
    if not best:
        raise InputError("no row has a pipeline_degree, micro_batches and a bubble_ratio: nothing to plot")
    stages = sorted({degree for degree, _ in best})
    counts = sorted({count for _, count in best})
    return BubbleRatioInfo(stages, counts, [[best.get((p, m)) for m in counts] for p in stages])


def plot_bubble_ratios(rows: Drawable, title: str = "", ax: Axes | None = None) -> Figure:
    """The bubble ratios as a map with the percentages written in its cells.

    Source: DiffusionPipe, Figure 4.
    """
    info = plot_bubble_ratios_info(rows)
    figure, axes = chart(2.4 + 0.85 * len(info.micro_batches), 1.6 + 0.6 * len(info.stages), ax)
    percent = np.ma.masked_invalid([[np.nan if r is None else 100 * r for r in row] for row in info.ratios])
    highest = float(percent.max()) or 1.0
    colours = mpl.colormaps["Blues"].with_extremes(bad=IDLE_FACE)
    cells = axes.pcolormesh(percent, cmap=colours, vmin=0.0, vmax=highest, edgecolors="white", linewidth=2.0)
    for (y, x), value in np.ndenumerate(percent.filled(np.nan)):
        known = isfinite(value)
        colour = contrast(colours(value / highest)) if known else IDLE_HATCH
        text = f"{value:.1f}" if known else "-"
        axes.text(x + 0.5, y + 0.5, text, ha="center", va="center", color=colour)
    label_cells(axes, info.micro_batches, info.stages, ("micro-batches", "stages"))
    axes.invert_yaxis()
    figure.colorbar(cells, ax=axes, label="bubble ratio in %")
    set_title(axes, title)
    return figure
