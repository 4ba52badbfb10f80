"""Plots of traces, of the design space and of fleets."""

from sim.report.plots.charts import save_figure as save_figure
from sim.report.plots.serving import *
from sim.report.plots.space import *
from sim.report.plots.timeline import *
