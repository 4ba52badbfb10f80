"""Trust: independent published numbers by task, family of devices and kind of method, as the package ships them."""

from collections.abc import Iterable, Iterator
from pathlib import Path
from statistics import median
from typing import Final, NamedTuple

from profiles.costs.bands import load_bands
from profiles.costs.trust import COLUMNS, Trust
from validate.published.bands import speedups
from validate.published.kinds import KINDS, OTHER
from validate.published.ledger import Ledger
from validate.published.records import TASKS, TIMES, Record
from validate.published.standings import Standing
from validate.reporting.sections import grouped
from validate.writing import csv_text, write_file

PIPELINE: Final = "pipeline"


class Error(NamedTuple):
    """The absolute relative error of one prediction, and what it is of."""

    task: str
    family: str
    kind: str
    error: float


def errors(records: Iterable[Record]) -> Iterator[Error]:
    """The errors of independent times and throughputs, and of pipelines' speedups over other methods."""
    records, bands = list(records), load_bands()
    for one in records:
        known = one.conditions is not None and one.row.quantity in TIMES
        if one.standing is Standing.INDEPENDENT and known and one.error is not None:
            assert one.conditions is not None
            family = bands.family(one.conditions.device, timed=one.provenance == "measured")
            yield Error(one.row.task, family, one.conditions.kind, abs(one.error))
    for miss in speedups(records):
        yield Error(TASKS[0], bands.family(miss.device), PIPELINE, abs(miss.ratio - 1))


def trusts(records: Iterable[Record]) -> list[Trust]:
    """What the errors amount to, in the order of tasks, families and kinds; of other strategies nothing is shipped."""
    groups = grouped((one for one in errors(records) if one.kind != OTHER), lambda one: one[:3])
    found = []
    for (task, family, kind), own in sorted(groups.items()):
        each = [one.error for one in own]
        found.append(Trust(task, family, kind, KINDS[kind], len(each), median(each), max(each)))
    return found


def write_trust(path: Path, ledger: Ledger) -> None:
    """Write what the published numbers of a ledger amount to."""
    lines = [trust.cells for trust in trusts(ledger.records)]
    write_file(path, csv_text(COLUMNS, lines), "--trust")
