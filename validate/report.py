"""The command ``report``: closed forms and published numbers beside simulated ones as one page of Markdown.

Everything is computed anew, so that the page describes this checkout.
"""

import argparse
from typing import Final

from profiles.measuring.machine import facts
from profiles.measuring.writing import write_file
from validate.closed_forms.report import closed_forms, summary
from validate.closed_forms.report import sections as form_sections
from validate.published.ledger import check_path
from validate.published.report import report
from validate.tables import Section

PACKAGES: Final = (
    "diffusim", "numpy", "scipy", "pandas", "simpy", "highspy", "pulp", "matplotlib", "torch", "diffusers",
    "transformers",
)  # fmt: skip


def run_report(options: argparse.Namespace) -> None:
    """Write the report into one file, or none if it fails."""
    check_path("--output", options.output, [".md"])
    forms, (ledger, numbers) = closed_forms(), report()
    made_by = [[key, str(value)] for key, value in facts(*PACKAGES).items()]
    sections = [summary(forms), *form_sections(forms), *ledger.sections()[::-1], *numbers]
    sections.append(Section("Made by python -m validate report", ("", ""), made_by))
    texts = ["# diffusim: predicted and published", *(section.markdown() for section in sections)]
    write_file(options.output, "\n\n".join(texts) + "\n")
