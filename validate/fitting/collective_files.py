"""The cluster files whose collectives are fitted to measured times: which rows set which file, and the lines they set.

``fit-collectives`` writes a file from its table ``[collectives]`` on and keeps the text before. It also prints
errors on rows that were left out.
"""

import tomllib
from argparse import Namespace
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import cache, partial
from pathlib import Path
from typing import Any, Final, NamedTuple

import numpy as np
import pandas as pd

from profiles.errors import InputError
from profiles.files import read_text
from profiles.machines.clusters import CLUSTERS, Cluster, load_cluster
from profiles.machines.collectives import RANK_STEPS, Group
from profiles.machines.fabrics import FULL, FULL_CURVES, GATHERS, OPERATIONS, Between, Collectives
from profiles.measuring.fitting import collective_laws as laws
from profiles.measuring.fitting.collective_laws import Known, MeasuredCurve, errors_of
from profiles.measuring.fitting.least_squares import Errors
from profiles.measuring.writing import show, table, toml_text
from profiles.outputs import write_files
from profiles.units import MICROSECOND

COMMAND: Final = "python -m validate fit-collectives --data ../shared/measured"
FILE: Final = "collectives.csv"
COLUMNS: Final = ("nodes", "gpus", "operation", "size_bytes", "latency_us", "implementation", "source_id")
FROM_PYTHON: Final = "vLLM_custom_eager"
"""The implementation whose small calls take as long as Python takes to launch them."""
SMALL: Final = 65536
"""Bytes up to which a call counts as small."""
LARGE_BYTES: Final = 64e6
"""Bytes beyond which sizes are left out together."""

HEAD: Final = "[collectives]"
UNMEASURED: Final = (
    f"no gather and no scatter between nodes: an estimate, {RANK_STEPS} steps for each member, as on p5"
)
"""What a file says that has no ``rank_us``."""


class Box(NamedTuple):
    """One kind of machine: the source of its collectives, that of calls from Python, and how an all-reduce sums."""

    source: str
    launched: str
    all_reduce_by: str
    own_part: float = 0.0


class Wires(NamedTuple):
    """One kind of network: the cluster whose machines its rows ran on, and what it takes from other networks.

    All-reduces may use trees where ``tree`` is set; ``shares_of`` and ``step_of`` are the networks whose shares of the
    port and whose seconds of a step hold here too.
    """

    cluster: str
    sources: Sequence[str]
    tree: bool = True
    shares_of: str = ""
    step_of: str = ""


SETS: Final = tomllib.loads(read_text(Path(__file__).with_name("collectives.toml")))
BOXES: Final[Mapping[str, Box]] = {name: Box(**box) for name, box in SETS["boxes"].items()}
WIRES: Final[Mapping[str, Wires]] = {name: Wires(**wires) for name, wires in SETS["wires"].items()}
FILES: Final[Mapping[str, Sequence[str]]] = SETS["files"]
"""The machine and the network of each cluster file; empty where it has one node."""


def read_measured(folder: Path) -> pd.DataFrame:
    """The rows of a folder of measurements; no software of a call is in them, as nccl-tests launches back to back."""
    path = folder / FILE
    try:
        rows = pd.read_csv(path, usecols=COLUMNS)
    except (OSError, ValueError) as error:
        raise InputError(f"{path}: cannot be read: {' '.join(str(error).split())}") from None
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
            operation,
            Group(gpus, nodes),
            curve.size_bytes.to_numpy(float),
            curve.latency_us.to_numpy() * MICROSECOND,
        )
        for (_, operation, gpus, nodes), curve in curves
    ]


def launch_s(rows: pd.DataFrame, source: str) -> float:
    """Seconds of the software of a call: those of a small call launched from Python."""
    chosen = (rows["source_id"] == source) & (rows["implementation"] == FROM_PYTHON)
    small = rows[chosen & (rows["size_bytes"] <= SMALL)]
    if small.empty:
        raise InputError(f"{FILE} has no rows of {FROM_PYTHON} from {source}")
    return float(small["latency_us"].median()) * MICROSECOND


def bare(cluster: Cluster, all_reduce_by: str, own_part: float = 0.0) -> Cluster:
    """Cluster whose collectives are still to be fitted."""
    unknown = Collectives(0.0, FULL_CURVES, FULL, all_reduce_by=all_reduce_by, own_part=own_part)
    return replace(cluster, collectives=unknown)


def fitted_cluster(folder: Path, name: str) -> tuple[Cluster, list[str]]:
    """The cluster of a file, its collectives fitted anew to the measurements of a folder, and a note on each fit."""
    box, wires = FILES[name]
    settings, rows = BOXES[box], read_measured(folder)
    cluster = _inside_cluster(folder, name)
    law = replace(cluster.collectives, call_s=launch_s(rows, settings.launched))
    note = _note("inside a node", cluster, of_sources(rows, [settings.source], inside=True))
    if not wires:
        return replace(cluster, collectives=law), [note]
    there = _network_cluster(folder, wires)
    chosen = of_sources(rows, WIRES[wires].sources, inside=False)
    between = _between_of(there)
    fixed = {operation: curve for operation, curve in law.fixed_s if operation not in GATHERS}
    if laws.ALL_TO_ALL in set(chosen["operation"]):
        fixed[laws.ALL_TO_ALL] = dict(between.fixed_s)[laws.ALL_TO_ALL]
    law = replace(law, between=replace(between, fixed_s=tuple(fixed.items())))
    return replace(cluster, collectives=law), [note, _note("between nodes", there, chosen)]


