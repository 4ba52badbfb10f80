"""The registry: every strategy in this package, found by looking at its files, and those of installed packages.

A package brings strategies by entry points of the group ``diffusim.strategies``, and serving policies by those of
``diffusim.policies``: a class, or a module with some.
"""

import inspect
import re
from collections.abc import Callable, Iterable, Mapping
from dataclasses import MISSING, fields, is_dataclass
from functools import cache
from importlib import import_module
from importlib.metadata import EntryPoint, entry_points
from pkgutil import iter_modules
from types import ModuleType
from typing import Any, Final

import strategies.sampling
import strategies.serving
import strategies.training
from profiles.architectures.components import TASKS
from profiles.errors import InputError, near, shown
from profiles.machines.whatifs import WHAT_IFS
from profiles.names import known_name, unknown_name
from strategies.parameters import check_option, completed
from strategies.plans.workloads import SamplingWorkload, TrainingWorkload
from strategies.policy import Policy
from strategies.strategy import Sampler, Strategy

GROUP: Final = "diffusim.strategies"
POLICIES: Final = "diffusim.policies"
OTHERWISE: Final = {"train": "draws images, it does not train", "sample": "trains, it does not draw images"}
"""The reason why a strategy is none of a task."""
NAME: Final = re.compile(r"[A-Za-z0-9]+([-_.][A-Za-z0-9]+)*")
TAKEN: Final = {"model", "strategy", "cluster", "gpus", "stack", "measured", "runtime", "num_gpus", *WHAT_IFS}
TAKEN.update(item.name for workload in (TrainingWorkload, SamplingWorkload) for item in fields(workload))
"""Names of arguments and options, which no parameter may have."""
_added: Final[dict[str, type[Any]]] = {}
"""Strategies that a script or a notebook gave as classes, by name: asked about only where they are named."""


@cache
def _installed() -> Mapping[str, type[Any]]:
    """Every strategy class by its name, sorted."""
    return _all_in((strategies.training, strategies.sampling), GROUP, _is_strategy)


@cache
def policies() -> Mapping[str, type[Policy]]:
    """Return every serving policy by its name, sorted."""
    return _all_in((strategies.serving,), POLICIES, _is_policy)


def _all_in(
    rooms: Iterable[ModuleType], group: str, is_one: Callable[[object], bool]
) -> dict[str, type[Any]]:
    """Return the classes of packages of ours and of entry points by their names, sorted."""
    classes: dict[str, type[Any]] = {}
    for room in rooms:
        for info in iter_modules(room.__path__, f"{room.__name__}."):
            for cls in _classes(import_module(info.name), is_one):
                _add(classes, cls)
    for entry in entry_points(group=group):
        for cls in _classes_of_entry(entry, is_one):
            _add(classes, cls)
    return dict(sorted(classes.items()))


def _known() -> dict[str, type[Any]]:
    """Return every strategy class by its name, those given as classes too."""
    return {**_installed(), **_added}


def _where(cls: type[Any]) -> str:
    return f"{cls.__module__}.{cls.__qualname__}"


def _classes(module: ModuleType, is_one: Callable[[object], bool]) -> list[type[Any]]:
    """Return the strategies, or the policies, that a module, or what lies below it, defines."""
    members = (cls for _, cls in inspect.getmembers(module, is_one))
    return [cls for cls in members if f"{cls.__module__}.".startswith(f"{module.__name__}.")]


def _is_strategy(item: object) -> bool:
    return inspect.isclass(item) and is_dataclass(item) and issubclass(item, Strategy | Sampler)


def _is_policy(item: object) -> bool:
    return inspect.isclass(item) and is_dataclass(item) and issubclass(item, Policy)


