"""Numbers in words: figures, units and bands as reports print them."""

from dataclasses import replace

import pytest

import sim
from sim.report.numbers import band, banded, duration, milliseconds, plain, rounded, throughput


@pytest.fixture(scope="module")
def result():
    return sim.run("sd21", "ddp", gpus=1, batch_size=1)


@pytest.mark.parametrize(
    ("value", "figures", "words"),
    [
        (287.4, 2, "290"), (0.02874, 2, "0.029"), (2874.0, 2, "2,900"),
        (123.4, 2, "123"), (1.234, 2, "1.23"), (0.1234, 2, "0.123"),  # a leading 1 counts as none
        (123.4, 3, "123"), (1.234, 3, "1.23"), (287.4, 3, "287"),
    ],
)  # fmt: skip
def test_a_number_is_rounded_to_figures_and_written_without_an_exponent(value, figures, words):
    assert rounded(value, figures) == words


@pytest.mark.parametrize(
    ("value", "words"),
    [
        (5e-5, "0.00005"), (1.234e-7, "0.000000123"), (0.5, "0.5"),
        (179.0, "179"), (1.8e3, "1,800"), (1.5e13, "15,000,000,000,000"),
    ],
)  # fmt: skip
def test_a_number_to_figures_at_most_has_no_exponent(value, words):
    assert plain(value, 3) == words


@pytest.mark.parametrize(
    ("samples_per_s", "words"),
    [
        (2e-5, "0.00002"), (0.1694, "0.169"), (0.9994, "0.999"),
        (0.9996, "1.0"), (1.0, "1.0"), (1.04, "1.0"), (5.04, "5.0"), (1644.42, "1,644.4"),
    ],
)  # fmt: skip
def test_samples_per_second_below_one_have_three_figures_and_others_one_decimal(samples_per_s, words):
    assert throughput(samples_per_s) == words


@pytest.mark.parametrize(
    ("seconds", "words"),
    [
        (0.0, "0.0 ms"),
        (0.0099994, "10 ms"),
        (0.00123456, "1.23 ms"),
        (0.01, "10.0 ms"),
        (12.3456, "12,345.6 ms"),
    ],
)
def test_short_times_have_three_figures_and_others_one_decimal(seconds, words):
    assert milliseconds(seconds) == words


@pytest.mark.parametrize(
    ("low_s", "high_s", "words"),
    [
        (2.0, 2.0, ""),
        (2.345, 2.567, "2,340 to 2,570"),
        (2.345, 2.345 * 1.2, "2,340 to 2,810"),
        (2.345, 2.345 * 1.21, "2,300 to 2,800"),  # told to fewer figures, as it is wide
    ],
)
def test_the_wider_a_band_the_fewer_its_figures(result, monkeypatch, low_s, high_s, words):
    monkeypatch.setattr(type(result), "low_s", property(lambda self: low_s))
    monkeypatch.setattr(type(result), "high_s", property(lambda self: high_s))
    assert band(result) == words
    told = replace(result, expected=replace(result.expected, duration_s=2.4))
    assert banded(told) == f"2,400.0 ms, {words}".removesuffix(", ")
    assert banded(told, 2, "s").startswith("2.40 s")
    assert duration(told) == "2,400.0 ms"
