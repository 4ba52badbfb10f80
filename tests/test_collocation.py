"""Which skips stay on one device, against the devices of every partition."""

import itertools

from hypothesis import given, settings
from hypothesis import strategies as st

from strategies.partitions.symmetric import collocated_skips, cut_pairs, sent_skips

derandomised = settings(derandomize=True, max_examples=60)


def every_partition(num_layers, num_stages):
    return [(0, *cuts, num_layers) for cuts in itertools.combinations(range(1, num_layers), num_stages - 1)]


def device(boundaries, layer):
    """Stages q and 2D - 1 - q share a device."""
    stage = sum(boundary <= layer for boundary in boundaries) - 1
    return min(stage, len(boundaries) - 2 - stage)


def is_local(boundaries, skip):
    return device(boundaries, skip[0]) == device(boundaries, skip[1])


@st.composite
def skipped_chains(draw, most_layers=8):
    num_layers = draw(st.integers(2, most_layers))
    skip = st.tuples(st.integers(0, num_layers - 1), st.integers(0, num_layers - 1))
    skips = draw(st.lists(skip.filter(lambda ends: ends[0] < ends[1]), max_size=5))
    return num_layers, skips


@derandomised
@given(skipped_chains(), st.data())
def test_a_skip_is_local_where_both_ends_share_a_device(case, data):
    num_layers, skips = case
    num_stages = 2 * data.draw(st.integers(1, num_layers // 2))
    boundaries = data.draw(st.sampled_from(every_partition(num_layers, num_stages)))
    assert sent_skips(skips, boundaries) == [skip for skip in skips if not is_local(boundaries, skip)]


@derandomised
@given(skipped_chains(7))
def test_a_partition_keeps_all_skips_local_when_its_cuts_come_in_such_pairs_and_only_then(case):
    num_layers, skips = case
    pairs = set(zip(*(edges.tolist() for edges in cut_pairs(skips, num_layers)), strict=True))
    for num_stages in range(2, num_layers + 1, 2):
        for boundaries in every_partition(num_layers, num_stages):
            paired = zip(boundaries[: num_stages // 2], boundaries[: num_stages // 2 : -1], strict=True)
            assert (set(paired) <= pairs) == all(is_local(boundaries, skip) for skip in skips)


@derandomised
@given(skipped_chains(), st.data())
def test_what_is_kept_can_be_local_all_at_once(case, data):
    num_layers, skips = case
    num_stages = 2 * data.draw(st.integers(1, num_layers // 2))
    kept = collocated_skips(skips, num_layers, num_stages, (1.0,) * len(skips))
    assert any(all(is_local(cuts, skip) for skip in kept) for cuts in every_partition(num_layers, num_stages))
