"""Relief: points that lack memory, tried again with what recomputes activations."""

from collections.abc import Iterable
from typing import TYPE_CHECKING

from sim.explore.points import Point
from sim.results import OUT_OF_MEMORY

if TYPE_CHECKING:
    from sim.explore.sweep import Sweep


def relieved(sweep: "Sweep", points: Iterable[Point]) -> list[Point]:
    """Those of some points that lack memory, with the sweep's ``relief``.

    What is recomputed takes time: none is faster than it would be without. Where memory is ranked by, the points that
    fit are tried again, too: what is recomputed need not be kept.
    """
    if sweep.relief is None:
        return []
    everything = sweep.objective == "memory"
    return [
        Point(of.strategy, of.name, of.bound_s, num_gpus=of.num_gpus, checkpointing=sweep.relief)
        for of in points
        if of.kind == OUT_OF_MEMORY or (everything and of.kind is None)
    ]
