"""The command ``published``."""

import argparse
from pathlib import Path
from typing import Any


def add_published_parser(commands: Any) -> None:  # noqa: ANN401  argparse does not name the type
    """Add the command."""
    parser = commands.add_parser("published", help="print published numbers beside simulated ones")
    parser.add_argument("--task", choices=("train", "sample"), help="of one task alone (default: both)")
    parser.add_argument(
        "--output",
        type=Path,
        metavar="FILE",
        help="write every number with its prediction here, as CSV, or as JSON if the name ends in .json",
    )
    parser.add_argument("--figure", type=Path, metavar="FILE", help="draw predicted against published here")
    parser.set_defaults(run=run_published)


def run_published(options: argparse.Namespace) -> None:
    """Print the report and the summary, and write what was asked for."""
    from sim.report.plots.charts import ENDINGS  # noqa: PLC0415  importing matplotlib takes a while
    from validate.published.figure import write_figure  # noqa: PLC0415  as above
    from validate.published.ledger import check_path  # noqa: PLC0415  as above
    from validate.published.report import report  # noqa: PLC0415  as above
    from validate.reporting.sections import print_sections  # noqa: PLC0415  as above

    check_path("--figure", options.figure, ENDINGS)
    check_path("--output", options.output)
    ledger = report(options.task, lambda _, section: print_sections([section]))
    print_sections(ledger.sections())
    ledger.write(options.output)
    write_figure(ledger, options.figure)