def _classes_of_entry(entry: EntryPoint, is_one: Callable[[object], bool]) -> list[type[Any]]:
    """Return the strategies, or the policies, that an installed package brings: a class, or those of a module."""
    where = f"entry point {entry.name} = {entry.value} of {entry.dist.name if entry.dist else 'a package'}"
    try:
        item = entry.load()
    except (Exception, SystemExit) as error:  # whatever a stranger's module does when it is imported
        raise InputError(f"{where} does not load: {type(error).__name__}: {error}") from error
    classes = _classes(item, is_one) if inspect.ismodule(item) else [item] if is_one(item) else []
    if not classes:
        kinds = "a Policy or ElasticPolicy" if is_one is _is_policy else "a Strategy or Sampler"
        name = "policy" if is_one is _is_policy else "strategy"
        raise InputError(f"{where} must be a {name} or a module with one: a dataclass, and {kinds}")
    return classes


def _add(classes: dict[str, type[Any]], cls: type[Any]) -> None:
    """Add a strategy by its name; one that does not say what it is, or has the name of another, is refused."""
    for fact in ("name", "summary"):
        if not isinstance(getattr(cls, fact, None), str):
            raise InputError(f"strategy {_where(cls)} must say its {fact}")
    if not NAME.fullmatch(cls.name):
        raise InputError(f"strategy {_where(cls)} is named {shown(cls.name)}, must be letters, digits and -")
    for item in fields(cls):
        if "help" not in item.metadata:
            default = 2 if item.default is MISSING else item.default
            declared = (
                f'{item.name}: {getattr(item.type, "__name__", item.type)} = parameter({default!r}, "help")'
            )
            raise InputError(f"strategy {_where(cls)}: declare {declared}, from strategies.parameters")
        if item.name in TAKEN and not issubclass(cls, Policy):
            raise InputError(
                f"strategy {_where(cls)}: {item.name} is an argument of sim.run, not a parameter"
            )
    other = classes.setdefault(cls.name, cls)
    if other is not cls:
        raise InputError(f"two strategies are named {cls.name}: {_where(other)} and {_where(cls)}")


def take(cls: type[Any]) -> str:
    """Take note of a strategy that a script or a notebook gives as a class; its name means it from now on."""
    if lacking := sorted(getattr(cls, "__abstractmethods__", ())):
        raise InputError(f"strategy {_where(cls)} does not define {', '.join(lacking)}")
    before = _added.get(getattr(cls, "name", ""))
    if before is not None and _where(before) == _where(cls):
        del _added[before.name]  # the same, written again, as a notebook's cell is
    _add(_known(), cls)
    _added[cls.name] = cls
    return str(cls.name)


@cache
def strategies_of(task: str) -> Mapping[str, type[Any]]:
    """Return every strategy of a task by its name, sorted."""
    check_option("task", task, TASKS)
    return {name: cls for name, cls in _installed().items() if cls.task == task}


def every_strategy() -> Mapping[str, type[Any]]:
    """Return every strategy by its name: those that train, then those that sample."""
    return {**strategies_of("train"), **strategies_of("sample")}


def class_of(name: str, task: str | None = None) -> type[Any]:
    """Return the strategy of a name, of one task or of any."""
    if task not in (None, task_of(name)):
        raise InputError(f"{name} {OTHERWISE[str(task)]}; choose from {', '.join(strategies_of(str(task)))}")
    return _known()[name]


def strategy_named(name: str, *, silent: bool = False) -> str:
    """Return the strategy that a name, or another name of it, means; the name itself where it means none."""
    return known_name("strategy", name, _known(), silent=silent) or name


def task_of(name: str) -> str:
    """Return the task of a strategy: ``train`` or ``sample``."""
    known = _known()
    if name not in known:
        raise unknown_name("strategy", name, known)
    return str(known[name].task)


def baselines() -> tuple[str, ...]:
    """Return the training strategies that others are compared with."""
    return tuple(name for name, cls in strategies_of("train").items() if cls.baseline)


def make(name: str, parameters: Mapping[str, Any], task: str | None = None) -> Any:  # noqa: ANN401  of either task
    """Return a strategy with these parameters; those not given take their defaults."""
    cls = class_of(name, task)
    known = inspect.signature(cls).parameters
    for key in parameters:
        if key not in known:
            there = {name: f"`{name}`" for name in known}
            rule = f"{near(key, there)}it has {', '.join(there.values()) or 'none'}"
            raise InputError(f"{cls.name} has no parameter `{key}`; {rule}")
    return completed(cls(**parameters))
