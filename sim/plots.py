"""Plots: each is a pair, ``plot_x_info`` (plain values) and ``plot_x``, which draws them.

``Dials``, a run to turn in a notebook, needs packages of the extra ``notebooks``.
"""

from sim.interactive import Dials
from sim.report.plots.charts import save_figure
from sim.report.plots.space import (
    plot_bubble_ratios,
    plot_bubble_ratios_info,
    plot_scaling,
    plot_scaling_info,
    plot_winners,
    plot_winners_info,
)
from sim.report.plots.sweep import plot_sweep, plot_sweep_info
from sim.report.plots.timeline import (
    plot_memory,
    plot_memory_info,
    plot_timeline,
    plot_timeline_info,
    plot_timelines,
    plot_timelines_info,
)

__all__ = [
    "Dials",
    "plot_bubble_ratios",
    "plot_bubble_ratios_info",
    "plot_memory",
    "plot_memory_info",
    "plot_scaling",
    "plot_scaling_info",
    "plot_sweep",
    "plot_sweep_info",
    "plot_timeline",
    "plot_timeline_info",
    "plot_timelines",
    "plot_timelines_info",
    "plot_winners",
    "plot_winners_info",
    "save_figure",
]
