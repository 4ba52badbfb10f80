"""The exact partition of one and of two backbones against brute force, and the published block-wise one."""

import itertools
import re
from math import inf

import numpy as np
import pytest

from profiles.errors import InfeasibleError
from strategies.partitions.chain import (
    ChainCosts,
    StageMemory,
    block_partition,
    optimal_pair,
    optimal_partition,
)

probabilities = pytest.mark.parametrize("probability", [0.0, 0.5, 1.0])


def u_net(rng, num_layers):
    """Outer layers slow with few parameters, inner layers quick with many: W and Y pull apart."""
    depth = 1 - np.abs(np.linspace(-1, 1, num_layers))
    forward = (1.5 - depth) * rng.uniform(0.8, 1.2, num_layers)
    cut = rng.uniform(0.0, 1.0, num_layers - 1)
    sync = (0.1 + rng.choice([6.0, 20.0]) * depth**2) * rng.uniform(0.8, 1.2, num_layers)
    return ChainCosts(forward, rng.uniform(1.5, 2.5) * forward, cut, rng.uniform(0, 1) * cut, sync, 0.1)


def uniform(rng, num_layers):
    layers, cuts = np.ones(num_layers), np.ones(num_layers - 1)
    return ChainCosts(layers, 2 * layers, 0.5 * cuts, 0.5 * cuts, rng.choice([0.5, 3.0]) * layers, 0.0)


def integers(rng, num_layers):
    """Few small whole numbers, zeros among them: exact in floats, and full of ties."""
    layers = rng.integers(0, 4, (3, num_layers)).astype(float)
    cuts = rng.integers(0, 6, (2, num_layers - 1)).astype(float)
    return ChainCosts(layers[0], layers[1], cuts[0], cuts[1], 2 * layers[2], float(rng.integers(0, 2)))


def opposed(rng, num_layers):
    """Layers slow in one direction only: the extra forward pass wants other cuts, so W and W_sc pull apart."""
    slow, quick = rng.integers(1, 8, num_layers), rng.integers(0, 2, num_layers)
    forwards = rng.random(num_layers) < 0.5
    forward, backward = np.where(forwards, (slow, quick), (quick, 2 * slow)).astype(float)
    cuts = rng.integers(0, 16, (2, num_layers - 1)).astype(float)
    return ChainCosts(forward, backward, *cuts, rng.integers(0, 24, num_layers).astype(float), 0.0)


def legal_integers(rng, num_layers):
    legal = rng.random(num_layers - 1) < 0.6
    return replaced(integers(rng, num_layers), legal_cuts=legal)


FAMILIES = (u_net, uniform, integers, opposed, legal_integers)


def replaced(costs, **changes):
    fields = {name: getattr(costs, name) for name in ChainCosts.__dataclass_fields__}
    return ChainCosts(**(fields | changes))


def small_cases(family, count):
    """Random chains of up to nine layers with a number of stages that their legal cuts permit."""
    for seed in range(count):
        rng = np.random.default_rng(seed)
        num_layers = int(rng.integers(1, 10))
        costs = family(rng, num_layers)
        num_cuts = num_layers - 1 if costs.legal_cuts is None else int(costs.legal_cuts.sum())
        yield costs, int(rng.integers(1, min(5, num_cuts + 1) + 1)), int(rng.integers(1, 9))


def maxima(costs, boundaries):
    """(W, W_sc, Y) by the printed equations, stage by stage."""
    stages = []
    for begin, end in itertools.pairwise(boundaries):
        forward, backward = sum(costs.forward_s[begin:end]), sum(costs.backward_s[begin:end])
        there, back = (costs.cut_forward_s[begin - 1], costs.cut_backward_s[begin - 1]) if begin else (0, 0)
        gap = sum(costs.sync_s[begin:end]) + costs.sync_latency_s - backward
        stages.append(
            (max(forward + backward, there + back), max(2 * forward + backward, 2 * there + back), gap)
        )
    return tuple(max(column) for column in zip(*stages, strict=True))


def bound_s(point, rounds, probability, feedback_s):
    """The expectation of Eq. 1, or of Eq. 12, and of Eq. 18."""
    stage, conditioned, gap = point
    without, extra = rounds * stage + gap, rounds * conditioned + gap + feedback_s
    return (1 - probability) * without + probability * extra


def every_partition(costs, num_stages):
    """All partitions in lexicographic order."""
    num_layers = len(costs.forward_s)
    legal = [cut for cut in range(1, num_layers) if costs.legal_cuts is None or costs.legal_cuts[cut - 1]]
    return [(0, *cuts, num_layers) for cuts in itertools.combinations(legal, num_stages - 1)]


