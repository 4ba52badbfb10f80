"""Fitting: the law of collectives from measured NCCL times, and its errors on rows that were left out.

Rows are of a table of third-party measurements, by the machine they were measured on. Predictions come from
``profiles.machines.collectives.collective_law``, the law that is simulated. Residuals are logarithmic and
robust (soft L1), as measured curves have steps where NCCL changes its protocol. The software of a call is left out, as
nccl-tests launches its calls back to back.

Inside a node the unknowns are one step time, one fixed time for each operation, and by operation and group size a
middle and a share of the port. Between nodes they are the step time, a fixed time of all-to-all alone, the most of the
middle, and by operation a middle and one share of the port for any number of nodes; all-reduces over two nodes may use
trees, which have a share of their own, as those over 4 and 8 nodes do not come near it. Shares of ports have priors at
what other machines reach (``REACHED``, ``WIRE``), and middles at what pieces of the best size would take (``PASSED``,
``PASSED_INSIDE``): where the measured sizes end early they cannot be told apart, and the fit would end at a bound.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from types import MappingProxyType
from typing import Any, Final, NamedTuple

import numpy as np
import pandas as pd
from scipy.optimize import least_squares

from profiles.errors import InputError
from profiles.files import check_regular
from profiles.machines.clusters import Cluster
from profiles.machines.collectives import Group, collective_law
from profiles.machines.fabrics import FULL, FULL_CURVES, OPERATIONS, Between, Collectives, Curves
from profiles.measuring.fitting.least_squares import Errors
from profiles.units import MICROSECOND, FloatArray

FILE: Final = "collectives.csv"
COLUMNS: Final = ("nodes", "gpus", "operation", "size_bytes", "latency_us", "implementation", "source_id")
FROM_PYTHON: Final = "vLLM_custom_eager"
"""The implementation whose small calls take as long as Python takes to launch them."""
SMALL: Final = 65536
"""Bytes up to which a call counts as small."""


class MeasuredCurve(NamedTuple):
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
        MeasuredCurve(str(source), str(operation), Group(int(gpus), int(nodes)), of)
        for (source, operation, gpus, nodes), of in curves
    ]


def launch_s(rows: pd.DataFrame, source: str) -> float:
    """Seconds of the software of a call: those of a small call launched from Python."""
    of = (rows["source_id"] == source) & (rows["implementation"] == FROM_PYTHON)
    small = rows[of & (rows["size_bytes"] <= SMALL)]
    if small.empty:
        raise InputError(f"{FILE} has no rows of {FROM_PYTHON} from {source}")
    return float(small["latency_us"].median()) * MICROSECOND


class Belief(NamedTuple):
    """The prior of an unknown: a value, and its spread as the logarithm of a ratio."""

    value: float
    spread: float


STEP: Final = Belief(20.0, 2.0)
"""Microseconds of a step between nodes: InfiniBand takes 8, EFA 30 to 80."""
STEP_INSIDE: Final = Belief(1.0, 0.2)
"""Microseconds of a step inside a node: five kinds of machines take 0.84 to 1.25; one group size alone cannot tell it
from the fixed time of a call."""
SERVED: Final = Belief(50.0, 2.0)
"""Fixed microseconds of an all-to-all between nodes."""
SOFT: Final = 0.1
"""Relative residual beyond which rows count less than by their square."""
STEP_US, FIXED_US, MIDDLE, SHARE, TREE = 2.0, 7.0, 1.0, 0.7, 0.5
"""Start values; that of a tree is low, as above what the ports in a node let through its share has no effect."""
WIRE: Final = Belief(0.9, 0.2)
"""Share of a node's port that large messages reach: 0.95 over 2 nodes of 8 x 200 Gbit/s InfiniBand, at most 0.82 in
all-gathers over 2 to 8 nodes of EFA."""
REACHED: Final = Belief(0.8, 0.2)
"""Share of a card's port that large messages reach: mostly 0.61 to 0.96 on boxes of A100, H100 and H200."""
PASSED: Final = Belief(2.0, 0.7)
"""Middle between nodes: 2 where pieces have the best size and take one path."""
PASSED_INSIDE: Final = Belief(1.0, 0.4)
"""Middle inside a node, where many paths run side by side: 0.6 to 1.6 on boxes of A100, H100 and H200."""
PIECES: Final = Belief(5.0, 1.0)
"""The most of a middle, in latencies: 3 on one network, 7 on another."""
LARGE_BYTES: Final = 64e6
"""Bytes beyond which sizes are left out together."""
CURVES_FROM: Final = {"send_recv": "all_gather", "reduce_scatter": "all_gather", "all_gather": "all_reduce"}
"""The operation whose curves stand in for one that was not measured; for others it is all-reduce."""

