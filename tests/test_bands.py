"""Bands: from residuals of independent numbers to factors on predicted times, and the file of them."""

from math import exp, log

import numpy as np
import pandas as pd
import pytest

from profiles.bands import read_bands
from profiles.errors import InputError
from strategies.kinds import KINDS, ONE_GPU, OTHER, kind_of
from strategies.registry import all_samplers, all_strategies
from validate.published.bands import LEAST_ROWS, LEVEL, bands, held_out, quantiles, write_bands
from validate.published.ledger import RESIDUALS


def residuals(*groups):
    """Rows of groups of (kind, source, log ratios)."""
    rows = [
        ["sample", source, "a100", "eager", kind, 8, "independent", value]
        for kind, source, values in groups
        for value in values
    ]
    return pd.DataFrame(rows, columns=list(RESIDUALS))


SPREAD = tuple(np.linspace(-0.1, 0.1, 10))


def test_every_shipped_strategy_is_of_one_kind():
    names = [name for group in KINDS.values() for name in group]
    assert sorted(names) == sorted([*all_strategies(), *all_samplers()])
    assert kind_of("ring", 8) == "sequence"
    assert kind_of("ddp", 1) == ONE_GPU
    assert kind_of("mine", 8) == OTHER


def test_quantiles_of_few_values_are_the_largest_and_of_many_leave_a_tenth_on_either_side():
    assert quantiles(list(SPREAD[:9])) == (SPREAD[0], SPREAD[8])
    low, high = quantiles(list(np.linspace(-1, 1, 2001)))
    assert (low, high) == pytest.approx((-0.8, 0.8), abs=0.01)


def test_a_band_always_holds_the_prediction():
    low, high = quantiles([0.3] * 20)
    assert low < 0 < high


def test_sources_that_disagree_widen_what_either_alone_would_say():
    alike = pd.Series([*SPREAD, *SPREAD])
    apart = pd.Series([*(v - 0.5 for v in SPREAD), *(v + 0.5 for v in SPREAD)])
    sources = pd.Series(["a"] * 10 + ["b"] * 10)
    near, far = held_out(alike, sources), held_out(apart, sources)
    assert near.high < 0.15
    assert far.high > 0.6
    assert far.low < -0.6


def test_the_wanted_share_of_a_source_that_was_left_out_lies_in_the_band():
    rng = np.random.default_rng(0)
    values, sources = pd.Series(rng.normal(0, 0.1, 200)), pd.Series([f"{i % 5}" for i in range(200)])
    low, high = held_out(values, sources)
    assert ((values >= low) & (values <= high)).mean() >= LEVEL


def test_groups_with_few_rows_or_one_source_take_the_band_of_a_wider_one():
    frame = residuals(
        ("sequence", "a", SPREAD),
        ("sequence", "b", SPREAD),
        ("tensor", "a", SPREAD),
        ("patches", "b", SPREAD[:2]),
    )
    found = bands(frame)
    assert set(found["kind"]) == {"sequence", "*"}
    assert list(found["rows"])[-1] == len(frame)
    assert tuple(found.iloc[-1][["task", "device", "stack", "kind"]]) == ("*",) * 4


def test_only_independent_numbers_make_a_band():
    frame = residuals(("sequence", "a", SPREAD), ("sequence", "b", SPREAD))
    wild = frame.assign(log_ratio=5.0, standing="in view")
    assert bands(pd.concat([frame, wild])).equals(bands(frame))


def test_too_few_numbers_are_refused():
    with pytest.raises(InputError, match="too few for a band"):
        bands(residuals(("sequence", "a", SPREAD[: LEAST_ROWS - 1])))


def test_a_prediction_that_is_too_fast_gets_a_band_above_it():
    fast = [log(0.8)] * 10
    found = bands(residuals(("sequence", "a", fast), ("sequence", "b", fast)))
    assert found["high"].iloc[0] == pytest.approx(exp(-log(0.8)), abs=2e-3)
    assert found["low"].iloc[0] == pytest.approx(0.99, abs=2e-3)


def test_bands_are_read_back_as_they_were_written(tmp_path):
    path = tmp_path / "bands.toml"
    frame = residuals(("sequence", "a", SPREAD), ("sequence", "b", SPREAD))
    write_bands(frame, path)
    found = read_bands(path)
    assert [(one.kind, one.low, one.high, one.rows) for one in found] == [
        (line.kind, line.low, line.high, line.rows) for line in bands(frame).itertuples()
    ]
    assert found[0].fits("sample", "a100", "eager", "sequence")
    assert not found[0].fits("sample", "a100", "eager", "tensor")


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (("low = 0", "low = 1.2 # 0"), "must enclose 1"),
        (('task = "sample"', 'task = "draw"'), "task is 'draw', must be one of"),
        (("level = 0.8", "level = 1"), "must be between 0 and 1"),
        (('kind = "*"', 'kind = "ring"'), "the last band must be about every"),
        (("rows = 20", "lines = 20"), "rows is missing"),
    ],
)
def test_a_file_that_breaks_a_rule_is_refused(tmp_path, change, message):
    path = tmp_path / "bands.toml"
    write_bands(residuals(("sequence", "a", SPREAD), ("sequence", "b", SPREAD)), path)
    path.write_text(path.read_text().replace(*change))
    with pytest.raises(InputError, match=message):
        read_bands(path)
