"""Skips of a chain that stay on one device when its stages lie symmetrically.

A chain of L layers is cut into 2D stages, and stages q and 2D - 1 - q share a device. So D - 1 *cut pairs*, each
further in than the one before, split the layers into rings, and a skip is local if both ends lie in one ring:
live over both cuts of a pair, or over neither. A cut pair therefore keeps all skips local if and only if the same
skips are live over both of its cuts. The middle cut runs through the innermost ring, whose two sides share a
device: it is free.

PULSE asks for more, a target in the mirror stage of its source, and thereby confines the middle cut to where it
splits the innermost skip. Two ends in one stage share a device all the same; here they are allowed.

Source: PULSE, section IV-B.
"""

from bisect import bisect_left
from collections.abc import Iterable, Sequence
from functools import lru_cache
from itertools import accumulate, pairwise
from operator import xor
from typing import TypeAlias

import numpy as np
import numpy.typing as npt

from profiles.costs.layers import FloatArray

IntArray: TypeAlias = npt.NDArray[np.intp]
SkipEnds: TypeAlias = tuple[int, int]
CutPairs: TypeAlias = tuple[IntArray, IntArray]


def split_skips(
    skips: Iterable[SkipEnds], boundaries: Sequence[int]
) -> tuple[tuple[SkipEnds, ...], tuple[SkipEnds, ...]]:
    """The skips whose ends share a device, and those that are sent.

    Args:
        skips: Source and target layer of each.
        boundaries: 2D + 1 layer indices from 0 to L: the first layer of each stage, and the end.
    """
    last = len(boundaries) - 2
    sizes = (end - begin for begin, end in pairwise(boundaries))
    devices = [min(stage, last - stage) for stage, size in enumerate(sizes) for _ in range(size)]
    local: list[SkipEnds] = []
    sent: list[SkipEnds] = []
    for source, target in skips:
        (local if devices[source] == devices[target] else sent).append((source, target))
    return tuple(local), tuple(sent)


def collocated_skips(
    skips: Sequence[SkipEnds],
    num_layers: int,
    num_stages: int,
    skip_bytes: Sequence[float] | None = None,
) -> tuple[SkipEnds, ...]:
    """The heaviest skips that can all be local at once, in the order given.

    That is all of them, if any symmetric partition into so many stages keeps all local, and otherwise those of a
    partition that loses the fewest bytes; exact, in O(D n^4 / 24).

    Args:
        skips: Source and target layer of each.
        num_layers: Layers L of the chain.
        num_stages: Stages 2D, even and at most L.
        skip_bytes: What each skip carries; by default all weigh the same.
    """
    if _depth(cut_pairs(skips, num_layers)) >= num_stages // 2 - 1:
        return tuple(skips)
    weights = [1.0] * len(skips) if skip_bytes is None else skip_bytes
    pairs = _least_broken(_cumulated(skips, weights, num_layers), num_stages // 2 - 1)
    begins, ends = zip(*pairs, strict=True)
    return split_skips(skips, (*begins, begins[-1] + 1, *ends[::-1]))[0]


@lru_cache(maxsize=64)  # times of layers, which depend on the micro-batch, change nothing of it
def collocating_cut_pairs(
    skips: tuple[SkipEnds, ...],
    num_layers: int,
    num_stages: int,
    skip_bytes: tuple[float, ...] | None = None,
) -> CutPairs:
    """The `cut_pairs` of the `collocated_skips`."""
    pairs = cut_pairs(skips, num_layers)
    if _depth(pairs) >= num_stages // 2 - 1:
        return pairs
    return cut_pairs(collocated_skips(skips, num_layers, num_stages, skip_bytes), num_layers)


def cut_pairs(skips: Sequence[SkipEnds], num_layers: int) -> CutPairs:
    """The cut pairs that separate the ends of no skip, in lexicographic order.

    Args:
        skips: Source and target layer of each.
        num_layers: Layers L of the chain, at least 2.

    Returns:
        First layer inside each cut pair, and first layer behind it, (V,) each. The first are 0 and L, the whole
        chain; each leaves two layers inside at least, for the two innermost stages.
    """
    starts_or_stops = [0] * num_layers
    for number, skip in enumerate(skips):
        for layer in skip:
            starts_or_stops[layer] ^= 1 << number
    live = list(accumulate(starts_or_stops, xor))[:-1]  # sets of skips, each as the bits of a number
    numbers = {skips: number for number, skips in enumerate(dict.fromkeys(live))}
    kinds = np.array([numbers[skips] for skips in live])
    alike = np.flatnonzero(np.triu(kinds[:, None] == kinds, k=2))
    return np.append(0, alike // len(live) + 1), np.append(num_layers, alike % len(live) + 1)


def _depth(pairs: CutPairs) -> int:
    """The largest number of cut pairs that lie one within the other, the whole chain not counted.

    Where they begin further in, they must end further in. Those that begin alike come with the innermost end
    first, so that what counts is the longest falling run of ends.
    """
    run: list[int] = []
    for end in (-pairs[1][1:]).tolist():
        at = bisect_left(run, end)
        run[at : at + 1] = [end]
    return len(run)


def _cumulated(skips: Sequence[SkipEnds], weights: Sequence[float], num_layers: int) -> FloatArray:
    """The weight of the skips with a source before layer x and a target before layer y at [x, y]."""
    weight = np.zeros((num_layers + 1, num_layers + 1))
    for (source, target), bytes_ in zip(skips, weights, strict=True):
        weight[source + 1, target + 1] += bytes_
    summed: FloatArray = weight.cumsum(axis=0).cumsum(axis=1)
    return summed


def _least_broken(weight: FloatArray, num_pairs: int) -> list[SkipEnds]:
    """The cut pairs, the whole chain first, that separate the ends of the fewest bytes of skips.

    A skip is charged to the outermost cut pair that separates its ends. One of them then lies in the ring around
    that pair, the other inside, so that the charge is a sum of one part for each side of the ring.
    """
    num_layers = len(weight) - 1
    broken = np.full((num_pairs + 1, num_layers + 1, num_layers + 1), np.inf)
    broken[0, 0, num_layers] = 0.0
    for begin in range(1, num_layers - 2):
        for end in range(begin + 2, num_layers):
            around = broken[:-1, :begin, end + 1 :] + _charge(weight, begin, end)
            broken[1:, begin, end] = around.reshape(num_pairs, -1).min(axis=1)
    pairs = [_argmin(broken[-1])]
    for around in broken[-2::-1]:
        begin, end = pairs[-1]
        outer, behind = _argmin(around[:begin, end + 1 :] + _charge(weight, begin, end))
        pairs.append((outer, end + 1 + behind))
    return pairs[::-1]


def _charge(weight: FloatArray, begin: int, end: int) -> FloatArray:
    """The weight of the skips that a cut pair is the first to separate, for each cut pair around it."""
    into = weight[begin, end] - weight[:begin, end] - weight[begin, begin] + weight[:begin, begin]
    out = weight[end, end + 1 :] - weight[end, end] - weight[begin, end + 1 :] + weight[begin, end]
    charge: FloatArray = into[:, None] + out
    return charge


def _argmin(table: FloatArray) -> tuple[int, int]:
    row, column = divmod(int(table.argmin()), table.shape[1])
    return row, column
