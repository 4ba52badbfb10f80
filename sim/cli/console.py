"""The console: command lines whose refusals are one line, for ``sim`` and for ``python -m validate``."""

import argparse
import os
import re
import sys
from collections.abc import Callable, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any, NoReturn

from profiles.errors import DiffusimError, InputError, in_flags, near, one_line, shown


class Parser(argparse.ArgumentParser):
    """An argument parser whose refusals are one line, and which never guesses a flag from its beginning."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:  # noqa: ANN401
        kwargs.setdefault("allow_abbrev", False)
        kwargs.setdefault("formatter_class", argparse.RawDescriptionHelpFormatter)
        super().__init__(*args, **kwargs)

    def error(self, message: str) -> NoReturn:
        """Raise what is wrong."""
        raise InputError(re.sub(r"^argument (\S+):(?= (is|has) )", r"\1", message))

    def _get_values(self, action: argparse.Action, arg_strings: list[str]) -> Any:  # noqa: ANN401
        """Return the values of an action; two dashes are none, for which argparse gives an empty list."""
        if action.option_strings and arg_strings == ["--"]:
            raise argparse.ArgumentError(action, "expected one argument")
        return super()._get_values(action, arg_strings)

    def _check_value(self, action: argparse.Action, value: object) -> None:
        """Refuse what is none of the choices of an action, in this project's words."""
        if action.choices is not None and value not in action.choices:
            choices = list(map(str, action.choices))
            rule = f"{near(str(value), choices)}must be one of {', '.join(choices)}"
            raise argparse.ArgumentError(action, f"is {shown(value)}, {rule}")


def note(text: str) -> None:
    """Print a line on stderr."""
    print(f"sim: {in_flags(text)}", file=sys.stderr)


def flags_of(parser: argparse.ArgumentParser) -> list[str]:
    """Return the flags of a command that its help shows."""
    visible = [action for action in parser._actions if action.help is not argparse.SUPPRESS]
    return [flag for action in visible for flag in action.option_strings if flag.startswith("--")]


def guarded(program: str, run: Callable[[Sequence[str]], int], arguments: Sequence[str]) -> int:
    """Run a command line; return 2 after one line for what the user can mend, 130 on Ctrl-C, else its exit code."""
    for name in ("stdout", "stderr"):
        if getattr(sys, name) is None:  # closed by whoever started us
            setattr(sys, name, Path(os.devnull).open("w", encoding="utf-8"))  # noqa: SIM115  until the process ends
        with suppress(AttributeError):  # a question mark for whatever the encoding lacks
            getattr(sys, name).reconfigure(errors="replace")
    try:
        try:
            code = run(arguments)
        except SystemExit as end:  # argparse, after --help and --version, or rich, after a broken pipe
            code = 0 if isinstance(end.__context__, BrokenPipeError) else int(end.code or 0)
        print(end="", flush=True)
        return code
    except DiffusimError as error:
        words, code = f"error: {one_line(in_flags(error.message))}", 2
    except KeyboardInterrupt:
        words, code = "interrupted", 130
    except BrokenPipeError:  # whoever read the output has seen enough; the rest goes nowhere
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 0
    except OSError as error:
        where = f"{error.filename}: " if error.filename else ""
        words, code = f"error: {one_line(where + (error.strerror or str(error)).lower())}", 2
    print(f"{program}: {words}", file=sys.stderr)
    return code
