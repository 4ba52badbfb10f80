"""Flags: those of scenarios, of training and of sampling, and one for each field of a strategy.

What is not given is absent from the parsed options, so that a flag of the other task is noticed and every default
stands once, beside the value it belongs to.
"""

import argparse
import re
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import MISSING, Field, fields
from functools import partial
from typing import Any, Final

from profiles.architectures.components import TASKS
from profiles.errors import InputError, flag_of, shown
from profiles.software.levers import load_levers
from profiles.software.runtimes import runtime_names
from profiles.software.stacks import DEFAULT_STACK
from sim.explore.counts import counts_in
from sim.inputs.scenarios import DEFAULT_CLUSTER
from strategies.parameters import MAX_INTEGER, MAX_PARAMETER, options_of
from strategies.plans.workloads import AUTO, CHECKPOINTINGS, RELIEF, SamplingWorkload, TrainingWorkload
from strategies.registry import class_of, strategies_of

BATCH: Final = {
    "train": "samples of all GPUs together (default: 32 per GPU; of videos 1)",
    "sample": "images, or videos, drawn together (default: 1)",
}
"""What the batch size is of, by task."""
WORKLOADS: Final[Mapping[str, type[Any]]] = {"train": TrainingWorkload, "sample": SamplingWorkload}
SHARED: Final = ("frames", "offload")
"""Options of both tasks, which stand with the scenario."""
PARAMETER: Final = "parameter_"
"""Before the names of fields of strategies among the parsed options."""


def strategy_names() -> list[str]:
    """The names of all strategies: those that train, then those that sample."""
    return [name for task in TASKS for name in strategies_of(task)]


def strategy_flags(name: str) -> list[str]:
    """The flags of a strategy's fields."""
    return [flag_of(item.name) for item in fields(class_of(name))]  # type: ignore[arg-type]


def add_scenario(
    parser: argparse.ArgumentParser,
    *,
    required_strategy: bool,
    optional_model: bool = False,
    tasks: Collection[str] = TASKS,
    shown: Collection[str] = TASKS,
    measured: str = "",
    several: bool = False,
    runtime: bool = False,
) -> None:
    """Offer what says which model does what on which cluster.

    Args:
        parser: gets the flags.
        required_strategy: whether a strategy must be named.
        optional_model: whether it can do without a model.
        tasks: those whose flags it takes.
        shown: those of them whose flags its help shows.
        measured: whose number ``--measured`` gives; empty where compute is not scaled.
        several: whether it takes several numbers of GPUs.
        runtime: whether it keeps to a runtime.
    """
    group = parser.add_argument_group("scenario")
    own = [task for task in TASKS if task in tasks and task in shown]
    _add_machine(group, own, required_model=not optional_model, several=several)
    _add_work(group, own)
    if measured:
        _add_measured(group, measured)
    group.add_argument("--strategy", required=required_strategy, help="one of `sim strategies`")
    if runtime:
        words = f"keep to what one runs: {', '.join(runtime_names())}"
        group.add_argument("--runtime", metavar="NAME", help=words)
    words = (
        "flags as keys, in TOML, or a result in JSON; those given beside it go before; - is standard input"
    )
    group.add_argument("--experiment", metavar="FILE", help=words)
    _add_what_ifs(parser)
    if "train" in tasks:
        _add_training(parser, "train" in shown, several, runtime)
    if "sample" in tasks:
        _add_sampling(parser, "sample" in shown)


def _add_machine(group: Any, own: Sequence[str], *, required_model: bool, several: bool) -> None:  # noqa: ANN401
    """Offer the model, the cluster, the stack and the GPUs."""
    group.add_argument("--model", required=required_model, help="a model's name, or a model folder")
    for flag, what, default in (
        ("--cluster", "a cluster's name, or a cluster file", DEFAULT_CLUSTER),
        ("--stack", "a software stack's name, or a stack file", DEFAULT_STACK),
    ):
        group.add_argument(flag, default=default, help=f"{what} (default: {default})")
    default = "one node; of single: 1" if "sample" in own else "one node"
    if several:
        words = f"GPUs in all, or several: 1,2,4 or 8-64, of which each doubles the one before (default: {default})"
        group.add_argument("--gpus", type=gpus_flag, metavar="GPUS", help=words)
    else:
        group.add_argument("--gpus", type=integer, help=f"GPUs in all (default: {default})")


