"""Standings: which points of a sweep are worth a row, and what their parameters say beside the others'."""

from collections.abc import Iterator
from typing import Any, Final

from sim.points import Point, Result
from sim.sampling import SamplingResult
from sim.space import pareto_front
from sim.sweep import Sweep

SHAPE: Final = ("pipeline_degree", "micro_batches", "group_size")
"""Parameters with a column of their own: P, M and D."""


def tried(sweep: Sweep) -> dict[str, dict[str, set[Any]]]:
    """Return for each strategy and each of its parameters the values that the sweep looks at."""
    tried: dict[str, dict[str, set[Any]]] = {}
    for point in sweep.points:
        for key, value in point.parameters.items():
            tried.setdefault(point.name, {}).setdefault(key, set()).add(value)
    return tried


def held_fixed(sweep: Sweep, result: Result) -> str:
    """Return in words what the sweep did not vary: the options, and parameters with one value per strategy.

    Where other strategies vary a parameter, those that do not are named.
    """
    held = {key: {value} for key, value in result.options.items()}
    if isinstance(result, SamplingResult):
        held["guidance of all but hybrid"] = {result.guidance}
    holders: dict[str, list[str]] = {}
    values_of = tried(sweep)
    for name, parameters in values_of.items():
        for key, values in parameters.items():
            if len(values) == 1 and key not in SHAPE:
                held[key] = held.get(key, set()) | values
                holders.setdefault(key, []).append(name)
    varied = {
        key for parameters in values_of.values() for key, values in parameters.items() if len(values) > 1
    }
    words = []
    for key, values in held.items():
        names = f" ({', '.join(holders[key])})" if key in varied and key in holders else ""
        words.append(f"{key.replace('_', ' ')} {' or '.join(sorted(map(_word, values)))}{names}")
    return ", ".join(words)


def _word(value: Any) -> str:  # noqa: ANN401
    return {"": "none", "None": "default"}.get(str(value), str(value))


def front(simulated: list[Point]) -> list[Point]:
    """Return the recommended points that no other of them beats in both throughput and memory."""
    results = [
        (point, point.result.to_json())
        for point in simulated
        if point.result is not None and point.recommended
    ]
    return [item["point"] for item in pareto_front([{**result, "point": point} for point, result in results])]


def shown(simulated: list[Point], best: list[Point]) -> Iterator[tuple[int, Point]]:
    """Yield the best points with their ranks, and the best of each strategy that is not among them."""
    seen, chosen = set(), {id(point) for point in best}
    for rank, point in enumerate(simulated, 1):
        if id(point) in chosen or point.name not in seen:
            seen.add(point.name)
            yield rank, point
