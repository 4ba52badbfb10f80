"""Descriptions: the points of a sweep, and how one differs from the others, in words."""

from collections.abc import Collection, Iterable, Mapping
from itertools import groupby
from typing import Any, Final

from sim.explore.legality import OF_PIPELINES
from sim.explore.points import Point
from sim.outcomes.results import Result

LETTERS: Final = {"pipeline_degree": "P", "micro_batches": "M", "group_size": "D"}
"""Parameters that have a letter: P, M and D."""
MEANINGS: Final = {"P": "pipeline degree", "M": "micro-batches", "D": "GPUs of a pipeline group"}
"""Meanings of the letters."""

Tried = Mapping[str, Mapping[str, Collection[Any]]]
"""For each strategy and each of its parameters the values that a sweep looks at."""


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
        return f"{name} {_word(value)}"
    runs = [(of, len(list(equal))) for of, equal in groupby(value)]  # 7,6x2 for 7, 6, 6
    return f"{name} {','.join(f'{of}x{count}' if count > 1 else str(of) for of, count in runs)}"


def held_fixed(points: Iterable[Point], result: Result) -> str:
    """Return in words the options, and the parameters with one value in all strategies."""
    values_of = tried(points)
    values: dict[str, set[Any]] = {key: {value} for key, value in result.options.items()}
    if "guidance" in result.asked:
        values["guidance"] = {result.asked["guidance"]}
    for of_strategy in values_of.values():
        for key, among in of_strategy.items():
            values[key] = values.get(key, set()) | among
    if any("guidance_degree" in of_strategy for of_strategy in values_of.values()):
        values.pop("guidance", None)
    held = {key: among.pop() for key, among in values.items() if len(among) == 1 and key not in LETTERS}
    return ", ".join(f"{key.replace('_', ' ')} {_word(value)}" for key, value in held.items())


def _word(value: Any) -> str:  # noqa: ANN401
    return {"": "none", "None": "default"}.get(str(value), str(value))
