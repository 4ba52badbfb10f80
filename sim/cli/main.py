"""The command line: ``sim models | clusters | stacks | strategies | run | sweep | tune | schedule | synthesize``.

Results go to stdout, everything else to stderr. Exit code 0; 2 with one line for anything the user can mend; 130
on Ctrl-C; a traceback is a bug.
"""

import argparse
import sys
import warnings
from collections.abc import Callable, Mapping, Sequence
from importlib.metadata import version
from pathlib import Path
from typing import Final, TextIO

from profiles.errors import DiffusimWarning, InputError
from sim.cli.console import Parser, guarded
from sim.interrupts import as_one


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command line and return its exit code."""
    with as_one():
        return guarded("sim", _main, list(sys.argv[1:] if arguments is None else arguments))


def _main(arguments: Sequence[str]) -> int:
    options, unknown = _parser(arguments).parse_known_args(arguments)
    if unknown:
        raise InputError(_describe_unknown(unknown[0].partition("=")[0], options))
    command: Callable[[argparse.Namespace], int] = options.command
    with warnings.catch_warnings():
        warnings.simplefilter("always", DiffusimWarning)
        warnings.showwarning = _show_warning
        return command(options)


def _show_warning(  # noqa: PLR0917  as Python calls it
    message: Warning | str,
    category: type[Warning],
    filename: str,
    lineno: int,
    file: TextIO | None = None,
    line: str | None = None,
) -> None:
    """Print a warning as the command line words it; those of libraries as they are."""
    words = warnings.formatwarning(message, category, filename, lineno, line).rstrip()
    print(f"sim: warning: {message}" if category is DiffusimWarning else words, file=file or sys.stderr)


def _describe_unknown(argument: str, options: argparse.Namespace) -> str:
    """The message about an argument that no parser took."""
    if not argument.startswith("-") or argument.lstrip("-")[:1].isdigit():
        return f"unexpected argument '{argument}'"
    from sim.cli.flags import flags_of, strategy_names

    names = (getattr(options, "strategy", None) or "").split(",")
    known = [flags_of(name) for name in names if name]
    if known and any(argument in flags_of(name) for name in strategy_names()):
        own = ", ".join(dict.fromkeys(flag for flags in known for flag in flags)) or "none"
        return f"{', '.join(names)} has no parameter {argument}; it has {own}"
    return f"unknown flag {argument}; choose from {', '.join(options.flags)}"


def _parser(arguments: Sequence[str]) -> argparse.ArgumentParser:
    """The parser; only the command asked for is told its flags, those of the strategies named among them."""
    parser = Parser(prog="sim", description="Explore how to parallelise diffusion models, without a cluster.")
    parser.add_argument("--version", action="version", version=f"diffusim {version('diffusim')}")
    subparsers = parser.add_subparsers(required=True, metavar="COMMAND")
    asked = next((argument for argument in arguments if not argument.startswith("-")), None)
    for name, (summary, description, add) in COMMANDS.items():
        sub = subparsers.add_parser(name, help=summary, description=description or summary)
        if name == asked:
            add(sub, name, arguments)
    return parser


def _add_list(parser: argparse.ArgumentParser, name: str, _: Sequence[str]) -> None:
    from sim.cli import commands

    parser.add_argument("--json", action="store_true", help="print JSON")
    parser.set_defaults(command=getattr(commands, f"{name}_command"), flags=["--json"])


def _set_command(parser: argparse.ArgumentParser, command: Callable[[argparse.Namespace], int]) -> None:
    """Say what a subcommand does, and which flags are worth naming where one is unknown."""
    visible = [action for action in parser._actions if action.help is not argparse.SUPPRESS]
    flags = [flag for action in visible for flag in action.option_strings if flag.startswith("--")]
    parser.set_defaults(command=command, flags=flags)


def _named_strategies(arguments: Sequence[str]) -> tuple[list[str], list[str]]:
    """The strategies named by --strategy, so that their flags are known before the rest is parsed.

    Returns:
        The names that exist, and the tasks whose flags matter.
    """
    from profiles.components import TASKS
    from sim.cli.flags import strategy_names
    from strategies.registry import task_of

    early = Parser(add_help=False)
    early.add_argument("--strategy", default="")
    early.add_argument("--task", default="")
    known, _ = early.parse_known_args([a for a in arguments if a not in ("-h", "--help")])
    there = strategy_names()
    named = [name for name in known.strategy.split(",") if name in there]
    tasks = {task_of(name) for name in named} or {known.task}.intersection(TASKS) or set(TASKS)
    return named, [task for task in TASKS if task in tasks]


def _add_run(run: argparse.ArgumentParser, _: str, arguments: Sequence[str]) -> None:
    from sim.cli.commands import run_command
    from sim.cli.flags import add_parameters, add_scenario

    named, shown = _named_strategies(arguments)
    add_scenario(run, required_strategy=True, shown=shown, measured="this run, or that of --measured-run,")
    run.add_argument("--json", action="store_true", help="print the result as JSON")
    run.add_argument("--trace", type=Path, metavar="FILE", help="write a Chrome trace, to open in Perfetto")
    run.add_argument("--gantt", type=Path, metavar="FILE", help="draw the schedule (.png, .svg, .pdf)")
    add_parameters(run, named)
    _set_command(run, run_command)


def _add_sweep(sweep: argparse.ArgumentParser, _: str, arguments: Sequence[str]) -> None:
    from profiles.components import TASKS
    from sim.cli.commands import sweep_command
    from sim.cli.flags import add_parameters, add_scenario, strategy_names
    from sim.explore.sweep import OBJECTIVES
    from strategies.registry import task_of

    named, shown = _named_strategies(arguments)
    add_scenario(sweep, required_strategy=False, shown=shown, measured="the run of --measured-run")
    sweep.add_argument(
        "--task",
        choices=TASKS,
        help="what is swept (default: sample, where a flag of sampling or --resolution alone is given, else train)",
    )
    sweep.add_argument(
        "--objective",
        choices=dict.fromkeys(name for task in TASKS for name in OBJECTIVES[task]),
        help="what is ranked by (default: throughput, of sampling latency); cost is in GPU-seconds per image;"
        " pareto finds all that nothing beats in both speed and memory",
    )
    sweep.add_argument("--out", type=Path, metavar="FILE", help="where all rows go, .csv or .parquet")
    sweep.add_argument(
        "--store",
        type=Path,
        metavar="FILE",
        help="keep what is done in an SQLite file: a sweep that was stopped goes on from there",
    )
    sweep.add_argument(
        "--exhaustive",
        action="store_true",
        help="simulate every point that may fit, not only what may be best",
    )
    sweep.add_argument(
        "--dask", metavar="ADDRESS", help="let a Dask cluster work, by its scheduler's address"
    )
    sweep.add_argument("--json", action="store_true", help="print all rows as JSON")
    sweep.add_argument(
        "--plot", type=Path, metavar="FILE", help="draw speed against memory (.png, .svg, .pdf)"
    )
    sweep.add_argument("--trace", type=Path, metavar="FILE", help="write a Chrome trace of the best point")
    sweep.add_argument("--gantt", type=Path, metavar="FILE", help="draw the schedule of the best point")
    add_parameters(sweep, named or [name for name in strategy_names() if task_of(name) in shown])
    _set_command(sweep, sweep_command)


def _add_compare(compare: argparse.ArgumentParser, *_: object) -> None:
    from sim.cli.stores import compare_command

    compare.add_argument(
        "before", type=Path, metavar="A", help="a store, rows of a sweep (.csv) or results (.json)"
    )
    compare.add_argument("after", type=Path, metavar="B", help="another")
    compare.add_argument("--json", action="store_true", help="print JSON")
    _set_command(compare, compare_command)


def _add_merge(merge: argparse.ArgumentParser, *_: object) -> None:
    from sim.cli.stores import merge_command

    merge.add_argument("out", type=Path, metavar="OUT", help="the store to make")
    merge.add_argument("stores", type=Path, nargs="+", metavar="STORE", help="those it is made of")
    _set_command(merge, merge_command)


def _add_tune(tune: argparse.ArgumentParser, *_: object) -> None:
    from sim.cli.commands import tune_command
    from sim.cli.flags import add_scenario

    add_scenario(tune, required_strategy=False, tasks=("train",), measured="the run of --measured-run")
    tune.add_argument("--p2p", choices=("overlapped", "blocking"), default="overlapped", help="as of pulse")
    tune.add_argument("--json", action="store_true", help="print JSON")
    tune.set_defaults(memory_recipe="pulse")
    _set_command(tune, tune_command)


def _add_schedule(schedule: argparse.ArgumentParser, _: str, arguments: Sequence[str]) -> None:
    from sim.cli.commands import schedule_command
    from sim.cli.flags import add_parameters, add_scenario

    named, shown = _named_strategies(arguments)
    add_scenario(schedule, required_strategy=True, optional_model=True, shown=shown)
    schedule.add_argument("--format", choices=("text", "torch"), default="text", help="how to write it")
    add_parameters(schedule, named)
    _set_command(schedule, schedule_command)


def _add_synthesize(synthesize: argparse.ArgumentParser, *_: object) -> None:
    from sim.cli.flags import small_integer
    from sim.cli.synthesize import add_flags, run_synthesize

    add_flags(synthesize, small_integer)
    _set_command(synthesize, run_synthesize)


Add = Callable[[argparse.ArgumentParser, str, Sequence[str]], None]
COMMANDS: Final[Mapping[str, tuple[str, str, Add]]] = {
    "models": ("list the models", "", _add_list),
    "clusters": ("list the clusters", "", _add_list),
    "stacks": ("list the software stacks", "", _add_list),
    "strategies": ("list the strategies and their parameters", "", _add_list),
    "run": ("simulate one strategy", "Simulate one strategy.", _add_run),
    "sweep": ("find the best strategy", "Find the best strategy.", _add_sweep),
    "tune": (
        "tune PULSE's degrees and micro-batch",
        "Search pipeline degree P, data-parallel degree G and micro-batch b of pulse, with M = P.",
        _add_tune,
    ),
    "schedule": ("print a strategy's order", "Print a strategy's order.", _add_schedule),
    "synthesize": ("find the shortest order", "Find the shortest order of a pipeline.", _add_synthesize),
    "compare": (
        "say what changed between two sweeps",
        "Say what changed between two stores, sweeps or results, and which inputs differ.",
        _add_compare,
    ),
    "merge": ("make one store of several", "Make one store of several.", _add_merge),
}
"""Summary, description and flags of each command; what takes long to import is imported for its own command."""


if __name__ == "__main__":
    sys.exit(main())
