"""The command line: ``python -m validate``."""

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Final

from sim.cli.command_files import MEASURING, add_commands
from sim.cli.console import Parser, guarded

OWN: Final = Path(__file__).with_name("commands.toml")


def main(arguments: Sequence[str] | None = None) -> int:
    """Run one command; return the exit status."""
    return guarded("validate", _main, list(sys.argv[1:] if arguments is None else arguments))


def _main(arguments: Sequence[str]) -> int:
    options = make_parser().parse_args(arguments)
    return int(options.command(options))


def make_parser() -> argparse.ArgumentParser:
    """The parser of the command line."""
    parser = Parser(prog="validate", description="Is it true?")
    add_commands(parser, "validate", OWN, MEASURING)
    return parser


if __name__ == "__main__":
    sys.exit(main())
