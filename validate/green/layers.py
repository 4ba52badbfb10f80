"""Layers: what each layer of the small real model takes on one lane, so that plans are balanced on it."""

from collections.abc import Callable, Iterable
from itertools import pairwise
from statistics import median
from typing import Final

from profiles.models import Model
from validate.green.lanes import Lanes
from validate.running.training.blocks import Layers, Shape
from validate.running.training.timing import passes_of

REPEATS: Final = 3
AHEAD_S: Final = 3e-3
"""A lane is held back so long, until all that is timed is in it: else the time of enqueuing is measured."""


def layer_times(
    lanes: Lanes, model: Model, batch: int, shape: Shape
) -> dict[tuple[int, int], tuple[float, float]]:
    """(Forward, backward) seconds of each (component, layer) at a batch, medians, on the first lane alone."""
    return {
        (component, layer): _layer_time(lanes, model, (component, layer), batch, shape)
        for component, of in enumerate(model.components)
        for layer in range(len(of.layers))
    }


def _layer_time(
    lanes: Lanes, model: Model, key: tuple[int, int], batch: int, shape: Shape
) -> tuple[float, float]:
    works = passes_of(Layers(model, {}, lanes.device, shape), *key, batch)
    lanes.settle()
    rounds = [_timed(lanes, works) for _ in range(1 + REPEATS)]
    forward_s, backward_s = (median(seconds) for seconds in zip(*rounds[1:], strict=True))
    return forward_s, backward_s if model.components[key[0]].trainable else 0.0


def _timed(lanes: Lanes, works: Iterable[Callable[[], None]]) -> list[float]:
    lanes.hold(0, lanes.record(0, stamped=True), AHEAD_S)
    marks = [lanes.record(0)]
    for work in works:
        lanes.submit(0, work)
        marks.append(lanes.record(0))
    lanes.settle()
    return [lanes.seconds(start, end) for start, end in pairwise(marks)]
