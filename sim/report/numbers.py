"""Numbers in words: times with their bands."""

from decimal import Decimal
from math import floor, log10
from typing import Final

from sim.outcomes.results import Result
from sim.outcomes.tasks import TASKS
from strategies.strategy import AnyScenario

WIDE: Final = 1.2
"""Bands whose end is more than so many times their start are told to two figures."""
SAME: Final = 5e-4
"""Relative differences below this are none in words."""
MORE_LESS: Final = {
    "speed": ("faster", "slower"),
    "cost": ("dearer", "cheaper"),
    "memory": ("more memory", "less memory"),
}
"""What is more and what is less, in words."""
PER_SECOND: Final = {"ms": 1e3, "s": 1.0}


def milliseconds(seconds: float) -> str:
    """Return a time in words; short ones to three figures."""
    value = seconds * 1e3
    return f"{value:.3g} ms" if 0 < value < 10 else f"{value:,.1f} ms"


def timed(seconds: float, unit: str) -> str:
    """Return a time in words in a unit: ms, or one of seconds."""
    return milliseconds(seconds) if unit == "ms" else f"{seconds:,.3f} {unit}"


def duration(result: Result) -> str:
    """Return the duration of a result in the unit of its task."""
    return timed(result.expected.duration_s, unit_of(result))


def unit_of(result: Result) -> str:
    """Return the unit of the duration of a result."""
    return TASKS[result.task].unit


def band(result: Result) -> str:
    """Return the band of a duration in words, the wider the fewer its figures; empty where there is none."""
    if result.low_s == result.high_s:
        return ""
    figures = 2 if result.high_s > WIDE * result.low_s else 3
    per_s = PER_SECOND[unit_of(result)]
    return f"{rounded(result.low_s * per_s, figures)} to {rounded(result.high_s * per_s, figures)}"


def rounded(value: float, figures: int) -> str:
    """Return a positive number to so many significant figures, without an exponent; a leading 1 counts as none."""
    figures += f"{value:e}"[0] == "1" and figures < 3
    return f"{float(f'{value:.{figures}g}'):,.{max(0, figures - 1 - floor(log10(value)))}f}"


def plain(value: float, figures: int) -> str:
    """Return a number to so many significant figures at most, without an exponent."""
    return f"{Decimal(f'{value:.{figures}g}'):,f}"


def compared(ratio: float, what: str = "speed") -> str:
    """Return in words how a speed, a cost or a memory compares with another."""
    share, (more, less) = abs(ratio - 1), MORE_LESS[what]
    if share < SAME:
        return f"the same {what}"
    if not 0.5 < ratio < 2:
        return f"{ratio:.2f} x the {what}"
    return f"{share:.{int(share < 0.1)}%} {more if ratio > 1 else less}"


def throughput(samples_per_s: float) -> str:
    """Return samples per second in words; less than one to three figures."""
    below = plain(samples_per_s, 3)
    return f"{samples_per_s:,.1f}" if samples_per_s >= 1 or below == "1" else below


def sample_words(of: Result | AnyScenario) -> tuple[str, str]:
    """Return the names of one and of several of the samples that a result or a scenario counts."""
    return TASKS[of.task].sample_words(of.options)
