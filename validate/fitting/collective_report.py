"""What ``fit-collectives`` prints and writes: errors on rows that were left out, and the cluster files."""

from argparse import Namespace
from collections.abc import Iterator
from functools import partial
from typing import Final, NamedTuple

import pandas as pd
from rich.table import Table

from validate.fitting.collective_files import (
    BOXES,
    FILES,
    WIRES,
    bare_cluster,
    file_text,
    fitted_cluster,
    inside_cluster,
    known_of,
    write_clusters,
)
from validate.fitting.collective_laws import HeldOut, fit_between, fit_inside, held_out
from validate.fitting.collective_rows import of_sources, read_measured
from validate.tables import show, table

COLUMNS: Final = ("rows of", "left out", "operation", "rows", "median error", "90th percentile", "worst")


class Judged(NamedTuple):
    """Errors of rows that were left out, of one machine or network."""

    name: str
    found: HeldOut

    @property
    def cells(self) -> list[str]:
        """The cells of a line."""
        errors = self.found.errors
        shares = (f"{100 * share:.1f} %" for share in (errors.median, errors.tail, errors.worst))
        return [self.name, self.found.scheme, self.found.operation, f"{len(errors)}", *shares]


def report_collectives(options: Namespace) -> None:
    """Print what the law is worth on rows that were left out; write the cluster files if asked to."""
    rows = read_measured(options.data)
    show(120, held_out_table(judged(rows)))
    if options.write:
        write_clusters({name: file_text(name, fitted_cluster(rows, name)) for name in FILES})


def judged(rows: pd.DataFrame) -> Iterator[Judged]:
    """Errors on rows left out, of each machine and then of each network."""
    for box, of in BOXES.items():
        chosen = of_sources(rows, [of.source], inside=True)
        cluster = bare_cluster(next(name for name, (inside, _) in FILES.items() if inside == box))
        yield from (Judged(box, found) for found in held_out(fit_inside, cluster, chosen))
    for wires, network in WIRES.items():
        chosen = of_sources(rows, network.sources, inside=False)
        fit = partial(fit_between, known=known_of(rows, network))
        cluster = inside_cluster(rows, network.cluster)
        yield from (Judged(wires, found) for found in held_out(fit, cluster, chosen))


def held_out_table(found: Iterator[Judged]) -> Table:
    """One line for each machine or network, what was left out, and operation."""
    title = "collectives: errors of rows that the fit has not seen"
    return table(title, COLUMNS, (of.cells for of in found), left=COLUMNS[:3])
