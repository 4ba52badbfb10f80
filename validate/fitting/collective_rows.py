"""Measured times of collectives: a table of third-party measurements, and errors of the law on rows left out of a fit.

Rows are by the machine they were measured on, without the software of a call, as nccl-tests launches its calls back to
back.
"""

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, Final, NamedTuple

import numpy as np
import pandas as pd

from profiles.errors import InputError
from profiles.files import check_regular
from profiles.machines.clusters import Cluster
from profiles.machines.collectives import Group
from profiles.machines.fabrics import FULL, FULL_CURVES, OPERATIONS, Collectives
from profiles.measuring.fitting.collective_laws import MeasuredCurve, errors_of
from profiles.measuring.fitting.least_squares import Errors
from profiles.units import MICROSECOND

FILE: Final = "collectives.csv"
COLUMNS: Final = ("nodes", "gpus", "operation", "size_bytes", "latency_us", "implementation", "source_id")
FROM_PYTHON: Final = "vLLM_custom_eager"
"""The implementation whose small calls take as long as Python takes to launch them."""
SMALL: Final = 65536
"""Bytes up to which a call counts as small."""
LARGE_BYTES: Final = 64e6
"""Bytes beyond which sizes are left out together."""

Fitter = Callable[[Cluster, Sequence[MeasuredCurve]], Cluster]


def read_measured(folder: Path) -> pd.DataFrame:
    """The rows of a folder of measurements.

    Raises:
        InputError: the file is not there, or lacks a column.
    """
    path = folder / FILE
    check_regular(path)
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
    selected = rows[chosen & ((rows["nodes"] == 1) == inside)]
    if selected.empty:
        raise InputError(f"{FILE} has no rows of {', '.join(sources)}")
    return selected.reset_index(drop=True)


def curves_of(rows: pd.DataFrame) -> list[MeasuredCurve]:
    """The rows, by source, operation and group."""
    curves: Any = rows.groupby(["source_id", "operation", "gpus", "nodes"], sort=True)
    return [
        MeasuredCurve(
            str(operation),
            Group(int(gpus), int(nodes)),
            of["size_bytes"].tolist(),
            of["latency_us"].to_numpy() * MICROSECOND,
        )
        for (_, operation, gpus, nodes), of in curves
    ]


def launch_s(rows: pd.DataFrame, source: str) -> float:
    """Seconds of the software of a call: those of a small call launched from Python."""
    of = (rows["source_id"] == source) & (rows["implementation"] == FROM_PYTHON)
    small = rows[of & (rows["size_bytes"] <= SMALL)]
    if small.empty:
        raise InputError(f"{FILE} has no rows of {FROM_PYTHON} from {source}")
    return float(small["latency_us"].median()) * MICROSECOND


class HeldOut(NamedTuple):
    """Errors of rows left out of a fit; ``scheme`` says which.

    The priors (``Belief``) were chosen with all boxes known, also those left out.
    """

    scheme: str
    operation: str
    errors: Errors


def held_out(fit: Fitter, cluster: Cluster, rows: pd.DataFrame) -> Iterator[HeldOut]:
    """Errors of rows left out of a fit: every other size, each group size in turn, and the large sizes.

    Over several nodes each group size is judged separately: two nodes have most of the rows, and all small ones.
    """
    sizes, gpus = sorted(rows["size_bytes"].unique()), sorted(rows["gpus"].unique())
    even = rows["size_bytes"].isin(sizes[::2])
    halves = [(rows[even], rows[~even]), (rows[~even], rows[even])]
    yield from _judged("every other size", fit, cluster, halves)
    groups = [(rows[rows["gpus"] != size], rows[rows["gpus"] == size]) for size in gpus]
    if len(groups) > 1 and rows["nodes"].max() == 1:
        yield from _judged("each group size", fit, cluster, groups)
    elif len(groups) > 1:
        for size, group in zip(gpus, groups, strict=True):
            yield from _judged(f"{size} GPUs", fit, cluster, [group])
    large = rows["size_bytes"] > LARGE_BYTES
    yield from _judged(f"above {LARGE_BYTES / 1e6:.0f} MB", fit, cluster, [(rows[~large], rows[large])])


def _judged(
    scheme: str, fit: Fitter, cluster: Cluster, folds: Sequence[tuple[pd.DataFrame, pd.DataFrame]]
) -> Iterator[HeldOut]:
    """Errors by operation over all folds, each a pair of rows to fit to and rows to be judged by."""
    by_operation: dict[str, list[Errors]] = {}
    for seen, unseen in folds:
        fitted = fit(cluster, curves_of(seen))
        for operation, of in unseen.groupby("operation", sort=False):
            by_operation.setdefault(str(operation), []).append(errors_of(fitted, curves_of(of)))
    for operation, parts in by_operation.items():
        measured, predicted = zip(*[(of.measured, of.predicted) for of in parts], strict=True)
        yield HeldOut(scheme, operation, Errors(np.concatenate(measured), np.concatenate(predicted)))


def bare(cluster: Cluster, all_reduce_by: str, own_part: float = 0.0) -> Cluster:
    """Cluster whose collectives are still to be fitted."""
    unknown = Collectives(0.0, FULL_CURVES, FULL, all_reduce_by=all_reduce_by, own_part=own_part)
    return replace(cluster, collectives=unknown)
