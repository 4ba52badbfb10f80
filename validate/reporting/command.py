"""The command ``report``."""

import argparse
from pathlib import Path
from typing import Any, Final

KINDS: Final = {
    "times": "measured times of layers",
    "links": "measured links",
    "runs": "executed schedules beside their simulation",
}


def add_report_parser(commands: Any) -> None:  # noqa: ANN401  argparse does not name the type
    """Add the command."""
    parser = commands.add_parser("report", help="write everything that is known into one HTML file")
    parser.add_argument(
        "--output", type=Path, metavar="FILE.html", required=True, help="write the report here"
    )
    for kind, what in KINDS.items():
        said = f"{what}, as JSON, CSV or TOML"
        parser.add_argument(f"--{kind}", type=Path, nargs="+", default=[], metavar="FILE", help=said)
    parser.add_argument("--task", choices=("train", "sample"), help="published numbers of one task alone")
    parser.set_defaults(run=run_report)


def run_report(options: argparse.Namespace) -> None:
    """Write the report."""
    from validate.reporting.report import write_report  # noqa: PLC0415  the command starts fast

    write_report(options.output, {kind: getattr(options, kind) for kind in KINDS}, options.task)
