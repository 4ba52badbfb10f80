"""Measured collectives: rows of a table of third-party measurements, by the machine they were measured on."""

from collections.abc import Iterable
from pathlib import Path
from typing import Any, Final, NamedTuple

import pandas as pd

from profiles.errors import InputError
from profiles.machines.collectives import Group
from profiles.machines.fabrics import OPERATIONS
from profiles.units import MICROSECOND

FILE: Final = "collectives.csv"
COLUMNS: Final = ("nodes", "gpus", "operation", "size_bytes", "latency_us", "implementation", "source_id")
FROM_PYTHON: Final = "vLLM_custom_eager"
"""The implementation whose small calls take as long as Python takes to launch them."""
SMALL: Final = 65536
"""Bytes up to which they do."""


class Curve(NamedTuple):
    """Times of one operation of one group, from one source."""

    source: str
    operation: str
    group: Group
    rows: pd.DataFrame


def read_measured(folder: Path) -> pd.DataFrame:
    """The rows of a folder of measurements.

    Raises:
        InputError: the file is not there, or lacks a column.
    """
    path = folder / FILE
    try:
        rows = pd.read_csv(path)
    except (OSError, ValueError) as error:
        raise InputError(f"{path}: cannot be read: {' '.join(str(error).split())}") from None
    if missing := [column for column in COLUMNS if column not in rows]:
        raise InputError(f"{path}:1: column {missing[0]} is missing")
    return rows[rows["operation"].isin(OPERATIONS) & (rows["latency_us"] > 0)]


def of_sources(rows: pd.DataFrame, sources: Iterable[str], *, inside: bool) -> pd.DataFrame:
    """NCCL's rows of some sources, within one node or over several."""
    chosen = rows["source_id"].isin(list(sources)) & rows["implementation"].str.contains("NCCL")
    found = rows[chosen & ((rows["nodes"] == 1) == inside)]
    if found.empty:
        raise InputError(f"{FILE} has no rows of {', '.join(sources)}")
    return found.reset_index(drop=True)


def curves_of(rows: pd.DataFrame) -> list[Curve]:
    """The rows, by source, operation and group."""
    curves: Any = rows.groupby(["source_id", "operation", "gpus", "nodes"], sort=True)
    return [
        Curve(str(source), str(operation), Group(int(gpus), int(nodes)), of)
        for (source, operation, gpus, nodes), of in curves
    ]


def launch_s(rows: pd.DataFrame, source: str) -> float:
    """Seconds that a small call takes when Python launches it: what its software takes."""
    of = (rows["source_id"] == source) & (rows["implementation"] == FROM_PYTHON)
    small = rows[of & (rows["size_bytes"] <= SMALL)]
    if small.empty:
        raise InputError(f"{FILE} has no rows of {FROM_PYTHON} from {source}")
    return float(small["latency_us"].median()) * MICROSECOND
