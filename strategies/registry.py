"""The registry: every strategy in this package, found by looking at its files, and those of installed packages.

A package brings strategies by entry points of the group ``diffusim.strategies``: a class, or a module with some.
"""

import inspect
from collections.abc import Mapping
from dataclasses import is_dataclass
from functools import cache
from importlib import import_module
from importlib.metadata import EntryPoint, entry_points
from pkgutil import iter_modules
from types import ModuleType
from typing import Any, Final, TypeVar

import strategies.sampling
import strategies.training
from profiles.architectures.components import TASKS
from profiles.errors import InputError, near
from profiles.names import known_name, unknown_name
from strategies.parameters import check_option, check_parameters
from strategies.strategy import AnyStrategy, Sampler, Strategy

C = TypeVar("C")

GROUP: Final = "diffusim.strategies"
OTHERWISE: Final = {
    "train": "draws images, it does not train",
    "sample": "trains, it does not draw images",
}
"""The reason why a strategy is none of a task."""
_added: Final[dict[str, type[Any]]] = {}
"""Strategies that a script or a notebook gave as classes, by name: asked about only where they are named."""


@cache
def _installed() -> Mapping[str, type[Any]]:
    """Every strategy class by its name, sorted.

    Raises:
        InputError: two have one name, one does not say what it is, or an entry point is broken.
    """
    classes: dict[str, type[Any]] = {}
    for room in (strategies.training, strategies.sampling):
        for info in iter_modules(room.__path__, f"{room.__name__}."):
            for cls in _classes(import_module(info.name)):
                _add(classes, cls)
    for entry in entry_points(group=GROUP):
        for cls in _brought(entry):
            _add(classes, cls)
    return dict(sorted(classes.items()))


def _classes(module: ModuleType) -> list[type[Any]]:
    """The strategies that a module, or what lies below it, defines."""
    inside = (module.__name__, module.__name__ + ".")
    members = (cls for _, cls in inspect.getmembers(module, _is_strategy))
    return [cls for cls in members if cls.__module__ == inside[0] or cls.__module__.startswith(inside[1])]


def _is_strategy(item: object) -> bool:
    return inspect.isclass(item) and is_dataclass(item) and issubclass(item, Strategy | Sampler)


def _brought(entry: EntryPoint) -> list[type[Any]]:
    """The strategies that an installed package brings: a class, or those of a module.

    Raises:
        InputError: they cannot be loaded, or there is none.
    """
    where = f"entry point {entry.name} = {entry.value} of {entry.dist.name if entry.dist else 'a package'}"
    try:
        item = entry.load()
    except Exception as error:  # whatever a stranger's module does when it is imported
        raise InputError(f"{where} does not load: {type(error).__name__}: {error}") from error
    classes = _classes(item) if inspect.ismodule(item) else [item] if _is_strategy(item) else []
    if not classes:
        raise InputError(
            f"{where} must be a strategy or a module with one: a dataclass, and a Strategy or Sampler"
        )
    return classes


def _add(classes: dict[str, type[Any]], cls: type[Any]) -> None:
    """Take note of a strategy.

    Raises:
        InputError: it does not say what it is, or another has its name.
    """
    where = f"{cls.__module__}.{cls.__qualname__}"
    for fact in ("name", "summary"):
        if not isinstance(getattr(cls, fact, None), str):
            raise InputError(f"strategy {where} must say its {fact}")
    other = classes.setdefault(cls.name, cls)
    if other is not cls:
        raise InputError(
            f"two strategies are named {cls.name}: {other.__module__}.{other.__qualname__} and {where}"
        )


def take(cls: type[Any]) -> str:
    """Take note of a strategy that a script or a notebook gives as a class; its name means it from now on.

    Raises:
        InputError: it does not say what it is, lacks a method, or another has its name.
    """
    where = f"{cls.__module__}.{cls.__qualname__}"
    if lacking := sorted(getattr(cls, "__abstractmethods__", ())):
        raise InputError(f"strategy {where} does not define {', '.join(lacking)}")
    before = _added.pop(getattr(cls, "name", ""), None)
    if before is not None and f"{before.__module__}.{before.__qualname__}" != where:
        _added[before.name] = before  # else it is the same, written again, as a notebook's cell is
    known = {**_installed(), **_added}
    _add(known, cls)
    _added[cls.name] = cls
    return str(cls.name)


@cache
def strategies_of(task: str) -> Mapping[str, type[Any]]:
    """Every strategy of a task by its name, sorted."""
    check_option("task", task, TASKS)
    return {name: cls for name, cls in _installed().items() if cls.task == task}


def all_strategies() -> Mapping[str, type[Strategy]]:
    """Every training strategy by its name, sorted."""
    return strategies_of("train")


def all_samplers() -> Mapping[str, type[Sampler]]:
    """Every sampler by its name, sorted."""
    return strategies_of("sample")


def class_of(name: str, task: str | None = None) -> type[AnyStrategy]:
    """The strategy of a name, of one task or of any.

    Raises:
        InputError: there is none.
    """
    return _class(name, task)


def _class(name: str, task: str | None) -> type[Any]:
    if task not in (None, task_of(name)):
        raise InputError(f"{name} {OTHERWISE[str(task)]}; choose from {', '.join(strategies_of(str(task)))}")
    return _added.get(name) or _installed()[name]


def strategy_named(name: str, *, silent: bool = False) -> str:
    """The strategy that a name, or another name of it, means; the name itself where it means none."""
    return known_name("strategy", name, {**_installed(), **_added}, silent=silent) or name


def task_of(name: str) -> str:
    """The task of a strategy: ``train`` or ``sample``.

    Raises:
        InputError: there is none of this name.
    """
    known = {**_installed(), **_added}
    if name not in known:
        raise unknown_name("strategy", name, known)
    task: str = known[name].task
    return task


def baselines(task: str) -> tuple[str, ...]:
    """The strategies of a task that others are compared with: those that say ``baseline``."""
    return tuple(name for name, cls in _installed().items() if cls.task == task and cls.baseline)


def make(name: str, parameters: Mapping[str, Any]) -> AnyStrategy:
    """A strategy of any task with these parameters; those not given take their defaults.

    Raises:
        InputError: the strategy or a parameter is unknown, or a value breaks a rule.
    """
    made: AnyStrategy = _make(_class(name, None), parameters)
    return made


def make_strategy(name: str, parameters: Mapping[str, Any]) -> Strategy:
    """A training strategy with these parameters; those not given take their defaults.

    Raises:
        InputError: the strategy or a parameter is unknown, or a value breaks a rule.
    """
    made: Strategy = _make(_class(name, "train"), parameters)
    return made


def make_sampler(name: str, parameters: Mapping[str, Any]) -> Sampler:
    """A sampler with these parameters; those not given take their defaults.

    Raises:
        InputError: the sampler or a parameter is unknown, or a value breaks a rule.
    """
    made: Sampler = _make(_class(name, "sample"), parameters)
    return made


def _make(cls: type[C], parameters: Mapping[str, Any]) -> C:
    known = inspect.signature(cls).parameters
    for key in parameters:
        if key not in known:
            there = {name: f"`{name}`" for name in known}
            rule = f"{near(key, there)}it has {', '.join(there.values()) or 'none'}"
            raise InputError(f"{cls.name} has no parameter `{key}`; {rule}")  # type: ignore[attr-defined]
    return check_parameters(cls(**parameters))
