"""Looks: numbers of axes that read as numbers."""

import pytest
from matplotlib.figure import Figure

from sim.report.plots.charts import scale_logarithmically


@pytest.mark.parametrize(("low", "high"), [(0.8, 120.0), (24.0, 29.0)])
def test_a_logarithmic_axis_has_ticks_in_sight_in_plain_numbers(low, high):
    axes = Figure().subplots()
    scale_logarithmically(axes, "y")
    axes.set_ylim(low, high)
    seen = [tick for tick in axes.yaxis.get_majorticklocs() if low <= tick <= high]
    assert 2 <= len(seen) <= 12
    assert not any("e" in axes.yaxis.get_major_formatter()(tick) for tick in seen)
