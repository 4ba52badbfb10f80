"""The command ``serving``: MLPerf's Server runs, and published servers of other systems."""

import argparse
from collections.abc import Iterator
from itertools import chain

from validate.published.records import Record
from validate.serving import mlperf, systems
from validate.tables import print_sections


def run_serving(options: argparse.Namespace) -> None:
    """Print all rows beside what is simulated, or the errors around the constants of a batch."""
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
