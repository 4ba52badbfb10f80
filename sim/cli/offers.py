"""Offers: what each command takes, which its parser is told when it is asked for."""

import argparse
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, Final

from sim.cli.console import Parser, file_flag


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
    from profiles.architectures.components import TASKS
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


def _add_question(
    parser: argparse.ArgumentParser,
    arguments: Sequence[str],
    command: Callable[[argparse.Namespace], int],
    outputs: Callable[[argparse.ArgumentParser], None],
    **settings: Any,  # noqa: ANN401
) -> None:
    """Offer a question about strategies: its scenario, what becomes of the answer, and parameters.

    Args:
        parser: gets the flags.
        arguments: the command line, which may name strategies.
        command: carries it out.
        outputs: adds the flags of what it prints and writes.
        settings: of ``add_scenario``; where no strategy must be named, all have their parameters.
    """
    from sim.cli.flags import add_parameters, add_scenario, strategy_names
    from strategies.registry import task_of

    named, shown = _named_strategies(arguments)
    add_scenario(parser, shown=shown, **settings)
    outputs(parser)
    every = [] if settings["required_strategy"] else [n for n in strategy_names() if task_of(n) in shown]
    add_parameters(parser, named or every)
    parser.set_defaults(command=command, named=named)


def _add_run(run: argparse.ArgumentParser, _: str, arguments: Sequence[str]) -> None:
    from sim.cli.commands import run_command

    def outputs(parser: argparse.ArgumentParser) -> None:
        _add_pictures(parser, "the result as JSON", "a Chrome trace, to open in Perfetto", "the schedule")

    whose = "this run, or that of --measured-run,"
    _add_question(run, arguments, run_command, outputs, required_strategy=True, measured=whose, runtime=True)


def _add_launch(launch: argparse.ArgumentParser, _: str, arguments: Sequence[str]) -> None:
    from sim.cli.commands import launch_command

    def outputs(parser: argparse.ArgumentParser) -> None:
        words = "what `sim run --json` printed, in place of flags; - is standard input"
        parser.add_argument("--result", metavar="FILE", help=words)
        _add_print_experiment(parser)

    whose = "this run"
    _add_question(
        launch, arguments, launch_command, outputs, required_strategy=True, measured=whose, runtime=True
    )


def _add_pictures(parser: argparse.ArgumentParser, what: str, trace: str, gantt: str) -> None:
    """Offer what an answer is printed as, its trace, its pictures, and its question as a file."""
    parser.add_argument("--json", action="store_true", help=f"print {what}")
    parser.add_argument("--trace", type=file_flag, metavar="FILE", help=f"write {trace}")
    parser.add_argument("--gantt", type=file_flag, metavar="FILE", help=f"draw {gantt} (.png, .svg, .pdf)")
    _add_report(parser)
    _add_print_experiment(parser)


def _add_report(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--format", choices=("text", "markdown"), default="text", help="how to print (default: text)"
    )
    parser.add_argument(
        "--report",
        type=file_flag,
        metavar="FILE.html",
        help="write a page with pictures that needs no network",
    )


def _add_print_experiment(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--print-experiment",
        action="store_true",
        help="print the whole question as TOML for --experiment, and compute nothing",
    )


def _add_sweep(sweep: argparse.ArgumentParser, _: str, arguments: Sequence[str]) -> None:
    from sim.cli.sweeping import sweep_command

    def outputs(parser: argparse.ArgumentParser) -> None:
        _add_search(parser)
        parser.add_argument(
            "--plot", type=file_flag, metavar="FILE", help="draw speed against memory (.png, .svg, .pdf)"
        )
        best = "a Chrome trace of the best point", "the schedule of the best point"
        _add_pictures(parser, "all rows as JSON", *best)

    whose = "the run of --measured-run"
    _add_question(
        sweep, arguments, sweep_command, outputs,
        required_strategy=False, measured=whose, runtime=True, several=True,
    )  # fmt: skip


