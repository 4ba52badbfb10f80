"""The command ``report``: closed forms, published numbers and device fits as one page of Markdown.

Every chapter is computed anew, so that it describes this checkout.
"""

import argparse
from base64 import b64encode
from io import BytesIO
from typing import Final

from profiles.measuring.machine import facts
from profiles.measuring.writing import write_file
from validate.closed_forms.report import closed_forms, summary
from validate.closed_forms.report import sections as form_sections
from validate.published import report as published
from validate.published.figure import plot_published
from validate.published.ledger import check_path
from validate.published.records import TASKS
from validate.tables import Section

PACKAGES: Final = (
    "diffusim", "numpy", "scipy", "pandas", "simpy", "highspy", "pulp", "matplotlib", "torch", "diffusers",
    "transformers",
)  # fmt: skip
CHAPTERS: Final = {
    "Closed forms": "What formulas say of pipelines and samplers, beside what a replay of the same plan takes.",
    "Predicted against published": "Every number that papers print, by source: filled markers are independent,"
    " hollow ones fitted or in view; what lies in the band is predicted within 15 %. Numbers that are not independent"
    " are listed with the reason.",
    "Published: train": "Numbers that papers print on training, and predicted ones; where one was used in a fit, the"
    " table says so.",
    "Published: sample": "Latencies and memory that papers print, and predicted ones.",
    "How this was made": "python -m validate report; nothing is typed in.",
}
"""Chapters with their introductions."""


def run_report(options: argparse.Namespace) -> None:
    """Write the report into one file, or none if it fails."""
    check_path("--output", options.output, [".md"])
    forms = closed_forms()
    tables: dict[str, list[Section]] = {name: [] for name in TASKS}
    ledger = published.report(options.task, lambda task, section: tables[task].append(section))
    environment = [[key, str(value)] for key, value in facts(*PACKAGES).items()]
    chapters = {
        "Closed forms": [summary(forms), *form_sections(forms)],
        "Predicted against published": ledger.sections()[::-1],
        **{f"Published: {name}": sections for name, sections in tables.items() if sections},
        "How this was made": [Section("Environment", ("", ""), environment)],
    }
    buffer = BytesIO()
    plot_published(ledger).savefig(buffer, format="svg", metadata={"Date": None})
    data = b64encode(buffer.getvalue()).decode("ascii")
    lines = ["# diffusim: predicted, published, measured"]
    for title, sections in chapters.items():
        lines += [f"\n## {title}\n", f"{CHAPTERS[title]}\n"]
        if title == "Predicted against published":
            lines.append(f"![{title}](data:image/svg+xml;base64,{data})\n")
        lines += [f"{section.markdown()}\n" for section in sections]
    write_file(options.output, "\n".join(lines))