Fitter = Callable[[Cluster, pd.DataFrame], Cluster]


@dataclass(frozen=True, slots=True)
class Known:
    """Values of a network that are known before its rows are fitted.

    Attributes:
        tree: whether all-reduces over two nodes may use trees, in which the nodes exchange each byte only once.
        efficiency: shares of the port on another machine with this network; fitted where empty.
        step_s: seconds of a step there; fitted where None.
    """

    tree: bool = True
    efficiency: Curves = ()
    step_s: float | None = None


NOTHING: Final = Known()


class HeldOut(NamedTuple):
    """Errors of rows left out of a fit; ``scheme`` says which.

    The priors (``Belief``) were chosen with all boxes known, also those left out.
    """

    scheme: str
    operation: str
    errors: Errors


def predict(cluster: Cluster, curve: MeasuredCurve) -> FloatArray:
    """Seconds of a curve's rows, without software."""
    law = collective_law(cluster, curve.operation, curve.group)
    return np.array([law.time(size).total_s for size in curve.rows["size_bytes"].tolist()]) - law.call_s


def errors_of(cluster: Cluster, curves: Sequence[MeasuredCurve]) -> Errors:
    """Errors of the law's predictions."""
    measured = [curve.rows["latency_us"].to_numpy() * MICROSECOND for curve in curves]
    return Errors(np.concatenate(measured), np.concatenate([predict(cluster, curve) for curve in curves]))


def fit_inside(cluster: Cluster, rows: pd.DataFrame) -> Cluster:
    """Cluster with the law of groups in one node, fitted to rows of one machine."""
    curves = curves_of(rows)
    operations = [operation for operation in OPERATIONS if operation in set(rows["operation"])]
    sizes = [float(size) for size in sorted(rows["gpus"].unique())]
    first, count = 1 + len(operations), len(operations) * len(sizes)

    def made(logs: FloatArray) -> Cluster:
        values = np.exp(logs)
        fixed, (middles, shares) = values[1:first], values[first:].reshape(2, len(operations), len(sizes))
        law = replace(
            cluster.collectives,
            step_s=float(values[0]) * MICROSECOND,
            fixed_s=_completed(operations, [1.0], fixed[:, None] * MICROSECOND),
            middle=_completed(operations, sizes, middles),
            efficiency=_completed(operations, sizes, shares),
        )
        return replace(cluster, collectives=law)

    start = [STEP_US / 2, *[FIXED_US] * len(operations), *[MIDDLE] * count, *[SHARE] * count]
    most = [np.inf] * (len(start) - count) + [1.0] * count
    beliefs = {0: STEP_INSIDE} if len(sizes) == 1 else {}
    middles, shares = range(first, first + count), range(first + count, first + 2 * count)
    beliefs |= dict.fromkeys(middles, PASSED_INSIDE) | dict.fromkeys(shares, REACHED)
    return made(_fitted(made, curves, start, most, beliefs))


