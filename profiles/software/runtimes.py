"""Runtimes: the programs that run strategies on real GPUs, and the rules under which they do.

Each stands in ``runtimes/NAME.toml`` with the version and the files that its rules and flags were read in; what starts
it, if that is a text with gaps, in ``runtimes/NAME.template``.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import Any, Final

from profiles.architectures.components import TASKS
from profiles.checks import is_one_of
from profiles.errors import InputError, near, shown
from profiles.files import Table
from profiles.mappings import FrozenMapping

RUNTIMES: Final = Path(__file__).parents[1] / "runtimes"
BECAUSE: Final = "because"
"""Key of a rule's reason, beside the parameters that it is about."""
UNCHECKED: Final = "not checked"
"""Stands for the version where the source was not read."""
LEAST_VALUES: Final = "least"
"""Key of a rule's smallest values, by parameter."""


@dataclass(frozen=True, slots=True)
class Case:
    """A point as a runtime sees it.

    Attributes:
        model: its name.
        strategy: its name.
        parameters: of the strategy, and degrees that follow from them.
        gpus: GPUs in all.
        groups: groups of GPUs that divide an image's predictions among them.
    """

    model: str
    strategy: str
    parameters: Mapping[str, Any] = field(default_factory=FrozenMapping)
    gpus: int = 1
    groups: int = 1

    def __post_init__(self) -> None:
        object.__setattr__(self, "parameters", FrozenMapping(self.parameters))


@dataclass(frozen=True, slots=True)
class Rule:
    """The values of a strategy's parameters that a runtime runs.

    Attributes:
        values: by parameter, its allowed values (none: it must be left out), or the name of the one it must equal.
        because: the reason; empty where the values say it.
        least: by parameter, its smallest allowed value.
    """

    values: Mapping[str, tuple[Any, ...] | str] = field(default_factory=FrozenMapping)
    because: str = ""
    least: Mapping[str, int] = field(default_factory=FrozenMapping)

    def __post_init__(self) -> None:
        object.__setattr__(self, "values", FrozenMapping(self.values))
        object.__setattr__(self, "least", FrozenMapping(self.least))

    def kept_to(self, parameters: Mapping[str, Any]) -> dict[str, Any]:
        """Parameters other than degrees that break the rule, each with a value that keeps it."""
        found: dict[str, Any] = {
            name: of
            for name, of in self.least.items()
            if _is_free(name, parameters) and parameters[name] < of
        }
        for name, allowed in self.values.items():
            if _is_free(name, parameters) and _refusal(name, allowed, parameters):
                found[name] = parameters[allowed] if isinstance(allowed, str) else next(iter(allowed), None)
        return found

    def refusal(self, parameters: Mapping[str, Any]) -> str:
        """The first parameter whose value is not allowed, in words; empty where there is none."""
        for name, least in self.least.items():
            if (value := parameters.get(name, least)) < least:
                return f"{name}({value}) must be at least {least}"
        refused = (_refusal(name, allowed, parameters) for name, allowed in self.values.items())
        return next(filter(None, refused), "")


def _is_free(name: str, parameters: Mapping[str, Any]) -> bool:
    """Whether a name is of a parameter that may be given another value: not of a degree."""
    return name in parameters and not name.endswith("_degree")


def _refusal(name: str, allowed: tuple[Any, ...] | str, parameters: Mapping[str, Any]) -> str:
    """Why the value of a parameter is not allowed, in words; empty where it is allowed, or left out."""
    value = parameters.get(name)
    if isinstance(allowed, str):
        other = parameters.get(allowed)
        return "" if value in (None, other) else f"{name}({value}) must be {allowed}({other})"
    if value is None or value in allowed:
        return ""
    rule = f"must be {' or '.join(map(str, allowed))}" if allowed else "must be left out"
    return f"{name}({','.join(map(str, value)) if isinstance(value, tuple) else value}) {rule}"


