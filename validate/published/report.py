"""The report: what was run again of each task, then every number with what covers it, or why nothing does."""

from collections.abc import Callable

from validate.published import training
from validate.published.ledger import Ledger, all_training, coverage, training_ledger
from validate.published.records import TASKS, Record
from validate.published.sampling.runs import all_runs, sampling_ledger
from validate.published.sampling.tables import sections
from validate.reporting.sections import Section

Show = Callable[[str, Section], None]
"""What is told each table as soon as it is made, and its task."""


def report(task: str | None, show: Show) -> Ledger:
    """The ledger of one task, or of both; every table of the report is shown on the way."""
    ledger = Ledger(())
    if task in (None, TASKS[0]):
        ledger += report_training(show)
    if task in (None, TASKS[1]):
        ledger += report_sampling(show)
    return ledger


def report_training(show: Show) -> Ledger:
    """The ledger of training."""
    records: list[Record] = []
    for found in training.made():
        show(TASKS[0], found.section)
        records += found.records
    show(TASKS[0], coverage(all_training(records)))
    return training_ledger(records)


def report_sampling(show: Show) -> Ledger:
    """The ledger of sampling."""
    runs = all_runs()
    for section in sections(runs):
        show(TASKS[1], section)
    return sampling_ledger(runs)
