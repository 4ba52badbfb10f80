"""Command files: commands that stand in TOML, with their flags as argparse takes them.

What a command calls is imported when it is called: torch and matplotlib take seconds, and need not be there.
"""

import argparse
import tomllib
from collections.abc import Callable, Mapping
from importlib import import_module
from pathlib import Path
from typing import Any, Final

import profiles
from profiles.errors import InputError
from sim.cli.console import flags_of
from sim.cli.flags import integer, number

MEASURING: Final = Path(profiles.__file__).parent / "measuring" / "commands.toml"
"""The commands of ``sim measure``, which are also those of ``python -m validate``."""
TYPES: Final = {"int": int, "float": float, "path": Path, "integer": integer, "number": number}


def add_commands(parser: argparse.ArgumentParser, extra: str, *paths: Path) -> None:
    """Add the commands of some files.

    Args:
        parser: gets them.
        extra: what brings the packages that they import beyond those of this distribution.
        paths: the files.
    """
    commands = parser.add_subparsers(required=True, metavar="command")
    for path in paths:
        for name, entry in tomllib.loads(path.read_text(encoding="utf-8")).items():
            said = {key: entry[key] for key in ("help", "description", "aliases") if key in entry}
            command = commands.add_parser(name, **said)
            _add_flags(command, entry)
            command.set_defaults(command=_calling(name, entry["call"], extra), flags=flags_of(command))


def _add_flags(command: argparse.ArgumentParser, entry: Mapping[str, Any]) -> None:
    if "extend" in entry:
        path, *words = entry["extend"]
        _found(path)(command, *words)
    for flag, options in entry.get("flags", {}).items():
        typed = {"type": TYPES[options["type"]]} if "type" in options else {}
        command.add_argument(f"--{flag}", **options | typed)


def _calling(name: str, path: str, extra: str) -> Callable[[argparse.Namespace], int]:
    """What carries a command out; a package that is missing is named, with the extra that brings it."""

    def call(options: argparse.Namespace) -> int:
        try:
            return int(_found(path)(options) or 0)
        except ModuleNotFoundError as error:
            raise InputError(f"{name} needs {error.name}: pip install 'diffusim[{extra}]'") from error

    return call


def _found(path: str) -> Callable[..., Any]:
    """A function by its path."""
    module, _, name = path.rpartition(".")
    function: Callable[..., Any] = getattr(import_module(module), name)
    return function
