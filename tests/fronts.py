"""Fronts: all partitions of a chain that none beats in every maximum over its stages, and which is best when.

Source: DiffusionPipe, sections 4.1 and 4.3.
"""

from collections.abc import Sequence

import numpy as np

from profiles.costs.layers import FloatArray
from strategies.partitions.chain import ChainCosts, CostVector, Partition, StageSearch, num_rounds
from strategies.partitions.pair import _joint, _pace, _rank


def partition_front(
    costs: ChainCosts, num_stages: int, self_conditioning: float = 0.0
) -> tuple[Partition, ...]:
    """All non-dominated partitions, which serve every number of micro-batches of this size.

    They are compared in (W, Y) without self-conditioning, in (W_sc, Y) where it is certain, and in
    (W, W_sc, Y) in between; each combination occurs once, with the lexicographically smallest boundaries that
    reach it.

    Args:
        costs: Costs of the chain at one local micro-batch.
        num_stages: Stages S, at least 1.
        self_conditioning: Probability p of the extra forward pass, 0 to 1.

    Returns:
        The front in ascending order of the maxima compared.

    Raises:
        ValueError: If the chain cannot be cut into so many stages.

    Source: DiffusionPipe, Eq. 3 - 9 and 17.
    """
    search = StageSearch.over(costs, num_stages, self_conditioning)
    return tuple(search.partition(point) for point in sorted(search.front(search.criteria)))


def best_of_front(
    front: Sequence[Partition],
    num_micro_batches: int,
    self_conditioning: float = 0.0,
    feedback_s: float = 0.0,
) -> Partition:
    """The partition of a front with the least `pipeline_bound_s`.

    Among equals the smallest expected stage time (1 - p) W + p W_sc wins, then the smallest W; equal maxima
    have one partition in the front, the one with the lexicographically smallest boundaries.

    Args:
        front: What `partition_front` returned for the same probability, or for any strictly between 0 and 1.
        num_micro_batches: Micro-batches M, at least 1.
        self_conditioning: Probability p of the extra forward pass, 0 to 1.
        feedback_s: Time T_F to send the chain's output back to stage 0.
    """

    def rank(partition: Partition) -> tuple[float, ...]:
        return (
            pipeline_bound_s(partition, num_micro_batches, self_conditioning, feedback_s),
            _expected_pace_s(partition, self_conditioning),
            partition.longest_stage_s,
            partition.longest_stage_self_conditioned_s,
        )

    return min(front, key=rank)


def pipeline_bound_s(
    partition: Partition, num_micro_batches: int, self_conditioning: float = 0.0, feedback_s: float = 0.0
) -> float:
    """The expected upper bound on the pipeline's time, (1 - p)(K W + Y) + p (K W_sc + Y + T_F).

    K = M + 2S - 2 is the number of rounds on the critical path.

    Source: DiffusionPipe, Eq. 1 and 18.
    """
    rounds = num_rounds(partition.num_stages, num_micro_batches)
    pace = _expected_pace_s(partition, self_conditioning)
    # Summed in this order everywhere: rounding is monotone, so what bounds a sum exactly also does in floats.
    return rounds * pace + partition.largest_gap_s + self_conditioning * feedback_s


def _expected_pace_s(partition: Partition, self_conditioning: float) -> float:
    without = (1 - self_conditioning) * partition.longest_stage_s
    return without + self_conditioning * partition.longest_stage_self_conditioned_s


def pair_bound_s(
    down: Partition, up: Partition, rounds: int, self_conditioning: float = 0.0, feedback_s: float = 0.0
) -> float:
    """The expected upper bound on the time of a bidirectional pipeline.

    Source: DiffusionPipe, Eq. 12 and 18.
    """
    shares = _shares(self_conditioning)
    joint = _joint(_counted(down, self_conditioning), _counted(up, self_conditioning))
    return rounds * _pace(shares, joint) + joint[-1] + self_conditioning * feedback_s


def pair_partition(
    front_down: Sequence[Partition],
    front_up: Sequence[Partition],
    rounds: int,
    self_conditioning: float = 0.0,
) -> tuple[Partition, Partition]:
    """The pair out of two fronts with the least `pair_bound_s`.

    Among equals the smallest expected pace of the pair wins, then its smallest maxima; within these each chain
    has the partition that is best for itself at as many rounds.

    Args:
        front_down: `partition_front` of the one chain.
        front_up: `partition_front` of the other, for as many stages and the same probability.
        rounds: `pair_rounds`, or another number of rounds on the critical path.
        self_conditioning: Probability p of the extra forward pass, 0 to 1.

    Source: DiffusionPipe, Eq. 13.
    """
    shares = _shares(self_conditioning)
    points = [np.array([_counted(p, self_conditioning) for p in front]) for front in (front_down, front_up)]
    maxima = np.maximum(points[0][:, None], points[1]).reshape(-1, len(shares) + 1)
    pace = sum(share * column for share, column in zip(shares, maxima.T, strict=False))
    bound = rounds * pace + maxima[:, -1]
    joint = maxima[np.lexsort((*maxima.T[::-1], pace, bound))[0]]

    def best_within(front: Sequence[Partition], points: FloatArray) -> Partition:
        fitting = np.flatnonzero((points <= joint).all(axis=1)).tolist()
        return front[min(fitting, key=lambda i: _rank(tuple(points[i]), shares, rounds))]

    return best_within(front_down, points[0]), best_within(front_up, points[1])


def _counted(partition: Partition, self_conditioning: float) -> CostVector:
    """The maxima that a probability makes count, the gap last."""
    stages = (partition.longest_stage_s, partition.longest_stage_self_conditioned_s)
    shares = (1 - self_conditioning, self_conditioning)
    counted = (stage for stage, share in zip(stages, shares, strict=True) if share > 0)
    return *counted, partition.largest_gap_s


def _shares(self_conditioning: float) -> tuple[float, ...]:
    return tuple(share for share in (1 - self_conditioning, self_conditioning) if share > 0)
