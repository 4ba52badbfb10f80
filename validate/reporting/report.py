"""Writes the report: every chapter is computed anew, so that what it says is what this checkout does."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from io import StringIO
from pathlib import Path

from rich.console import Console
from rich.table import Table

from profiles.errors import InputError
from validate.closed_forms.forms import sections as form_sections
from validate.closed_forms.report import closed_forms, summary
from validate.fitting.device_fits import fit_device, residual_table
from validate.fitting.device_fits import summary as fit_summary
from validate.fitting.equations import OBSERVATIONS
from validate.published import report as training_report
from validate.published import sampling_report
from validate.published.accounts import Account, sampling_accounts, training_accounts
from validate.published.figure import plot_published
from validate.published.rows import Prediction, Section, all_published
from validate.published.summary import summary as published_summary
from validate.reporting.environment import environment
from validate.reporting.measured import read_measured
from validate.reporting.page import Chapter, page
from validate.writing import write_file

TITLE = "diffusim: predicted, published, measured"


@dataclass(frozen=True, slots=True)
class Measured:
    """Files of measurements, by what they are of."""

    times: tuple[Path, ...] = ()
    links: tuple[Path, ...] = ()
    runs: tuple[Path, ...] = ()


def write_report(path: Path, measured: Measured, task: str | None = None) -> None:
    """Write the report into one file; nothing is left behind where it fails.

    Args:
        path: the file, which must end in .html.
        measured: files of measurements.
        task: ``train`` or ``sample`` where only one is wanted of the published numbers.

    Raises:
        InputError: a file of measurements cannot be read, or the report not be written.
    """
    check_output(path)
    own = list(measured_chapters(measured))
    chapters = [*forms_and_published(task), device_fits(), *own, environment_chapter()]
    write_file(path, page(TITLE, chapters))


def check_output(path: Path) -> None:
    """Refuse a file that could not be written at the end.

    Raises:
        InputError: it does not end in .html, or its folder is missing.
    """
    if path.suffix.lower() != ".html":
        raise InputError(f"--output is '{path}', must end in .html")
    if not path.parent.is_dir() or path.is_dir():
        raise InputError(f"--output is '{path}', must be a file in a folder that exists")


def forms_and_published(task: str | None) -> Iterator[Chapter]:
    """Yield the closed forms, and the published numbers of one task or both."""
    yield forms_chapter()
    training = list(training_report.made()) if task != "sample" else []
    sampling = sampling_report.every_prediction() if task != "train" else []
    predicted = [prediction for section in training for prediction in section.predictions]
    accounts = training_accounts(predicted) if task != "sample" else []
    accounts += sampling_accounts(sampling) if task != "train" else []
    yield summary_chapter(accounts)
    if training:
        yield training_chapter(training, predicted)
    if sampling:
        tables = list(sampling_report.report(sampling))
        yield Chapter(
            "Published: sampling", "Latencies and memory that papers print, and predicted ones.", tables
        )


def forms_chapter() -> Chapter:
    """Return the closed forms: a line per family, then every value."""
    forms = closed_forms()
    words = "What formulas say of pipelines and samplers, beside what a replay of the same plan takes."
    return Chapter("Closed forms", words, [summary(forms), *form_sections(forms)])


def summary_chapter(accounts: Sequence[Account]) -> Chapter:
    """Return the figure of all published numbers, and what they amount to by source and method."""
    words = (
        "Every number that papers print, by source: filled markers are judged, hollow ones were fitted to; what lies in"
        " the band is predicted within 15 %. Numbers that judge nothing are listed with the reason."
    )
    figure = ("predicted against published numbers", plot_published(accounts))
    tables = published_summary(accounts)[::-1]  # the shortest first: a page is read from its top
    return Chapter("Predicted against published", words, tables, [figure])


def training_chapter(sections: Sequence[Section], predicted: Sequence[Prediction]) -> Chapter:
    """Return the published numbers of training, then each with what covers it."""
    words = "Numbers that papers print on training, and predicted ones; where one was used in a fit, the table says so."
    every = training_report.coverage(all_published(), predicted)
    return Chapter("Published: training", words, [*sections, every])


def device_fits() -> Chapter:
    """Return the fit of every device that published latencies were fitted to."""
    words = (
        "Rates of devices, fitted to published latencies of one GPU (non-negative least squares on relative errors)."
        " 'Without it' is the prediction of the fit to all other rows."
    )
    names = sorted(path.stem for path in OBSERVATIONS.glob("*.toml"))
    return Chapter("Device fits", words, [_fit(name) for name in names])


def _fit(name: str) -> Section:
    report = fit_device(name)
    table = residual_table(report)
    header, rows = cells(table)
    return Section(name, header, rows, ". ".join(fit_summary(report)))


def cells(table: Table) -> tuple[list[str], list[list[str]]]:
    """Return the header and the rows of a table of the terminal, without its colours."""
    console = Console(file=StringIO(), no_color=True)
    header = [console.render_str(str(column.header)).plain for column in table.columns]
    columns = [[console.render_str(str(cell)).plain for cell in column.cells] for column in table.columns]
    return header, [list(row) for row in zip(*columns, strict=True)]


def measured_chapters(measured: Measured) -> Iterator[Chapter]:
    """Yield one chapter per kind of measurement that files were given for.

    Raises:
        InputError: a file cannot be read.
    """
    for title, paths, words in (
        ("Measured times", measured.times, "Layers and stages as they were timed."),
        ("Measured links", measured.links, "Point-to-point messages and collectives as they were timed."),
        (
            "Executed schedules",
            measured.runs,
            "Plans that real processes carried out, beside their simulation.",
        ),
    ):
        if paths:
            yield Chapter(title, words, [section for path in paths for section in read_measured(path)])


def environment_chapter() -> Chapter:
    """Return what the report was computed with."""
    return Chapter("How this was made", "python -m validate report; nothing is typed in.", [environment()])
