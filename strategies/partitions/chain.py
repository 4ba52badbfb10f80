"""Cuts one chain of layers into stages, exactly.

The published objective (M + 2S - 2) W + Y adds up two *separate* maxima over the stages, so the best cut of
a prefix depends on what follows, and a dynamic programme that keeps one number per state misses the optimum.
What is kept here is every non-dominated combination of the maxima, found by an epsilon constraint: minimise
one maximum, then the next with all stages forbidden that exceed the first, forbid the value found, repeat.
Each step is a shortest path over the cuts in which a path is as long as its longest stage.

Source: DiffusionPipe, sections 4.1 and 4.3, Eq. 1 - 9, 17 and 18, with one replication degree for all stages.

For a bidirectional pipeline two chains are cut into equally many stages: one backbone runs down positions 0 to P - 1,
the other up. The objective (M_CDM + 2S - 2) max(W_down, W_up) + max(Y_down, Y_up) couples the chains by nothing but
their maxima, so that the non-dominated combinations of each chain for itself suffice. Source: sections 4.2 and 4.3,
Eq. 10 - 18. M_CDM is not defined there; 2M, the micro-batches of both backbones, makes the objective an upper bound.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import product
from typing import TypeAlias

import numpy as np
import numpy.typing as npt

from profiles.errors import InfeasibleError
from profiles.units import FloatArray

BoolArray: TypeAlias = npt.NDArray[np.bool_]
IntArray: TypeAlias = npt.NDArray[np.intp]
CostVector: TypeAlias = tuple[float, ...]


@dataclass(frozen=True, slots=True, eq=False)
class ChainCosts:
    """Costs of a chain of L layers at one local micro-batch, in seconds.

    Attributes:
        forward_s: Forward time of each layer, (L,).
        backward_s: Backward time of each layer, (L,).
        cut_forward_s: Time of one message forwards over the cut after each layer but the last, bandwidth and
            latency included, (L - 1,).
        cut_backward_s: The same for the gradient message backwards, (L - 1,).
        sync_s: Gradient all-reduce time of each layer without latency, (L,).
        sync_latency_s: Latency of one all-reduce (L_ar of Eq. 4).
        legal_cuts: Cuts that are allowed, (L - 1,); None allows all.
    """

    forward_s: FloatArray
    backward_s: FloatArray
    cut_forward_s: FloatArray
    cut_backward_s: FloatArray
    sync_s: FloatArray
    sync_latency_s: float
    legal_cuts: BoolArray | None = None


@dataclass(frozen=True, slots=True, eq=False)
class StageMemory:
    """Memory of the stages of a chain of L layers, in bytes.

    Attributes:
        state_bytes: What each layer holds throughout, (L,).
        saved_bytes: What each layer saves of a micro-batch for its backward, (L,).
        in_flight: Micro-batches that each stage holds at once, (S,); at least one counts.
        room_bytes: What the device of a stage has room for.
    """

    state_bytes: FloatArray
    saved_bytes: FloatArray
    in_flight: Sequence[int]
    room_bytes: float

    def table(self, edges: IntArray) -> FloatArray:
        """The memory of each stage, in a table for each."""
        tables = (stages_between(edges, sizes) for sizes in (self.state_bytes, self.saved_bytes))
        state, saved = (by_stage(table, len(self.in_flight)) for table in tables)
        return state + np.maximum(self.in_flight, 1.0)[:, None, None] * saved


def optimal_partition(
    costs: ChainCosts,
    num_stages: int,
    num_micro_batches: int,
    self_conditioning: float = 0.0,
    memory: StageMemory | None = None,
) -> tuple[int, ...]:
    """Return the boundaries of the partition with the least expected upper bound on the pipeline's time.

    The search stops once no further point can win. The time T_F to send the chain's output back to stage 0 is the same
    for all.

    Args:
        costs: Costs of the chain at one local micro-batch.
        num_stages: Stages S, at least 1.
        num_micro_batches: Micro-batches M, at least 1.
        self_conditioning: Probability p of the extra forward pass, 0 to 1.
        memory: Memory of the stages: the fastest partition that fits is taken, or the fastest where none fits; among
            equally fast ones that whose fullest stage needs least.

    Returns:
        S + 1 layer indices from 0 to L; stage s holds the layers from boundaries[s] up to, but without,
        boundaries[s + 1].

    Raises:
        InfeasibleError: If the chain cannot be cut into so many stages.

    Source: DiffusionPipe, Eq. 2 and 18 and the expectation of section 4.3.
    """
    search = StageSearch.over(costs, num_stages, self_conditioning)
    rounds = num_micro_batches + 2 * num_stages - 2  # on the critical path
    point = search.best(rounds)
    if memory is None:
        return search.boundaries(point)
    table, room = memory.table(search.edges), memory.room_bytes
    if search.least_maximum(table, search.within(point)) > room >= search.least_maximum(table):
        point = search.best(rounds, table <= room)
    return search.boundaries(point, table)


def block_partition(blocks: Sequence[int], num_stages: int) -> tuple[int, ...]:
    """The boundaries, in layers, of stages with an equal number of blocks.

    Args:
        blocks: Block of each layer, non-decreasing, (L,).
        num_stages: Stages P, at most as many as blocks; cut i lies at Python's round(i * n / P) of the n blocks.
    """
    starts = [layer for layer, block in enumerate(blocks) if layer == 0 or block != blocks[layer - 1]]
    edges = [*starts, len(blocks)]
    return tuple(edges[round(i * len(starts) / num_stages)] for i in range(num_stages + 1))


def stage_table(values: FloatArray) -> FloatArray:
    """The sum over the layers from i up to, but without, j at [i, j], infinite where i >= j.

    Each sum runs from the stage's own first layer: equal layers then give equal sums wherever the stage lies,
    and ties stay ties, which differences of one prefix sum would blur.
    """
    num_layers = len(values)
    table = np.full((num_layers + 1, num_layers + 1), np.inf)
    np.cumsum(np.where(np.tri(num_layers, k=-1, dtype=np.bool_), 0.0, values), axis=1, out=table[:-1, 1:])
    table[np.tri(num_layers + 1, dtype=np.bool_)] = np.inf
    return table


def least_maximum(tables: FloatArray) -> float:
    """The least possible maximum over the stages, by a table for each (``by_stage``)."""
    reached = tables[0][0]
    for table in tables[1:]:
        reached = np.maximum(reached[:, None], table).min(axis=0)
    return float(reached[-1])


def by_stage(table: FloatArray, num_stages: int) -> FloatArray:
    """A table for each stage, of the edges at which it can begin and end."""
    width = len(table) - num_stages
    windows = np.lib.stride_tricks.sliding_window_view(table, (width, width))
    return windows[np.arange(num_stages), np.arange(num_stages) + 1]


def stages_between(edges: IntArray, layer_s: FloatArray) -> FloatArray:
    """The stage table of layers between some edges."""
    table = stage_table(layer_s)
    return table if len(edges) == len(table) else table[np.ix_(edges, edges)]


@dataclass(frozen=True, slots=True, eq=False)
class StageSearch:
    """The stages that a chain offers, and the maxima to be kept small.

    Attributes:
        edges: Layer indices at which a stage may begin or end, (E + 1,): 0, the legal cuts, L.
        weights: Share of each stage time that counts in the expected pace.
        criteria: What is minimised, in this order, in a table for each stage: T0 and T0_SC where they count, then the
            gap T_S - T_C, which may be negative.
    """

    edges: IntArray
    weights: tuple[float, ...]
    criteria: tuple[FloatArray, ...]

    @classmethod
    def over(cls, costs: ChainCosts, num_stages: int, self_conditioning: float) -> "StageSearch":
        """Tabulate Eq. 3, 6 and 17 for every stage between two legal cuts."""
        edges = _legal_edges(costs, num_stages)
        both_s, cut_s = costs.forward_s + costs.backward_s, costs.cut_forward_s + costs.cut_backward_s
        seconds = (both_s, cut_s), (both_s + costs.forward_s, cut_s + costs.cut_forward_s)
        stage, conditioned = (
            np.maximum(stages_between(edges, layer_s), np.concatenate(([0.0], message_s, [0.0]))[edges, None])
            for layer_s, message_s in seconds
        )
        gap = stages_between(edges, costs.sync_s - costs.backward_s) + costs.sync_latency_s
        shares = (1 - self_conditioning, stage), (self_conditioning, conditioned)
        weights, tables = zip(*(share for share in shares if share[0] > 0), strict=True)
        criteria = tuple(by_stage(table, num_stages) for table in (*tables, gap))
        return cls(edges, weights, criteria)

    def pace(self, point: CostVector) -> float:
        """The expected time per round of a point, (1 - p) W + p W_sc."""
        return sum(weight * maximum for weight, maximum in zip(self.weights, point, strict=False))

    def rank(self, point: CostVector, rounds: int) -> tuple[float, float, CostVector]:
        """Its bound, its pace and the point: of equal bounds the smallest pace wins, then the smallest point."""
        pace = self.pace(point)
        return rounds * pace + point[-1], pace, point

    def best(self, rounds: int, allowed: BoolArray | None = None) -> CostVector:
        """The point over the allowed stages of the least rank, by rounds x pace + gap."""
        least_gap = self.least_maximum(self.criteria[-1], allowed)
        best: tuple[float, float, CostVector] | None = None
        for level in self.levels(self.criteria, allowed):
            ranked = [self.rank(point, rounds) for point in level]
            best = min(ranked) if best is None else min(best, *ranked)
            if rounds * min(map(self.pace, level)) + least_gap > best[0]:  # later levels are no quicker
                break
        assert best is not None, "a chain with enough legal cuts has a partition"
        return best[2]

    def levels(
        self, criteria: Sequence[FloatArray], allowed: BoolArray | None = None
    ) -> Iterator[list[CostVector]]:
        """The non-dominated points with ever smaller bounds on the last criterion.

        A level holds one point for each non-dominated combination of the other criteria, with the last
        criterion as small as they permit; the next level forbids the largest last criterion seen. So each
        level bounds the others from below for all that follow, and together they hold every non-dominated
        point, some repeatedly.
        """
        *others, last = criteria
        permitted = np.isfinite(last) if allowed is None else allowed
        others_front = self.front(others, permitted)
        while others_front:
            within = (_within(others, point, permitted) for point in others_front)
            level = [
                (*p, self.least_maximum(last, mask)) for p, mask in zip(others_front, within, strict=True)
            ]
            yield level
            permitted = permitted & (last < max(point[-1] for point in level))
            others_front = self.front(others, permitted)

    def front(self, criteria: Sequence[FloatArray], allowed: BoolArray | None = None) -> list[CostVector]:
        """The non-dominated points of some criteria over the allowed stages."""
        if len(criteria) == 1:
            least = self.least_maximum(criteria[0], allowed)
            return [(least,)] if least < np.inf else []
        return list(dict.fromkeys(point for level in self.levels(criteria, allowed) for point in level))

    def least_maximum(self, criterion: FloatArray, allowed: BoolArray | None = None) -> float:
        """The least possible maximum over the stages, infinite if the allowed ones do not suffice."""
        return least_maximum(criterion if allowed is None else np.where(allowed, criterion, np.inf))

    def boundaries(self, point: CostVector, memory: FloatArray | None = None) -> tuple[int, ...]:
        """The partition whose maxima do not exceed a point's: of least memory, then lexicographically smallest."""
        allowed = self.within(point)
        if memory is not None:
            allowed = allowed & (memory <= self.least_maximum(memory, allowed))
        last = allowed.shape[-1] - 1
        ends = [np.arange(last + 1) == last]
        for table in allowed[:0:-1]:
            ends.append(np.logical_or.reduce(table & ends[-1], axis=1))
        edge, path = 0, [0]
        for stage, reachable in enumerate(reversed(ends)):
            ahead = allowed[stage][edge - stage] & reachable
            edge = stage + 1 + int(ahead.argmax())
            path.append(edge)
        return tuple(self.edges[path].tolist())

    def within(self, point: CostVector) -> BoolArray:
        """The stages that exceed a point in no criterion."""
        return _within(self.criteria, point, np.isfinite(self.criteria[-1]))


