"""The cluster files whose collectives are fitted to measured times: which rows set which file, and the lines they set.

``fit-collectives`` writes a file from its table ``[collectives]`` on and keeps the text before. It also prints
errors on rows that were left out.
"""

import tomllib
from argparse import Namespace
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from functools import cache, partial
from pathlib import Path
from typing import Final, NamedTuple

import pandas as pd

from profiles.errors import InputError
from profiles.files import read_text
from profiles.machines.clusters import CLUSTERS, Cluster, load_cluster
from profiles.machines.collectives import RANK_STEPS
from profiles.machines.fabrics import GATHERS, Between
from profiles.measuring.fitting.collective_laws import (
    ALL_TO_ALL,
    DIGITS,
    Known,
    errors_of,
    fit_between,
    fit_inside,
    law_values,
)
from profiles.measuring.tables import show, table
from profiles.measuring.writing import toml_text, write_files
from profiles.units import MICROSECOND
from validate.fitting.collective_rows import (
    HeldOut,
    bare,
    curves_of,
    held_out,
    launch_s,
    of_sources,
    read_measured,
)

COMMAND: Final = "python -m validate fit-collectives --data ../shared/measured"
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


READ: Final = tomllib.loads(read_text(Path(__file__).with_name("collectives.toml")))
BOXES: Final[Mapping[str, Box]] = {name: Box(**of) for name, of in READ["boxes"].items()}
WIRES: Final[Mapping[str, Wires]] = {name: Wires(**of) for name, of in READ["wires"].items()}
FILES: Final[Mapping[str, tuple[str, str]]] = {
    name: (box, wires) for name, (box, wires) in READ["files"].items()
}
"""The machine and the network of each cluster file; empty where it has one node."""


class Fitted(NamedTuple):
    """A cluster with fitted collectives, and a note on the rows of each fit."""

    cluster: Cluster
    notes: tuple[str, ...]


def fitted_cluster(folder: Path, name: str) -> Fitted:
    """The cluster of a file, its collectives fitted anew to the measurements of a folder."""
    box, wires = FILES[name]
    of, rows = BOXES[box], read_measured(folder)
    cluster = _inside_cluster(folder, name)
    law = replace(cluster.collectives, call_s=launch_s(rows, of.launched))
    note = _note("inside a node", cluster, of_sources(rows, [of.source], inside=True))
    if not wires:
        return Fitted(replace(cluster, collectives=law), (note,))
    there = _network_cluster(folder, wires)
    chosen = of_sources(rows, WIRES[wires].sources, inside=False)
    between = _between_of(there)
    fixed = {of: curve for of, curve in law.fixed_s if of not in GATHERS}
    if ALL_TO_ALL in set(chosen["operation"]):
        fixed[ALL_TO_ALL] = dict(between.fixed_s)[ALL_TO_ALL]
    law = replace(law, between=replace(between, fixed_s=tuple(fixed.items())))
    return Fitted(replace(cluster, collectives=law), (note, _note("between nodes", there, chosen)))


@cache
def _inside_cluster(folder: Path, name: str) -> Cluster:
    """The cluster of a file with the law of groups in one node."""
    box = BOXES[FILES[name][0]]
    rows = of_sources(read_measured(folder), [box.source], inside=True)
    return fit_inside(_bare(name, box), curves_of(rows))


def _bare(name: str, box: Box) -> Cluster:
    """The cluster of a file, its collectives still to be fitted."""
    return bare(load_cluster(name), box.all_reduce_by, box.own_part)


@cache
def _network_cluster(folder: Path, name: str) -> Cluster:
    """The cluster on whose machines a network's rows were measured, with the laws of both."""
    chosen = of_sources(read_measured(folder), WIRES[name].sources, inside=False)
    return fit_between(
        _inside_cluster(folder, WIRES[name].cluster), curves_of(chosen), _known_of(folder, name)
    )


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


def _block_text(fitted: Fitted) -> str:
    """The lines of a cluster file from ``[collectives]`` on."""
    law = fitted.cluster.collectives
    values = {"call_us": law.call_s / MICROSECOND, "all_reduce_by": law.all_reduce_by}
    values |= {"own_part": law.own_part} if law.own_part else {}
    notes = [*fitted.notes]
    if fitted.cluster.gathers_measured is False:
        notes.append(UNMEASURED)
    values |= (
        law_values(law) if law.between is None else law_values(law) | {"between": law_values(law.between)}
    )
    lines = "\n".join([HEAD, f"# {COMMAND}", *(f"# {note}" for note in notes)])
    return toml_text({"collectives": values}, f".{DIGITS}g").lstrip().replace(HEAD, lines, 1)


def file_text(name: str, fitted: Fitted) -> str:
    """The text of a cluster file, its collectives written anew."""
    path = CLUSTERS / f"{name}.toml"
    head, separator, _ = path.read_text(encoding="utf-8").partition(f"\n{HEAD}\n")
    if not separator:
        raise InputError(f"{path}: has no table {HEAD}")
    return f"{head}\n{_block_text(fitted)}"


COLUMNS: Final = ("rows of", "left out", "operation", "rows", "median error", "90th percentile", "worst")


def report_collectives(options: Namespace) -> None:
    """Print the errors of the law on rows that were left out; write the cluster files if asked to."""
    title = (
        "collectives: errors of rows left out of the fit (where it begins was chosen with all boxes known)"
    )
    lines = []
    for name, (scheme, operation, errors) in judged(options.data):
        shares = (f"{100 * share:.1f} %" for share in (errors.median, errors.tail, errors.worst))
        lines.append([name, scheme, operation, f"{len(errors)}", *shares])
    show(120, table(title, COLUMNS, lines, left=COLUMNS[:3]))
    if options.write:
        texts = {Path(f"{name}.toml"): file_text(name, fitted_cluster(options.data, name)) for name in FILES}
        write_files(CLUSTERS, texts)


def judged(folder: Path) -> Iterator[tuple[str, HeldOut]]:
    """Errors on rows left out, of each machine and then of each network."""
    rows = read_measured(folder)
    for box, of in BOXES.items():
        chosen = of_sources(rows, [of.source], inside=True)
        cluster = _bare(next(name for name, (inside, _) in FILES.items() if inside == box), of)
        yield from ((box, errors) for errors in held_out(fit_inside, cluster, chosen))
    for wires, network in WIRES.items():
        chosen = of_sources(rows, network.sources, inside=False)
        fit = partial(fit_between, known=_known_of(folder, wires))
        cluster = _inside_cluster(folder, network.cluster)
        yield from ((wires, errors) for errors in held_out(fit, cluster, chosen))
