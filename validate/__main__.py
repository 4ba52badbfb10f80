"""The command line: ``python -m validate``."""

import argparse
import sys
from collections.abc import Callable, Mapping, Sequence
from importlib import import_module
from pathlib import Path
from typing import Any, Final

from sim.cli.console import Parser, guarded
from validate.counting.config_files import add_config_arguments
from validate.fitting.command import add_fitting_parsers
from validate.measuring.command import add_measuring_parsers
from validate.running.command import add_run_parser, add_sample_parser

PIXELS: Final[Mapping[str, Any]] = {"type": int, "metavar": "PIXELS", "help": "default: the model's own"}
TASK: Final = ("train", "sample")
COMMANDS: Final[Mapping[str, tuple[str, str, Mapping[str, Any]]]] = {
    "closed-forms": (
        "print formulas beside simulated values",
        "validate.closed_forms.report.run_closed_forms",
        {"--all": {"action": "store_true", "help": "every value, not only a line per family"}},
    ),
    "published": (
        "print published numbers beside simulated ones",
        "validate.published.report.run_published",
        {
            "--task": {"choices": TASK, "help": "of one task alone (default: both)"},
            "--output": {
                "type": Path,
                "metavar": "FILE",
                "help": "write every number with its prediction here, as CSV, or as JSON if the name ends in .json",
            },
            "--bands": {
                "type": Path, "metavar": "FILE", "help": "write the bands of errors here (profiles/bands.toml)"
            },
            "--trust": {
                "type": Path, "metavar": "FILE", "help": "write the errors by kind of method here (profiles/trust.csv)"
            },
            "--figure": {"type": Path, "metavar": "FILE", "help": "draw predicted against published here"},
            "--readme": {"type": Path, "metavar": "FILE", "help": "write the table by source between its markers"},
        },
    ),
    "clusters": (
        "print published training runs on real clusters beside simulated ones",
        "validate.published.training.real_clusters.run_clusters",
        {"--rates": {"action": "store_true", "help": "also find the share of the laws that stacks reach"}},
    ),
    "hosts": ("print the pace of the hosts of boxes, from published rows", "validate.fitting.hosts.run_hosts", {}),
    "report": (
        "write everything that is known into one HTML file",
        "validate.reporting.report.run_report",
        {
            "--output": {
                "type": Path, "metavar": "FILE.html", "required": True, "help": "write the report here"
            },
            "--task": {"choices": TASK, "help": "published numbers of one task alone"},
        },
    ),
}  # fmt: skip
"""Help, function and flags of each command that needs no more than that."""


def main(arguments: Sequence[str] | None = None) -> int:
    """Run one command; return the exit status."""
    return guarded("validate", _main, list(sys.argv[1:] if arguments is None else arguments))


def _main(arguments: Sequence[str]) -> int:
    options = make_parser().parse_args(arguments)
    return int(options.run(options) or 0)


def make_parser() -> argparse.ArgumentParser:
    parser: argparse.ArgumentParser = Parser(prog="validate", description="Is it true?")
    commands = parser.add_subparsers(required=True, metavar="command")
    count = commands.add_parser("count", help="count parameters, work and bytes of a model's layers")
    add_config_arguments(count)
    count.add_argument("--height", **PIXELS)
    count.add_argument("--width", **PIXELS)
    said = "write the model folder here (default: profiles/models/MODEL; with --config: nowhere)"
    count.add_argument("--output", type=Path, metavar="DIR", help=said)
    count.set_defaults(run=_later("validate.counting.folder.run_count"))
    for name, (words, function, flags) in COMMANDS.items():
        command = commands.add_parser(name, help=words)
        for flag, options in flags.items():
            command.add_argument(flag, **options)
        command.set_defaults(run=_later(function))
    for add in (add_fitting_parsers, add_measuring_parsers, add_sample_parser):
        add(commands)
    add_run_parser(commands)
    return parser


def _later(path: str) -> Callable[[argparse.Namespace], int | None]:
    """A function by its path, imported when it is called: torch and matplotlib take seconds."""
    module, _, name = path.rpartition(".")

    def run(options: argparse.Namespace) -> int | None:
        found: Callable[[argparse.Namespace], int | None] = getattr(import_module(module), name)
        return found(options)

    return run


if __name__ == "__main__":
    sys.exit(main())