def _legal_edges(costs: ChainCosts, num_stages: int) -> IntArray:
    """0, the layers before which a cut is legal, and L."""
    num_cuts = len(costs.cut_forward_s)
    legal = np.ones(num_cuts, dtype=np.bool_) if costs.legal_cuts is None else costs.legal_cuts
    if num_stages - 1 > legal.sum():
        raise InfeasibleError(
            f"num_stages({num_stages}) needs {num_stages - 1} cuts, but {legal.sum()} of {num_cuts} are legal",
            "no legal cuts",
        )
    return np.concatenate(([0], np.flatnonzero(legal) + 1, [num_cuts + 1]))


def _within(criteria: Sequence[FloatArray], point: CostVector, allowed: BoolArray) -> BoolArray:
    for criterion, limit in zip(criteria, point, strict=False):
        allowed = allowed & (criterion <= limit)
    return allowed


def optimal_pair(
    down: ChainCosts,
    up: ChainCosts,
    num_stages: int,
    num_micro_batches: int,
    self_conditioning: float = 0.0,
) -> list[tuple[int, ...]]:
    """Return the cuts with the least bound; among equals those of the smallest pace, then of the smallest maxima.

    Args:
        down: Costs of the backbone that runs from position 0 to P - 1, at one local micro-batch; the cut times already
            hold the factor 2 for messages that meet in a link (section 4.2).
        up: Costs of the backbone that runs from position P - 1 to 0, likewise.
        num_stages: Stages S of each chain, at least 1.
        num_micro_batches: Micro-batches M of each chain, at least 1.
        self_conditioning: Probability p of the extra forward pass, 0 to 1.

    Raises:
        InfeasibleError: If a chain cannot be cut into so many stages.

    Source: DiffusionPipe, Eq. 12 - 16.
    """
    searches = [StageSearch.over(chain, num_stages, self_conditioning) for chain in (down, up)]
    rounds = (
        2 * num_micro_batches + 2 * num_stages - 2
    )  # on the critical path, M_CDM + 2S - 2 with M_CDM = 2M
    fronts = (search.front(search.criteria) for search in searches)
    joints = (tuple(map(max, down, up)) for down, up in product(*fronts))  # Eq. 10 and 11
    joint = min(joints, key=lambda point: searches[0].rank(point, rounds))
    return [search.boundaries(search.best(rounds, search.within(joint))) for search in searches]
