"""The command line: ``python -m validate``."""

import argparse
import sys
import tomllib
from collections.abc import Callable, Mapping, Sequence
from importlib import import_module
from pathlib import Path
from typing import Any, Final

from sim.cli.console import Parser, guarded
from sim.cli.flags import integer, number
from validate.counting.config_files import add_sources

COMMANDS: Final = tomllib.loads(Path(__file__).with_name("commands.toml").read_text(encoding="utf-8"))
TYPES: Final = {"int": int, "float": float, "path": Path, "integer": integer, "number": number}


def main(arguments: Sequence[str] | None = None) -> int:
    """Run one command; return the exit status."""
    return guarded("validate", _main, list(sys.argv[1:] if arguments is None else arguments))


def _main(arguments: Sequence[str]) -> int:
    options = make_parser().parse_args(arguments)
    return int(options.run(options) or 0)


def make_parser() -> argparse.ArgumentParser:
    """The parser of the command line: the commands of commands.toml."""
    parser: argparse.ArgumentParser = Parser(prog="validate", description="Is it true?")
    commands = parser.add_subparsers(required=True, metavar="command")
    for name, entry in COMMANDS.items():
        command = commands.add_parser(
            name, **{key: entry[key] for key in ("help", "description", "aliases") if key in entry}
        )
        _add_flags(command, entry)
        command.set_defaults(run=lambda options, path=entry["call"]: _found(path)(options))
    return parser


def _add_flags(command: argparse.ArgumentParser, entry: Mapping[str, Any]) -> None:
    if "sources" in entry:
        add_sources(command, entry["sources"])
    if "extend" in entry:
        _found(entry["extend"])(command)
    for flag, options in entry.get("flags", {}).items():
        typed = {"type": TYPES[options["type"]]} if "type" in options else {}
        command.add_argument(f"--{flag}", **options | typed)


def _found(path: str) -> Callable[..., Any]:
    """A function by its path, imported when it is called: torch and matplotlib take seconds."""
    module, _, name = path.rpartition(".")
    function: Callable[..., Any] = getattr(import_module(module), name)
    return function


if __name__ == "__main__":
    sys.exit(main())
