"""The command ``closed-forms``: every formula beside its simulated value; it fails where any differs."""

import argparse
from typing import Any


def add_closed_forms_parser(commands: Any) -> None:  # noqa: ANN401  argparse does not name the type
    """Add the command."""
    parser = commands.add_parser("closed-forms", help="print formulas beside simulated values")
    parser.add_argument("--all", action="store_true", help="every value, not only a line per family")
    parser.set_defaults(run=run_closed_forms)


def run_closed_forms(options: argparse.Namespace) -> int:
    """Print the report; return 1 where a value differs by more than its tolerance."""
    from validate.closed_forms.report import closed_forms, print_report  # noqa: PLC0415  the command starts fast

    forms = closed_forms()
    print_report(forms, every=options.all)
    return int(not all(form.holds for form in forms))
