"""The symmetric partition against brute force."""

import itertools

import numpy as np
import pytest

from strategies.partitions.symmetric import collocated_skips, symmetric_partition


def dense(num_layers):
    """A skip for every pair of layers, as in U-ViT; an odd layer in the middle has none."""
    return [(layer, num_layers - 1 - layer) for layer in range(num_layers // 2)]


def dense_but_for_the_middle(num_layers):
    """As in Hunyuan-DiT, whose two middle blocks have none."""
    return dense(num_layers)[:-1]


def nested(num_layers, rng):
    """As in a U-Net: some layers on either side have none."""
    count = int(rng.integers(0, num_layers // 2 + 1))
    sources = sorted(rng.choice(num_layers // 2, count, replace=False).tolist())
    targets = sorted((num_layers // 2 + rng.choice(num_layers // 2, count, replace=False)).tolist())
    return list(zip(sources, reversed(targets), strict=True))


def crossing(num_layers, rng):
    """Anything at all."""
    count = int(rng.integers(0, 5))
    return [tuple(sorted(rng.choice(num_layers, 2, replace=False).tolist())) for _ in range(count)]


FAMILIES = {
    "dense": lambda n, rng: dense(n),
    "dense but for the middle": lambda n, rng: dense_but_for_the_middle(n),
    "nested": nested,
    "crossing": crossing,
    "none": lambda n, rng: [],
}


def small_chains(family, count):
    """Random chains of two to ten layers of small whole times, zeros among them, with their skips and stages."""
    for seed in range(count):
        rng = np.random.default_rng(seed)
        num_layers = int(rng.integers(2, 11))
        layers = rng.integers(0, 9, num_layers).astype(float)
        cuts = rng.choice([0, 3, 9]) * rng.integers(0, 3, num_layers - 1).astype(float)
        skips = FAMILIES[family](num_layers, rng)
        num_stages = 2 * int(rng.integers(1, num_layers // 2 + 1))
        yield layers, cuts, skips, num_stages, rng.integers(0, 9, len(skips)).tolist()


def every_partition(num_layers, num_stages):
    return [(0, *cuts, num_layers) for cuts in itertools.combinations(range(1, num_layers), num_stages - 1)]


def stage_times(layers, cuts, boundaries):
    """Eq. 2 for the stages before the middle, Eq. 3 for those behind; the two in the middle lack a message."""
    last = len(boundaries) - 2
    times = []
    for stage, (begin, end) in enumerate(itertools.pairwise(boundaries)):
        message = 0.0
        if stage < last // 2:
            message = cuts[end - 1]
        elif stage > last // 2 + 1:
            message = cuts[begin - 1]
        times.append(sum(layers[begin:end]) + message)
    return times


def is_local(boundaries, skip):
    last = len(boundaries) - 2
    stages = (sum(boundary <= layer for boundary in boundaries) - 1 for layer in skip)
    source, target = (min(stage, last - stage) for stage in stages)
    return source == target


@pytest.mark.parametrize("family", FAMILIES)
def test_the_heaviest_skips_stay_local_then_the_longest_stage_and_the_squares_are_the_least(family):
    for layers, cuts, skips, num_stages, sizes in small_chains(family, 150):
        found = symmetric_partition(layers, cuts, skips, num_stages, sizes)
        every = every_partition(len(layers), num_stages)
        kept = collocated_skips(skips, len(layers), num_stages, sizes)

        def local_bytes(boundaries, skips=skips, sizes=sizes):
            return sum(size for skip, size in zip(skips, sizes, strict=True) if is_local(boundaries, skip))

        assert family == "crossing" or local_bytes(found) == max(map(local_bytes, every))
        candidates = [of for of in every if all(is_local(of, skip) for skip in kept)]
        assert found in candidates
        ranks = [
            (max(times), sum(x * x for x in times))
            for times in (stage_times(layers, cuts, of) for of in candidates)
        ]
        assert ranks[candidates.index(found)] == min(ranks)
