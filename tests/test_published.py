"""Published numbers of DiffusionPipe beside the simulator's, as far as they are promised to agree."""

import pytest

from profiles.files import read_rows
from validate.published import (
    COLUMNS,
    FILLS,
    PUBLISHED,
    SpeedUp,
    frozen_ratios,
    print_published,
    speed_ups,
    synchronisation_shares,
)


@pytest.fixture(scope="module")
def cases() -> list[SpeedUp]:
    return list(speed_ups())


def test_the_published_file_keeps_to_its_columns():
    assert len(read_rows(PUBLISHED, COLUMNS)) == 35


def test_frozen_over_trained_time_is_within_three_points_of_table_1():
    comparisons = list(frozen_ratios())
    assert len(comparisons) == 4
    assert all(abs(item.simulated - item.published) <= 0.03 for item in comparisons)


def test_the_share_of_gradient_reduction_grows_with_the_gpus_as_in_table_2():
    for recipe in ("mixed", "mixed-fp16-gradient"):
        shares = [item.simulated for item in synchronisation_shares(recipe)]
        assert len(shares) == 4
        assert shares == sorted(shares)


def test_filling_bubbles_pays_and_partial_batches_pay_most(cases):
    for case in cases:
        partial, full, none = (case.filled[fill].samples_per_s for fill in FILLS)
        assert partial > full >= none > case.gpipe.samples_per_s


def test_the_best_filled_pipeline_idles_less_than_the_published_5_percent(cases):
    assert all(case.filled["partial"].bubble_ratio < 0.05 for case in cases)


def test_gpipe_is_left_as_far_behind_whatever_moves_data_parallelism(cases):
    assert all(1.25 < case.over(case.gpipe) < 1.5 for case in cases)


def test_a_reduction_after_the_backward_costs_data_parallelism_throughput(cases):
    for buckets, none in zip(cases[::2], cases[1::2], strict=True):
        assert (buckets.overlap, none.overlap) == ("buckets", "none")
        assert buckets.ddp.samples_per_s > none.ddp.samples_per_s


def test_the_tables_print_as_markdown(capsys):
    print_published()
    printed = capsys.readouterr().out
    assert printed.count("| 64 GPUs |") == 1
    assert printed.count("drawn by rank") == 2
