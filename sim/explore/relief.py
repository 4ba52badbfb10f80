"""Relief: points that lack memory, tried again with what recomputes activations."""

from math import inf
from typing import TYPE_CHECKING

from sim.explore.points import Point
from sim.explore.thresholds import Threshold
from sim.results import OUT_OF_MEMORY

if TYPE_CHECKING:
    from sim.explore.sweep import Sweep


def relieved(sweep: "Sweep") -> list[Point]:
    """The points of a sweep that lack memory, with its ``relief``, as far as they can still matter.

    What is recomputed takes time: none is faster than it would be without. Where memory is ranked by, the points that
    fit are tried again, too: what is recomputed need not be kept.
    """
    if sweep.relief is None:
        return []
    everything = sweep.objective == "memory"
    short = [
        Point(of.strategy, of.name, of.bound_s, num_gpus=of.num_gpus, checkpointing=sweep.relief)
        for of in sweep.points
        if of.kind == OUT_OF_MEMORY or (everything and of.kind is None)
    ]
    known = Threshold(sweep.objective, sweep.top)
    for point in sweep.points:
        known.add(point)
    limits = dict.fromkeys(map(id, short), inf) if sweep.exhaustive else known.limits(short)
    return [point for point in short if point.least_score(sweep.objective) < limits[id(point)]]
