"""The command line: ``sim run``, ``sweep``, ``tune``, ``schedule``, ``synthesize``, and the lists of what there is.

Results go to stdout, everything else to stderr. Exit code 0; 2 with one line for anything the user can mend; 130
on Ctrl-C; a traceback is a bug.
"""

import argparse
import os
import shlex
import sys
import warnings
from collections.abc import Callable, Mapping, Sequence
from contextlib import redirect_stderr
from importlib.metadata import version
from pathlib import Path
from time import perf_counter
from typing import TYPE_CHECKING, Final, TextIO

from profiles.errors import DiffusimNote, DiffusimWarning, InputError, near, one_line, shown
from sim.cli.console import MissingFlagError, Parser, guarded
from sim.cli.examples import epilog
from sim.interrupts import as_one

if TYPE_CHECKING:
    from sim.experiments import Experiment


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command line and return its exit code."""
    with as_one():
        return guarded("sim", _main, list(sys.argv[1:] if arguments is None else arguments))


def _main(arguments: Sequence[str]) -> int:
    if not arguments:
        _parser(arguments).print_help()
        return 0
    experiment = _experiment(arguments)
    if experiment is None:
        return _asked(arguments)
    at = 1 + next(i for i, argument in enumerate(arguments) if not argument.startswith("-"))
    try:
        return _asked([*arguments[:at], *experiment.words, *arguments[at:]], experiment)
    except InputError as error:
        raise experiment.blamed(error) from None


def _experiment(arguments: Sequence[str]) -> "Experiment | None":
    """What the file named by --experiment adds to the command line; None where none is named."""
    if not any(argument.partition("=")[0] == "--experiment" for argument in arguments):
        return None
    from sim.experiments import Experiment

    early = Parser(add_help=False)
    early.add_argument("--experiment")
    known, rest = early.parse_known_args(arguments)
    flags = frozenset(argument.partition("=")[0] for argument in rest if argument.startswith("--"))
    return Experiment.read(known.experiment, flags)


def _asked(arguments: Sequence[str], experiment: "Experiment | None" = None) -> int:
    """Do what the arguments ask for, those of an experiment among them."""
    parser = _parser(arguments)
    try:
        options, unknown = parser.parse_known_args(arguments)
    except MissingFlagError:
        _check_flags(parser, arguments)  # the missing one may be there, mistyped
        raise
    if unknown:
        flag = unknown[0].partition("=")[0]
        where = f"{experiment.path}: " if experiment is not None and experiment.gives(flag) else ""
        raise InputError(where + _describe_unknown(flag, options))
    options.line = shlex.join(["sim", *arguments])
    if not options.quiet:
        return _do(options)
    with Path(os.devnull).open("w", encoding="utf-8") as nowhere, redirect_stderr(nowhere):
        return _do(options)


def _check_flags(parser: argparse.ArgumentParser, arguments: Sequence[str]) -> None:
    """Refuse flags that the command asked for does not have.

    Raises:
        InputError: there is one.
    """
    (commands,) = (a for a in parser._actions if isinstance(a, argparse._SubParsersAction))
    command = commands.choices.get(next((a for a in arguments if not a.startswith("-")), ""))
    for flag in (argument.partition("=")[0] for argument in arguments if argument.startswith("--")):
        if command is not None and flag not in command._option_string_actions:
            own = argparse.Namespace(flags=command.get_default("flags"))
            raise InputError(_describe_unknown(flag, own))


def _do(options: argparse.Namespace) -> int:
    """Do what a command does, and say what it warns of."""
    command: Callable[[argparse.Namespace], int] = options.command
    start = perf_counter()
    with warnings.catch_warnings():
        warnings.simplefilter("always", DiffusimWarning)
        warnings.showwarning = _show_warning
        code = command(options)
    if options.verbose:
        print(f"sim: {options.asked} took {perf_counter() - start:.2f} s{_memory_words()}", file=sys.stderr)
    return code


def _memory_words() -> str:
    """The most memory that this process held, where the platform says."""
    try:
        from resource import RUSAGE_SELF, getrusage
    except ImportError:
        return ""
    most = getrusage(RUSAGE_SELF).ru_maxrss * (1 if sys.platform == "darwin" else 1024)
    return f" and {most / 1e6:.0f} MB"


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
    if issubclass(category, DiffusimWarning):
        words = f"sim: {'note' if category is DiffusimNote else 'warning'}: {one_line(str(message))}"
    print(words, file=file or sys.stderr)


def _describe_unknown(argument: str, options: argparse.Namespace) -> str:
    """The message about an argument that no parser took."""
    if not argument.startswith("-") or argument.lstrip("-")[:1].isdigit():
        return f"unexpected argument {shown(argument)}"
    from sim.cli.flags import flags_of, strategy_names
    from strategies.registry import strategy_named

    said = (getattr(options, "strategy", None) or "").split(",")
    names = [strategy_named(name, silent=True) for name in said if name]
    own = list(dict.fromkeys(flag for name in names for flag in flags_of(name)))
    if names and any(argument in flags_of(name) for name in strategy_names()):
        meant = near(argument, own)
        return f"{', '.join(names)} has no parameter {argument}; {meant}it has {', '.join(own) or 'none'}"
    meant = near(argument, [*options.flags, *own])
    return f"unknown flag {one_line(argument, 80)}; {meant}choose from {', '.join(options.flags)}"


def _parser(arguments: Sequence[str], *, whole: bool = False) -> argparse.ArgumentParser:
    """The parser; only the command asked for is told its flags, those of the strategies named among them.

    Args:
        arguments: the command line.
        whole: tell all commands their flags.
    """
    parser = Parser(
        prog="sim",
        description="Explore how to parallelise diffusion models, without a cluster.",
        epilog=epilog(""),
    )
    parser.add_argument("--version", action="version", version=f"diffusim {version('diffusim')}")
    subparsers = parser.add_subparsers(required=True, metavar="COMMAND")
    asked = next((argument for argument in arguments if not argument.startswith("-")), None)
    for name, (summary, description, add) in COMMANDS.items():
        sub = subparsers.add_parser(
            name, help=summary, description=description or summary, epilog=epilog(name)
        )
        if whole or name == asked:
            add(sub, name, arguments)
            loudness = sub.add_mutually_exclusive_group()
            loudness.add_argument(
                "-q", "--quiet", action="store_true", help="say nothing on stderr but errors"
            )
            loudness.add_argument("-v", "--verbose", action="store_true", help="say what took how long")
            _set_flags(sub, name)
    return parser


def _set_flags(parser: argparse.ArgumentParser, name: str) -> None:
    """Tell which subcommand this is, and which flags are worth naming where one is unknown."""
    visible = [action for action in parser._actions if action.help is not argparse.SUPPRESS]
    flags = [flag for action in visible for flag in action.option_strings if flag.startswith("--")]
    parser.set_defaults(asked=name, flags=flags)
    if parser.get_default("named"):
        parser.epilog = epilog(name, flags)


def _add_list(parser: argparse.ArgumentParser, name: str, _: Sequence[str]) -> None:
    from sim.cli.listing import SHELVES, list_command

    if name in SHELVES:
        parser.add_argument(
            "action", nargs="?", choices=["show"], help="print the file of one, to start from"
        )
        parser.add_argument("name", nargs="?", metavar="NAME", help=f"of the {name.removesuffix('s')}")
    parser.add_argument("--json", action="store_true", help="print JSON")
    parser.set_defaults(command=list_command, listed=name)


def _named_strategies(arguments: Sequence[str]) -> tuple[list[str], list[str]]:
    """The strategies named by --strategy, so that their flags are known before the rest is parsed.

    Returns:
        The names that exist, and the tasks whose flags matter.

    Raises:
        InputError: help is asked for, of a strategy that does not exist.
    """
    from profiles.components import TASKS
    from sim.cli.flags import strategy_names
    from strategies.registry import strategy_named, task_of

    early = Parser(add_help=False)
    early.add_argument("--strategy", default="")
    early.add_argument("--task", default="")
    known, _ = early.parse_known_args([a for a in arguments if a not in ("-h", "--help")])
    there = strategy_names()
    said = [strategy_named(name, silent=True) for name in known.strategy.split(",") if name]
    if "-h" in arguments or "--help" in arguments:
        for name in said:
            task_of(name)
    named = [name for name in said if name in there]
    tasks = {task_of(name) for name in named} or {known.task}.intersection(TASKS) or set(TASKS)
    return named, [task for task in TASKS if task in tasks]


def _add_run(run: argparse.ArgumentParser, _: str, arguments: Sequence[str]) -> None:
    from sim.cli.commands import run_command
    from sim.cli.flags import add_parameters, add_scenario

    named, shown_tasks = _named_strategies(arguments)
    add_scenario(
        run, required_strategy=True, shown=shown_tasks, measured="this run, or that of --measured-run,"
    )
    run.add_argument("--json", action="store_true", help="print the result as JSON")
    run.add_argument("--trace", type=Path, metavar="FILE", help="write a Chrome trace, to open in Perfetto")
    run.add_argument("--gantt", type=Path, metavar="FILE", help="draw the schedule (.png, .svg, .pdf)")
    _add_report(run)
    _add_print_experiment(run)
    add_parameters(run, named)
    run.set_defaults(command=run_command, named=named)


def _add_report(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--format", choices=("text", "markdown"), default="text", help="how to print (default: text)"
    )
    parser.add_argument(
        "--report", type=Path, metavar="FILE.html", help="write a page with pictures that needs no network"
    )


def _add_print_experiment(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--print-experiment",
        action="store_true",
        help="print the whole question as TOML for --experiment, and compute nothing",
    )


def _add_sweep(sweep: argparse.ArgumentParser, _: str, arguments: Sequence[str]) -> None:
    from profiles.components import TASKS
    from sim.cli.flags import add_parameters, add_scenario, strategy_names
    from sim.cli.sweeping import sweep_command
    from sim.explore.sweep import OBJECTIVES
    from strategies.registry import task_of

    named, shown_tasks = _named_strategies(arguments)
    add_scenario(
        sweep, required_strategy=False, shown=shown_tasks, measured="the run of --measured-run", several=True
    )
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
    _add_report(sweep)
    _add_print_experiment(sweep)
    add_parameters(sweep, named or [name for name in strategy_names() if task_of(name) in shown_tasks])
    sweep.set_defaults(command=sweep_command, named=named)


def _add_compare(compare: argparse.ArgumentParser, *_: object) -> None:
    from sim.cli.stores import compare_command

    compare.add_argument(
        "before", type=Path, metavar="A", help="a store, rows of a sweep (.csv) or results (.json)"
    )
    compare.add_argument("after", type=Path, metavar="B", help="another")
    compare.add_argument(
        "--question",
        type=lambda text: [key for key in text.split(",") if key],
        metavar="KEY",
        help="of files with several questions those to compare, by keys that a refusal lists; one of each with a comma",
    )
    compare.add_argument("--json", action="store_true", help="print JSON")
    compare.set_defaults(command=compare_command)


def _add_merge(merge: argparse.ArgumentParser, *_: object) -> None:
    from sim.cli.stores import merge_command

    merge.add_argument("out", type=Path, metavar="OUT", help="the store to make")
    merge.add_argument("stores", type=Path, nargs="+", metavar="STORE", help="those it is made of")
    merge.set_defaults(command=merge_command)


def _add_tune(tune: argparse.ArgumentParser, *_: object) -> None:
    from sim.cli.commands import tune_command
    from sim.cli.flags import add_scenario

    add_scenario(tune, required_strategy=False, tasks=("train",), measured="the run of --measured-run")
    tune.add_argument("--p2p", choices=("overlapped", "blocking"), default="overlapped", help="as of pulse")
    tune.add_argument("--json", action="store_true", help="print JSON")
    tune.set_defaults(memory_recipe="pulse", command=tune_command)


def _add_schedule(schedule: argparse.ArgumentParser, _: str, arguments: Sequence[str]) -> None:
    from sim.cli.commands import schedule_command
    from sim.cli.flags import add_parameters, add_scenario

    named, shown_tasks = _named_strategies(arguments)
    add_scenario(schedule, required_strategy=True, optional_model=True, shown=shown_tasks)
    schedule.add_argument("--format", choices=("text", "torch"), default="text", help="how to write it")
    add_parameters(schedule, named)
    schedule.set_defaults(command=schedule_command, named=named)


def _add_synthesize(synthesize: argparse.ArgumentParser, *_: object) -> None:
    from sim.cli.flags import small_integer
    from sim.cli.synthesize import add_flags, run_synthesize

    add_flags(synthesize, small_integer)
    synthesize.set_defaults(command=run_synthesize)


def _add_completion(completion: argparse.ArgumentParser, *_: object) -> None:
    from sim.cli.completion import SHELLS

    completion.add_argument("shell", choices=SHELLS, help="the shell that is to read the script")
    completion.set_defaults(command=_completion_command)


def _completion_command(options: argparse.Namespace) -> int:
    """Print the script that completes command lines in a shell."""
    from sim.cli.completion import print_completion

    print_completion(_parser((), whole=True), options.shell)
    return 0


Add = Callable[[argparse.ArgumentParser, str, Sequence[str]], None]
COMMANDS: Final[Mapping[str, tuple[str, str, Add]]] = {
    "models": ("list the models", "List the models, or show the file of one.", _add_list),
    "clusters": ("list the clusters", "List the clusters, or show the file of one.", _add_list),
    "devices": ("list the devices", "List the devices, or show the file of one.", _add_list),
    "stacks": ("list the software stacks", "List the software stacks, or show the file of one.", _add_list),
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
    "completion": (
        "print what completes command lines in a shell",
        "Print the script with which bash, zsh or fish completes command lines of sim.",
        _add_completion,
    ),
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
