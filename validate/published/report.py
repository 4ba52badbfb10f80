"""The command ``published``: what was run again of each task, then every number with what covers it, or why not."""

import argparse
import re
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Final

from profiles.errors import InputError
from profiles.files import read_text
from sim.report.plots.charts import ENDINGS, save_figure
from validate.published import training
from validate.published.bands import write_bands
from validate.published.contests import side_by_side
from validate.published.figure import plot_published
from validate.published.ledger import Ledger, all_training, check_path, coverage, training_ledger
from validate.published.records import TASKS, Record
from validate.published.sampling.runs import all_runs
from validate.published.sampling.tables import sampling_ledger, sections
from validate.published.trust import write_trust
from validate.reporting.sections import Section, print_sections
from validate.writing import write_file

MARKERS: Final = "<!-- python -m validate published --readme -->", "<!-- end -->"
"""What stands before and after the tables that the command writes into a text."""
Show = Callable[[str, Section], None]
"""What is told each table as soon as it is made, and its task."""


def run_published(options: argparse.Namespace) -> None:
    """Print the report and the summary, and write what was asked for."""
    check_path("--figure", options.figure, ENDINGS)
    check_path("--output", options.output)
    if options.readme is not None:
        check_markers(options.readme)
    for flag in ("readme", "bands", "trust"):
        if options.task is not None and getattr(options, flag) is not None:
            raise InputError(f"--task is '{options.task}', but --{flag} is of both tasks: leave it out")
    ledger = report(options.task, lambda _, section: print_sections([section]))
    print_sections(ledger.sections())
    ledger.write(options.output)
    if options.readme is not None:
        write_between(options.readme, ledger)
    if options.bands is not None:
        write_bands(options.bands, ledger, all_runs())
    if options.trust is not None:
        write_trust(options.trust, ledger)
    if options.figure is not None:
        save_figure(plot_published(ledger), options.figure)


def report(task: str | None, show: Show) -> Ledger:
    """The ledger of one task, or of both; every table of the report is shown on the way."""
    ledger = Ledger(())
    if task in (None, TASKS[0]):
        records: list[Record] = []
        for found in training.made():
            show(TASKS[0], found.section)
            records += found.records
        show(TASKS[0], coverage(all_training(records)))
        ledger += training_ledger(records)
    if task in (None, TASKS[1]):
        runs = all_runs()
        for section in sections(runs):
            show(TASKS[1], section)
        ledger += sampling_ledger(runs)
    return ledger


def check_markers(path: Path) -> str:
    """The text of a file that holds both markers once.

    Raises:
        InputError: it does not.
    """
    text = read_text(path)
    if not re.search(f"^{MARKERS[0]}$.*^{MARKERS[1]}$", text, re.DOTALL | re.MULTILINE):
        raise InputError(
            f"--readme is '{path}', must hold a line '{MARKERS[0]}' and then a line '{MARKERS[1]}'"
        )
    return text


def write_between(path: Path, ledger: Ledger) -> None:
    """Write the shortest tables of the summary between the markers of a text."""
    tables = (replace(table, remark="") for table in (ledger.by_source(), side_by_side(ledger.contests)))
    words = "\n\n".join("\n".join(table.markdown().splitlines()[2:]) for table in tables)
    before, rest = check_markers(path).split(MARKERS[0], 1)
    write_file(path, f"{before}{MARKERS[0]}\n\n{words}\n\n{MARKERS[1]}{rest.split(MARKERS[1], 1)[1]}")
