"""The command line: ``sim models | clusters | strategies | run | sweep | tune | schedule | synthesize``.

Results go to stdout, everything else to stderr. Exit code 0; 2 with one line for anything the user can mend; 130
on Ctrl-C; a traceback is a bug.
"""

import argparse
import os
import re
import sys
from collections.abc import Callable, Sequence
from dataclasses import MISSING, Field, fields
from importlib.metadata import version
from pathlib import Path
from typing import Any, Final, NoReturn

from profiles.errors import DiffusimError, InputError
from profiles.recipes import RECIPES
from sim import commands
from sim.synthesizing import add_flags, run_synthesize
from strategies.registry import all_strategies, strategy_class
from strategies.scenario import (
    CHECKPOINTINGS,
    DRAWS,
    PLACEMENTS,
)

MAX_INTEGER: Final = 10**12
MAX_PARAMETER: Final = 2**16
"""Orders of more positions or micro-batches than this would take hours."""

WORDINGS: Final = (
    (r"argument (.+): expected one argument", r"\1 needs a value"),
    (r"argument (.+): ignored explicit argument (.*)", r"\1 is \2, but takes no value"),
    (r"argument (.+): invalid choice: (.*) \(choose from (.*)\)", r"\1 is \2, must be one of \3"),
    (r"argument (.+?): (.*)", r"\1 \2"),
    (r"the following arguments are required: (.*)", r"\1 must be given"),
)
"""How argparse words its refusals, and how this project does."""


class _Parser(argparse.ArgumentParser):
    """An argument parser whose refusals are one line, and which never guesses a flag from its beginning."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:  # noqa: ANN401
        kwargs.setdefault("allow_abbrev", False)
        super().__init__(*args, **kwargs)

    def error(self, message: str) -> NoReturn:
        for pattern, wording in WORDINGS:
            match = re.fullmatch(pattern, message, re.DOTALL)
            if match:
                raise InputError(_unquote_choices(match.expand(wording)))
        raise InputError(message)


def _unquote_choices(message: str) -> str:
    head, mark, choices = message.partition(", must be one of ")
    return head + mark + choices.replace("'", "")


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command line and return its exit code."""
    arguments = list(sys.argv[1:] if arguments is None else arguments)
    if sys.stdout is None:  # closed by whoever started us
        sys.stdout = Path(os.devnull).open("w", encoding="utf-8")  # noqa: SIM115  open until the process ends
    try:
        try:
            code = _main(arguments)
        except SystemExit as end:  # argparse, after --help and --version
            code = int(end.code or 0)
        print(end="", flush=True)
        return code
    except DiffusimError as error:
        print(f"sim: error: {' '.join(str(error).split())}", file=sys.stderr)
        return 2
    except KeyboardInterrupt:
        print("sim: interrupted", file=sys.stderr)
        return 130
    except BrokenPipeError:  # whoever read the output has seen enough; the rest goes nowhere
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 0
    except OSError as error:
        where = f"{error.filename}: " if error.filename else ""
        print(f"sim: error: {where}{(error.strerror or str(error)).lower()}", file=sys.stderr)
        return 2


def _main(arguments: Sequence[str]) -> int:
    options, unknown = _parser(arguments).parse_known_args(arguments)
    if unknown:
        raise InputError(_describe_unknown(unknown[0].partition("=")[0], options))
    command: Callable[[argparse.Namespace], int] = options.command
    return command(options)


def _describe_unknown(argument: str, options: argparse.Namespace) -> str:
    """Return what is wrong with an argument that no parser took."""
    if not argument.startswith("-") or argument.lstrip("-")[:1].isdigit():
        return f"unexpected argument '{argument}'"
    names = (getattr(options, "strategy", None) or "").split(",")
    own = [flag for name in names if name for flag in _flags_of(name)]
    if own and any(argument in _flags_of(name) for name in all_strategies()):
        return f"{', '.join(names)} has no parameter {argument}; it has {', '.join(dict.fromkeys(own))}"
    return f"unknown flag {argument}; choose from {', '.join(options.flags)}"


