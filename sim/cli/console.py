"""The console: command lines whose refusals are one line, for ``sim`` and for ``python -m validate``."""

import argparse
import os
import re
import sys
from collections.abc import Callable, Sequence
from contextlib import redirect_stderr, suppress
from io import TextIOWrapper
from pathlib import Path
from typing import Any, Final, NoReturn, TextIO, cast

from profiles.errors import DiffusimError, InputError, in_flags, near, one_line, shown

WORDINGS: Final = (
    (r"argument (.+): expected one argument", r"\1 needs a value"),
    (r"argument (.+): ignored explicit argument (.*)", r"\1 is \2, but takes no value"),
    (r"argument (.+?): (.*)", r"\1 \2"),
)
"""Refusals in the words of argparse, and in those of this project."""
REQUIRED: Final = "the following arguments are required: "


class MissingFlagError(InputError):
    """A flag that must be given is not; another may be it, mistyped."""


class Parser(argparse.ArgumentParser):
    """An argument parser whose refusals are one line, and which never guesses a flag from its beginning."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:  # noqa: ANN401
        kwargs.setdefault("allow_abbrev", False)
        kwargs.setdefault("formatter_class", argparse.RawDescriptionHelpFormatter)
        super().__init__(*args, **kwargs)

    def error(self, message: str) -> NoReturn:
        """Raise what is wrong, in this project's words."""
        if message.startswith(REQUIRED):
            raise MissingFlagError(f"{message.removeprefix(REQUIRED)} must be given")
        for pattern, wording in WORDINGS:
            match = re.fullmatch(pattern, message, re.DOTALL)
            if match:
                raise InputError(match.expand(wording))
        raise InputError(message)

    def _get_values(self, action: argparse.Action, arg_strings: list[str]) -> Any:  # noqa: ANN401
        """The values of an action; two dashes are none, for which argparse gives an empty list."""
        if action.option_strings and arg_strings == ["--"]:
            raise argparse.ArgumentError(action, "expected one argument")
        return super()._get_values(action, arg_strings)

    def _check_value(self, action: argparse.Action, value: object) -> None:
        """Refuse what is none of the choices of an action, in this project's words."""
        if action.choices is not None and value not in action.choices:
            choices = list(map(str, action.choices))
            rule = f"{near(str(value), choices)}must be one of {', '.join(choices)}"
            raise argparse.ArgumentError(action, f"is {shown(value)}, {rule}")


def file_flag(text: str) -> Path:
    """A file to write; an empty name is refused."""
    if not text:
        raise argparse.ArgumentTypeError("is empty, must name a file")
    return Path(text)


def flags_of(parser: argparse.ArgumentParser) -> list[str]:
    """The flags of a command that its help shows."""
    visible = [action for action in parser._actions if action.help is not argparse.SUPPRESS]
    return [flag for action in visible for flag in action.option_strings if flag.startswith("--")]


class _Notes:
    """A stream for notes: that nobody reads them any longer, or that they find no room, changes nothing else."""

    def __init__(self, stream: TextIO) -> None:
        self._stream = stream

    def write(self, text: str) -> int:
        """Write what can be written."""
        with suppress(OSError):
            self._stream.write(text)
        return len(text)

    def flush(self) -> None:
        """Pass on what can be passed on."""
        with suppress(OSError):
            self._stream.flush()

    def __getattr__(self, name: str) -> Any:  # noqa: ANN401  as the stream has it
        return getattr(self._stream, name)


def guarded(program: str, run: Callable[[Sequence[str]], int], arguments: Sequence[str]) -> int:
    """Run a command line; return 2 after one line for what the user can mend, 130 on Ctrl-C, else its exit code."""
    for name in ("stdout", "stderr"):
        if getattr(sys, name) is None:  # closed by whoever started us
            setattr(sys, name, Path(os.devnull).open("w", encoding="utf-8"))  # noqa: SIM115  until the process ends
        _never_fails(getattr(sys, name))
    with redirect_stderr(cast(TextIO, _Notes(sys.stderr))):
        return _guarded(program, run, arguments)


def _guarded(program: str, run: Callable[[Sequence[str]], int], arguments: Sequence[str]) -> int:
    try:
        try:
            code = run(arguments)
        except SystemExit as end:  # argparse, after --help and --version, or rich, after a broken pipe
            code = 0 if isinstance(end.__context__, BrokenPipeError) else int(end.code or 0)
        print(end="", flush=True)
        return code
    except DiffusimError as error:
        print(f"{program}: error: {one_line(in_flags(error.message))}", file=sys.stderr)
        return 2
    except KeyboardInterrupt:
        print(f"{program}: interrupted", file=sys.stderr)
        return 130
    except BrokenPipeError:  # whoever read the output has seen enough; the rest goes nowhere
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 0
    except OSError as error:
        where = f"{error.filename}: " if error.filename else ""
        print(
            f"{program}: error: {one_line(where + (error.strerror or str(error)).lower())}", file=sys.stderr
        )
        return 2


def _never_fails(stream: object) -> None:
    """Let a stream write a question mark for whatever its encoding lacks, where it would be an error."""
    if isinstance(stream, TextIOWrapper) and not stream.encoding.lower().startswith("utf"):
        stream.reconfigure(errors="replace")
