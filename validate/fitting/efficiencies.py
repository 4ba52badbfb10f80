"""The links of an 8-card PCIe machine: what collectives reach of a port, fitted to published rows.

The rows are those of PixArt on up to 8 L40 in one node; they do not count as predictions. For 4 and 8 cards two
efficiencies are fitted: one of all ring operations (tensor parallelism sums, ring attention passes on, DistriFusion
gathers) and one of all-to-all (Ulysses). Each is the one at which the median logarithmic error of its rows vanishes:
more is faster, so bisection finds it. Over 2 cards the rows are hardly longer than the compute alone and determine
neither an efficiency nor how much slower compute is beside collectives: priors stand there (``PRIORS``, ``SLOWDOWN``).
Software per call is an estimate. Rows of pipelines, which send messages, are checks.

xDiT's rows do not say how many synchronous steps were run: none here, as in the example of its README. The pipelines
agree: with one, 8 cards would take 43 to 47 % longer at 4096 pixels than was published, with none 12 to 15 %.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from functools import cache
from math import exp, log
from pathlib import Path
from statistics import mean, median
from typing import Final, NamedTuple

from rich.table import Table

from profiles.clusters import Cluster
from profiles.fabrics import OPERATIONS, Collectives, Curve
from profiles.units import MICROSECOND
from strategies.sampling.distrifusion import DistriFusion
from strategies.sampling.pipefusion import PipeFusion
from strategies.sampling.ring import Ring
from strategies.sampling.tensor import TensorParallel
from strategies.sampling.ulysses import Ulysses
from strategies.strategy import Sampler
from validate.fitting.errors import Errors
from validate.points import cluster_of
from validate.printing import show, table
from validate.published.sampling.rows import SamplingRow, sampling_rows
from validate.published.sampling.runs import Place, outcome_of
from validate.writing import write_file

CLUSTER: Final = "l40-pcie-8"
FIGURES: Final = ("Pixart-16L40", "hybrid-pixart-1k", "hybrid-pixart-2k", "hybrid-pixart-4k")
SIZES: Final = (2, 4, 8)
FITTED: Final = (4, 8)
"""Cards of a row, and those for which its efficiencies are fitted."""
RING: Final = "ring"
ALL_TO_ALL: Final = "all_to_all"
CHECK: Final = "check"
METHODS: Final[Mapping[str, tuple[str, Sampler]]] = {
    "tensor_parallel": (RING, TensorParallel()),
    "sp_ring": (RING, Ring()),
    "distrifusion": (RING, DistriFusion(warmup_steps=0, gather_layers=1)),
    "sp_ulysses": (ALL_TO_ALL, Ulysses()),
    "pipefusion": (CHECK, PipeFusion(warmup_steps=0, receive="after")),
}
"""What is fitted to the rows of a method, and what it ran."""
CALL_US: Final = 50
"""Microseconds of software per call: the estimate of cluster p4de."""
PRIORS: Final[Mapping[str, tuple[int, float]]] = {RING: (2, 0.8), ALL_TO_ALL: (2, 0.92)}
"""Cards and efficiency that the rows do not determine. Source: measured NCCL on 2 L40S over PCIe 4.0, cards of the same
build (aic:l40s/comm/nccl/2.27.3: 20.8 GB/s of rings, 23.9 of all-to-all, of 26), as cluster l40s-ib has them."""
SLOWDOWN: Final = 1.6
"""Compute beside collectives. Source: DistriFusion, Table 2, A100: 1.5 to 1.7 times slower; no other was measured, and
rows of 4 A100 over PCIe that set nothing come out too fast by 20 % with 1.1."""
OTHER_SLOWDOWNS: Final = (1.0, 1.3)
LEAST: Final = 0.02
"""The least efficiency."""
HALVINGS: Final = 8
COLUMNS: Final = ("figure", "pixels", "GPUs", "method", "published", "predicted", "error", "fitted")


@dataclass(frozen=True, slots=True)
class Links:
    """The links of a machine: software per call and message, and the slowdown of compute beside collectives.

    The efficiencies of ring operations and of all-to-all are by group size.
    """

    call_us: float
    slowdown: float
    ring: Curve = ()
    all_to_all: Curve = ()

    def curve(self, operation: str) -> Curve:
        """Efficiency of an operation by group size."""
        return self.all_to_all if operation == ALL_TO_ALL else self.ring

    def on(self, cluster: Cluster) -> Cluster:
        """A cluster with these links; what is not fitted yet is 1."""
        efficiency = tuple((operation, self.curve(operation) or ((1, 1.0),)) for operation in OPERATIONS)
        call_s = self.call_us * MICROSECOND
        return replace(
            cluster,
            overlap_slowdown=self.slowdown,
            intra_node=replace(cluster.intra_node, call_s=call_s),
            collectives=Collectives(call_s, efficiency, cluster.collectives.nodes),
        )


class LinkFit(NamedTuple):
    """The fitted links, the logarithmic error of each row, and the mean error of the slowdowns that were tried."""

    links: Links
    errors: tuple[tuple[SamplingRow, float], ...]
    alternatives: tuple[tuple[Links, float], ...]

    def of(self, kind: str) -> Errors:
        """Errors of the rows of one kind."""
        return Errors.of((1.0, exp(error)) for row, error in self.errors if kind_of(row) == kind)


@cache
def rows() -> tuple[SamplingRow, ...]:
    """Published rows that are fitted to, or check the fit."""
    return tuple(
        row
        for row in sampling_rows()
        if row.figure in FIGURES and row["method"] in METHODS and row.num_gpus in SIZES and row.latency_s
    )


def kind_of(row: SamplingRow) -> str:
    """What is fitted to a row."""
    return METHODS[row["method"]][0]


def fit_links() -> LinkFit:
    """Links under which the published rows come out."""
    chosen = links_at(SLOWDOWN)
    fitted = rounded(chosen)
    errors = tuple((row, error_of(row, fitted)) for row in rows())
    tried = (chosen, *map(links_at, OTHER_SLOWDOWNS))
    return LinkFit(fitted, errors, tuple((links, loss(links)) for links in tried))


def links_at(slowdown: float) -> Links:
    """Links with the efficiencies that suit a slowdown."""
    links = Links(CALL_US, slowdown, ring=(PRIORS[RING],), all_to_all=(PRIORS[ALL_TO_ALL],))
    for kind in (RING, ALL_TO_ALL):
        for size in FITTED:
            links = _plus(links, kind, size, _efficiency(kind, size, links))
    return links


def _plus(links: Links, kind: str, size: int, efficiency: float) -> Links:
    curve = (*links.curve(kind), (size, efficiency))
    return replace(links, ring=curve) if kind == RING else replace(links, all_to_all=curve)


def _efficiency(kind: str, size: int, links: Links) -> float:
    """Efficiency at which the median error of the rows of one kind and size vanishes; at most 1."""
    chosen = [row for row in rows() if kind_of(row) == kind and row.num_gpus == size]

    def too_slow(efficiency: float) -> bool:
        there = _plus(links, kind, size, efficiency)
        return median(error_of(row, there) for row in chosen) > 0

    if too_slow(1.0):
        return 1.0
    low, high = log(LEAST), 0.0
    for _ in range(HALVINGS):
        middle = (low + high) / 2
        low, high = (middle, high) if too_slow(exp(middle)) else (low, middle)
    return exp((low + high) / 2)


def error_of(row: SamplingRow, links: Links) -> float:
    """Logarithm of predicted over published seconds."""
    assert row.num_gpus and row.latency_s
    place = Place(row.model, links.on(cluster_of(CLUSTER)), row.num_gpus, *row.size, row.steps, "batch")
    sampler = METHODS[row["method"]][1]
    outcome = outcome_of(place, sampler)  # type: ignore[arg-type]  # samplers are frozen dataclasses
    return log(outcome.latency_s / row.latency_s)


def loss(links: Links) -> float:
    """Mean absolute error of the rows that are fitted to."""
    return mean(abs(error_of(row, links)) for row in rows() if kind_of(row) != CHECK)


def rounded(links: Links) -> Links:
    """Links with efficiencies of two digits."""
    ring, all_to_all = (
        tuple((size, float(f"{value:.2g}")) for size, value in links.curve(kind))
        for kind in (RING, ALL_TO_ALL)
    )
    return replace(links, ring=ring, all_to_all=all_to_all)


def report_efficiencies(output: Path | None) -> None:
    """Fit the links, print what they predict, and write the lines of the cluster files if asked to."""
    found = fit_links()
    show(120, residual_table(found), *summary(found))
    if output:
        write_file(output, link_text(found.links))


def residual_table(found: LinkFit) -> Table:
    """One line per row."""
    rows = [
        [
            *(row.figure, row["resolution_px"], f"{row.num_gpus}", row["method"]),
            *(f"{seconds:.4g} s" for seconds in (row.latency_s or 0.0, (row.latency_s or 0.0) * exp(error))),
            *(f"{100 * (exp(error) - 1):+.1f} %", kind_of(row)),
        ]
        for row, error in found.errors
    ]
    title = f"{CLUSTER}: published and predicted"
    return table(title, COLUMNS, rows, left=("figure", "method", "fitted"))


def summary(found: LinkFit) -> Iterator[str]:
    """Lines of a cluster file, the errors of each kind of rows, and what the grid says."""
    yield from link_text(found.links).splitlines()
    for kind in (RING, ALL_TO_ALL, CHECK):
        yield f"{kind}: {len(found.of(kind))} rows, {found.of(kind)}"
    for links, error in found.alternatives:
        yield f"slowdown {links.slowdown:g}: mean error {100 * error:.1f} %"


def link_text(links: Links) -> str:
    """Lines of a cluster file that are fitted, and software per call."""
    lines = [f"overlap_slowdown = {links.slowdown:g}", "[collectives]", f"call_us = {links.call_us:g}"]
    for operation in OPERATIONS:
        values = ", ".join(f"{size} = {value:g}" for size, value in links.curve(operation))
        lines.append(f"{operation} = {{ {values} }}")
    return "\n".join(lines) + "\n"