def _add_search(sweep: argparse.ArgumentParser) -> None:
    """Offer what is swept, what is ranked by, who works on it and where rows and answers go."""
    from profiles.architectures.components import TASKS
    from sim.explore.sweep import OBJECTIVES

    sweep.add_argument(
        "--task",
        choices=TASKS,
        help="what is swept (default: sample, where a flag of sampling or --resolution alone is given, else train)",
    )
    sweep.add_argument(
        "--objective",
        choices=dict.fromkeys(name for task in TASKS for name in OBJECTIVES[task]),
        help="what is ranked by (default: throughput, of sampling latency); cost is in GPU-seconds per image, or"
        " video, where GPUs that a point leaves work on copies of it; pareto finds all that nothing beats in both"
        " speed and memory",
    )
    sweep.add_argument("--out", type=file_flag, metavar="FILE", help="write all rows, .csv or .parquet")
    sweep.add_argument(
        "--store",
        type=file_flag,
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


def _add_compare(compare: argparse.ArgumentParser, *_: object) -> None:
    from sim.cli.stores import compare_command

    compare.add_argument(
        "before", type=Path, metavar="A", help="a store, rows of a sweep (.csv) or results (.json)"
    )
    compare.add_argument("after", type=Path, metavar="B", help="another")
    compare.add_argument(
        "--question",
        type=lambda text: text.split(","),
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

    def outputs(parser: argparse.ArgumentParser) -> None:
        parser.add_argument("--format", choices=("text", "torch"), default="text", help="how to write it")

    _add_question(schedule, arguments, schedule_command, outputs, required_strategy=True, optional_model=True)


def _add_synthesize(synthesize: argparse.ArgumentParser, *_: object) -> None:
    from sim.cli.flags import small_integer
    from sim.cli.synthesize import add_flags, run_synthesize

    add_flags(synthesize, small_integer)
    synthesize.set_defaults(command=run_synthesize)


def _add_measure(measure: argparse.ArgumentParser, *_: object) -> None:
    from sim.cli.command_files import MEASURING, add_commands

    add_commands(measure, "measure", MEASURING)


def _add_completion(completion: argparse.ArgumentParser, *_: object) -> None:
    from sim.cli.completion import SHELLS

    completion.add_argument("shell", choices=SHELLS, help="the shell that is to read the script")
    completion.set_defaults(command=_completion_command)


def _completion_command(options: argparse.Namespace) -> int:
    """Print the script that completes command lines in a shell."""
    from sim.cli.completion import print_completion

    print_completion(options.make_whole_parser(), options.shell)
    return 0


Add = Callable[[argparse.ArgumentParser, str, Sequence[str]], None]
COMMANDS: Final[Mapping[str, tuple[str, str, Add]]] = {
    "models": ("list the models", "List the models, or show the file of one.", _add_list),
    "clusters": ("list the clusters", "List the clusters, or show the file of one.", _add_list),
    "devices": ("list the devices", "List the devices, or show the file of one.", _add_list),
    "stacks": ("list the software stacks", "List the software stacks, or show the file of one.", _add_list),
    "strategies": ("list the strategies and their parameters", "", _add_list),
    "run": ("simulate one strategy", "Simulate one strategy.", _add_run),
    "launch": (
        "print what starts a point in a runtime",
        "Print the flags, the configuration or the code that starts a point in a runtime.",
        _add_launch,
    ),
    "sweep": ("find the best strategy", "Find the best strategy.", _add_sweep),
    "tune": (
        "tune PULSE's degrees and micro-batch",
        "Search pipeline degree P, data-parallel degree G and micro-batch b of pulse, with M = P.",
        _add_tune,
    ),
    "schedule": ("print a strategy's order", "Print a strategy's order.", _add_schedule),
    "synthesize": ("find the shortest order", "Find the shortest order of a pipeline.", _add_synthesize),
    "measure": (
        "count a model, time its layers or links on this machine",
        "Count a model, time its layers or the links of this machine, and write files that all other commands take.",
        _add_measure,
    ),
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