def _flags_of(name: str) -> list[str]:
    return [f"--{item.name.replace('_', '-')}" for item in fields(strategy_class(name))]  # type: ignore[arg-type]


def _parser(arguments: Sequence[str]) -> argparse.ArgumentParser:
    """Return the parser; the flags of the strategies named in the arguments are among its own."""
    parser = _Parser(
        prog="sim", description="Explore how to parallelise diffusion models, without a cluster."
    )
    parser.add_argument("--version", action="version", version=f"diffusim {version('diffusim')}")
    subparsers = parser.add_subparsers(required=True, metavar="COMMAND")
    for name, command, summary in (
        ("models", commands.models_command, "list the models"),
        ("clusters", commands.clusters_command, "list the clusters"),
        ("strategies", commands.strategies_command, "list the strategies and their parameters"),
    ):
        sub = subparsers.add_parser(name, help=summary, description=summary)
        sub.add_argument("--json", action="store_true", help="print JSON")
        sub.set_defaults(command=command, flags=["--json"])
    named = _named_strategies(arguments)
    run = subparsers.add_parser("run", help="simulate one strategy", description="Simulate one strategy.")
    _add_scenario(run, required_strategy=True)
    _add_files(run)
    run.set_defaults(command=commands.run_command)
    sweep = subparsers.add_parser(
        "sweep", help="find the best strategy", description="Find the best strategy."
    )
    _add_scenario(sweep, required_strategy=False)
    _add_sweep(sweep)
    sweep.set_defaults(command=commands.sweep_command)
    tune = subparsers.add_parser(
        "tune",
        help="tune PULSE's degrees and micro-batch",
        description="Search pipeline degree P, data-parallel degree G and micro-batch b of pulse, with M = P.",
    )
    _add_scenario(tune, required_strategy=False)
    tune.add_argument("--p2p", choices=("overlapped", "blocking"), default="overlapped", help="as of pulse")
    tune.add_argument("--json", action="store_true", help="print JSON")
    tune.set_defaults(command=commands.tune_command, memory_recipe="pulse")
    schedule = subparsers.add_parser(
        "schedule", help="print a strategy's order", description="Print a strategy's order."
    )
    _add_scenario(schedule, required_strategy=True, optional_model=True)
    schedule.add_argument("--format", choices=("text", "torch"), default="text", help="how to write it")
    schedule.set_defaults(command=commands.schedule_command)
    synthesize = subparsers.add_parser(
        "synthesize", help="find the shortest order", description="Find the shortest order of a pipeline."
    )
    add_flags(synthesize, _small_integer)
    synthesize.set_defaults(command=run_synthesize)
    for sub in (run, sweep, schedule):
        _add_parameters(sub, named if named or sub is not sweep else list(all_strategies()))
    for sub in (run, sweep, tune, schedule, synthesize):
        sub.set_defaults(flags=[flag for flag in sub._option_string_actions if flag.startswith("--")])
    return parser


def _named_strategies(arguments: Sequence[str]) -> list[str]:
    """Return the strategies named by --strategy, so that their flags are known before the rest is parsed."""
    early = _Parser(add_help=False)
    early.add_argument("--strategy", default="")
    known, _ = early.parse_known_args([a for a in arguments if a not in ("-h", "--help")])
    return [name for name in known.strategy.split(",") if name in all_strategies()]


