"""The command line: ``sim run``, ``sweep``, ``schedule``, ``synthesize``, and the lists of what there is.

Results go to stdout, everything else to stderr. Exit code 0; 2 with one line for anything the user can mend; 130
on Ctrl-C; a traceback is a bug.
"""

import argparse
import os
import shlex
import sys
import warnings
from collections.abc import Collection, Sequence
from contextlib import ExitStack, redirect_stderr
from functools import cache
from importlib.metadata import version
from pathlib import Path
from pkgutil import resolve_name
from time import perf_counter
from typing import Final

from profiles.errors import DiffusimNote, DiffusimWarning, InputError, near, one_line, shown
from sim.cli.commands import add_serve
from sim.cli.console import Parser, flags_of, guarded, note
from sim.cli.flags import COMMANDS, add_flags, add_question, strategy_flags
from sim.cli.listing import print_completion
from sim.cli.measuring import add_commands
from sim.inputs.experiments import Experiment
from sim.interrupts import as_keyboard_interrupt
from strategies.registry import every_strategy

QUESTIONS: Final = ("--experiment", "--result")
"""Flags that name a file with others."""


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command line and return its exit code."""
    with as_keyboard_interrupt():
        return guarded("sim", _main, list(sys.argv[1:] if arguments is None else arguments))


def _main(arguments: Sequence[str]) -> int:
    if not arguments:
        make_parser().print_help()
        return 0
    if arguments[0] in ("help", "version"):  # as other programs take them
        arguments = [*arguments[1:], f"--{arguments[0]}"]
    flag = arguments[0].partition("=")[0]
    if flag.startswith("-") and flag not in ("-h", "--help", "--version"):
        raise InputError(f"{one_line(flag, 80)} must come after the COMMAND: sim run {one_line(flag, 80)}")
    experiment = _experiment(arguments)
    if experiment is None:
        return _run(arguments)
    try:
        return _run([arguments[0], *experiment.words.values(), *arguments[1:]])
    except InputError as error:
        raise experiment.blamed(error) from None


def _experiment(arguments: Sequence[str]) -> Experiment | None:
    """Return what the file named by --experiment adds to the command line; None where none is named."""
    early = Parser(add_help=False)
    for flag in QUESTIONS:
        early.add_argument(flag, dest="experiment")
    known, rest = early.parse_known_args(arguments)
    if known.experiment is None:
        return None
    flags = frozenset(argument.partition("=")[0] for argument in rest if argument.startswith("--"))
    return Experiment.read(known.experiment, flags)


def _run(arguments: Sequence[str]) -> int:
    """Carry out a command line, the flags of an experiment among it."""
    parser = make_parser(arguments)
    command = _command_of(parser, arguments)
    if command is not None:
        for flag in (argument.partition("=")[0] for argument in arguments if argument.startswith("--")):
            if flag not in ("--", *command._option_string_actions):
                raise InputError(_describe_unknown(flag, command))
    options, unknown = parser.parse_known_args(arguments)
    if unknown:
        raise InputError(f"unexpected argument {shown(unknown[0])}")
    options.line = shlex.join(["sim", *arguments])
    with ExitStack() as stack:
        if options.quiet:
            nowhere = stack.enter_context(Path(os.devnull).open("w", encoding="utf-8"))
            stack.enter_context(redirect_stderr(nowhere))
        stack.enter_context(warnings.catch_warnings())
        warnings.simplefilter("always", DiffusimWarning)
        said = cache(note)  # of several clusters each would say the same
        warnings.showwarning = lambda message, category, *_, **__: said(
            f"{'note' if category is DiffusimNote else 'warning'}: {one_line(str(message))}"
        )
        start = perf_counter()
        code: int = options.command(options)
        if options.verbose:
            note(f"{options.subcommand} took {perf_counter() - start:.2f} s")
        return code


def _command_of(parser: argparse.ArgumentParser, words: Sequence[str]) -> argparse.ArgumentParser | None:
    """Return the parser of the command that words name, which may have its own; None where there is none."""
    nested = [action for action in parser._actions if isinstance(action, argparse._SubParsersAction)]
    if not nested:
        return parser
    inner = nested[0].choices.get(words[0]) if words else None
    return inner and _command_of(inner, words[1:])


def _describe_unknown(flag: str, command: argparse.ArgumentParser) -> str:
    """Return the message about a flag that a command does not have; it may be one of another strategy."""
    if names := command.get_default("named"):
        flags = list(dict.fromkeys(item for name in names for item in strategy_flags(name)))
        if any(flag in strategy_flags(name) for name in every_strategy()):
            rule = f"{near(flag, flags)}it has {', '.join(flags) or 'none'}"
            return f"{', '.join(names)} has no parameter {flag}; {rule}"
    meant = near(flag, flags_of(command)).rstrip() or f"{command.prog} --help shows those there are"
    return f"unknown flag {one_line(flag, 80)}; {meant}"


def make_parser(arguments: Sequence[str] = (), *, whole: bool = False) -> argparse.ArgumentParser:
    """Return the parser; only the command of the arguments gets its flags, those of the strategies named among them.

    Args:
        arguments: the command line.
        whole: add the flags of all commands.
    """
    top = COMMANDS["sim"]
    parser = Parser(prog="sim", description=top["description"], epilog=_examples("sim"))
    parser.add_argument("--version", action="version", version=f"diffusim {version('diffusim')}")
    listed = parser.add_subparsers(required=True, metavar="COMMAND")
    for name, words in COMMANDS.items():
        if words is top:
            continue
        about = words.get("description", words["help"])
        command = listed.add_parser(name, help=words["help"], description=about, epilog=_examples(name))
        if whole or name in arguments[:1]:
            _add_flags(command, name, arguments)
            loudness = command.add_mutually_exclusive_group()
            loudness.add_argument("-q", "--quiet", action="store_true", help="only errors on stderr")
            loudness.add_argument("-v", "--verbose", action="store_true", help="say what took how long")
            command.set_defaults(subcommand=name)
            if command.get_default("named"):
                command.epilog = _examples(name, flags_of(command))
    return parser


def _add_flags(command: argparse.ArgumentParser, name: str, arguments: Sequence[str]) -> None:
    """Add the flags of a command, and what carries it out."""
    words = COMMANDS[name]
    if "measured" in words:
        add_question(command, arguments, words["measured"], sweeps=words.get("sweeps", False))
    for flag in words.get("optional", ()):
        command._option_string_actions[flag].required = False
    if name == "serve":
        add_serve(command, arguments)
    elif name == "measure":
        add_commands(command.add_subparsers(required=True, metavar="command"), "measure")
    add_flags(command, words)
    if "run" in words:
        command.set_defaults(command=resolve_name(words["run"]))


def _examples(name: str, flags: Collection[str] | None = None) -> str:
    """Return the examples of a command as the end of its help; those alone that can do with some flags."""
    chosen = [
        line
        for line in COMMANDS[name]["examples"]
        if flags is None or {word for word in line.split() if word.startswith("--")} <= {*flags}
    ]
    return "\n  ".join(("examples:", *chosen))


def complete(options: argparse.Namespace) -> int:
    """Print the script with which a shell completes command lines."""
    return print_completion(make_parser(whole=True), options.shell)
