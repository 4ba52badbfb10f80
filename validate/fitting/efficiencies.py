"""The links of an 8-card PCIe machine: efficiencies of collectives, fitted to published rows.

The rows are those of PixArt on up to 8 L40 in one node; they do not count as predictions. For 4 and 8 cards two
efficiencies are fitted: one of all ring operations (tensor parallelism sums, ring attention passes on, DistriFusion
gathers) and one of all-to-all (Ulysses). Each is the one at which the median logarithmic error of its rows vanishes.
Over 2 cards the rows take hardly longer than the compute
alone and determine neither an efficiency nor the slowdown of compute beside collectives: these are priors (``PRIORS``,
``SLOWDOWN``). Rows of pipelines, which send messages, are checks.

xDiT's rows do not say how many synchronous steps were run; none are assumed, as in the example of its README. The
pipelines agree: with one, 8 cards would take 43 to 47 % longer at 4096 pixels than was published, with none 12 to 15 %.
"""

from argparse import Namespace
from collections.abc import Mapping
from dataclasses import replace
from functools import cache
from itertools import product
from math import exp, log
from statistics import median
from typing import Final

from profiles.machines.clusters import Cluster
from profiles.machines.fabrics import OPERATIONS
from profiles.measuring.fitting.collective_laws import curve_values
from profiles.measuring.fitting.least_squares import Errors
from profiles.measuring.tables import show, table
from profiles.measuring.writing import toml_text, write_file
from validate.points import cluster_of
from validate.published.rows import SamplingRow, sampling_rows
from validate.published.runs import predict

CLUSTER: Final = "l40-pcie-8"
FIGURES: Final = ("Pixart-16L40", "hybrid-pixart-1k", "hybrid-pixart-2k", "hybrid-pixart-4k")
RING: Final = "ring"
ALL_TO_ALL: Final = "all_to_all"
CHECK: Final = "check"
USES: Final[Mapping[str, str]] = {
    "tensor_parallel": RING,
    "sp_ring": RING,
    "distrifusion": RING,
    "sp_ulysses": ALL_TO_ALL,
    "pipefusion": CHECK,
}
"""Kind of efficiency that is fitted to the rows of a method."""
SIZES: Final = (2, 4, 8)
FITTED: Final = (4, 8)
"""Cards of a row, and those for which its efficiencies are fitted."""
Points = Mapping[tuple[str, int], float]
"""Efficiencies by kind and cards."""
PRIORS: Final[Points] = {(RING, 2): 0.8, (ALL_TO_ALL, 2): 0.92}
"""Efficiencies that the rows do not determine. Source: measured NCCL on 2 L40S over PCIe 4.0, cards of the same
build (aic:l40s/comm/nccl/2.27.3: rings reach 20.8 GB/s and all-to-all 23.9 of 26), as in cluster l40s-ib."""
SLOWDOWN: Final = 1.6
"""Factor on compute beside collectives. Source: DistriFusion, Table 2, A100: 1.5 to 1.7 times slower; no other was
measured, and independent rows of 4 A100 over PCIe come out too fast by 20 % with 1.1."""
LEAST_EFFICIENCY: Final = 0.02
HALVINGS: Final = 8
COLUMNS: Final = ("figure", "pixels", "GPUs", "method", "published", "predicted", "error", "fitted")


def linked(points: Points) -> Cluster:
    """The cluster with some efficiencies.

    Those of all-to-all over 4 and 8 cards are across sockets, where two cards are as a ring of 8.
    """
    cluster = cluster_of(CLUSTER)
    ring, others = (
        tuple((float(size), points[of, size]) for of, size in points if of == kind)
        for kind in (RING, ALL_TO_ALL)
    )
    efficiency = tuple((of, others[:1] if of == ALL_TO_ALL else ring) for of in OPERATIONS)
    across = ((ALL_TO_ALL, ((2.0, points[RING, 8]), *others[1:])),) if others[1:] else ()
    collectives = replace(cluster.collectives, efficiency=efficiency, across=across)
    return replace(cluster, overlap_slowdown=SLOWDOWN, collectives=collectives)


@cache
def rows() -> tuple[SamplingRow, ...]:
    """Published rows that are fitted to, or check the fit."""
    ours = (row for row in sampling_rows() if row.figure in FIGURES and row["method"] in USES)
    return tuple(row for row in ours if row.num_gpus in SIZES and row.latency_s)


def fitted_cluster() -> Cluster:
    """The cluster with the fitted efficiencies, of two digits."""
    points = dict(PRIORS)
    for key in product((RING, ALL_TO_ALL), FITTED):
        points[key] = float(f"{_efficiency(key, points):.2g}")
    return linked(points)


def _efficiency(key: tuple[str, int], points: Points) -> float:
    """Efficiency below 1 at which the median error of the rows of one kind and size vanishes."""
    chosen = [row for row in rows() if (USES[row["method"]], row.num_gpus) == key]

    low, high = log(LEAST_EFFICIENCY), 0.0
    for _ in range(HALVINGS):  # a higher efficiency is always faster
        middle = (low + high) / 2
        cluster = linked({**points, key: exp(middle)})
        too_slow = median(error_of(row, cluster) for row in chosen) > 0
        low, high = (middle, high) if too_slow else (low, middle)
    return exp((low + high) / 2)


def error_of(row: SamplingRow, cluster: Cluster) -> float:
    """Logarithm of predicted over published seconds."""
    error = predict(row, {CLUSTER: cluster}).error
    assert error is not None
    return log(1 + error)


def report_efficiencies(options: Namespace) -> None:
    """Fit the links, print their predictions, and write the lines of the cluster files if asked to."""
    cluster = fitted_cluster()
    lines, errors = list[list[str]](), dict[str, list[tuple[float, float]]]()
    for row in rows():
        assert row.latency_s
        ratio, kind = exp(error_of(row, cluster)), USES[row["method"]]
        errors.setdefault(kind, []).append((1.0, ratio))
        place = row.figure, row["resolution_px"], f"{row.num_gpus}", row["method"]
        seconds = (f"{of:.4g} s" for of in (row.latency_s, row.latency_s * ratio))
        lines.append([*place, *seconds, f"{100 * (ratio - 1):+.1f} %", kind])
    title, words, text = (
        f"{CLUSTER}: published and predicted",
        ("figure", "method", "fitted"),
        link_text(cluster),
    )
    kinds = (f"{kind}: {len(pairs)} rows, {Errors.of(pairs)}" for kind, pairs in errors.items())
    show(120, table(title, COLUMNS, lines, left=words), *text.splitlines(), *kinds)
    if options.output:
        write_file(options.output, text)


def link_text(cluster: Cluster) -> str:
    """The fitted lines of a cluster file."""
    law = cluster.collectives
    values = {"collectives": curve_values(law.efficiency) | {"across": curve_values(law.across)}}
    return f"overlap_slowdown = {SLOWDOWN:g}\n{toml_text(values).lstrip()}"
