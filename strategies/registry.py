"""The registry: every strategy in this package, found by looking at its files."""

import inspect
from collections.abc import Mapping
from dataclasses import is_dataclass
from functools import cache
from importlib import import_module
from pkgutil import iter_modules
from typing import Any, cast

import strategies
from profiles.errors import InputError
from strategies.parameters import check_parameters
from strategies.strategy import Strategy


@cache
def all_strategies() -> Mapping[str, type[Strategy]]:
    """Return every strategy class by its name, sorted."""
    found: dict[str, type[Strategy]] = {}
    for info in iter_modules(strategies.__path__):
        module = import_module(f"strategies.{info.name}")
        for _, cls in inspect.getmembers(module, inspect.isclass):
            if cls.__module__ == module.__name__ and is_dataclass(cls) and hasattr(cls, "candidates"):
                found[cls.name] = cast("type[Strategy]", cls)  # type: ignore[attr-defined]
    return dict(sorted(found.items()))


def strategy_class(name: str) -> type[Strategy]:
    """Return the strategy of a name.

    Raises:
        InputError: there is none.
    """
    strategies_by_name = all_strategies()
    if name not in strategies_by_name:
        raise InputError(f"unknown strategy '{name}'; choose from {', '.join(strategies_by_name)}")
    return strategies_by_name[name]


def make_strategy(name: str, parameters: Mapping[str, Any]) -> Strategy:
    """Return a strategy with these parameters; those not given take their defaults.

    Raises:
        InputError: the strategy or a parameter is unknown, or a value breaks a rule.
    """
    cls = strategy_class(name)
    known = inspect.signature(cls).parameters
    for key in parameters:
        if key not in known:
            flags = ", ".join("--" + name.replace("_", "-") for name in known)
            raise InputError(f"{name} has no parameter --{key.replace('_', '-')}; it has {flags}")
    return check_parameters(cls(**parameters))
