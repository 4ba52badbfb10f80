"""Flags: those of scenarios, of training and of sampling, and one for each field of a strategy.

Flags that are not given are absent from the parsed options, so that a flag of the other task is noticed and every
default stands once, beside the value it belongs to.
"""

import argparse
import re
import tomllib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import Field, fields
from functools import partial
from pathlib import Path
from typing import Any, Final

from profiles.errors import flag_of, shown
from profiles.software.runtimes import runtime_names
from profiles.software.stacks import DEFAULT_STACK, SERVED
from sim.cli.console import Parser
from sim.inputs.scenarios import DEFAULT_CLUSTER, OPTION_NAMES
from sim.outcomes.tasks import TASKS
from strategies.parameters import MAX_INTEGER, MAX_PARAMETER, options_of
from strategies.plans.workloads import AUTO, RELIEF
from strategies.registry import class_of, every_strategy, strategy_named, task_of

COMMANDS: Final[dict[str, dict[str, Any]]] = tomllib.loads(
    Path(__file__).with_name("commands.toml").read_text(encoding="utf-8")
)
"""Help, description, flags and examples of each command, and of ``sim`` itself, whose flags are of all questions."""
MEASURED_RUN_HELP: Final = (
    "a run that was measured: its flags and number as TOML or JSON, or its result by `sim run --measured ... --json`;"
    " compute is scaled to it"
)
SHARED: Final = ("frames", "offload", "attention", "precision", "text_tokens")
"""Options of both tasks, which stand with the scenario."""
PARAMETER: Final = "parameter_"
"""Before the names of fields of strategies among the parsed options."""
ASIDE: Final = ("measured", "measured_run", "runtime")
MAX_TIME: Final = 1e12
"""The longest time of an order that is looked for."""


def strategy_flags(name: str) -> list[str]:
    """Return the flags of a strategy's fields."""
    return [flag_of(item.name) for item in fields(class_of(name))]


def given_parameters(options: argparse.Namespace) -> dict[str, Any]:
    """Return the parameters of strategies that were given."""
    return {k.removeprefix(PARAMETER): v for k, v in vars(options).items() if k.startswith(PARAMETER)}


def named(options: argparse.Namespace) -> list[str] | None:
    """Return the strategies that were named; None where none was."""
    return None if options.strategy is None else options.strategy.split(",")


def option_values(options: argparse.Namespace) -> dict[str, Any]:
    """Return the options of the scenario and the parameters that were given."""
    values = {name: getattr(options, name, None) for name in OPTION_NAMES}
    return {name: value for name, value in values.items() if value is not None} | given_parameters(options)


def arguments(options: argparse.Namespace) -> dict[str, Any]:
    """Return the arguments of ``sim.run`` but for the strategy."""
    names = ("model", "cluster", "gpus", "stack", *(name for name in ASIDE if hasattr(options, name)))
    return {name: getattr(options, name) for name in names} | option_values(options)


def strategies_in(words: Sequence[str]) -> tuple[list[str], list[str]]:
    """Return the strategies that a command line names, so that their flags are known before the rest is parsed.

    Returns:
        Their names, and the tasks whose flags matter.
    """
    early = Parser(add_help=False)
    early.add_argument("--strategy", default="")
    early.add_argument("--task", default="")
    known, _ = early.parse_known_args([word for word in words if word not in ("-h", "--help")])
    names = [strategy_named(name, silent=True) for name in known.strategy.split(",") if name]
    tasks = {task_of(name) for name in names} or {known.task}.intersection(TASKS) or set(TASKS)
    return names, [task for task in TASKS if task in tasks]


def add_question(
    parser: argparse.ArgumentParser, words: Sequence[str], measured: str = "", *, sweeps: bool = False
) -> None:
    """Add the flags of a question; those of other tasks are hidden, and parsed so that they can be refused.

    Args:
        parser: gets the flags.
        words: the command line; the flags of the strategies that it names are shown, else those of all.
        measured: whose number ``--measured`` gives; empty for orders, which need neither times nor models.
        sweeps: whether strategies are searched, and over several numbers of GPUs.
    """
    names, tasks = strategies_in(words)
    parser.set_defaults(named=names)
    add = parser.add_argument_group("scenario").add_argument
    add("--model", required=bool(measured), help="a model's name, a model folder, a backbone's config.json")
    where = f"a cluster's name or file{'; several with commas' * sweeps} (default: {DEFAULT_CLUSTER})"
    add("--cluster", default=DEFAULT_CLUSTER, help=where)
    stacks = {"train": f"{DEFAULT_STACK} in training", "sample": f"{SERVED} in sampling"}
    usual = " or ".join(stacks[task] for task in tasks)
    software = f"a software stack's name, or a stack file (default: that of --runtime, else {usual})"
    add("--stack", help=software)
    several: Any = {"metavar": "GPUS"} if sweeps else {"type": integer}
    gpus = ", or several: 1,2,4 or 8-64, of which each doubles the one before" if sweeps else ""
    default = "one node; of single: 1" if "sample" in tasks else "one node"
    add("--gpus", help=f"GPUs in all{gpus} (default: {default})", **several)
    add("--batch-size", type=integer, help="; or ".join(TASKS[task].batch for task in tasks))
    absent: Any = {"default": argparse.SUPPRESS}
    pixels = "1024, or 1280x1920: width x height; of videos 480p, 720p, 1080p (default: the model's)"
    add("--resolution", metavar="PIXELS", help=pixels, **absent)
    for item in options_of(TASKS[tasks[0]].workload):
        if item.name in SHARED:
            add(flag_of(item.name), **settings_of(item))
    if measured:
        number = f"what {measured} takes, such as step_s=0.87, samples_per_s=294 or latency_s=3.1"
        add("--measured", metavar="NAME=NUMBER", help=f"{number}: compute is scaled to it")
        add("--measured-run", metavar="FILE", help=MEASURED_RUN_HELP)
        add("--runtime", metavar="NAME", help=f"keep to what one runs: {', '.join(runtime_names())}")
    add("--strategy", required=not sweeps, help="one of `sim strategies`")
    experiment = "flags as keys, in TOML, or a result in JSON; those beside it go before; - is stdin"
    add("--experiment", metavar="FILE", help=experiment)
    add_flags(parser, COMMANDS["sim"])
    for task in TASKS.values():
        add = parser.add_argument_group(task.noun).add_argument
        for item in options_of(task.workload):
            if item.name not in SHARED:
                hidden = {} if task.name in tasks else {"help": argparse.SUPPRESS}
                add(flag_of(item.name), **settings_of(item, sweeps, bool(measured)) | hidden)
    every = [name for name in every_strategy() if task_of(name) in tasks] if sweeps else []
    add_parameters(parser, names or every)


