"""Bands of errors and trust: quantiles, two errors together, and what a comparison of two estimates can tell."""

from dataclasses import replace
from math import hypot, log, nextafter

import pytest
from hypothesis import given
from hypothesis import strategies as st

from profiles.costs.bands import (
    ANY,
    FAMILIES,
    METHODS,
    Band,
    Bands,
    Circumstances,
    Evidence,
    Spread,
    Uncertainty,
    load_bands,
    spread_between,
)
from profiles.costs.trust import COLUMNS, TRUST, Trust, read_trust, trust_of
from profiles.errors import InputError
from profiles.machines.devices import device_names
from profiles.software.stacks import stack_names
from strategies.registry import all_samplers, all_strategies

shares = st.floats(0.0, 1.0)
spreads = st.floats(0.0, 2.0)
uncertainties = st.builds(
    Uncertainty,
    shared=spreads,
    own=spreads,
    repeat=st.just(0.01),
    exposed=shares,
    alike=st.sampled_from([("ddp", "p4de", "node"), ("gpipe", "p4de", "node"), ("ddp", "p4de", "nodes")]),
)


@given(st.lists(st.floats(0.1, 10.0), min_size=1, max_size=30))
def test_a_band_of_ratios_holds_the_estimate_and_eight_of_ten_of_them(ratios):
    band = Band.of_ratios(ratios)
    assert band.low <= 1 <= band.high
    inside = sum(nextafter(band.low, 0) <= ratio <= nextafter(band.high, 99) for ratio in ratios)
    assert inside >= 0.8 * len(ratios) - 1


def test_runs_of_one_strategy_over_the_same_links_differ_by_awaited_data_alone():
    one = Uncertainty(shared=0.5, own=0.5, repeat=0.03, exposed=0.10, alike=("ddp", "p4de", "node"))
    other = replace(one, exposed=0.14)
    assert spread_between(one, other) == pytest.approx(0.05)
    across = replace(other, alike=("ddp", "p4de", "nodes"))
    assert spread_between(one, across) == pytest.approx(hypot(0.03, 0.5, 0.5, 0.04 * 0.5))


PRIORS = tuple(
    Evidence(family, ANY, method, Band(0.5, 2.0), 0, "a prior") for family in FAMILIES for method in METHODS
)
KNOWN = Bands(
    ("made",),
    ("ideal",),
    Spread(0.0, 0, "none"),
    Spread(0.5, 0, "made"),
    (
        *PRIORS,
        Evidence("measured", "eager", "one GPU", Band(0.9, 1.1), 9, "made"),
        Evidence("measured", "eager", "anchored", Band(0.95, 1.04), 9, "made"),
        Evidence("measured", "eager", "pipeline", Band(0.8, 1.25), 9, "made"),
    ),
)
RUN = Circumstances("made", "eager", ("gpipe", "p4de", "node"), 0.2)


def test_the_band_of_a_method_is_that_of_compute_and_what_it_and_its_exposed_communication_add():
    uncertainty = KNOWN.uncertainty("pipeline", RUN)
    assert log(uncertainty.band.high) == pytest.approx(hypot(log(1.1), log(1.25), 0.2 * 0.5))
    assert log(uncertainty.band.low) == pytest.approx(-hypot(log(0.9), log(0.8), 0.2 * 0.5))
    assert uncertainty.shared == pytest.approx(log(1.1 / 0.9) / 2)


def test_one_gpu_has_the_error_of_compute_alone_and_that_of_other_boxes_where_compute_is_published():
    alone = replace(RUN, exposed=0.0)
    assert KNOWN.uncertainty("one GPU", alone).band.high == pytest.approx(1.1)
    anchored = KNOWN.uncertainty("one GPU", replace(alone, anchored=True))
    assert anchored.band.low == pytest.approx(0.95)
    assert anchored.shared == pytest.approx(log(1.04 / 0.95) / 2)


def test_another_stack_or_family_takes_the_prior_and_a_timed_model_the_better_family():
    assert KNOWN.uncertainty("one GPU", replace(RUN, stack="mine", exposed=0)).band == Band(0.5, 2.0)
    assert KNOWN.uncertainty("one GPU", replace(RUN, device="other", exposed=0)).band == Band(0.5, 2.0)
    assert KNOWN.uncertainty("one GPU", replace(RUN, device="other", exposed=0, timed=True)).band.high < 1.2


def test_a_device_that_is_no_hardware_has_no_error():
    assert KNOWN.uncertainty("pipeline", replace(RUN, device="ideal")).band == Band()


def test_the_shipped_bands_know_every_family_and_method_and_name_devices_that_are_shipped():
    bands = load_bands()
    for family in FAMILIES:
        for method in METHODS:
            for stack in (*stack_names(), "mine"):
                band = bands.of(family, stack, method).band
                assert 0 < band.low <= 1 <= band.high < 10
    assert {*bands.measured, *bands.exact} <= set(device_names())
    assert all(one.source.startswith("prior: " if not one.rows else "python -m") for one in bands.evidence)


def written(tmp_path, *lines):
    path = tmp_path / "trust.csv"
    path.write_text("\n".join([",".join(COLUMNS), *lines]) + "\n", encoding="utf-8")
    return path


def test_the_shipped_file_names_strategies_that_exist_each_kind_once():
    trusts = read_trust(TRUST)
    assert trusts
    keys = [(one.task, one.family, one.kind) for one in trusts]
    assert len(set(keys)) == len(keys)
    for one in trusts:
        assert set(one.strategies) <= {*all_strategies(), *all_samplers()}
        assert one.numbers > 0
        assert 0 < one.median_error <= one.worst_error


def test_what_no_published_number_is_of_says_so():
    trust = trust_of("train", "a100-80gb-sxm", "a-strategy-of-ones-own", 8)
    near = trust_of("train", "a100-80gb-sxm", "ddp", 8)
    assert trust == Trust("train", "measured", "a-strategy-of-ones-own", nearest=near)
    assert str(trust) == (
        "no independent published number (training, a-strategy-of-ones-own, on GPUs with measured kernels); nearest:"
        f" {near.numbers} numbers of data parallel, too few to judge by"
    )
    drawn = trust_of("sample", "l20-48gb", "hybrid", 8)
    assert drawn.nearest == trust_of("sample", "l20-48gb", "hybrid", 1)
    assert f"; nearest: {drawn.nearest.numbers} numbers of one GPU: median error " in str(drawn)


def test_a_trust_says_how_many_numbers_and_how_far_off():
    def words(numbers):
        return str(Trust("train", "measured", "pipeline", ("spp",), numbers, 0.1234, 0.2))

    where = "(training, pipeline, on GPUs with measured kernels)"
    assert words(4) == f"4 independent published numbers {where}: median error 12.3%, worst 20%"
    assert words(2) == f"2 independent published numbers {where}, too few to judge by"
    assert words(1) == f"1 independent published number {where}, too few to judge by"


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ("nothing,measured,pipeline,spp,1,0.1,0.2", "task is 'nothing', must be one of train, sample"),
        ("train,measured,pipeline,spp,1,nan,0.2", "median_error"),
    ],
)
def test_a_broken_file_is_refused_by_line(tmp_path, line, message):
    with pytest.raises(InputError, match=r"trust.csv:2: .*") as caught:
        read_trust(written(tmp_path, line))
    assert message in str(caught.value)
