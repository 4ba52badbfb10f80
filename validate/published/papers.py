"""The command ``paper``: each table of a paper beside simulated numbers, and what is asked of ``sim`` for each."""

import argparse
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Final

from profiles.checks import check_choice
from profiles.errors import counted
from profiles.measuring.writing import grouped
from validate.published import diffusionpipe, pulse
from validate.published.ledger import error_words
from validate.published.records import OVER, UNSAID, Record
from validate.tables import Section, print_sections, write_tables

Experiment = Callable[[], Iterable[Record]]
PAPERS: Final[Mapping[str, Mapping[str, Sequence[Experiment]]]] = {
    "diffusionpipe": diffusionpipe.TABLES,
    "pulse": pulse.TABLES,
}
HEADER: Final = ("number", "published", "simulated", "error", "asked")


def run_paper(options: argparse.Namespace) -> None:
    """Print one table of a paper, or all, and write them between their markers."""
    tables = PAPERS[options.name]
    if options.table is not None:
        check_choice("paper", "--table", options.table, tuple(tables))
        tables = {options.table: tables[options.table]}
    for name, experiments in tables.items():
        section = Section(name, HEADER, [*_rows(experiments)])
        print_sections([section])
        if options.readme is not None:
            marker = f"<!-- python -m validate paper {options.name} --table {name} -->"
            write_tables(options.readme, (marker, "<!-- end -->"), [section])


def _rows(experiments: Sequence[Experiment]) -> Iterator[list[str]]:
    """The rows of a table: of each number its base setting, then the other choices that the paper leaves open."""
    records = (record for run in experiments for record in run())
    for row, alike in grouped(records, lambda one: one.row).items():
        where = (
            row.model,
            row.num_gpus and counted(row.num_gpus, "GPU"),
            row.batch_size and f"batch {row.batch_size}",
        )
        what = (row.item, row.method, row.quantity.replace("_", " "), *where)
        cells = [", ".join(f"{word}" for word in what if word and word != UNSAID), f"{row.value:.4g}"]
        for one in {record.setting: record for record in alike}.values():
            commands = OVER.join(f"`{command}`" for command in one.setting.split(OVER))
            yield [*cells, f"{one.predicted:.3g}", error_words(one), commands]
            cells = ["", ""]
