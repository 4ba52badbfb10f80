"""The command line: ``python -m validate``."""

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Final

from sim.cli.console import Parser, guarded
from sim.cli.measuring import add_commands

OWN: Final = Path(__file__).with_name("commands.toml")


def main(arguments: Sequence[str] | None = None) -> int:
    """Run one command; return the exit status."""
    return guarded("validate", _main, list(sys.argv[1:] if arguments is None else arguments))


def _main(arguments: Sequence[str]) -> int:
    options = make_parser().parse_args(arguments)
    return int(options.command(options))


def make_parser() -> argparse.ArgumentParser:
    """The parser of the command line."""
    from validate.running.command import add_samplers, add_schedules

    parser = Parser(prog="validate", description="Is it true?")
    commands = parser.add_subparsers(required=True, metavar="command")
    extend = {
        "run": add_schedules,
        "sample": add_samplers,
    }
    add_commands(commands, "validate", OWN, extend)
    add_commands(commands, "validate")
    return parser


if __name__ == "__main__":
    sys.exit(main())
