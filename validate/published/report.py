"""The command ``published``: what was run again of each task, then every number with what covers it, or why not."""

import argparse
from collections.abc import Callable

from sim.report.plots.charts import ENDINGS, save_figure
from validate.published import training
from validate.published.figure import plot_published
from validate.published.ledger import Ledger, all_training, check_path, coverage, training_ledger
from validate.published.records import TASKS, Record
from validate.published.sampling.runs import all_runs
from validate.published.sampling.tables import sampling_ledger, sections
from validate.reporting.sections import Section, print_sections

Show = Callable[[str, Section], None]
"""What is told each table as soon as it is made, and its task."""


def run_published(options: argparse.Namespace) -> None:
    """Print the report and the summary, and write what was asked for."""
    check_path("--figure", options.figure, ENDINGS)
    check_path("--output", options.output)
    ledger = report(options.task, lambda _, section: print_sections([section]))
    print_sections(ledger.sections())
    ledger.write(options.output)
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
