"""Bands and trust from published numbers: who sets them, what stays a prior, and the files that are written."""

from dataclasses import replace
from math import log

import pytest

from profiles.costs.bands import BANDS, Band, load_bands, read_bands
from validate.published.bands import Miss, bands_of, errors, text_of, trusts, waits
from validate.published.records import Conditions, Record, Standing, all_published, the_published

A100, L40, L20 = "a100-80gb-sxm", "l40-48gb", "l20-48gb"


def misses(*ratios, method="one GPU", device=A100, exposed=0.0):
    return [Miss(device, "eager", method, ratio, "made", exposed) for ratio in ratios]


def test_the_shipped_file_is_as_the_command_writes_it(tmp_path):
    path = tmp_path / "bands.toml"
    path.write_text(text_of(load_bands()))
    assert read_bands(path) == load_bands()
    assert path.read_text() == BANDS.read_text()


def test_numbers_make_the_band_of_their_family_stack_and_method():
    known = bands_of([*misses(0.8, 0.9, 1.1, 1.3), *misses(0.5, 0.6, 1.2, 2.0, device=L40)], [], load_bands())
    assert known.of("measured", "eager", "one GPU").band == Band(0.8, 1.3)
    assert known.of("derived", "eager", "one GPU").band == Band(0.5, 2.0)
    assert known.of("derived", "eager", "one GPU").rows == 4
    assert known.of("measured", "compiled", "one GPU").band == Band(0.8, 1.3)
    assert known.of("derived", "compiled", "one GPU").band == Band(0.5, 2.0)
    assert known.of("measured", "compiled", "pipeline").rows == 0


def test_a_stack_of_which_nothing_is_known_takes_what_the_bands_of_others_span():
    other = [replace(miss, stack="compiled") for miss in misses(0.7, 1.0, 1.0, 1.1)]
    known = bands_of([*misses(0.8, 0.9, 1.1, 1.3), *other], [], load_bands())
    spanned = known.of("measured", "mine", "one GPU")
    assert (spanned.band, spanned.rows) == (Band(0.7, 1.3), 8)
    assert known.of("derived", "mine", "one GPU") == replace(spanned, family="derived")


def test_the_error_of_what_is_awaited_is_that_of_exposed_seconds_beside_the_same_compute():
    row = the_published("Table 2", model="controlnet", num_gpus=64)
    (only,) = waits([Record.of(row, row.value / 2)])
    share = row.value / 2
    assert only == pytest.approx((row.value / (1 - row.value)) / (share / (1 - share)))
    assert waits([replace(Record.of(row, 0.3), standing=Standing.FITTED, reason="it set the links")]) == []
    assert bands_of([], [0.5, 2.0, 2.0, 2.0], load_bands()).exposed.spread == pytest.approx(log(4) / 2)


# Trust.


def latency(predicted, device=A100, kind="sequence", standing=Standing.INDEPENDENT):
    row = replace(all_published()[0], task="sample", quantity="latency_s", value=2.0)
    reason = "" if standing is Standing.INDEPENDENT else "why"
    return Record(row, predicted, standing, reason, conditions=Conditions(device, "eager", kind))


def test_errors_are_of_independent_times_alone():
    records = [latency(2.2), latency(1.0, standing=Standing.IN_VIEW), latency(9.0, standing=Standing.FITTED)]
    (only,) = errors(records)
    assert (only.task, only.family, only.kind) == ("sample", "measured", "sequence")
    assert only.error == pytest.approx(0.1)


def test_kinds_and_families_are_told_apart_and_other_strategies_left_out():
    records = [latency(2.2), latency(1.6), latency(3.0, device=L20), latency(3.0, kind="other")]
    derived, measured = trusts(records)
    assert (measured.numbers, measured.median_error, measured.worst_error) == (
        2,
        pytest.approx(0.15),
        pytest.approx(0.2),
    )
    assert (derived.family, derived.numbers) == ("derived", 1)
    assert measured.strategies == ("ulysses", "ring", "usp"), "no row is of Attention2D"
