"""The registry: every strategy in this package, found by looking at its files."""

import inspect
from collections.abc import Mapping
from dataclasses import is_dataclass
from functools import cache
from importlib import import_module
from pkgutil import iter_modules
from typing import Any, TypeVar

import strategies
from profiles.errors import InputError
from strategies.parameters import check_parameters
from strategies.sampler import Sampler
from strategies.strategy import Strategy

C = TypeVar("C")


@cache
def _found() -> Mapping[str, type[Any]]:
    """Return every strategy class by its name, sorted."""
    found: dict[str, type[Any]] = {}
    for info in iter_modules(strategies.__path__):
        module = import_module(f"strategies.{info.name}")
        for _, cls in inspect.getmembers(module, inspect.isclass):
            if cls.__module__ == module.__name__ and is_dataclass(cls) and hasattr(cls, "candidates"):
                found[cls.name] = cls  # type: ignore[attr-defined]
    return dict(sorted(found.items()))


@cache
def all_strategies() -> Mapping[str, type[Strategy]]:
    """Return every training strategy by its name, sorted."""
    return {name: cls for name, cls in _found().items() if cls.task == "train"}


@cache
def all_samplers() -> Mapping[str, type[Sampler]]:
    """Return every sampler by its name, sorted."""
    return {name: cls for name, cls in _found().items() if cls.task == "sample"}


def task_of(name: str) -> str:
    """Return the task of a strategy: ``train`` or ``sample``.

    Raises:
        InputError: there is none of this name.
    """
    if name not in _found():
        raise InputError(f"unknown strategy '{name}'; choose from {', '.join(_found())}")
    task: str = _found()[name].task
    return task


def strategy_class(name: str) -> type[Strategy]:
    """Return the training strategy of a name.

    Raises:
        InputError: there is none.
    """
    if task_of(name) != "train":
        raise InputError(f"{name} draws images, it does not train; choose from {', '.join(all_strategies())}")
    return all_strategies()[name]


def sampler_class(name: str) -> type[Sampler]:
    """Return the sampler of a name.

    Raises:
        InputError: there is none.
    """
    if task_of(name) != "sample":
        raise InputError(f"{name} trains, it does not draw images; choose from {', '.join(all_samplers())}")
    return all_samplers()[name]


def make_strategy(name: str, parameters: Mapping[str, Any]) -> Strategy:
    """Return a training strategy with these parameters; those not given take their defaults.

    Raises:
        InputError: the strategy or a parameter is unknown, or a value breaks a rule.
    """
    return _make(strategy_class(name), parameters)


def make_sampler(name: str, parameters: Mapping[str, Any]) -> Sampler:
    """Return a sampler with these parameters; those not given take their defaults.

    Raises:
        InputError: the sampler or a parameter is unknown, or a value breaks a rule.
    """
    return _make(sampler_class(name), parameters)


def _make(cls: type[C], parameters: Mapping[str, Any]) -> C:
    known = inspect.signature(cls).parameters
    for key in parameters:
        if key not in known:
            flags = ", ".join("--" + name.replace("_", "-") for name in known) or "none"
            name = cls.name  # type: ignore[attr-defined]
            raise InputError(f"{name} has no parameter --{key.replace('_', '-')}; it has {flags}")
    return check_parameters(cls(**parameters))
