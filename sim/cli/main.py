"""The command line: ``sim run``, ``sweep``, ``tune``, ``schedule``, ``synthesize``, and the lists of what there is.

Results go to stdout, everything else to stderr. Exit code 0; 2 with one line for anything the user can mend; 130
on Ctrl-C; a traceback is a bug.
"""

import argparse
import os
import shlex
import sys
import warnings
from collections.abc import Callable, Sequence
from contextlib import redirect_stderr
from importlib.metadata import version
from pathlib import Path
from time import perf_counter
from typing import TYPE_CHECKING, Final, TextIO

from profiles.errors import (
    DiffusimNote,
    DiffusimWarning,
    InputError,
    near,
    near_or_all,
    one_line,
    shown,
)
from sim.cli.console import MissingFlagError, Parser, flags_of, guarded
from sim.cli.examples import epilog
from sim.cli.offers import COMMANDS
from sim.interrupts import as_keyboard_interrupt

if TYPE_CHECKING:
    from sim.inputs.experiments import Experiment


QUESTIONS: Final = ("--experiment", "--result")
"""Flags that name a file with others."""


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command line and return its exit code."""
    with as_keyboard_interrupt():
        return guarded("sim", _main, list(sys.argv[1:] if arguments is None else arguments))


def _main(arguments: Sequence[str]) -> int:
    if not arguments:
        make_parser(arguments).print_help()
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
    if not any(argument.partition("=")[0] in QUESTIONS for argument in arguments):
        return None
    from sim.inputs.experiments import Experiment

    early = Parser(add_help=False)
    for flag in QUESTIONS:
        early.add_argument(flag, dest="experiment", type=_result if flag == "--result" else str)
    known, rest = early.parse_known_args(arguments)
    flags = frozenset(argument.partition("=")[0] for argument in rest if argument.startswith("--"))
    command = _command_of(make_parser(arguments), [word for word in arguments if not word.startswith("-")])
    actions = command._option_string_actions if command else {}
    return Experiment.read(
        known.experiment, flags, {flag: action.nargs == 0 for flag, action in actions.items()}
    )


def _result(name: str) -> str:
    """The name of a file with a result; one of rows or of anything else is refused."""
    if Path(name).suffix not in (".json", ".toml") and Path(name).is_file():
        rule = "must be a .json file, which holds what `sim run --json` printed"
        raise argparse.ArgumentTypeError(f"is {shown(name)}, {rule}")
    return name


def _asked(arguments: Sequence[str], experiment: "Experiment | None" = None) -> int:
    """Do what the arguments ask for, those of an experiment among them."""
    _check_command_first(arguments)
    parser = make_parser(arguments)
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


def _check_command_first(arguments: Sequence[str]) -> None:
    """Refuse flags in front of the command.

    Raises:
        InputError: there is one.
    """
    flag = arguments[0].partition("=")[0]
    named = next((word for word in arguments if word in COMMANDS), None)
    if flag.startswith("-") and named is not None and flag not in ("-h", "--help", "--version"):
        raise InputError(f"{one_line(flag, 80)} must come after the COMMAND: sim {named} {flag} ...")


def _check_flags(parser: argparse.ArgumentParser, arguments: Sequence[str]) -> None:
    """Refuse flags that the command asked for does not have.

    Raises:
        InputError: there is one.
    """
    command = _command_of(parser, [argument for argument in arguments if not argument.startswith("-")])
    for flag in (argument.partition("=")[0] for argument in arguments if argument.startswith("--")):
        if command is not None and flag not in command._option_string_actions:
            raise InputError(_describe_unknown(flag, argparse.Namespace(flags=flags_of(command))))


def _command_of(parser: argparse.ArgumentParser, words: Sequence[str]) -> argparse.ArgumentParser | None:
    """The parser of the command that words name, which may have commands of its own; None where there is none."""
    nested = [action for action in parser._actions if isinstance(action, argparse._SubParsersAction)]
    if not nested:
        return parser
    inner = nested[0].choices.get(words[0]) if words else None
    return inner and _command_of(inner, words[1:])


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
    from sim.cli.flags import strategy_flags, strategy_names
    from strategies.registry import strategy_named

    said = (getattr(options, "strategy", None) or "").split(",")
    names = [strategy_named(name, silent=True) for name in said if name]
    own = list(dict.fromkeys(flag for name in names for flag in strategy_flags(name)))
    if names and any(argument in strategy_flags(name) for name in strategy_names()):
        meant = near(argument, own)
        return f"{', '.join(names)} has no parameter {argument}; {meant}it has {', '.join(own) or 'none'}"
    known = list(dict.fromkeys([*options.flags, *own]))
    if argument in known:
        return f"{argument} must come after the COMMAND"
    others = [name for name, flags in _flags_by_command().items() if argument in flags]
    rule = f", which is of sim {', '.join(others)}" if others else f"; {near_or_all(argument, known)}"
    return f"unknown flag {one_line(argument, 80)}{rule}"


def _flags_by_command() -> dict[str, list[str]]:
    """The flags of each command; those of strategies and of commands of its own are left out."""
    parser = make_parser((), whole=True)
    return {name: flags_of(command) for name in COMMANDS if (command := _command_of(parser, [name]))}


def make_parser(arguments: Sequence[str], *, whole: bool = False) -> argparse.ArgumentParser:
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
    parser.set_defaults(make_whole_parser=lambda: make_parser((), whole=True))
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
    flags = flags_of(parser)
    parser.set_defaults(asked=name, flags=flags)
    if parser.get_default("named"):
        parser.epilog = epilog(name, flags)


if __name__ == "__main__":
    sys.exit(main())