def settings_of(item: Field[Any], sweeps: bool = False, runtime: bool = False) -> dict[str, Any]:
    """Return the settings of the flag of an option or a parameter, as it was declared."""
    rules = item.metadata
    words = rules["help"]
    if rules["kind"] is bool and "action" in rules.get("flag", {}):
        return {"help": words, "default": argparse.SUPPRESS, **rules["flag"]}
    if item.default not in (None, ()) and "(default" not in words:
        words += f" (default: {item.default})"
    settings = {"help": words, "default": argparse.SUPPRESS, **rules.get("flag", {})}
    if item.name == "checkpointing":
        words = f"{AUTO}: none, {' or '.join(RELIEF)} where memory lacks"
        words = words if sweeps else f"none; {AUTO}: the least that fits" if runtime else "none"
        return settings | {"help": f"{item.metadata['help']} (default: {words})"}
    if rules["choices"]:
        return settings | {"choices": rules["choices"]}
    kinds = {int: partial(integer, most=rules["most"]), float: number, tuple: _integers}
    return {"type": kinds.get(rules["kind"], str), **settings}


def add_parameters(parser: argparse.ArgumentParser, strategies: Sequence[str]) -> None:
    """Add the fields of strategies as flags; a field of several strategies is one flag."""
    known: dict[str, Field[Any]] = {}
    for name in strategies:
        for item in fields(class_of(name)):
            known.setdefault(item.name, item)
    if known:
        group = parser.add_argument_group(f"parameters of {', '.join(strategies)}")
    for item in known.values():
        settings = settings_of(item)
        if item.default is None:
            settings["type"] = partial(_or_none, settings.get("type", str))
        shown_as: Any = {} if item.metadata["choices"] else {"metavar": item.name.upper()}
        group.add_argument(flag_of(item.name), dest=PARAMETER + item.name, **shown_as, **settings)


def _or_none(convert: Callable[[str], Any], text: str) -> Any:  # noqa: ANN401
    return None if text.lower() == "none" else convert(text)


def integer(text: str, *, most: int = MAX_INTEGER) -> int:
    """Return an integer; one that no command could ever want is refused."""
    try:
        if not text.isascii() or "_" in text:
            raise ValueError
        value = int(text)
    except ValueError:
        raise argparse.ArgumentTypeError(f"is {shown(text)}, must be an integer") from None
    if value > most or value < -MAX_INTEGER:
        raise argparse.ArgumentTypeError(f"is {shown(value)}, must be at most {most}")
    return value


small_integer: Final = partial(integer, most=MAX_PARAMETER)
"""Returns an integer that a parameter of a strategy may have."""


def _integers(text: str) -> tuple[int, ...]:
    """Return integers that stand between commas."""
    if not re.fullmatch(r"\s*-?\d+\s*(,\s*-?\d+\s*)*", text, re.ASCII):
        raise argparse.ArgumentTypeError(f"is {shown(text)}, must be integers with commas between them")
    return tuple(map(small_integer, text.split(",")))


def number(text: str) -> float:
    """Return a number."""
    try:
        return float(text)
    except ValueError:
        raise argparse.ArgumentTypeError(f"is {shown(text)}, must be a number") from None


def _time(text: str, rule: str = "above 0") -> float:
    """Return a time that keeps to a rule."""
    value = number(text)
    if not (0 < value <= MAX_TIME or (value == 0 and rule == "at least 0")):
        raise argparse.ArgumentTypeError(f"is {text}, must be {rule}, and at most {MAX_TIME:g}")
    return value


TYPES: Final[Mapping[str, Callable[[str], Any]]] = {
    **{"int": int, "path": Path, "integer": integer, "small": small_integer},
    **{"integers": _integers, "number": number, "time": _time, "delay": partial(_time, rule="at least 0")},
    "times": lambda text: tuple(map(_time, text.split(","))),
    "names": lambda text: text.split(","),
}
"""Types of flags that stand in TOML."""


def add_flags(command: argparse.ArgumentParser, entry: Mapping[str, Any]) -> None:
    """Add the arguments, by place, and the flags of a command as its entry in TOML has them; groups by their title."""
    for group, flags in entry.items():
        if not isinstance(flags, dict):
            continue
        place: Any = command
        if group == "either":
            place = command.add_mutually_exclusive_group(required=True)
        elif group not in ("arguments", "flags"):
            place = command.add_argument_group(group)
        for name, settings in flags.items():
            typed = {"type": TYPES[settings["type"]]} if "type" in settings else {}
            place.add_argument("--" * (group != "arguments") + name, **settings | typed)
