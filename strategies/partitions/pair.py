"""Cuts two chains into equally many stages for a bidirectional pipeline, exactly.

One backbone runs down positions 0 to P - 1, the other up from P - 1 to 0, each position replicated alike. The
published objective (M_CDM + 2S - 2) max(W_down, W_up) + max(Y_down, Y_up) then couples the chains by nothing but
their maxima, so that the non-dominated combinations of each chain for itself suffice. They are walked together
in the order of falling gaps: whichever chain has the larger gap is asked for its next combination, until the
longest stage alone costs more than the best pair found.

Source: DiffusionPipe, sections 4.2 and 4.3, Eq. 10 - 18, with one replication degree for all stages. M_CDM is not
defined there; 2M, the micro-batches of both backbones, makes the objective an upper bound.
"""

from collections.abc import Iterator, Sequence
from itertools import product

from strategies.partitions.chain import ChainCosts, CostVector, StageSearch


def pair_rounds(num_stages: int, num_micro_batches: int) -> int:
    """The rounds on the critical path, M_CDM + 2S - 2 with M_CDM = 2M; S and M are those of each backbone.

    Source: DiffusionPipe, Eq. 12.
    """
    return 2 * num_micro_batches + 2 * num_stages - 2


def optimal_pair(
    down: ChainCosts, up: ChainCosts, num_stages: int, rounds: int, self_conditioning: float = 0.0
) -> list[tuple[int, ...]]:
    """Return the cuts with the least bound; among equals those of the smallest pace, then of the smallest maxima.

    Args:
        down: Costs of the backbone that runs from position 0 to P - 1, at one local micro-batch; the cut times already
            hold the factor 2 for messages that meet in a link (section 4.2).
        up: Costs of the backbone that runs from position P - 1 to 0, likewise.
        num_stages: Stages S of each chain, at least 1.
        rounds: Rounds on the critical path, see `pair_rounds`.
        self_conditioning: Probability p of the extra forward pass, 0 to 1.

    Raises:
        InfeasibleError: If a chain cannot be cut into so many stages.

    Source: DiffusionPipe, Eq. 13 - 16.
    """
    searches = [StageSearch.over(chain, num_stages, self_conditioning) for chain in (down, up)]
    joint = _best_joint(searches, rounds)
    return [search.boundaries(search.best(rounds, search.within(joint))) for search in searches]


def _best_joint(searches: Sequence[StageSearch], rounds: int) -> CostVector:
    """The maxima over both chains of the best pair."""
    least_gap = max(search.least_maximum(search.criteria[-1]) for search in searches)
    best: tuple[float, float, CostVector] | None = None
    for levels in _levels(searches):
        joints = [tuple(map(max, down, up)) for down, up in product(*levels)]  # Eq. 10 and 11
        paces = map(searches[0].pace, joints)
        ranked = [(rounds * pace + of[-1], pace, of) for pace, of in zip(paces, joints, strict=True)]
        if best is not None and rounds * min(rank[1] for rank in ranked) + least_gap > best[0]:
            break
        best = min(ranked) if best is None else min(best, *ranked)
    assert best is not None, "chains with enough legal cuts have partitions"
    return best[2]


def _levels(searches: Sequence[StageSearch]) -> Iterator[list[list[CostVector]]]:
    """Yield, for ever smaller bounds on both gaps, the non-dominated points of each chain.

    A chain whose gaps are below the next bound anyway keeps its level: fewer stages forbidden would not
    have given another one.
    """
    levels = [search.levels(search.criteria) for search in searches]
    reached = [next(of_chain, []) for of_chain in levels]
    while all(reached):
        yield reached
        gaps = [max(point[-1] for point in level) for level in reached]
        chains = zip(levels, reached, gaps, strict=True)
        reached = [next(of_chain, []) if gap == max(gaps) else level for of_chain, level, gap in chains]