@pytest.mark.parametrize("family", FAMILIES)
def test_no_partition_beats_the_optimal_one(family):
    for probability, (costs, num_stages, num_micro_batches) in zip(
        itertools.cycle((0.0, 0.5, 1.0)), small_cases(family, 120), strict=False
    ):
        rounds, every = num_micro_batches + 2 * num_stages - 2, every_partition(costs, num_stages)
        boundaries = optimal_partition(costs, num_stages, num_micro_batches, probability)
        assert boundaries in every
        least_s = min(bound_s(maxima(costs, of), rounds, probability, 0.75) for of in every)
        reached_s = bound_s(maxima(costs, boundaries), rounds, probability, 0.75)
        assert reached_s == pytest.approx(least_s, rel=1e-12)


@probabilities
@pytest.mark.parametrize("room_bytes", [inf, 40.0, 20.0])
def test_of_those_that_fit_the_fastest_wins_then_the_smallest_pace_maxima_and_memory(probability, room_bytes):
    rng = np.random.default_rng(1)
    for costs, num_stages, num_micro_batches in small_cases(integers, 80):
        rounds = num_micro_batches + 2 * num_stages - 2
        state, saved = rng.integers(1, 9, (2, len(costs.forward_s))).astype(float)
        memory = StageMemory(state, saved, rng.integers(1, 4, num_stages).tolist(), room_bytes)

        def rank(boundaries, costs=costs, rounds=rounds, memory=memory):
            stage, conditioned, gap = point = maxima(costs, boundaries)
            counted = {0.0: (stage, gap), 1.0: (conditioned, gap)}.get(probability, point)
            pace = (1 - probability) * stage + probability * conditioned
            each = zip(memory.in_flight, itertools.pairwise(boundaries), strict=True)
            held = max(sum(memory.state_bytes[i:j] + k * memory.saved_bytes[i:j]) for k, (i, j) in each)
            return held > memory.room_bytes, bound_s(point, rounds, probability, 0.0), pace, counted, held

        boundaries = optimal_partition(costs, num_stages, num_micro_batches, probability, memory)
        assert boundaries == min(every_partition(costs, num_stages), key=rank)


@probabilities
@pytest.mark.parametrize("family", [integers, opposed])
def test_no_pair_of_cuts_beats_the_one_found(family, probability):
    for seed in range(80):
        rng = np.random.default_rng(seed)
        lengths = rng.integers(1, 8, 2).tolist()
        chains = [family(rng, length) for length in lengths]
        num_stages = int(rng.integers(1, min(lengths) + 1))
        micro_batches = int(rng.integers(1, 7))
        rounds = 2 * micro_batches + 2 * num_stages - 2
        pair = optimal_pair(*chains, num_stages, micro_batches, probability)
        reached = [[maxima(chain, of) for of in every_partition(chain, num_stages)] for chain in chains]
        best = [maxima(*of) for of in zip(chains, pair, strict=True)]
        least_s, best_s = (
            min(bound_s(tuple(map(max, *of)), rounds, probability, 0.75) for of in pairs)
            for pairs in (itertools.product(*reached), [best])
        )
        assert best_s == least_s


def test_equal_layers_make_the_bound_of_the_paper():
    layers, cuts = np.ones(8), np.zeros(7)
    chain = ChainCosts(layers, 2 * layers, cuts, cuts, np.zeros(8), 0.0)
    down, up = optimal_pair(chain, chain, 4, 4)
    assert down == up == (0, 2, 4, 6, 8)
    longest_s, _, gap_s = maxima(chain, down)
    assert (2 * 4 + 2 * 4 - 2) * longest_s + gap_s == (8 + 2 * 4 - 2) * 6.0 - 4.0


def test_what_cannot_be_cut_is_refused_with_its_numbers():
    costs = uniform(np.random.default_rng(0), 4)
    for chain, arguments, message in (
        (costs, (5, 4), "num_stages(5) needs 4 cuts, but 3 of 3 are legal"),
        (replaced(costs, legal_cuts=np.array([True, False, False])), (3, 1),
         "num_stages(3) needs 2 cuts, but 1 of 3 are legal"),
    ):  # fmt: skip
        with pytest.raises(InfeasibleError, match=f"^{re.escape(message)}$"):
            optimal_partition(chain, *arguments)


def test_blocks_are_shared_out_by_python_rounding():
    for num_blocks, sizes in ((25, [12, 13]), (25, [6, 6, 7, 6]), (7, [4, 3]), (6, [6])):
        assert np.diff(block_partition(range(num_blocks), len(sizes))).tolist() == sizes


def test_the_layers_of_a_block_stay_together():
    assert block_partition([3, 3, 3, 4, 5, 5, 8], 2) == (0, 4, 7)
