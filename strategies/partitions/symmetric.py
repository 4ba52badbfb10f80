"""Cuts a chain with skips into stages of which the first and the last, and so on inwards, share a device.

Stages q and 2D - 1 - q share a device. So D - 1 *cut pairs*, each further in than the one before, split the layers
into rings, and a skip is local if both ends lie in one ring: live over both cuts of a pair, or over neither. The middle
cut runs through the innermost ring, whose two sides share a device: it is free. PULSE asks for more, a target in the
mirror stage of its source; two ends in one stage share a device all the same, and are allowed here.

Where skips are to stay on one device, only some cut pairs are possible:
O(n) with a skip for every pair of layers, O(n^2) without any. For each of them, the least longest stage outside it
follows from that outside all cut pairs further out, ring by ring. The same recursion, with squares added up instead
of maxima taken, then chooses the most even one among the partitions with the least longest stage.

Source: PULSE, section IV-B, Eq. 1 - 5 and Algorithm 1, with that wider choice of cuts.
"""

from bisect import bisect_left
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import accumulate, pairwise
from operator import xor
from typing import Final, TypeAlias

import numpy as np

from profiles.errors import InfeasibleError
from profiles.units import FloatArray
from strategies.partitions.chain import IntArray, stage_table

SkipEnds: TypeAlias = tuple[int, int]
CutPairs: TypeAlias = tuple[IntArray, IntArray]


def sent_skips(skips: Iterable[SkipEnds], boundaries: Sequence[int]) -> list[SkipEnds]:
    """The skips whose ends lie on two devices.

    Args:
        skips: Source and target layer of each.
        boundaries: 2D + 1 layer indices from 0 to L: the first layer of each stage, and the end.
    """
    last = len(boundaries) - 2
    sizes = (end - begin for begin, end in pairwise(boundaries))
    devices = [min(stage, last - stage) for stage, size in enumerate(sizes) for _ in range(size)]
    return [(source, target) for source, target in skips if devices[source] != devices[target]]


def collocated_skips(
    skips: Sequence[SkipEnds], num_layers: int, num_stages: int, skip_bytes: Sequence[float]
) -> tuple[SkipEnds, ...]:
    """Skips that can all be local at once, in their order: from the heaviest on, each that still can be.

    That is all of them, if any symmetric partition into so many stages keeps all local.

    Args:
        skips: Source and target layer of each.
        num_layers: Layers L of the chain.
        num_stages: Stages 2D, even and at most L.
        skip_bytes: What each skip carries.
    """

    def can_be_local(numbers: Iterable[int]) -> bool:
        return _depth(cut_pairs([skips[number] for number in numbers], num_layers)) >= num_stages // 2 - 1

    if can_be_local(range(len(skips))):
        return tuple(skips)
    kept: list[int] = []
    for number in sorted(range(len(skips)), key=lambda number: -skip_bytes[number]):
        if can_be_local([*kept, number]):
            kept.append(number)
    return tuple(skips[number] for number in sorted(kept))


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


MAX_LAYERS: Final = 512
"""Layers of a chain with more cut pairs than can be listed; half a minute for twice as many."""


def symmetric_partition(
    layer_s: FloatArray,
    cut_s: FloatArray,
    skips: Sequence[SkipEnds],
    num_stages: int,
    skip_bytes: Sequence[float],
) -> tuple[int, ...]:
    """The boundaries of the symmetric partition with the shortest longest stage that keeps the skips local.

    A stage takes its layers and the message over its outer cut: an encoder stage the one it sends, a decoder
    stage the one it receives. The middle cut is on one device and costs nothing.

    Where not all skips can be local, `collocated_skips` first says which are to be; what the others add to the
    messages is the caller's to put in `cut_s`. Among equal longest stages the least sum of squared stage times
    wins, as far as sums can tell them apart.

    Args:
        layer_s: Time of each layer, not negative, (L,).
        cut_s: Time of one message over the cut after each layer but the last, with the weight lambda, latency
            and bandwidth in it, (L - 1,).
        skips: Source and target layer of each skip.
        num_stages: Stages 2D, even and at most L.
        skip_bytes: What each skip carries.

    Returns:
        2D + 1 layer indices from 0 to L; stage s holds the layers from boundaries[s] up to, but without,
        boundaries[s + 1].

    Raises:
        InfeasibleError: If there are too many layers.

    Source: PULSE, Eq. 1 - 5.
    """
    pairs = cut_pairs(collocated_skips(skips, len(layer_s), num_stages, skip_bytes), len(layer_s))
    search, num_rings = _Search.over(layer_s, cut_s, *pairs), num_stages // 2
    return search.most_even(search.least(num_rings)).boundaries(num_rings)