def _add_work(group: Any, own: Sequence[str]) -> None:  # noqa: ANN401
    """Offer the batch and the size of what is trained on or drawn."""
    group.add_argument("--batch-size", type=integer, help="; or ".join(BATCH[task] for task in own))
    words = "1024, or 1280x1920: width x height (default: the model's reference)"
    group.add_argument(
        "--resolution", type=resolution, default=argparse.SUPPRESS, metavar="PIXELS", help=words
    )
    for item in options_of(WORKLOADS[own[0]]):
        if item.name in SHARED:
            group.add_argument(flag_of(item.name), default=argparse.SUPPRESS, **_settings(item))


def _add_measured(group: Any, whose: str) -> None:  # noqa: ANN401
    """Offer a number that was measured, and the run that it was measured of."""
    words = f"what {whose} takes, such as step_s=0.87, samples_per_s=294 or latency_s=3.1"
    group.add_argument("--measured", metavar="NAME=NUMBER", help=f"{words}: compute is scaled to it")
    words = "a run that was measured: its flags and number as TOML or JSON, or its result by"
    words += " `sim run --measured ... --json`; compute is scaled to it"
    group.add_argument("--measured-run", metavar="FILE", help=words)


def _add_what_ifs(parser: argparse.ArgumentParser) -> None:
    add = _adder(parser, "what if", True)
    add(
        "--link",
        action="append",
        metavar="NAME=CHANGE",
        help="bandwidth inside a node, or between nodes: intra=150GB/s, inter=2x; may be given twice",
    )
    add("--nodes", help="the most there may be, such as 2; or 2x4: two of 4 devices each")
    add("--device", help="a device's name, or a device file, in place of the cluster's")
    add("--memory", metavar="SIZE", help="of each device, such as 40GiB")


def _add_training(parser: argparse.ArgumentParser, shown: bool, searched: bool, simulated: bool) -> None:
    least = f"; {AUTO}: the least that fits" if simulated else ""
    words = f"{AUTO}: none, {' or '.join(RELIEF)} where memory lacks" if searched else f"none{least}"
    choices = (AUTO, *CHECKPOINTINGS) if simulated else CHECKPOINTINGS
    own = {"checkpointing": {"choices": choices, "help": f"what is recomputed (default: {words})"}}
    _add_options(_adder(parser, "training", shown), "train", own)


def _add_sampling(parser: argparse.ArgumentParser, shown: bool) -> None:
    (cached,) = (item for item in options_of(SamplingWorkload) if item.name == "cache_steps")
    words = f"{cached.metadata['help']}: {', '.join(load_levers().cached)}"
    _add_options(
        _adder(parser, "sampling", shown),
        "sample",
        {"cache_steps": {"type": _share_or_name, "help": words}},
    )


def _add_options(add: Callable[..., Any], task: str, other: Mapping[str, Mapping[str, Any]]) -> None:
    """Offer the options of a task's workload as flags; some have other settings."""
    for item in options_of(WORKLOADS[task]):
        if item.name not in SHARED:
            add(flag_of(item.name), **_settings(item) | dict(other.get(item.name, {})))


def _settings(item: Field[Any]) -> dict[str, Any]:
    """The settings of an option's flag, as it was declared."""
    rules = item.metadata
    named = (
        ""
        if item.default is None or "(default" in rules["help"] or item.default == ()
        else (f" (default: {item.default})")
    )
    settings = {"help": rules["help"] + named, **rules["flag"]}
    if rules["choices"]:
        return settings | {"choices": rules["choices"]}
    kinds = {int: partial(integer, most=rules["most"]), float: number, tuple: names}
    return settings | ({"type": kinds[rules["kind"]]} if rules["kind"] in kinds else {})


