"""Suggestions: parameters with which a point exists, where those of the question give none."""

from collections.abc import Iterator, Mapping
from dataclasses import fields, replace
from itertools import islice
from typing import Any, Final

from profiles.errors import InfeasibleError
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
        words = _words(strategy, scenario, held)
        if not words:
            raise
        raise InfeasibleError(f"{error.message}; {words} would do", error.kind) from None


def _words(strategy: AnyStrategy, scenario: AnyScenario, held: Mapping[str, Any]) -> str:
    """Return the flags of the most promising of a strategy's candidates; empty where none exists."""
    try:
        offered: Any = type(strategy).candidates(scenario)  # type: ignore[arg-type]  # of its own task
        kept = (one for one in offered if all(getattr(one, name) == value for name, value in held.items()))
        bounds = [(seconds, one) for one in islice(kept, MOST) for seconds in _bound_s(one, scenario)]
    except InfeasibleError:
        return ""
    if not bounds:
        return ""
    _, best = min(bounds, key=lambda pair: pair[0])
    return " ".join(_needed(best, scenario, held))


def _bound_s(strategy: AnyStrategy, scenario: AnyScenario) -> Iterator[float]:
    """Yield the seconds that a point cannot undercut; none where it does not exist."""
    try:
        yield bound(strategy, scenario)
    except InfeasibleError:
        return


def _needed(strategy: Any, scenario: AnyScenario, held: Mapping[str, Any]) -> Iterator[str]:  # noqa: ANN401
    """Yield the flags of a point but for those without which it exists, too."""
    for item in fields(strategy):
        value = getattr(strategy, item.name)
        if item.name in held or value == item.default:
            continue
        plain = replace(strategy, **{item.name: item.default})
        if list(_bound_s(plain, scenario)):  # a bound of 0 is one, too
            strategy = plain
        else:
            yield f"`{item.name}` {','.join(map(str, value)) if isinstance(value, tuple) else value}"
