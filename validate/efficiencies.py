"""The links of an 8-card PCIe machine: what collectives reach of a port, fitted to published rows.

The rows are those of PixArt on up to 8 L40 in one node; they do not count as predictions. For each number of cards two
efficiencies are fitted: one of all ring operations (tensor parallelism sums, ring attention passes on, DistriFusion
gathers) and one of all-to-all (Ulysses). Each is the one at which the median logarithmic error of its rows vanishes:
more is faster, so bisection finds it. How much slower compute is beside collectives comes from a small grid, by the
mean absolute error. Software per call is an estimate; what the rows say of others is printed. Rows of pipelines, which
send messages, are checks.

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

from rich.console import Console
from rich.table import Table

from profiles.clusters import OPERATIONS, Cluster, Collectives, load_cluster
from profiles.units import MICROSECOND
from strategies.distrifusion import DistriFusion
from strategies.pipefusion import PipeFusion
from strategies.ring import Ring
from strategies.sampler import Sampler
from strategies.tensor import TensorParallel
from strategies.ulysses import Ulysses
from validate.published.sampling.rows import SamplingRow, sampling_rows
from validate.published.sampling.runs import Place, outcome_of
from validate.writing import write_file

CLUSTER: Final = "l40-pcie-8"
FIGURES: Final = ("Pixart-16L40", "hybrid-pixart-1k", "hybrid-pixart-2k", "hybrid-pixart-4k")
SIZES: Final = (2, 4, 8)
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
OTHER_CALLS_US: Final = (0, 100)
SLOWDOWNS: Final = (1.0, 1.1, 1.2, 1.3, 1.4)
NEAR: Final = 0.02
"""Slowdowns whose errors differ by less are alike; the least is taken."""
LEAST: Final = 0.02
"""The least efficiency."""
HALVINGS: Final = 8
COLUMNS: Final = ("figure", "pixels", "GPUs", "method", "published", "predicted", "error", "fitted")


class Links(NamedTuple):
    """The links of a machine.

    Attributes:
        call_us: microseconds of software per call and message.
        slowdown: of compute beside collectives.
        ring: efficiency of ring operations by group size.
        all_to_all: that of all-to-all.
    """

    call_us: float
    slowdown: float
    ring: tuple[tuple[int, float], ...] = ()
    all_to_all: tuple[tuple[int, float], ...] = ()

    def on(self, cluster: Cluster) -> Cluster:
        """Return a cluster with these links; what is not fitted yet is 1."""
        curves = {
            operation: self.all_to_all if operation == ALL_TO_ALL else self.ring for operation in OPERATIONS
        }
        efficiency = tuple((operation, curve or ((1, 1.0),)) for operation, curve in curves.items())
        call_s = self.call_us * MICROSECOND
        return replace(
            cluster,
            overlap_slowdown=self.slowdown,
            intra_node=replace(cluster.intra_node, call_s=call_s),
            collectives=Collectives(call_s, efficiency, cluster.collectives.nodes),
        )


@dataclass(frozen=True, slots=True)
class LinkFit:
    """The fitted links and the rows they were fitted to, or are checked by.

    Attributes:
        links: what was fitted.
        errors: logarithmic error of each row.
        alternatives: mean absolute error of each slowdown and of each other time per call, with the efficiencies that
            suit them.
    """

    links: Links
    errors: tuple[tuple[SamplingRow, float], ...]
    alternatives: tuple[tuple[Links, float], ...]

    def of(self, kind: str) -> list[float]:
        """Return the relative errors of the rows of one kind, without sign."""
        return [abs(exp(error) - 1) for row, error in self.errors if METHODS[row["method"]][0] == kind]


@cache
def rows() -> tuple[SamplingRow, ...]:
    """Return the published rows that are fitted to, or check the fit."""
    return tuple(
        row
        for row in sampling_rows()
        if row.figure in FIGURES and row["method"] in METHODS and row.num_gpus in SIZES and row.latency_s
    )


def fit_links() -> LinkFit:
    """Return the links under which the published rows come out."""
    tried = [(links, loss(links)) for links in (links_at(CALL_US, slowdown) for slowdown in SLOWDOWNS)]
    limit = (1 + NEAR) * min(error for _, error in tried)
    chosen = next(links for links, error in tried if error <= limit)
    others = [links_at(call_us, chosen.slowdown) for call_us in OTHER_CALLS_US]
    fitted = rounded(chosen)
    return LinkFit(
        fitted,
        tuple((row, error_of(row, fitted)) for row in rows()),
        (*tried, *((links, loss(links)) for links in others)),
    )


def links_at(call_us: float, slowdown: float) -> Links:
    """Return the links with the efficiencies that suit a time per call and a slowdown."""
    links = Links(call_us, slowdown)
    for size in SIZES:
        links = _with(links, RING, size, _efficiency(RING, size, links))
    for size in SIZES:
        links = _with(links, ALL_TO_ALL, size, _efficiency(ALL_TO_ALL, size, links))
    return links


def _with(links: Links, kind: str, size: int, efficiency: float) -> Links:
    point = (size, efficiency)
    if kind == RING:
        return links._replace(ring=(*links.ring, point))
    return links._replace(all_to_all=(*links.all_to_all, point))


def _efficiency(kind: str, size: int, links: Links) -> float:
    """Return the efficiency at which the median error of the rows of one kind and size vanishes; at most 1."""
    chosen = [row for row in rows() if METHODS[row["method"]][0] == kind and row.num_gpus == size]

    def too_slow(efficiency: float) -> bool:
        there = _with(links, kind, size, efficiency)
        return median(error_of(row, there) for row in chosen) > 0

    if too_slow(1.0):
        return 1.0
    low, high = log(LEAST), 0.0
    for _ in range(HALVINGS):
        middle = (low + high) / 2
        low, high = (middle, high) if too_slow(exp(middle)) else (low, middle)
    return exp((low + high) / 2)


def error_of(row: SamplingRow, links: Links) -> float:
    """Return the logarithm of predicted over published seconds."""
    assert row.num_gpus and row.latency_s
    place = Place(row.model, links.on(load()), row.num_gpus, *row.size, row.steps, "batch")
    sampler = METHODS[row["method"]][1]
    outcome = outcome_of(place, sampler)  # type: ignore[arg-type]  # samplers are frozen dataclasses
    return log(outcome.latency_s / row.latency_s)


@cache
def load() -> Cluster:
    """Return the cluster whose links are fitted."""
    return load_cluster(CLUSTER)


def loss(links: Links) -> float:
    """Return the mean absolute error of the rows that are fitted to."""
    return mean(abs(error_of(row, links)) for row in rows() if METHODS[row["method"]][0] != CHECK)


def rounded(links: Links) -> Links:
    """Return links with efficiencies of two digits."""
    ring, all_to_all = (
        tuple((size, float(f"{value:.2g}")) for size, value in curve)
        for curve in (links.ring, links.all_to_all)
    )
    return links._replace(ring=ring, all_to_all=all_to_all)


def report_efficiencies(output: Path | None) -> None:
    """Fit the links, print what they predict, and write the lines of the cluster files if asked to."""
    found = fit_links()
    console = Console(width=120)
    console.print(residual_table(found))
    for line in summary(found):
        console.print(line, highlight=False)
    if output:
        write_file(output, link_text(found.links))


def residual_table(found: LinkFit) -> Table:
    """Return one line per row."""
    result = Table(title=f"{CLUSTER}: published and predicted", title_justify="left")
    for column in COLUMNS:
        result.add_column(column, justify="left" if column in ("figure", "method", "fitted") else "right")
    for row, error in found.errors:
        assert row.latency_s
        result.add_row(
            row.figure,
            row["resolution_px"],
            f"{row.num_gpus}",
            row["method"],
            f"{row.latency_s:.4g} s",
            f"{row.latency_s * exp(error):.4g} s",
            f"{100 * (exp(error) - 1):+.1f} %",
            METHODS[row["method"]][0],
        )
    return result


def summary(found: LinkFit) -> Iterator[str]:
    """Yield the lines of a cluster file, the errors of each kind of rows, and what the grid says."""
    yield from link_text(found.links).splitlines()
    for kind in (RING, ALL_TO_ALL, CHECK):
        errors = [100 * error for error in found.of(kind)]
        yield f"{kind}: {len(errors)} rows, median error {median(errors):.1f} %, worst {max(errors):.1f} %"
    for links, error in found.alternatives:
        yield f"call_us {links.call_us:g}, slowdown {links.slowdown:g}: mean error {100 * error:.1f} %"


def link_text(links: Links) -> str:
    """Return the lines of a cluster file that are fitted, and software per call."""
    lines = [f"overlap_slowdown = {links.slowdown:g}", "[collectives]", f"call_us = {links.call_us:g}"]
    for operation in OPERATIONS:
        curve = links.all_to_all if operation == ALL_TO_ALL else links.ring
        values = ", ".join(f"{size} = {value:g}" for size, value in curve)
        lines.append(f"{operation} = {{ {values} }}")
    return "\n".join(lines) + "\n"
