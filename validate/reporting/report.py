"""The command ``report``: every chapter is computed anew, so that what it says is what this checkout does."""

import argparse
from collections.abc import Iterator
from typing import Final

from validate.closed_forms.report import closed_forms, summary
from validate.closed_forms.report import sections as form_sections
from validate.machine import facts
from validate.published import report as published
from validate.published.figure import plot_published
from validate.published.ledger import check_path
from validate.published.records import TASKS
from validate.reporting.page import Chapter, page
from validate.reporting.sections import Section
from validate.writing import write_file

PACKAGES: Final = (
    "diffusim", "numpy", "scipy", "pandas", "simpy", "highspy", "pulp", "matplotlib", "torch", "diffusers",
    "transformers",
)  # fmt: skip


def environment() -> Section:
    """Versions, machine and time that the numbers were computed with."""
    return Section("Environment", ("", ""), [[key, str(value)] for key, value in facts(*PACKAGES).items()])


TITLE: Final = "diffusim: predicted, published, measured"
PUBLISHED: Final = {
    "train": "Numbers that papers print on training, and predicted ones; where one was used in a fit, the table says"
    " so.",
    "sample": "Latencies and memory that papers print, and predicted ones.",
}


def run_report(options: argparse.Namespace) -> None:
    """Write the report into one file; nothing is left behind where it fails."""
    check_path("--output", options.output, [".html"])
    forms = closed_forms()
    words = "What formulas say of pipelines and samplers, beside what a replay of the same plan takes."
    first = Chapter("Closed forms", words, [summary(forms), *form_sections(forms)])
    last = Chapter("How this was made", "python -m validate report; nothing is typed in.", [environment()])
    chapters = [first, *published_chapters(options.task), last]
    write_file(options.output, page(TITLE, chapters))


def published_chapters(task: str | None) -> Iterator[Chapter]:
    """The published numbers of one task or both: what they amount to, then the tables of each task."""
    tables: dict[str, list[Section]] = {name: [] for name in TASKS}
    ledger = published.report(task, lambda of, section: tables[of].append(section))
    words = (
        "Every number that papers print, by source: filled markers are independent, hollow ones fitted or in view;"
        " what lies in the band is predicted within 15 %. Numbers that are not independent are listed with the reason."
    )
    figure = ("predicted against published numbers", plot_published(ledger))
    summaries = ledger.sections()[::-1]  # the shortest first: a page is read from its top
    yield Chapter("Predicted against published", words, summaries, [figure])
    for (name, said), title in zip(PUBLISHED.items(), ("training", "sampling"), strict=True):
        if tables[name]:
            yield Chapter(f"Published: {title}", said, tables[name])
