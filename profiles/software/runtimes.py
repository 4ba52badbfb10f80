"""Runtimes: the programs that run strategies on real GPUs, and the rules under which they do.

Each stands in ``runtimes/NAME.toml`` with the version and the files that its rules and flags were read in, and the rows
by which ``sim.launching`` prints what starts it: flags, or texts with gaps, ``runtimes/*.template``.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import Any, Final

from profiles.checks import is_one_of
from profiles.errors import InputError, near, shown
from profiles.files import load_toml
from profiles.mappings import FrozenMapping
from profiles.software.stacks import DEFAULT_STACK

RUNTIMES: Final = Path(__file__).parents[1] / "runtimes"
OF_HEADS: Final = "heads"
"""The option of sampling that rules speak of where degrees alone do not divide the heads."""
ALONE: Final = "single"
"""The strategy of one GPU."""
GATHERING: Final = ("ring", "allgather-kv")
"""Strategies whose every GPU reads the keys and values of all."""
UNCHECKED: Final = "not checked"
"""Stands for the version where the source was not read."""


@dataclass(frozen=True, slots=True)
class Case:
    """A point as a runtime sees it.

    Attributes:
        parameters: of the strategy, and degrees that follow from them.
        groups: groups of GPUs that divide an image's predictions among them.
    """

    model: str
    strategy: str
    parameters: Mapping[str, Any] = field(default_factory=FrozenMapping)
    gpus: int = 1
    groups: int = 1

    @property
    def replica(self) -> "Case | None":
        """One of the GPUs, where each draws images of its own; None where any two share an image."""
        apart = self.gpus > 1 and self.parameters.get("data_degree") == self.gpus
        return Case(self.model, ALONE) if apart else None


@dataclass(frozen=True, slots=True)
class Rule:
    """The values of a strategy's parameters that a runtime runs.

    Attributes:
        values: by parameter, its allowed values (none: it must be left out), or the name of the one it must equal.
        because: the reason; empty where the values say it.
        least: by parameter, its smallest allowed value.
    """

    values: Mapping[str, tuple[Any, ...] | str]
    because: str = ""
    least: Mapping[str, int] = field(default_factory=FrozenMapping)

    def kept_to(self, parameters: Mapping[str, Any]) -> dict[str, Any]:
        """Return the parameters other than degrees that break the rule, each with a value that keeps it."""
        return {name: kept for name, kept, _ in self._broken(parameters) if not name.endswith("_degree")}

    def refusal(self, parameters: Mapping[str, Any]) -> str:
        """Return the first parameter whose value is not allowed, in words; empty where there is none."""
        return next((words for *_, words in self._broken(parameters)), "")

    def _broken(self, parameters: Mapping[str, Any]) -> Iterator[tuple[str, Any, str]]:
        """Yield the parameters that break the rule, each with a value that keeps it, and the reason in words."""
        for name, least in self.least.items():
            if (value := parameters.get(name, least)) < least:
                yield name, least, f"{name}({value}) must be at least {least}"
        for name, allowed in self.values.items():
            value = parameters.get(name)
            kept = parameters.get(allowed) if isinstance(allowed, str) else next(iter(allowed), None)
            if value is None or value == kept or (not isinstance(allowed, str) and value in allowed):
                continue
            if isinstance(allowed, str):
                rule = f"must be {allowed}({kept})"
            else:
                rule = f"must be {' or '.join(map(str, allowed))}" if allowed else "must be left out"
            words = ",".join(map(str, value)) if isinstance(value, tuple) else value
            yield name, kept, f"{name}({words}) {rule}"


@dataclass(frozen=True, slots=True)
class Runtime:
    """A program that runs strategies.

    Attributes:
        version: of the package that was read.
        source: its files in which rules and flags were read.
        task: ``train`` or ``sample``.
        rules: by strategy that it runs.
        models: those it knows, each by our name with its own; None where it runs whatever it is given.
        alone: more of them, which it runs on one GPU.
        guided: models of which two groups of GPUs may each make one prediction.
        pipelined: models whose layers may be divided among stages.
        sequential: models whose two predictions it makes one after the other, on one group of GPUs.
        one_scale: models that take one prediction where their guidance scale is 1, if its flag for that was read.
        ulysses_alone: models whose tokens it divides in no other way.
        powers_of_two: whether the number of GPUs must be one.
        command: the head of the command line that starts it, with gaps.
        flags: what stands behind each flag, with gaps.
        files: by name, the template of each file that the command line reads; the first is what is printed.
        notes: what else there is to know, with gaps.
        sets: by option of a point, the value of a launch that says whether what is printed sets it.
        values: by model or strategy, more values of its launches.
        stack: the software stack as which it runs.
        serves: the head of the command line of its server; empty where it has none.
        started: whether the tests start what is written for it.
        moves: whether it moves whole components, or every layer, between the host and a GPU.
    """

    name: str
    version: str
    source: str
    task: str
    rules: Mapping[str, Rule]
    models: Mapping[str, str] | None = None
    alone: Mapping[str, str] = field(default_factory=FrozenMapping)
    guided: tuple[str, ...] = ()
    pipelined: tuple[str, ...] = ()
    sequential: tuple[str, ...] = ()
    one_scale: tuple[str, ...] = ()
    ulysses_alone: tuple[str, ...] = ()
    powers_of_two: bool = False
    command: str = ""
    flags: Mapping[str, str] = field(default_factory=FrozenMapping)
    files: Mapping[str, str] = field(default_factory=FrozenMapping)
    notes: tuple[str, ...] = ()
    sets: Mapping[str, str] = field(default_factory=FrozenMapping)
    values: Mapping[str, Mapping[str, str | bool]] = field(default_factory=FrozenMapping)
    stack: str = DEFAULT_STACK
    serves: str = ""
    started: bool = False
    moves: bool = False

    def settable(self, model: str) -> set[str]:
        """Return the options of a point that its launch may set for a model."""
        never = self.values.get(model, {})
        return {option for option, gap in self.sets.items() if never.get(gap) is not False}

    def refusal(self, case: Case) -> str:
        """Return the rule that a point breaks, in words; empty where the runtime runs it."""
        reason = "" if self.replicates(case) else self._broken(case)
        return f"{self.name} ({self.version}) does not run it: {reason}" if reason else ""

    def replicates(self, case: Case) -> bool:
        """Return whether it runs a point only as processes of their own, one for each GPU."""
        return case.replica is not None and not self._broken(case.replica) and bool(self._broken(case))

    def unknown(self, model: str) -> str:
        """Return why it does not run a model, in words: it does not know it; empty where it does."""
        if self.models is None or model in self.models or model in self.alone:
            return ""
        return f"of models it has {', '.join(self.models)}, not {model}"

    def _broken(self, case: Case) -> str:
        rule = self.rules.get(case.strategy)
        if rule is None:
            return f"of strategies it has {', '.join(self.rules)}, not {case.strategy}"
        padded = OF_HEADS in case.parameters and OF_HEADS not in self.sets
        if unknown := self.unknown(case.model) or f"{OF_HEADS}(padded) must be divided" * padded:
            return unknown
        alone = case.model in self.alone
        if (alone and case.gpus > 1) or (self.powers_of_two and case.gpus & (case.gpus - 1)):
            return f"`gpus({case.gpus})` must be {f'1 for {case.model}' if alone else 'a power of two'}"
        if case.groups > 1 and case.model not in self.guided:
            whose = f"those of {', '.join(self.guided)}" if self.guided else "none"
            return f"of predictions on two groups of GPUs it has {whose}, not those of {case.model}"
        gathers = case.strategy in GATHERING or (case.parameters.get("ring_degree") or 1) > 1
        stages = case.parameters.get("pipeline_degree") or 1
        if gathers and case.model in self.ulysses_alone:
            return f"it divides the tokens of {case.model} by Ulysses alone"
        if self.task == "sample" and stages > 1 and case.model not in self.pipelined:
            broken = f"`pipeline_degree({stages})` must be 1 for {case.model}"
        elif (broken := rule.refusal(case.parameters)) and rule.because:
            broken += f", as {rule.because}"
        return broken


def runtime_names() -> list[str]:
    """Return the names of the runtimes."""
    return sorted(path.stem for path in RUNTIMES.glob("*.toml"))


def find_runtime(name: str) -> Runtime:
    """Return the runtime of a name."""
    names = [*all_runtimes()]
    if isinstance(name, str) and "," in name:
        raise InputError(f"`runtime` is {shown(name)}, must be one name: all points keep to the same runtime")
    if not is_one_of(name, *names):
        meant = near(name.casefold() if isinstance(name, str) else "", names)
        raise InputError(f"unknown runtime {shown(name)}; {meant}choose from {', '.join(names)}")
    return all_runtimes()[name]


@cache
def all_runtimes() -> Mapping[str, Runtime]:
    """Return every runtime by its name."""
    return {name: read_runtime(RUNTIMES / f"{name}.toml") for name in runtime_names()}


def read_runtime(path: Path) -> Runtime:
    """Read the file of a runtime."""
    rows = load_toml(path)
    rules = {name: _rule(row) for name, row in rows.pop("strategies").items()}
    lists = {key: tuple(value) for key, value in rows.items() if isinstance(value, list)}
    return Runtime(path.stem, rules=rules, **rows | lists)


def _rule(rows: dict[str, Any]) -> Rule:
    because, least = rows.pop("because", ""), rows.pop("least", {})
    values = {key: value if isinstance(value, str) else tuple(value) for key, value in rows.items()}
    return Rule(values, because, least)


def runs_in(task: str, case: Case) -> tuple[str, ...]:
    """Return the names of the runtimes of a task that run a point."""
    of_task = (one for one in all_runtimes().values() if one.task == task)
    return tuple(one.name for one in of_task if not one.refusal(case))
