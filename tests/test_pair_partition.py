"""The exact partition of two backbones against brute force over all pairs of cuts."""

import itertools

import numpy as np
import pytest
from fronts import pair_bound_s, pair_partition, partition_front
from hypothesis import given, settings
from hypothesis import strategies as st

from strategies.partitions.chain import ChainCosts, Partition
from strategies.partitions.pair import PairCosts, PairSearch, pair_rounds

derandomised = settings(derandomize=True, deadline=None, max_examples=60)
probabilities = pytest.mark.parametrize("probability", [0.0, 0.5, 1.0])


def u_net(rng, num_layers):
    """Outer layers slow with few parameters, inner layers quick with many: W and Y pull apart."""
    depth = 1 - np.abs(np.linspace(-1, 1, num_layers))
    forward = (1.5 - depth) * rng.uniform(0.8, 1.2, num_layers)
    cut = rng.uniform(0.0, 1.0, num_layers - 1)
    sync = (0.1 + rng.choice([6.0, 20.0]) * depth**2) * rng.uniform(0.8, 1.2, num_layers)
    return ChainCosts(forward, rng.uniform(1.5, 2.5) * forward, cut, rng.uniform(0, 1) * cut, sync, 0.1)


def integers(rng, num_layers):
    """Few small whole numbers, zeros among them: exact in floats, and full of ties."""
    layers = rng.integers(0, 4, (3, num_layers)).astype(float)
    cuts = rng.integers(0, 6, (2, num_layers - 1)).astype(float)
    return ChainCosts(layers[0], layers[1], cuts[0], cuts[1], 8 * layers[2], float(rng.integers(0, 2)))


def opposed(rng, num_layers):
    """Layers slow in one direction only: the extra forward pass wants other cuts, so W and W_sc pull apart."""
    slow, quick = rng.integers(1, 8, num_layers), rng.integers(0, 2, num_layers)
    forwards = rng.random(num_layers) < 0.5
    forward, backward = np.where(forwards, (slow, quick), (quick, 2 * slow)).astype(float)
    cuts = rng.integers(0, 16, (2, num_layers - 1)).astype(float)
    return ChainCosts(forward, backward, *cuts, rng.integers(0, 99, num_layers).astype(float), 0.0)


FAMILIES = (u_net, integers, opposed)


def small_pairs(family, count, feedback_s=0.75):
    """Random pairs of chains of up to seven layers, with stages and rounds."""
    for seed in range(count):
        rng = np.random.default_rng(seed)
        lengths = rng.integers(1, 8, 2).tolist()
        pair = PairCosts(*(family(rng, length) for length in lengths), feedback_s)
        num_stages = int(rng.integers(1, min(lengths) + 1))
        yield pair, num_stages, pair_rounds(num_stages, int(rng.integers(1, 7)))


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


def every_partition(num_layers, num_stages):
    return [(0, *cuts, num_layers) for cuts in itertools.combinations(range(1, num_layers), num_stages - 1)]


def objective(down, up, rounds, probability, feedback_s):
    """The expectation of Eq. 12 and of Eq. 18, from the maxima of both chains."""
    stage, conditioned, gap = map(max, down, up)
    without, extra = rounds * stage + gap, rounds * conditioned + gap + feedback_s
    return (1 - probability) * without + probability * extra


def brute_force(pair, num_stages, rounds, probability):
    reached = (
        [maxima(chain, boundaries) for boundaries in every_partition(chain.num_layers, num_stages)]
        for chain in (pair.down, pair.up)
    )
    return min(
        objective(down, up, rounds, probability, pair.feedback_s) for down, up in itertools.product(*reached)
    )


def fronts(pair, num_stages, probability):
    return [partition_front(chain, num_stages, probability) for chain in (pair.down, pair.up)]


@probabilities
@pytest.mark.parametrize("family", [integers, opposed])
def test_no_pair_of_cuts_beats_the_one_found(family, probability):
    for pair, num_stages, rounds in small_pairs(family, 80):
        found = PairSearch(pair, num_stages, probability).best(rounds)
        bound = pair_bound_s(*found, rounds, probability, pair.feedback_s)
        assert bound == brute_force(pair, num_stages, rounds, probability)


@probabilities
@pytest.mark.parametrize("family", FAMILIES)
def test_the_search_and_the_two_fronts_give_the_same_pair(family, probability):
    for pair, num_stages, _ in small_pairs(family, 60):
        search = PairSearch(pair, num_stages, probability)
        both = fronts(pair, num_stages, probability)
        for num_micro_batches in (16, 1, 4, 2):
            rounds = pair_rounds(num_stages, num_micro_batches)
            assert search.best(rounds) == pair_partition(*both, rounds, probability)


def test_among_equal_bounds_and_paces_the_smallest_maxima_win():
    alike = [Partition((0, 1, 2), 3.0, 1.0, 0.0), Partition((0, 1, 2), 1.0, 3.0, 0.0)]
    least = Partition((0, 1, 2), 0.0, 0.0, 0.0)
    assert pair_partition(alike, [least], 4, 0.5) == (alike[1], least)
    assert pair_partition([least], alike, 4, 0.5) == (least, alike[1])


def test_equal_layers_make_the_bound_of_the_paper():
    layers, cuts = np.ones(8), np.zeros(7)
    chain = ChainCosts(layers, 2 * layers, cuts, cuts, np.zeros(8), 0.0)
    down, up = PairSearch(PairCosts(chain, chain), 4).best(pair_rounds(4, 4))
    assert down.boundaries == up.boundaries == (0, 2, 4, 6, 8)
    assert pair_bound_s(down, up, pair_rounds(4, 4)) == (8 + 2 * 4 - 2) * 6.0 - 4.0


@st.composite
def pairs(draw):
    cost = st.integers(0, 20).map(float)

    def row(length):
        return np.array(draw(st.lists(cost, min_size=length, max_size=length)), dtype=float)

    def chain(length):
        parts = [row(length), row(length), row(length - 1), row(length - 1), row(length)]
        return ChainCosts(*parts, draw(cost))

    lengths = draw(st.tuples(st.integers(1, 6), st.integers(1, 6)))
    return PairCosts(*map(chain, lengths), draw(cost)), draw(st.integers(1, min(lengths)))


@derandomised
@given(pairs(), st.sampled_from([0.0, 0.5, 1.0]), st.integers(1, 8))
def test_whatever_the_costs_the_pair_is_optimal(case, probability, num_micro_batches):
    pair, num_stages = case
    rounds = pair_rounds(num_stages, num_micro_batches)
    found = PairSearch(pair, num_stages, probability).best(rounds)
    bound = pair_bound_s(*found, rounds, probability, pair.feedback_s)
    assert bound == brute_force(pair, num_stages, rounds, probability)
    assert found == pair_partition(*fronts(pair, num_stages, probability), rounds, probability)


def test_a_chain_too_short_for_the_stages_is_refused():
    rng = np.random.default_rng(0)
    with pytest.raises(ValueError, match=r"^num_stages\(4\) exceeds the 3 layers of the chain$"):
        PairSearch(PairCosts(u_net(rng, 6), u_net(rng, 3)), 4)
