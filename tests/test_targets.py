"""What few observations leave open is assumed: another device's fractions of its peaks."""

from dataclasses import replace

import numpy as np
import pytest

from profiles.devices import RATE_KEYS, load_device
from profiles.errors import InputError
from validate.fitting.device_fits import fit_device, rate_source
from validate.fitting.equations import OBSERVATIONS
from validate.fitting.rates import (
    ASSUMED,
    FITTED,
    TOGETHER,
    fit,
    fit_without_peaks,
    leave_one_out,
    read_target,
)

LIKE = "a100-80gb-sxm"


def target(name):
    return read_target(OBSERVATIONS / f"{name}.toml")


def observed(name, seconds):
    """The fitted rows of a device, with the values that these seconds per unit of work give."""
    return [
        replace(row, observation=replace(row.observation, value=row.predict(np.array(seconds))))
        for row in fit_device(name).fitted
    ]


@pytest.mark.parametrize(
    "name", ["a100-80gb-pcie", "h100-80gb-sxm", "h20-96gb", "l20-48gb", "l40-48gb", "t4-16gb"]
)
def test_an_assumed_rate_is_the_share_of_its_peak_that_the_other_device_reaches(name):
    rates, other, its, its_peaks = (
        load_device(name).rates,
        load_device(LIKE).rates,
        target(name),
        target(LIKE),
    )
    assert rates.kernel_s == other.kernel_s
    assert rates.memory_bytes_per_s / its.memory_peak == pytest.approx(
        other.memory_bytes_per_s / its_peaks.memory_peak, rel=1e-4
    )
    for key, mode in zip(("conv", "matmul", "attention"), its.modes, strict=False):
        rate = getattr(rates, f"{key}_flop_per_s") / its.matrix_peak
        share = getattr(other, f"{key}_flop_per_s") / its_peaks.matrix_peak
        assert rate <= 1e12 * (1 + 1e-4)
        assert (mode == ASSUMED) <= (rate == pytest.approx(share, rel=1e-4))


def test_fitted_rates_are_recovered_beside_assumed_ones():
    its = target("l40-48gb")
    assert its.modes == (ASSUMED, FITTED, FITTED, ASSUMED, ASSUMED)
    seconds = [*its.base]
    seconds[1:3] = 1 / 150, 1 / 90
    rows = observed("l40-48gb", seconds)
    for found in (fit(rows, its), fit_without_peaks(rows, its), *leave_one_out(rows, its)):
        assert found.seconds == pytest.approx(seconds, rel=1e-6)
        assert found.bound == (False,) * 5


def test_a_common_factor_is_recovered_and_keeps_the_ratio():
    its = target("h100-80gb-sxm")
    assert its.modes == (ASSUMED, TOGETHER, TOGETHER, ASSUMED, ASSUMED)
    seconds = np.array(its.assumed) * [1, 0.8, 0.8, 1, 1]
    found = fit(observed("h100-80gb-sxm", seconds), its)
    assert found.seconds == pytest.approx(seconds, rel=1e-9)
    assert found.bound == (False,) * 5


def test_no_class_of_a_common_factor_passes_its_peak():
    its = target("h100-80gb-sxm")
    seconds = np.array(its.assumed) * [1, 0.1, 0.1, 1, 1]
    found = fit(observed("h100-80gb-sxm", seconds), its)
    assert found.rates["matmul_TFLOP_per_s"] == pytest.approx(its.matrix_peak, rel=1e-12)
    assert found.rates["attention_TFLOP_per_s"] < its.matrix_peak
    assert found.bound == (False, True, True, False, False)


def test_nothing_is_left_out_where_the_rest_would_not_determine_the_unknowns():
    report = fit_device("h100-80gb-sxm")
    assert report.without == ()
    assert len(report.fitted) == 1
    assert "by as many observations as unknowns" in rate_source(report, "matmul_TFLOP_per_s")


def test_a_device_without_observations_is_assumed_as_a_whole():
    report = fit_device("h20-96gb")
    assert report.rows == ()
    assert list(report.fit.seconds) == list(report.target.assumed)
    assert all(rate_source(report, key).startswith("estimate: ") for key in RATE_KEYS)


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        (f'like = "{LIKE}"', 'like = "t4-16gb"', "like is 't4-16gb', must be one of a100-40gb-sxm"),
        (f'like = "{LIKE}"', 'like = "a101"', "like is 'a101', must be one of"),
        (f'like = "{LIKE}"\n', "", "unknown key classes"),
        ('kernel_us = "assumed"', 'kernel_us = "guessed"', "classes.kernel_us is 'guessed', must be one of fitted"),
        ('kernel_us = "assumed"\n', "", "classes.kernel_us is missing"),
        ('kernel_us = "assumed"', 'kernel_us = "assumed"\nl2 = "fitted"', "unknown key classes.l2"),
    ],
)  # fmt: skip
def test_a_broken_rule_is_refused(tmp_path, old, new, message):
    text = (OBSERVATIONS / "t4-16gb.toml").read_text(encoding="utf-8")
    assert old in text
    path = tmp_path / "t4-16gb.toml"
    path.write_text(text.replace(old, new), encoding="utf-8")
    (tmp_path / f"{LIKE}.toml").write_text((OBSERVATIONS / f"{LIKE}.toml").read_text(encoding="utf-8"))
    with pytest.raises(InputError, match=message):
        read_target(path)
