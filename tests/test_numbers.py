"""Numbers in words: figures, units and bands as reports print them."""

from dataclasses import replace

import pytest

import sim
from sim.report.numbers import band, banded, duration, milliseconds, plain, rounded, throughput


@pytest.fixture(scope="module")
def result():
    return sim.run("sd21", "ddp", gpus=1, batch_size=1)


@pytest.mark.parametrize(
    ("words", "expected"),
    [
        (rounded(287.4, 2), "290"), (rounded(0.02874, 2), "0.029"), (rounded(2874.0, 2), "2,900"),
        (rounded(123.4, 2), "123"), (rounded(0.1234, 2), "0.123"),  # a leading 1 counts as none
        (rounded(123.4, 3), "123"), (rounded(1.234, 3), "1.23"),
        (plain(5e-5, 3), "0.00005"), (plain(1.234e-7, 3), "0.000000123"), (plain(179.0, 3), "179"),
        (plain(1.5e13, 3), "15,000,000,000,000"),
        (throughput(2e-5), "0.00002"), (throughput(0.9994), "0.999"), (throughput(0.9996), "1.0"),
        (throughput(1644.42), "1,644.4"),
        (milliseconds(0.0), "0.0 ms"), (milliseconds(0.0099994), "10 ms"), (milliseconds(0.00123456), "1.23 ms"),
        (milliseconds(12.3456), "12,345.6 ms"),
    ],
)  # fmt: skip
def test_numbers_are_told_to_few_figures_and_without_an_exponent(words, expected):
    assert words == expected


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
    assert duration(told) == "2,400.0 ms"
