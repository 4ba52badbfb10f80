"""Numbers, points and options in words: times with their bands, and how one point differs from others."""

from collections.abc import Collection, Iterable, Mapping
from decimal import Decimal
from itertools import groupby
from math import floor, log10
from typing import Any, Final

from sim.explore.legality import OF_PIPELINES
from sim.explore.points import Point
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
LETTERS: Final = {"pipeline_degree": "P", "micro_batches": "M", "group_size": "D"}
"""Parameters that have a letter: P, M and D."""
MEANINGS: Final = {"P": "pipeline degree", "M": "micro-batches", "D": "GPUs of a pipeline group"}
"""Meanings of the letters."""
NAMED: Final = {"": "none", "None": "default"}
"""Values of parameters that have a name."""

Tried = Mapping[str, Mapping[str, Collection[Any]]]
"""For each strategy and each of its parameters the values that a sweep looks at."""


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


def sample_words(subject: Result | AnyScenario) -> tuple[str, str]:
    """Return the names of one and of several of the samples that a result or a scenario counts."""
    return TASKS[subject.task].sample_words(subject.options)


def tried(points: Iterable[Point]) -> dict[str, dict[str, set[Any]]]:
    """Return the values of parameters among points, by strategy and parameter, with ``checkpointing`` if tried."""
    values: dict[str, dict[str, set[Any]]] = {}
    for point in points:
        if point.checkpointing is not None:
            values.setdefault(point.name, {})["checkpointing"] = {point.checkpointing, "none"}
        for key, value in point.parameters.items():
            values.setdefault(point.name, {}).setdefault(key, set()).add(value)
    return values


def how(result: Result, values: Tried, leave: Collection[str] = ()) -> str:
    """Return in words the parameters of which several values were tried, without those that ``leave`` names.

    A parameter that is not named has its default: none, or a degree of 1.
    """
    tried_values = values.get(result.strategy, {})
    if result.parameters.get("pipeline_degree") == 1:
        leave = (*leave, *OF_PIPELINES)
    parameters = {**result.parameters, "checkpointing": result.options.get("checkpointing")}
    return ", ".join(
        _named(key, value)
        for key, value in parameters.items()
        if len(tried_values.get(key, ())) > 1
        and key not in leave
        and value is not None
        and not (key.endswith("_degree") and value == 1)
        and parameters.get(f"{key}_degree") != 1
    )


def differing(before: Result, after: Result) -> str:
    """Return the parameters in words in which a result differs from another of its strategy."""
    return ", ".join(
        _named(key, value)
        for key, value in after.parameters.items()
        if before.parameters.get(key) != value and after.parameters.get(f"{key}_degree") != 1
    )


def _named(key: str, value: Any) -> str:  # noqa: ANN401
    """Return a parameter in words."""
    name = LETTERS.get(key) or key.removesuffix("_degree").replace("_", "-")
    if not isinstance(value, tuple | list):
        return f"{name} {NAMED.get(str(value), value)}"
    runs = [(item, len(list(equal))) for item, equal in groupby(value)]  # 7,6x2 for 7, 6, 6
    return f"{name} {','.join(f'{item}x{count}' if count > 1 else str(item) for item, count in runs)}"
