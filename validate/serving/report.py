"""The command ``serving``: MLPerf's Server runs, and published servers of other systems."""

import argparse
from collections.abc import Iterator
from itertools import chain
from statistics import median
from typing import Final

from profiles.errors import InputError
from validate.published.ledger import Ledger, line
from validate.published.records import Record
from validate.serving import mlperf, systems
from validate.tables import Section, percent, print_sections

GROUPS: Final = ("MLPerf Server, Stable Diffusion XL", "Servers under load")
"""Sources of serving, in the words of ``sources.csv``."""


def run_serving(options: argparse.Namespace) -> None:
    """Print all rows beside what is simulated, or the errors around the constants of a batch."""
    if options.draws < 1:
        raise InputError(f"--draws is {options.draws}, must be at least 1")
    runs = list(mlperf.read_runs(options.data or mlperf.RUNS))
    if options.fit:
        print_sections([mlperf.fits(runs)])
        return
    print_sections(mlperf.sections([run for run in runs if not run.gpu.startswith("TPU")], options.draws))
    if options.data is None:
        print_sections(systems.sections())


def records() -> Iterator[Record]:
    """The record of every published number of serving."""
    return chain(mlperf.records(), systems.records())


def tables(ledger: Ledger) -> list[Section]:
    """Errors of MLPerf's percentiles by load, and the other servers of a ledger."""
    runs, others = ([one for one in ledger.records if one.row.group == group] for group in GROUPS)
    rows = []
    for low, high in ((0.0, mlperf.HIGH), (mlperf.HIGH, 2.0)):
        errors = [
            abs(one.error)
            for one in runs
            if one.error is not None and low <= float(one.setting.split()[1]) < high
        ]
        where = f"load {low:g} to {high:g} of Offline"
        rows.append([where, f"{len(errors)}", percent(median(errors)) if errors else "-"])
    kinds = Section("MLPerf Server", ("p50, p90 and p99", "how many", "median error"), rows)
    header = ("where", "number", "published", "simulated", "error", "setting")
    rows = [line(one)[:-1] for one in others if one.predicted is not None]
    return [kinds, Section("Servers", header, rows)]
