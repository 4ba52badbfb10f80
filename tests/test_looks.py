"""Looks: strategies that can be told apart, and numbers that read as numbers."""

from itertools import combinations

import numpy as np
import pytest
from matplotlib.colors import to_rgb
from matplotlib.figure import Figure

from sim.report.plots.charts import scale_logarithmically
from sim.report.plots.looks import strategy_look
from strategies.registry import strategies_of

SIGHTS = {
    "all": np.eye(3),
    # Machado, Oliveira and Fernandes (2009), Table 1: severity 1, on linear RGB
    "no red": np.array(
        [
            [0.152286, 1.052583, -0.204868],
            [0.114503, 0.786281, 0.099216],
            [-0.003882, -0.048116, 1.051998],
        ]
    ),
    "no green": np.array(
        [
            [0.367322, 0.860646, -0.227968],
            [0.280085, 0.672501, 0.047413],
            [-0.011820, 0.042940, 0.968881],
        ]
    ),
    "no blue": np.array(
        [
            [1.255528, -0.076749, -0.178779],
            [-0.078411, 0.930809, 0.147602],
            [0.004733, 0.691367, 0.303900],
        ]
    ),
}
"""What people see of a colour: all of it, or without one kind of cones."""
XYZ = np.array([[0.4124, 0.3576, 0.1805], [0.2126, 0.7152, 0.0722], [0.0193, 0.1192, 0.9505]])
APART = 18.0
"""Distance in CIELAB from which on two patches are told apart at a glance; 2.3 can just be noticed."""


def lab(colour, sight):
    """A colour as it is seen, in CIELAB, white being that of the screen."""
    values = np.array(to_rgb(colour))
    linear = np.where(values <= 0.04045, values / 12.92, ((values + 0.055) / 1.055) ** 2.4)
    share = XYZ @ np.clip(SIGHTS[sight] @ linear, 0, 1) / XYZ.sum(axis=1)
    x, y, z = np.where(share > 0.008856, np.cbrt(share), 7.787 * share + 16 / 116)
    return np.array([116 * y - 16, 500 * (x - y), 200 * (y - z)])


@pytest.mark.parametrize("sight", SIGHTS)
@pytest.mark.parametrize("task", ["train", "sample"])
def test_the_colours_of_a_task_are_told_apart_by_everyone_and_from_paper(task, sight):
    colours = {name: strategy_look(name)[0] for name in strategies_of(task)} | {"paper": "white"}
    near = {
        (one, other): np.linalg.norm(lab(colours[one], sight) - lab(colours[other], sight))
        for one, other in combinations(colours, 2)
    }
    assert {pair: far for pair, far in near.items() if far < APART} == {}


@pytest.mark.parametrize(("low", "high"), [(0.8, 120.0), (24.0, 29.0)])
def test_a_logarithmic_axis_has_ticks_in_sight_in_plain_numbers(low, high):
    axes = Figure().subplots()
    scale_logarithmically(axes, "y")
    axes.set_ylim(low, high)
    seen = [tick for tick in axes.yaxis.get_majorticklocs() if low <= tick <= high]
    assert 2 <= len(seen) <= 12
    assert not any("e" in axes.yaxis.get_major_formatter()(tick) for tick in seen)