@cache
def _inside_cluster(folder: Path, name: str) -> Cluster:
    """The cluster of a file with the law of groups in one node."""
    box = BOXES[FILES[name][0]]
    rows = of_sources(read_measured(folder), [box.source], inside=True)
    return laws.fit_inside(bare(load_cluster(name), box.all_reduce_by, box.own_part), curves_of(rows))


@cache
def _network_cluster(folder: Path, name: str) -> Cluster:
    """The cluster on whose machines a network's rows were measured, with the laws of both."""
    wires, rows = WIRES[name], read_measured(folder)
    curves = curves_of(of_sources(rows, wires.sources, inside=False))
    return laws.fit_between(_inside_cluster(folder, wires.cluster), curves, _known_of(folder, name))


def _known_of(folder: Path, name: str) -> Known:
    """Return the values that a network takes from others."""
    wires = WIRES[name]
    shares = _between_of(_network_cluster(folder, wires.shares_of)).efficiency if wires.shares_of else ()
    step_s = _between_of(_network_cluster(folder, wires.step_of)).step_s if wires.step_of else None
    return Known(wires.tree, shares, step_s)


def _between_of(cluster: Cluster) -> Between:
    between = cluster.collectives.between
    assert between is not None
    return between


def _note(where: str, cluster: Cluster, rows: pd.DataFrame) -> str:
    errors = errors_of(cluster, curves_of(rows))
    return f"{where}: {', '.join(sorted(set(rows['source_id'])))}: {len(errors)} rows, {errors}"


def file_text(name: str, cluster: Cluster, notes: Sequence[str]) -> str:
    """The text of a cluster file, its collectives written anew."""
    path = CLUSTERS / f"{name}.toml"
    head, separator, _ = path.read_text(encoding="utf-8").partition(f"\n{HEAD}\n")
    if not separator:
        raise InputError(f"{path}: has no table {HEAD}")
    law = cluster.collectives
    values = {"call_us": law.call_s / MICROSECOND, "all_reduce_by": law.all_reduce_by}
    values |= ({"own_part": law.own_part} if law.own_part else {}) | laws.law_values(law)
    notes = (COMMAND, *notes, *((UNMEASURED,) if cluster.gathers_measured is False else ()))
    lines = "\n".join([HEAD, *(f"# {note}" for note in notes)])
    block = toml_text({"collectives": values}, f".{laws.DIGITS}g").lstrip().replace(HEAD, lines, 1)
    return f"{head}\n{block}"


Fitter = Callable[[Cluster, Sequence[MeasuredCurve]], Cluster]
HeldOut = tuple[str, str, Errors]
"""Rows left out of a fit, their operation, and their errors; priors (``Belief``) were chosen with all boxes known."""


def held_out(fit: Fitter, cluster: Cluster, rows: pd.DataFrame) -> Iterator[HeldOut]:
    """Errors of rows left out of a fit: every other size, each group size in turn, and the large sizes.

    Over several nodes each group size is judged separately: two nodes have most of the rows, and all small ones.
    """
    even = rows["size_bytes"].isin(sorted(rows["size_bytes"].unique())[::2])
    groups = {size: rows["gpus"] == size for size in sorted(rows["gpus"].unique())}
    schemes = {"every other size": [~even, even]}
    if len(groups) > 1 and rows["nodes"].max() == 1:
        schemes["each group size"] = list(groups.values())
    elif len(groups) > 1:
        schemes |= {f"{size} GPUs": [group] for size, group in groups.items()}
    schemes[f"above {LARGE_BYTES / 1e6:.0f} MB"] = [rows["size_bytes"] > LARGE_BYTES]
    for scheme, folds in schemes.items():
        by_operation: dict[str, list[Errors]] = {}
        for unseen in folds:
            fitted = fit(cluster, curves_of(rows[~unseen]))
            for operation, samples in rows[unseen].groupby("operation", sort=False):
                by_operation.setdefault(str(operation), []).append(errors_of(fitted, curves_of(samples)))
        for operation, parts in by_operation.items():
            measured, predicted = zip(*[(part.measured, part.predicted) for part in parts], strict=True)
            yield scheme, operation, Errors(np.concatenate(measured), np.concatenate(predicted))


def report_collectives(options: Namespace) -> None:
    """Print the errors of the law on rows that were left out; write the cluster files if asked to."""
    title = "collectives: errors of rows left out of the fit (priors were chosen with all boxes known)"
    lines = []
    for name, (scheme, operation, errors) in judged(options.data):
        shares = (f"{100 * share:.1f} %" for share in (errors.median, errors.tail, errors.worst))
        lines.append([name, scheme, operation, f"{len(errors)}", *shares])
    names = ("rows of", "left out", "operation")
    header = (*names, "rows", "median error", "90th percentile", "worst")
    show(120, table(title, header, lines, left=names))
    if options.write:
        texts = {Path(f"{name}.toml"): file_text(name, *fitted_cluster(options.data, name)) for name in FILES}
        write_files(CLUSTERS, texts)


def judged(folder: Path) -> Iterator[tuple[str, HeldOut]]:
    """Errors on rows left out, of each machine and then of each network."""
    rows = read_measured(folder)
    for box, settings in BOXES.items():
        chosen = of_sources(rows, [settings.source], inside=True)
        name = next(name for name, (inside, _) in FILES.items() if inside == box)
        cluster = bare(load_cluster(name), settings.all_reduce_by, settings.own_part)
        yield from ((box, errors) for errors in held_out(laws.fit_inside, cluster, chosen))
    for wires, network in WIRES.items():
        chosen = of_sources(rows, network.sources, inside=False)
        fit = partial(laws.fit_between, known=_known_of(folder, wires))
        cluster = _inside_cluster(folder, network.cluster)
        yield from ((wires, errors) for errors in held_out(fit, cluster, chosen))
