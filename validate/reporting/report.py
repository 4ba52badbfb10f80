"""Writes the report: every chapter is computed anew, so that what it says is what this checkout does."""

import argparse
from collections.abc import Iterator, Mapping
from typing import Any, Final

from rich.table import Table
from rich.text import Text

from validate.closed_forms.report import closed_forms, summary
from validate.closed_forms.report import sections as form_sections
from validate.fitting.device_fits import fit_device, residual_table
from validate.fitting.device_fits import summary as fit_summary
from validate.fitting.equations import OBSERVATIONS
from validate.published import report as published
from validate.published.figure import plot_published
from validate.published.ledger import check_path
from validate.published.records import TASKS
from validate.reporting.environment import environment
from validate.reporting.measured import read_measured
from validate.reporting.page import Chapter, page
from validate.reporting.sections import Section
from validate.writing import write_file

TITLE: Final = "diffusim: predicted, published, measured"
PUBLISHED: Final = {
    "train": "Numbers that papers print on training, and predicted ones; where one was used in a fit, the table says"
    " so.",
    "sample": "Latencies and memory that papers print, and predicted ones.",
}
MEASURED: Final = {
    "times": ("Measured times", "Layers and stages as they were timed."),
    "links": ("Measured links", "Point-to-point messages and collectives as they were timed."),
    "runs": ("Executed schedules", "Plans that real processes carried out, beside their simulation."),
}
"""Title and text of the chapters on files of measurements, by what they are of."""


def run_report(options: argparse.Namespace) -> None:
    """Write the report into one file; nothing is left behind where it fails."""
    check_path("--output", options.output, [".html"])
    own = list(
        measured_chapters(vars(options))
    )  # first: what cannot be read is said before anything is computed
    chapters = [
        forms_chapter(),
        *published_chapters(options.task),
        device_fits(),
        *own,
        environment_chapter(),
    ]
    write_file(options.output, page(TITLE, chapters))


def forms_chapter() -> Chapter:
    """The closed forms: a line per family, then every value."""
    forms = closed_forms()
    words = "What formulas say of pipelines and samplers, beside what a replay of the same plan takes."
    return Chapter("Closed forms", words, [summary(forms), *form_sections(forms)])


def published_chapters(task: str | None) -> Iterator[Chapter]:
    """The published numbers of one task or both: what they amount to, then the tables of each task."""
    tables: dict[str, list[Section]] = {name: [] for name in TASKS}
    ledger = published.report(task, lambda of, section: tables[of].append(section))
    words = (
        "Every number that papers print, by source: filled markers are judged, hollow ones were fitted to; what lies in"
        " the band is predicted within 15 %. Numbers that judge nothing are listed with the reason."
    )
    figure = ("predicted against published numbers", plot_published(ledger))
    summaries = ledger.sections()[::-1]  # the shortest first: a page is read from its top
    yield Chapter("Predicted against published", words, summaries, [figure])
    for (name, said), title in zip(PUBLISHED.items(), ("training", "sampling"), strict=True):
        if tables[name]:
            yield Chapter(f"Published: {title}", said, tables[name])


def device_fits() -> Chapter:
    """The fit of every device that published latencies were fitted to."""
    words = (
        "Rates of devices, fitted to published latencies of one GPU (non-negative least squares on relative errors)."
        " 'Without it' is the prediction of the fit to all other rows."
    )
    names = sorted(path.stem for path in OBSERVATIONS.glob("*.toml"))
    return Chapter("Device fits", words, [_fit(name) for name in names])


def _fit(name: str) -> Section:
    report = fit_device(name)
    header, rows = cells(residual_table(report))
    return Section(name, header, rows, ". ".join(fit_summary(report)))


def cells(table: Table) -> tuple[list[str], list[list[str]]]:
    """The header and the rows of a table of the terminal, without its colours."""
    header = [Text.from_markup(str(column.header)).plain for column in table.columns]
    columns = [[Text.from_markup(str(cell)).plain for cell in column.cells] for column in table.columns]
    return header, [list(row) for row in zip(*columns, strict=True)]


def measured_chapters(measured: Mapping[str, Any]) -> Iterator[Chapter]:
    """One chapter per kind of measurement that files were given for, by the keys of ``MEASURED``."""
    for kind, (title, words) in MEASURED.items():
        if paths := measured.get(kind):
            yield Chapter(title, words, [section for path in paths for section in read_measured(path)])


def environment_chapter() -> Chapter:
    """What the report was computed with."""
    return Chapter("How this was made", "python -m validate report; nothing is typed in.", [environment()])
