"""Numbers in words: figures, units and bands as reports print them."""

from dataclasses import replace

import pytest

import sim
from sim.report.words import band, compared, duration, milliseconds, plain, rounded, throughput


@pytest.fixture(scope="module")
def result():
    return sim.run("sd21", "ddp", gpus=1, batch_size=1)


def test_numbers_are_told_to_few_figures_and_without_an_exponent():
    assert [rounded(value, 2) for value in (287.4, 0.02874, 2874.0)] == ["290", "0.029", "2,900"]
    assert [rounded(123.4, 2), rounded(123.4, 3), rounded(1.234, 3)] == ["123", "123", "1.23"]  # a leading 1
    assert [plain(value, 3) for value in (5e-5, 179.0, 1.5e13)] == ["0.00005", "179", "15,000,000,000,000"]
    told = [throughput(value) for value in (2e-5, 0.9994, 0.9996, 1644.42)]
    assert told == ["0.00002", "0.999", "1.0", "1,644.4"]
    words = [milliseconds(seconds) for seconds in (0.0, 0.0099994, 0.00123456, 12.3456)]
    assert words == ["0.0 ms", "10 ms", "1.23 ms", "12,345.6 ms"]


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
    assert duration(told) == "2,400.0 ms"


def test_ratios_are_told_in_per_cent_up_to_twice_or_half():
    words = [compared(ratio) for ratio in (1.0002, 1.017, 0.84, 1.45, 2.38, 0.5)]
    assert words == [
        *("the same speed", "1.7% faster", "16% slower", "45% faster", "2.38 x the speed", "0.50 x the speed")
    ]
    assert (compared(1.3, "cost"), compared(0.88, "memory")) == ("30% dearer", "12% less memory")
