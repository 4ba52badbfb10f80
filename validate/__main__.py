"""The command line: ``python -m validate``."""

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path

from sim.cli.console import Parser, guarded
from validate.closed_forms.command import add_closed_forms_parser
from validate.counting.config_files import add_config_arguments, run_count
from validate.fitting.command import add_fitting_parsers
from validate.green.command import add_green_parser
from validate.measuring.command import add_profiling_parsers
from validate.measuring.link_command import add_links_parser
from validate.published.command import add_published_parser
from validate.reporting.command import add_report_parser
from validate.running.command import add_run_parser, add_sample_parser


def main(arguments: Sequence[str] | None = None) -> int:
    """Run one command; return the exit status."""
    return guarded("validate", _main, list(sys.argv[1:] if arguments is None else arguments))


def _main(arguments: Sequence[str]) -> int:
    options = _parser().parse_args(arguments)
    return int(options.run(options) or 0)


def _parser() -> argparse.ArgumentParser:
    parser: argparse.ArgumentParser = Parser(prog="validate", description="Is it true?")
    commands = parser.add_subparsers(required=True, metavar="command")
    count = commands.add_parser("count", help="count parameters, work and bytes of a model's layers")
    add_config_arguments(count)
    count.add_argument("--height", type=int, metavar="PIXELS", help="default: the model's own")
    count.add_argument("--width", type=int, metavar="PIXELS", help="default: the model's own")
    count.add_argument(
        "--output",
        type=Path,
        metavar="DIR",
        help="write the model folder here (default: profiles/models/MODEL; with --config: nowhere)",
    )
    count.set_defaults(run=run_count)
    work = commands.add_parser("work", help="count the work of every observed model and resolution")
    work.add_argument("--output", type=Path, metavar="FILE", required=True, help="write the table here")
    work.set_defaults(run=_work)
    add_fitting_parsers(commands)
    add_closed_forms_parser(commands)
    add_published_parser(commands)
    add_links_parser(commands)
    add_sample_parser(commands)
    add_report_parser(commands)
    add_profiling_parsers(commands)
    add_run_parser(commands)
    add_green_parser(commands)
    return parser


def _work(options: argparse.Namespace) -> None:
    from validate.counting.work import write_work  # noqa: PLC0415  importing torch takes seconds

    write_work(options.output)


if __name__ == "__main__":
    sys.exit(main())