@dataclass(frozen=True, slots=True)
class Runtime:
    """A program that runs strategies.

    Attributes:
        name: by which it is asked for.
        title: what it is called.
        version: of the package that was read.
        source: its files in which rules and flags were read.
        task: ``train`` or ``sample``.
        rules: by strategy that it runs.
        models: those it knows, each by our name with its own; None where it runs whatever it is given.
        scripts: by model its example script, where it is started by one.
        guided: models of which two groups of GPUs may each make one prediction.
        pipelined: models whose layers may be divided among stages.
        powers_of_two: whether the number of GPUs must be one.
    """

    name: str
    title: str
    version: str
    source: str
    task: str
    rules: Mapping[str, Rule]
    models: Mapping[str, str] | None = None
    scripts: Mapping[str, str] = field(default_factory=FrozenMapping)
    guided: tuple[str, ...] = ()
    pipelined: tuple[str, ...] = ()
    powers_of_two: bool = False

    def __post_init__(self) -> None:
        for name in ("rules", "models", "scripts"):
            if (value := getattr(self, name)) is not None:
                object.__setattr__(self, name, FrozenMapping(value))

    def refusal(self, case: Case) -> str:
        """The rule that a point breaks, in words; empty where the runtime runs it."""
        reason = self._broken(case)
        return f"{self.name} ({self.version}) does not run it: {reason}" if reason else ""

    def unknown(self, model: str) -> str:
        """Why it does not run a model, in words: it does not know it; empty where it does."""
        if self.models is None or model in self.models:
            return ""
        return f"of models it has {', '.join(self.models)}, not {model}"

    def _broken(self, case: Case) -> str:
        rule = self.rules.get(case.strategy)
        if rule is None:
            return f"of strategies it has {', '.join(self.rules)}, not {case.strategy}"
        if unknown := self.unknown(case.model):
            return unknown
        if self.powers_of_two and case.gpus & (case.gpus - 1):
            return f"gpus({case.gpus}) must be a power of two"
        if case.groups > 1 and case.model not in self.guided:
            whose = f"those of {', '.join(self.guided)}" if self.guided else "none"
            return f"of predictions on two groups of GPUs it has {whose}, not those of {case.model}"
        stages = case.parameters.get("pipeline_degree") or 1
        if self.task == "sample" and stages > 1 and case.model not in self.pipelined:
            return f"pipeline_degree({stages}) must be 1 for {case.model}"
        broken = rule.refusal(case.parameters)
        return f"{broken}, as {rule.because}" if broken and rule.because else broken


def runtime_names() -> list[str]:
    """The names of the runtimes."""
    return sorted(path.stem for path in RUNTIMES.glob("*.toml"))


def find_runtime(name: str) -> Runtime:
    """The runtime of a name.

    Raises:
        InputError: there is none.
    """
    names = runtime_names()
    if isinstance(name, str) and "," in name:
        raise InputError(f"runtime is {shown(name)}, must be one name: all points keep to the same runtime")
    if not is_one_of(name, *names):
        meant = near(name.casefold() if isinstance(name, str) else "", names)
        raise InputError(f"unknown runtime {shown(name)}; {meant}choose from {', '.join(names)}")
    return all_runtimes()[name]


@cache
def all_runtimes() -> Mapping[str, Runtime]:
    """Every runtime by its name."""
    return {name: read_runtime(RUNTIMES / f"{name}.toml") for name in runtime_names()}


def read_runtime(path: Path) -> Runtime:
    """The runtime of a file.

    Raises:
        InputError: the file breaks a rule.
    """
    table = Table.read(path)
    rules = table.table("strategies")
    found = Runtime(
        table.line("name"),
        table.line("title"),
        table.line("version"),
        table.text("source"),
        table.choice("task", TASKS),
        {name: _rule(rules.table(name)) for name in rules.values()},
        _lines(table.table("models")) if "models" in table else None,
        _lines(table.table("scripts", {})),
        table.texts("guided", ()),
        table.texts("pipelined", ()),
        "powers_of_two" in table and table.flag("powers_of_two"),
    )
    table.finish()
    if found.name != path.stem:
        raise InputError(f"{path}: name is {shown(found.name)}, must be that of the file")
    for key in ("scripts", "guided", "pipelined"):
        for name in getattr(found, key):
            if found.models is None or name not in found.models:
                raise InputError(f"{path}: {key} names {shown(name)}, which is none of its models")
    return found


def _lines(table: Table) -> dict[str, str]:
    """A line for each model, by our name of it."""
    return {name: table.line(name) for name in table.values()}


def _rule(table: Table) -> Rule:
    own = table.table(LEAST_VALUES, {})
    least = {name: own.integer(name) for name in own.values()}
    values = {key: value for key, value in table.values().items() if key not in (BECAUSE, LEAST_VALUES)}
    for key, value in values.items():
        if not isinstance(value, str | list):
            raise table.fail(key, value, "must be a list of values, or the name of another parameter")
        for item in value if isinstance(value, list) else (table.line(key),):
            if (isinstance(item, str) and not item.isprintable()) or not isinstance(item, str | int | float):
                raise table.fail(key, value, "must hold words and numbers alone")
    kept = {key: tuple(value) if isinstance(value, list) else value for key, value in values.items()}
    return Rule(kept, table.text(BECAUSE) if BECAUSE in table else "", least)


def runs_in(task: str, case: Case) -> tuple[str, ...]:
    """The names of the runtimes of a task that run a point."""
    having = ((name, one) for name, one in all_runtimes().items() if case.strategy in one.rules)
    return tuple(name for name, one in having if one.task == task and not one.refusal(case))
