"""What ``fit-collectives`` prints and writes: errors on rows that were left out, and the cluster files."""

from argparse import Namespace
from collections.abc import Iterator
from functools import partial
from typing import Final, NamedTuple

import pandas as pd

from validate.fitting import collective_files as files
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
    title = "collectives: errors of rows that the fit has not seen"
    show(120, table(title, COLUMNS, (of.cells for of in judged(rows)), left=COLUMNS[:3]))
    if options.write:
        files.write_clusters(
            {name: files.file_text(name, files.fitted_cluster(rows, name)) for name in files.FILES}
        )


def judged(rows: pd.DataFrame) -> Iterator[Judged]:
    """Errors on rows left out, of each machine and then of each network."""
    for box, of in files.BOXES.items():
        chosen = of_sources(rows, [of.source], inside=True)
        cluster = files.bare_cluster(next(name for name, (inside, _) in files.FILES.items() if inside == box))
        yield from (Judged(box, found) for found in held_out(fit_inside, cluster, chosen))
    for wires, network in files.WIRES.items():
        chosen = of_sources(rows, network.sources, inside=False)
        fit = partial(fit_between, known=files.known_of(rows, network))
        cluster = files.inside_cluster(rows, network.cluster)
        yield from (Judged(wires, found) for found in held_out(fit, cluster, chosen))
