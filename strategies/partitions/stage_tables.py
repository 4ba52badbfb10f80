"""Stage tables: what every stage between two cuts of a chain takes, and the least possible longest of several."""

from functools import cache, lru_cache
from typing import TypeAlias

import numpy as np
import numpy.typing as npt

from profiles.costs.layers import FloatArray

BoolArray: TypeAlias = npt.NDArray[np.bool_]
IntArray: TypeAlias = npt.NDArray[np.intp]


def stage_table(values: FloatArray) -> FloatArray:
    """The sum over the layers from i up to, but without, j at [i, j], infinite where i >= j.

    Each sum runs from the stage's own first layer: equal layers then give equal sums wherever the stage lies,
    and ties stay ties, which differences of one prefix sum would blur.
    """
    return _stage_table(values.tobytes())


@lru_cache(maxsize=16)
def _stage_table(packed: bytes) -> FloatArray:
    """The same of the bytes of values: links and micro-batches vary much more often than layers."""
    values = np.frombuffer(packed)
    num_layers = len(values)
    table = np.full((num_layers + 1, num_layers + 1), np.inf)
    np.cumsum(np.where(_below(num_layers, -1), 0.0, values), axis=1, out=table[:-1, 1:])
    table[_below(num_layers + 1, 0)] = np.inf
    table.flags.writeable = False
    return table


@cache
def _below(size: int, diagonal: int) -> BoolArray:
    """Where a square table lies on one of its diagonals, or below."""
    return np.tri(size, k=diagonal, dtype=np.bool_)


def cut_column(cut_s: FloatArray, edges: npt.NDArray[np.intp]) -> FloatArray:
    """The message time of the cut before each stage as a column; none before stage 0."""
    column: FloatArray = np.concatenate(([0.0], cut_s, [0.0]))[edges, None]
    return column


def least_maximum(table: FloatArray, num_stages: int) -> float:
    """The least possible maximum over so many stages between the edges of a table."""
    width = len(table) - num_stages  # edges at which any one stage can begin
    reached, longer = table[0, 1 : width + 1], np.empty((width, width))
    for stage in range(1, num_stages):
        np.maximum(reached[:, None], table[stage : stage + width, stage + 1 : stage + 1 + width], out=longer)
        reached = np.minimum.reduce(longer, axis=0)
    return float(reached[-1])


def stages_between(edges: IntArray, layer_s: FloatArray) -> FloatArray:
    """The stage table of layers between some edges."""
    table = stage_table(layer_s)
    return table if len(edges) == len(table) else table[np.ix_(edges, edges)]


def known_longest(
    layer_s: FloatArray, message_s: FloatArray, edges: IntArray, num_stages: int
) -> float | None:
    """The least possible longest stage where it is that of the layers alone: no message takes longer."""
    longest_s = _least_longest(layer_s.tobytes(), edges.tobytes(), num_stages)
    return longest_s if message_s.max(initial=0.0) <= longest_s else None


@lru_cache(maxsize=1024)
def _least_longest(layer_s: bytes, edges: bytes, num_stages: int) -> float:
    """The least possible longest stage of layers without messages; links vary more often than layers."""
    return least_maximum(stages_between(np.frombuffer(edges, np.intp), np.frombuffer(layer_s)), num_stages)