def _adder(parser: argparse.ArgumentParser, title: str, shown: bool) -> Callable[..., Any]:
    """A function that adds flags to a group; hidden ones are parsed too, so that they can be refused."""
    group = parser.add_argument_group(title)

    def add(flag: str, **settings: Any) -> None:  # noqa: ANN401
        if not shown:
            settings["help"] = argparse.SUPPRESS
        group.add_argument(flag, default=argparse.SUPPRESS, **settings)

    return add


def add_parameters(parser: argparse.ArgumentParser, names: Sequence[str]) -> None:
    """Offer the fields of strategies as flags; a field of several strategies is one flag."""
    known: dict[str, Field[Any]] = {}
    for name in names:
        for item in fields(class_of(name)):  # type: ignore[arg-type]
            known.setdefault(item.name, item)
    if not known:
        return
    group = parser.add_argument_group(f"parameters of {', '.join(names)}")
    for item in known.values():
        group.add_argument(
            flag_of(item.name),
            dest=PARAMETER + item.name,
            type=_parameter_type(item),
            choices=item.metadata["choices"] or None,
            default=MISSING,
            metavar=None if item.metadata["choices"] else item.name.upper(),
            help=item.metadata["help"] + ("" if item.default is None else f" (default: {item.default})"),
        )


def _parameter_type(item: Field[Any]) -> Callable[[str], Any]:
    if isinstance(item.default, str):
        return str
    if isinstance(item.default, float):
        return number
    one = _integer_list if item.metadata["kind"] is tuple else small_integer
    return _or_none(one) if item.default is None else one


def _or_none(convert: Callable[[str], Any]) -> Callable[[str], Any]:
    """A type that also takes ``none``, where the default is none."""
    return lambda text: None if text.lower() == "none" else convert(text)


def integer(text: str, *, most: int = MAX_INTEGER) -> int:
    """An integer; one that no command could ever want is refused."""
    try:
        if not text.isascii() or "_" in text:
            raise ValueError
        value = int(text)
    except ValueError:
        raise argparse.ArgumentTypeError(f"is {shown(text)}, must be an integer") from None
    if value > most or value < -MAX_INTEGER:
        raise argparse.ArgumentTypeError(f"is {shown(value)}, must be at most {most}")
    return value


def gpus_flag(text: str) -> int | tuple[int, ...]:
    """A number of GPUs, or several: between commas, or doublings from one to another."""
    if re.fullmatch(r"\s*[+-]?\w*\s*", text):
        return integer(text)
    try:
        return counts_in(text)
    except InputError as error:
        raise argparse.ArgumentTypeError(str(error).removeprefix("gpus ")) from None


def small_integer(text: str) -> int:
    """An integer that a parameter of a strategy may have."""
    return integer(text, most=MAX_PARAMETER)


def _integer_list(text: str) -> tuple[int, ...]:
    """Integers that stand between commas."""
    if not re.fullmatch(r"\s*-?\d+\s*(,\s*-?\d+\s*)*", text, re.ASCII):
        raise argparse.ArgumentTypeError(f"is {shown(text)}, must be integers with commas between them")
    return tuple(map(small_integer, text.split(",")))


def number(text: str) -> float:
    """A number."""
    try:
        return float(text)
    except ValueError:
        raise argparse.ArgumentTypeError(f"is {shown(text)}, must be a number") from None


def names(text: str) -> tuple[str, ...]:
    """Names that stand between commas; none where the text is empty."""
    return tuple(part.strip() for part in text.split(",")) if text else ()


def _share_or_name(text: str) -> float | str:
    """A number, or a name."""
    try:
        return float(text)
    except ValueError:
        return text


def resolution(text: str) -> tuple[int, int]:
    """Width and height in pixels; one number is both."""
    if not re.fullmatch(r"-?\d+(x-?\d+)?", text, re.ASCII):
        raise argparse.ArgumentTypeError(
            f"is {shown(text)}, must be pixels such as 1024, or width x height such as 1280x1920"
        )
    sides = [integer(side) for side in text.split("x")]
    return sides[0], sides[-1]