def _add_scenario(
    parser: argparse.ArgumentParser, *, required_strategy: bool, optional_model: bool = False
) -> None:
    shared = parser.add_argument_group("scenario")
    shared.add_argument("--model", required=not optional_model, help="a model's name, or a model folder")
    shared.add_argument(
        "--cluster", default="p4de", help="a cluster's name, or a cluster file (default: p4de)"
    )
    shared.add_argument("--gpus", type=_integer, help="GPUs in all (default: one node)")
    shared.add_argument(
        "--batch-size", type=_integer, help="samples of all GPUs together (default: 32 per GPU)"
    )
    shared.add_argument("--strategy", required=required_strategy, help="one of `sim strategies`")
    training = parser.add_argument_group("training")
    training.add_argument(
        "--self-conditioning", type=_number, metavar="P", help="probability (default: the model's)"
    )
    training.add_argument("--self-conditioning-draw", choices=DRAWS, default="iteration", help="who draws")
    training.add_argument(
        "--checkpointing", choices=CHECKPOINTINGS, default="none", help="what is recomputed"
    )
    training.add_argument(
        "--memory-recipe", choices=list(RECIPES), default="mixed", help="bytes per parameter"
    )
    training.add_argument(
        "--placement", choices=PLACEMENTS, default="pipeline-inner", help="who gets fast links"
    )


def _add_files(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--json", action="store_true", help="print the result as JSON")
    parser.add_argument(
        "--trace", type=Path, metavar="FILE", help="write a Chrome trace, to open in Perfetto"
    )
    parser.add_argument("--gantt", type=Path, metavar="FILE", help="draw the schedule (.png, .svg, .pdf)")


def _add_sweep(parser: argparse.ArgumentParser) -> None:
    from sim.sweep import OBJECTIVES

    parser.add_argument("--task", choices=("train",), default="train", help="what is swept")
    parser.add_argument(
        "--objective",
        choices=OBJECTIVES,
        default="throughput",
        help="what is ranked by; pareto finds all that nothing beats in both throughput and memory",
    )
    parser.add_argument("--out", type=Path, metavar="FILE", help="where all rows go, .csv or .parquet")
    parser.add_argument("--json", action="store_true", help="print all rows as JSON")
    parser.add_argument(
        "--plot", type=Path, metavar="FILE", help="draw throughput against memory (.png, .svg, .pdf)"
    )
    _add_files_of_best(parser)


def _add_files_of_best(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--trace", type=Path, metavar="FILE", help="write a Chrome trace of the best point")
    parser.add_argument("--gantt", type=Path, metavar="FILE", help="draw the schedule of the best point")


def _add_parameters(parser: argparse.ArgumentParser, names: Sequence[str]) -> None:
    """Offer the fields of strategies as flags; a field of several strategies is one flag."""
    known: dict[str, Field[Any]] = {}
    for name in names:
        for item in fields(strategy_class(name)):  # type: ignore[arg-type]
            known.setdefault(item.name, item)
    if not known:
        return
    group = parser.add_argument_group(f"parameters of {', '.join(names)}")
    for item in known.values():
        group.add_argument(
            f"--{item.name.replace('_', '-')}",
            dest=f"parameter_{item.name}",
            type=_parameter_type(item),
            choices=item.metadata["choices"] or None,
            default=MISSING,
            metavar=None if item.metadata["choices"] else item.name.upper(),
            help=item.metadata["help"] + ("" if item.default is None else f" (default: {item.default})"),
        )


def _parameter_type(item: Field[Any]) -> Callable[[str], Any]:
    return str if isinstance(item.default, str) else _small_integer


def _integer(text: str) -> int:
    try:
        if not text.isascii() or "_" in text:
            raise ValueError
        value = int(text)
    except ValueError:
        raise argparse.ArgumentTypeError(f"is '{text}', must be an integer") from None
    if abs(value) > MAX_INTEGER:
        raise argparse.ArgumentTypeError(f"is {text}, must be at most {MAX_INTEGER}")
    return value


def _small_integer(text: str) -> int:
    value = _integer(text)
    if value > MAX_PARAMETER:
        raise argparse.ArgumentTypeError(f"is {text}, must be at most {MAX_PARAMETER}")
    return value


def _number(text: str) -> float:
    try:
        return float(text)
    except ValueError:
        raise argparse.ArgumentTypeError(f"is '{text}', must be a number") from None


if __name__ == "__main__":
    sys.exit(main())
