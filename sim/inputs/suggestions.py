"""Suggestions: parameters with which a point exists, where those of the question give none."""

from collections.abc import Iterator, Mapping
from contextlib import suppress
from dataclasses import fields, replace
from itertools import islice
from math import inf
from typing import Any, Final

from profiles.errors import InfeasibleError, flag_value
from sim.outcomes.runs import bound
from strategies.strategy import AnyScenario, AnyStrategy

MOST: Final = 60
"""Candidates that are looked at."""


def check_exists(strategy: AnyStrategy, scenario: AnyScenario, held: Mapping[str, Any]) -> None:
    """Refuse a point that does not exist, and name parameters that would do beside those that are held.

    Raises:
        InfeasibleError: it does not exist.
    """
    try:
        bound(strategy, scenario)
    except InfeasibleError as error:
        flags: list[str] = []
        with suppress(InfeasibleError):
            offered: Any = type(strategy).candidates(scenario)  # type: ignore[arg-type]  # of its own task
            kept = (one for one in offered if all(getattr(one, key) == held[key] for key in held))
            best = min(islice(kept, MOST), key=lambda one: _bound_s(one, scenario), default=None)
            if best is not None and _bound_s(best, scenario) < inf:
                flags = list(_needed(best, scenario, held))
        if not flags:
            raise
        raise InfeasibleError(f"{error.message}; {' '.join(flags)} would do", error.kind) from None


def _bound_s(strategy: AnyStrategy, scenario: AnyScenario) -> float:
    """Return the seconds that a point cannot undercut; infinite where it does not exist."""
    try:
        return bound(strategy, scenario)
    except InfeasibleError:
        return inf


def _needed(strategy: Any, scenario: AnyScenario, held: Mapping[str, Any]) -> Iterator[str]:  # noqa: ANN401
    """Yield the flags of a point but for those without which it exists, too."""
    for item in fields(strategy):
        value = getattr(strategy, item.name)
        if item.name in held or value == item.default:
            continue
        plain = replace(strategy, **{item.name: item.default})
        if _bound_s(plain, scenario) < inf:
            strategy = plain
        else:
            yield f"`{item.name}` {flag_value(value)}"