@dataclass(frozen=True, slots=True, eq=False)
class _Search:
    """The cut pairs of a chain, what the stages between them cost, and what several stages cost together.

    Its tables have one row for each layer: cut pairs are compared by their begins first and then by their ends.

    Attributes:
        begins: First layer inside each cut pair, (V,); the first is 0.
        ends: First layer behind the inside, (V,); the first is L.
        end_rows: Row of each cut pair in `decoder` and `second`, (V,); in `encoder` and `first` it is its begin.
        encoder: The encoder stage between an outer and an inner begin, at [outer row, inner row].
        decoder: The decoder stage between an inner and an outer end, likewise.
        first: The stage from a begin to the middle cut, (rows, L + 1).
        second: The stage from the middle cut to an end, (rows, L + 1).
        combine: `numpy.maximum` or `numpy.add`.
    """

    begins: IntArray
    ends: IntArray
    end_rows: IntArray
    encoder: FloatArray
    decoder: FloatArray
    first: FloatArray
    second: FloatArray
    combine: np.ufunc

    @classmethod
    def over(cls, layer_s: FloatArray, cut_s: FloatArray, begins: IntArray, ends: IntArray) -> "_Search":
        """Tabulate Eq. 2 and 3, and what lies inside; infinite where there is no stage."""
        stage_s, cut = stage_table(layer_s), np.concatenate(([0.0], cut_s, [0.0]))
        if len(begins) > 2 * len(layer_s) > 2 * MAX_LAYERS:
            raise InfeasibleError(
                f"the chain has {len(layer_s)} layers, must have at most {MAX_LAYERS} where its skips leave"
                f" {len(begins)} pairs of cuts to choose from",
                "too many layers for a skip-aware partition",
            )
        first, second = stage_s, stage_s.T[::-1]
        encoder, decoder = first + cut, second[:, ::-1] + cut[::-1]
        return cls(begins, ends, len(layer_s) - ends, encoder, decoder, first, second, np.maximum)

    def most_even(self, longest_s: float) -> "_Search":
        """The search for the least sum of squares of stages that take no longer."""
        encoder, decoder, first, second = (
            np.where(table <= longest_s, table * table, np.inf)
            for table in (self.encoder, self.decoder, self.first, self.second)
        )
        return _Search(self.begins, self.ends, self.end_rows, encoder, decoder, first, second, np.add)

    def least(self, num_rings: int) -> float:
        """The least cost of all stages together, infinite if there are not so many."""
        return float(self._totals(self._around(num_rings)).min())

    def boundaries(self, num_rings: int) -> tuple[int, ...]:
        """The first layers of the stages with the least cost, and L."""
        around = self._around(num_rings)
        path = [int(self._totals(around).argmin())]
        for reached in around[-2::-1]:
            begin, end = self.begins[path[-1]], self.end_rows[path[-1]]
            rings = self.combine(self.encoder[self.begins, begin], self.decoder[self.end_rows, end])
            path.append(int(self.combine(reached, rings).argmin()))
        inmost = path[0]
        halves = self.first[self.begins[inmost]], self.second[self.end_rows[inmost]]
        middle = int(self.combine(*halves).argmin())
        return *self.begins[path[::-1]].tolist(), middle, *self.ends[path].tolist()

    def _totals(self, around: list[FloatArray]) -> FloatArray:
        """The least cost of all stages with each cut pair as the innermost, (V,)."""
        totals: FloatArray = self.combine(around[-1], self._inside())
        return totals

    def _around(self, num_rings: int) -> list[FloatArray]:
        """The least cost of 0, 1 ... D - 1 rings around each cut pair, (V,) each."""
        around = [np.where(self.begins == 0, 0.0, np.inf)]
        for _ in range(num_rings - 1):  # from all the next outer ones
            grid = np.full_like(self.encoder, np.inf)
            grid[self.begins, self.end_rows] = around[-1]
            grid = _extended(grid, self.encoder, self.combine)
            around.append(_extended(grid.T, self.decoder, self.combine).T[self.begins, self.end_rows])
        return around

    def _inside(self) -> FloatArray:
        """The least cost of the two stages inside each cut pair, (V,)."""
        # backwards, from the middle cut to the begins before it
        grid = _extended(self.second.T[::-1], self.first[::-1, ::-1].T, self.combine)
        return grid[::-1][self.begins, self.end_rows]


def _extended(reached: FloatArray, stages: FloatArray, combine: np.ufunc) -> FloatArray:
    """At [j, t] the least over i < j of the combined reached[i, t] and stages[i, j]."""
    extended = np.full_like(reached, np.inf)
    for before, stage in zip(reached, stages, strict=True):
        np.minimum(extended, combine(before, stage[:, None]), out=extended)
    return extended
