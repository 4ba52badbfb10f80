"""Plots: each is a pair, ``plot_x_info`` (plain values) and ``plot_x``, which draws them."""

from sim.report.plots.charts import save_figure as save_figure
from sim.report.plots.serving import *
from sim.report.plots.space import *
from sim.report.plots.timeline import *