def fit_between(cluster: Cluster, rows: pd.DataFrame, known: Known = NOTHING) -> Cluster:
    """Cluster with the law of groups over several nodes, fitted to rows of machines with its links.

    Values ``known`` from other machines with such a network are not fitted.
    """
    curves = curves_of(rows)
    operations = [operation for operation in OPERATIONS if operation in set(rows["operation"])]

    def made(logs: FloatArray) -> Cluster:
        values = np.exp(logs)
        middles, shares = values[4:].reshape(2, len(operations))
        fixed = dict(cluster.collectives.fixed_s)
        if "all_to_all" in operations:
            fixed["all_to_all"] = ((1.0, float(values[1]) * MICROSECOND),)
        reached = _completed(operations, [1.0], shares[:, None])
        between = Between(
            efficiency=known.efficiency or reached,
            tree=((2.0, float(values[3])),) if known.tree else (),
            middle=_completed(operations, [1.0], middles[:, None]),
            fixed_s=tuple(fixed.items()),
            step_s=float(values[0]) * MICROSECOND if known.step_s is None else known.step_s,
            middle_most=float(values[2]),
        )
        return replace(cluster, collectives=replace(cluster.collectives, between=between))

    count = len(operations)
    passed = [4 + number for number, operation in enumerate(operations) if operation != "all_to_all"]
    beliefs = {0: STEP, 1: SERVED, 2: PIECES, 3: WIRE} | dict.fromkeys(range(4 + count, 4 + 2 * count), WIRE)
    beliefs |= dict.fromkeys(passed, PASSED)
    start = [*(beliefs[at].value for at in range(3)), TREE, *[MIDDLE] * count, *[WIRE.value] * count]
    most = [np.inf, np.inf, np.inf, 1.0, *[np.inf] * count, *[1.0] * count]
    return made(_fitted(made, curves, start, most, beliefs))


def _fitted(
    made: Callable[[FloatArray], Cluster],
    curves: Sequence[MeasuredCurve],
    start: Sequence[float],
    most: Sequence[float],
    beliefs: Mapping[int, Belief] = MappingProxyType({}),
) -> FloatArray:
    """Logarithms of the values that predict the curves best, given priors of some."""
    measured = np.concatenate([curve.rows["latency_us"].to_numpy() * MICROSECOND for curve in curves])

    def residuals(logs: FloatArray) -> FloatArray:
        cluster = made(logs)
        predicted = np.concatenate([predict(cluster, curve) for curve in curves])
        held = [SOFT * (logs[at] - np.log(belief.value)) / belief.spread for at, belief in beliefs.items()]
        return np.append(np.log(predicted / measured), held)

    bounds = -np.inf, np.log(np.asarray(most, dtype=float))
    begin = np.log(np.asarray(start))
    return np.asarray(least_squares(residuals, begin, loss="soft_l1", f_scale=SOFT, bounds=bounds).x)


def _completed(measured: Sequence[str], at: Sequence[float], values: FloatArray) -> Curves:
    """Curves of all operations; one that was not measured has those of its stand-in."""
    points = (tuple(zip(at, of.tolist(), strict=True)) for of in values)
    curves = dict(zip(measured, points, strict=True))

    def curve(operation: str) -> tuple[tuple[float, float], ...]:
        return curves[operation] if operation in curves else curve(CURVES_FROM.get(operation, "all_reduce"))

    return tuple((operation, curve(operation)) for operation in OPERATIONS)


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
        fitted = fit(cluster, seen)
        for operation, of in unseen.groupby("operation", sort=False):
            by_operation.setdefault(str(operation), []).append(errors_of(fitted, curves_of(of)))
    for operation, parts in by_operation.items():
        measured, predicted = zip(*[(of.measured, of.predicted) for of in parts], strict=True)
        yield HeldOut(scheme, operation, Errors(np.concatenate(measured), np.concatenate(predicted)))


def bare(cluster: Cluster, all_reduce_by: str, own_part: float = 0.0) -> Cluster:
    """Cluster whose collectives are still to be fitted."""
    unknown = Collectives(0.0, FULL_CURVES, FULL, all_reduce_by=all_reduce_by, own_part=own_part)
    return replace(cluster, collectives=unknown)
