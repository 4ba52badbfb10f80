"""Boxes: the pace of their hosts, and the links of an 8-card PCIe machine, from published rows.

Hosts: a run takes no less than its host does, so the ratio of a row's published seconds to those in which a host of
slowness 1 dispatches its operators and makes its calls is the most that a box's slowness can be (``pace`` in files and
tables). Where the GPUs explain less than ``EXPLAINED`` of a row of small images, the run waits for the host, and the
ratio is the slowness; a box has the median of such rows. One without such rows has the least ratio if that is below
that of a box of which nothing is known, else the latter.

Links: the rows are those of PixArt on up to 8 L40 in one node; they do not count as predictions. For 4 and 8 cards two
efficiencies are fitted: one of all ring operations (tensor parallelism sums, ring attention passes on, DistriFusion
gathers) and one of all-to-all (Ulysses). Each is the one at which the median logarithmic error of its rows vanishes.
Over 2 cards the rows take hardly longer than the compute alone and determine neither an efficiency nor the slowdown of
compute beside collectives: these are priors (``PRIORS``, ``SLOWDOWN``). Rows of pipelines, which send messages, are
checks. xDiT's rows do not say how many synchronous steps were run; none are assumed, as in the example of its README.
The pipelines agree: with one, 8 cards would take 44 to 48 % longer at 4096 pixels than was published, with none 12 to
16 %.
"""

from argparse import Namespace
from collections.abc import Mapping
from dataclasses import replace
from functools import cache
from itertools import product
from math import exp, log
from statistics import median
from typing import Final, NamedTuple

from profiles.machines.clusters import Cluster
from profiles.machines.fabrics import OPERATIONS
from profiles.machines.hosts import BOX, FREE, Host
from profiles.measuring.fitting.collective_laws import curve_values
from profiles.measuring.fitting.least_squares import Errors
from profiles.measuring.writing import show, table, toml_text
from validate.points import cluster_of
from validate.published.runs import SamplingRow, place_of, predict, sampling_rows, scenario_of
from validate.tables import write_file

BOXES: Final = ("a100-nvlink-8", "a100-pcie-4", "l40-pcie-8")
"""Boxes on which a source published several methods on small images."""
SOURCES: Final = ("PipeFusion", "xdit_assets", "xDiT")
"""Beginnings of the sources whose runs are dispatched operator by operator."""
HOST_PIXELS: Final = "1024"
HOST_METHODS: Final = ("distrifusion", "sp_ring", "sp_ulysses", "tensor_parallel")
"""The methods of small images whose steps are all alike."""
EXPLAINED: Final = 2 / 3


class HostRow(NamedTuple):
    """A published row with its seconds, those of the GPUs alone, and those of a host of slowness 1 alone."""

    row: SamplingRow
    published_s: float
    gpu_s: float
    host_s: float


def host_rows(box: str) -> list[HostRow]:
    """The rows of a box on as many GPUs as one node has, where the host counts most."""
    cluster, distinct = cluster_of(box), dict[tuple[str, float], HostRow]()
    for row in sampling_rows():
        small = row["resolution_px"] == HOST_PIXELS and row["method"] in HOST_METHODS
        if not (small and row["source"].startswith(SOURCES) and row.latency_s and row["cluster"] == box):
            continue
        if row.num_gpus == cluster.devices_per_node:
            alone = predict(row, {box: replace(cluster, host=FREE)}).outcome
            scenario = scenario_of(place_of(row, {box: replace(cluster, host=Host(1.0, 1.0, 1.0))}))
            host_s = sum(
                phase.times * max(sum(op.host_s for op in ops) for ops in phase.plan.ops)
                for phase in row.samplers(scenario)[0].phases(scenario)
            )
            distinct[row["method"], row.latency_s] = HostRow(row, row.latency_s, alone.latency_s, host_s)
    return list(distinct.values())


def run_hosts(options: Namespace) -> None:
    """Print each box's rows, and its slowness."""
    lines, paces = list[list[str]](), list[str]()
    for box in BOXES:
        waiting, most = list[float](), [BOX.slowness]
        for row, published_s, gpu_s, host_s in host_rows(box):
            seconds = (f"{s:.3g} s" for s in (published_s, gpu_s, host_s))
            slowness, waits = published_s / host_s, gpu_s < EXPLAINED * published_s
            (waiting if waits else most).append(slowness)
            pace = f"{slowness:.2f}" if waits else f"at most {slowness:.2f}"
            lines.append([box, f"{row.num_gpus}", row["method"], *seconds, pace])
        paces.append(f"{box}: pace = {median(waiting) if waiting else min(most):.3g}")
    header = ("box", "GPUs", "method", "published", "GPUs alone", "host of pace 1", "pace")
    show(100, table("Hosts", header, lines, left=("box", "method")), *paces)


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


def linked(points: Points) -> Cluster:
    """The cluster with some efficiencies.

    Those of all-to-all over 4 and 8 cards are across sockets, where two cards are as a ring of 8.
    """
    cluster = cluster_of(CLUSTER)
    ring, others = (
        tuple((float(size), points[operation, size]) for operation, size in points if operation == kind)
        for kind in (RING, ALL_TO_ALL)
    )
    efficiency = tuple(
        (operation, others[:1] if operation == ALL_TO_ALL else ring) for operation in OPERATIONS
    )
    across = ((ALL_TO_ALL, ((2.0, points[RING, 8]), *others[1:])),) if others[1:] else ()
    collectives = replace(cluster.collectives, efficiency=efficiency, across=across)
    return replace(cluster, overlap_slowdown=SLOWDOWN, collectives=collectives)


@cache
def rows() -> tuple[SamplingRow, ...]:
    """Published rows that are fitted to, or check the fit."""
    ours = (row for row in sampling_rows() if row["table_or_figure"] in FIGURES and row["method"] in USES)
    return tuple(row for row in ours if row.num_gpus in SIZES and row.latency_s)


def fitted_cluster() -> Cluster:
    """The cluster with the fitted efficiencies, of two digits."""
    points = dict(PRIORS)
    for key in product((RING, ALL_TO_ALL), FITTED):
        chosen = [row for row in rows() if (USES[row["method"]], row.num_gpus) == key]
        low, high = log(LEAST_EFFICIENCY), 0.0
        for _ in range(HALVINGS):  # until the median error vanishes: a higher efficiency is always faster
            middle = (low + high) / 2
            cluster = linked({**points, key: exp(middle)})
            too_slow = median(error_of(row, cluster) for row in chosen) > 0
            low, high = (middle, high) if too_slow else (low, middle)
        points[key] = float(f"{exp((low + high) / 2):.2g}")
    return linked(points)


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
        place = row["table_or_figure"], row["resolution_px"], f"{row.num_gpus}", row["method"]
        seconds = (f"{value:.4g} s" for value in (row.latency_s, row.latency_s * ratio))
        lines.append([*place, *seconds, f"{100 * (ratio - 1):+.1f} %", kind])
    title = f"{CLUSTER}: published and predicted"
    header = ("figure", "pixels", "GPUs", "method", "published", "predicted", "error", "fitted")
    law = cluster.collectives
    values = {"collectives": curve_values(law.efficiency) | {"across": curve_values(law.across)}}
    text = f"overlap_slowdown = {SLOWDOWN:g}\n{toml_text(values).lstrip()}"
    kinds = (f"{kind}: {len(pairs)} rows, {Errors.of(pairs)}" for kind, pairs in errors.items())
    show(120, table(title, header, lines, left=("figure", "method", "fitted")), *text.splitlines(), *kinds)
    if options.output:
        write_file(options.output, text)
