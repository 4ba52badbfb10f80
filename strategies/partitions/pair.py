"""Cuts two chains into equally many stages for a bidirectional pipeline, exactly.

One backbone runs down positions 0 to P - 1, the other up from P - 1 to 0, each position replicated alike. The
published objective (M_CDM + 2S - 2) max(W_down, W_up) + max(Y_down, Y_up) then couples the chains by nothing but
their maxima, so that the non-dominated combinations of each chain for itself suffice. They are walked together
in the order of falling gaps: whichever chain has the larger gap is asked for its next combination, until the
longest stage alone costs more than the best pair found.

Source: DiffusionPipe, sections 4.2 and 4.3, Eq. 10 - 18, with one replication degree for all stages. M_CDM is not
defined there; 2M, the micro-batches of both backbones, makes the objective an upper bound.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import product

from strategies.partitions.chain import ChainCosts, CostVector, Partition, StageSearch


@dataclass(frozen=True, slots=True, eq=False)
class PairCosts:
    """Costs of two chains at one local micro-batch.

    Attributes:
        down: Costs of the backbone that runs from position 0 to P - 1; the cut times already hold the factor 2
            for messages that meet in a link (section 4.2).
        up: Costs of the backbone that runs from position P - 1 to 0, likewise.
        feedback_s: Time T_F to send a chain's output back to its stage 0, the longer one.
    """

    down: ChainCosts
    up: ChainCosts
    feedback_s: float = 0.0


def pair_rounds(num_stages: int, num_micro_batches: int) -> int:
    """The rounds on the critical path, M_CDM + 2S - 2 with M_CDM = 2M.

    Args:
        num_stages: Stages S of each backbone.
        num_micro_batches: Micro-batches M of each backbone, at least 1.

    Source: DiffusionPipe, Eq. 12.
    """
    if num_micro_batches < 1:
        raise ValueError(f"num_micro_batches({num_micro_batches}) must be at least 1")
    return 2 * num_micro_batches + 2 * num_stages - 2


class PairSearch:
    """Two chains whose non-dominated combinations are found as far as they are asked for, and kept.

    One search serves every number of micro-batches of the same size.
    """

    def __init__(self, costs: PairCosts, num_stages: int, self_conditioning: float = 0.0) -> None:
        """Tabulate the stages of both chains.

        Args:
            costs: Costs of both chains at one local micro-batch.
            num_stages: Stages S of each chain, at least 1.
            self_conditioning: Probability p of the extra forward pass, 0 to 1.

        Raises:
            ValueError: If a chain cannot be cut into so many stages.
        """
        chains = [StageSearch.over(chain, num_stages, self_conditioning) for chain in (costs.down, costs.up)]
        self._chains = [_Chain(search) for search in chains]

    def best(self, rounds: int) -> tuple[Partition, Partition]:
        """Return the pair with the least bound; among equals that of the smallest pace, then of the smallest maxima.

        Args:
            rounds: Rounds on the critical path, see `pair_rounds`.

        Source: DiffusionPipe, Eq. 13 - 16.
        """
        joint = self._best_joint(rounds)
        down, up = (chain.best_within(joint, rounds) for chain in self._chains)
        return down, up

    def _best_joint(self, rounds: int) -> CostVector:
        least_gap = max(chain.least_gap for chain in self._chains)
        best: tuple[float, float, CostVector] | None = None
        for levels in self._levels():
            joints = [tuple(map(max, down, up)) for down, up in product(*levels)]  # Eq. 10 and 11
            paces = map(self._chains[0].search.pace, joints)
            ranked = [(rounds * pace + of[-1], pace, of) for pace, of in zip(paces, joints, strict=True)]
            pace = min(rank[1] for rank in ranked)
            if best is not None and rounds * pace + least_gap > best[0]:
                break
            best = min(ranked) if best is None else min(best, *ranked)
        assert best is not None, "chains with enough legal cuts have partitions"
        return best[2]

    def _levels(self) -> Iterator[tuple[list[CostVector], ...]]:
        """Yield, for ever smaller bounds on both gaps, the non-dominated points of each chain.

        A chain whose gaps are below the next bound anyway keeps its level: fewer stages forbidden would not
        have given another one.
        """
        depths = [0, 0]
        while True:
            levels = [chain.level(depth) for chain, depth in zip(self._chains, depths, strict=True)]
            if any(level is None for level in levels):
                return
            reached = tuple(level for level in levels if level is not None)
            yield reached
            gaps = [max(point[-1] for point in level) for level in reached]
            depths = [depth + (gap == max(gaps)) for depth, gap in zip(depths, gaps, strict=True)]


class _Chain:
    """The levels of one chain, each found when it is first asked for."""

    def __init__(self, search: StageSearch) -> None:
        self.search = search
        self.least_gap = search.least_maximum(search.criteria[-1])
        self._reached: list[list[CostVector]] = []
        self._levels = search.levels(search.criteria)

    def level(self, depth: int) -> list[CostVector] | None:
        """The points of a level, None after the last."""
        if depth == len(self._reached):
            level = next(self._levels, None)
            if level is None:
                return None
            self._reached.append(level)
        return self._reached[depth]

    def best_within(self, joint: CostVector, rounds: int) -> Partition:
        """The partition that is best for the chain itself and exceeds the pair's maxima in none."""
        point = self.search.best(rounds, 0.0, self.search.within(joint))
        return self.search.partition(point)
