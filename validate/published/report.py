"""The command ``published``: what was run again of each task, then every number with what covers it, or why not."""

import argparse
from collections.abc import Callable
from pathlib import Path
from typing import Final

from profiles.errors import InputError
from sim.report.plots.charts import ENDINGS, save_figure
from validate.published import training
from validate.published.bands import write_bands, write_trust
from validate.published.contests import side_by_side
from validate.published.figure import plot_published
from validate.published.ledger import Ledger, all_training, check_path, coverage, training_ledger
from validate.published.records import TASKS, Record
from validate.published.sampling.runs import all_runs
from validate.published.sampling.tables import sampling_ledger, sections
from validate.tables import Section, parts_around, print_sections, write_tables

MARKERS: Final = "<!-- python -m validate published --readme -->", "<!-- end -->"
"""What stands before and after the tables that the command writes into a text."""
Show = Callable[[str, Section], None]
"""What is told each table as soon as it is made, and its task."""


def run_published(options: argparse.Namespace) -> None:
    """Print the report and the summary, and write what was asked for."""
    check_path("--figure", options.figure, ENDINGS)
    check_path("--output", options.output)
    if options.readme is not None:
        parts_around(options.readme, *MARKERS)
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


def write_between(path: Path, ledger: Ledger) -> None:
    """Write the shortest tables of the summary between the markers of a text."""
    write_tables(path, MARKERS, (ledger.by_source(), side_by_side(ledger.contests)))
