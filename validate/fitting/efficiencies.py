"""The links of an 8-card PCIe machine: efficiencies of collectives, fitted to published rows.

The rows are those of PixArt on up to 8 L40 in one node; they do not count as predictions. For 4 and 8 cards two
efficiencies are fitted: one of all ring operations (tensor parallelism sums, ring attention passes on, DistriFusion
gathers) and one of all-to-all (Ulysses). Each is the one at which the median logarithmic error of its rows vanishes,
found by bisection, as a higher efficiency is always faster. Over 2 cards the rows take hardly longer than the compute
alone and determine neither an efficiency nor the slowdown of compute beside collectives: these are priors (``PRIORS``,
``SLOWDOWN``). Rows of pipelines, which send messages, are checks.

xDiT's rows do not say how many synchronous steps were run; none are assumed, as in the example of its README. The
pipelines agree: with one, 8 cards would take 43 to 47 % longer at 4096 pixels than was published, with none 12 to 15 %.
"""

from argparse import Namespace
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from functools import cache
from math import exp, log
from statistics import median
from typing import Final

from profiles.machines.clusters import Cluster
from profiles.machines.fabrics import OPERATIONS, Curve, Curves
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
PRIORS: Final[Mapping[str, tuple[int, float]]] = {RING: (2, 0.8), ALL_TO_ALL: (2, 0.92)}
"""Cards and efficiency that the rows do not determine. Source: measured NCCL on 2 L40S over PCIe 4.0, cards of the same
build (aic:l40s/comm/nccl/2.27.3: rings reach 20.8 GB/s and all-to-all 23.9 of 26), as in cluster l40s-ib."""
SLOWDOWN: Final = 1.6
"""Factor on compute beside collectives. Source: DistriFusion, Table 2, A100: 1.5 to 1.7 times slower; no other was
measured, and independent rows of 4 A100 over PCIe come out too fast by 20 % with 1.1."""
LEAST_EFFICIENCY: Final = 0.02
HALVINGS: Final = 8
COLUMNS: Final = ("figure", "pixels", "GPUs", "method", "published", "predicted", "error", "fitted")


@dataclass(frozen=True, slots=True)
class Links:
    """The efficiencies of collectives by kind and group size."""

    known: tuple[tuple[str, tuple[int, float]], ...] = tuple(PRIORS.items())

    def curve(self, operation: str) -> Curve:
        """Efficiency of an operation by group size; of all-to-all, of cards under one socket."""
        if operation == ALL_TO_ALL:
            return (PRIORS[ALL_TO_ALL],)
        return tuple(point for of, point in self.known if of == RING)

    @property
    def across(self) -> Curves:
        """Efficiency of all-to-all across sockets, where 4 and 8 cards lie; two as a ring of 8."""
        points = tuple(point for of, point in self.known if of == ALL_TO_ALL and point[0] in FITTED)
        return ((ALL_TO_ALL, ((2.0, dict(self.curve(RING))[8]), *points)),) if points else ()

    def plus(self, kind: str, size: int, efficiency: float) -> "Links":
        """These links with one more efficiency."""
        return replace(self, known=(*self.known, (kind, (size, efficiency))))

    def on(self, cluster: Cluster) -> Cluster:
        """A cluster with these links."""
        efficiency = tuple((operation, self.curve(operation)) for operation in OPERATIONS)
        collectives = replace(cluster.collectives, efficiency=efficiency, across=self.across)
        return replace(cluster, overlap_slowdown=SLOWDOWN, collectives=collectives)


@cache
def rows() -> tuple[SamplingRow, ...]:
    """Published rows that are fitted to, or check the fit."""
    ours = (row for row in sampling_rows() if row.figure in FIGURES and row["method"] in USES)
    return tuple(row for row in ours if row.num_gpus in SIZES and row.latency_s)


def fitted_links() -> Links:
    """Links with the fitted efficiencies, of two digits."""
    links = Links()
    for kind in (RING, ALL_TO_ALL):
        for size in FITTED:
            links = links.plus(kind, size, float(f"{_efficiency(kind, size, links):.2g}"))
    return links


def _efficiency(kind: str, size: int, links: Links) -> float:
    """Efficiency below 1 at which the median error of the rows of one kind and size vanishes.

    Raises:
        ValueError: there is none, so the rows do not determine it.
    """
    chosen = [row for row in rows() if USES[row["method"]] == kind and row.num_gpus == size]

    def too_slow(efficiency: float) -> bool:
        there = links.plus(kind, size, efficiency)
        return median(error_of(row, there) for row in chosen) > 0

    if too_slow(1.0) or not too_slow(LEAST_EFFICIENCY):
        raise ValueError(f"{kind} over {size} cards ends at a bound: its rows do not determine it")
    low, high = log(LEAST_EFFICIENCY), 0.0
    for _ in range(HALVINGS):
        middle = (low + high) / 2
        low, high = (middle, high) if too_slow(exp(middle)) else (low, middle)
    return exp((low + high) / 2)


def error_of(row: SamplingRow, links: Links) -> float:
    """Logarithm of predicted over published seconds."""
    error = predict(row, {CLUSTER: links.on(cluster_of(CLUSTER))}).error
    assert error is not None
    return log(1 + error)


def report_efficiencies(options: Namespace) -> None:
    """Fit the links, print their predictions, and write the lines of the cluster files if asked to."""
    links = fitted_links()
    title, words = f"{CLUSTER}: published and predicted", ("figure", "method", "fitted")
    show(120, table(title, COLUMNS, residuals(links), left=words), *summary(links))
    if options.output:
        write_file(options.output, link_text(links))


def residuals(links: Links) -> Iterator[list[str]]:
    """The cells of one line per row."""
    for row in rows():
        error = exp(error_of(row, links)) - 1
        assert row.latency_s
        place = row.figure, row["resolution_px"], f"{row.num_gpus}", row["method"]
        seconds = (f"{of:.4g} s" for of in (row.latency_s, row.latency_s * (1 + error)))
        yield [*place, *seconds, f"{100 * error:+.1f} %", USES[row["method"]]]


def summary(links: Links) -> Iterator[str]:
    """Lines of a cluster file, and the errors of each kind of rows."""
    yield from link_text(links).splitlines()
    for kind in (RING, ALL_TO_ALL, CHECK):
        errors = Errors.of((1.0, exp(error_of(row, links))) for row in rows() if USES[row["method"]] == kind)
        yield f"{kind}: {len(errors)} rows, {errors}"


def link_text(links: Links) -> str:
    """The fitted lines of a cluster file."""
    curves = curve_values(tuple((operation, links.curve(operation)) for operation in OPERATIONS))
    values = {"collectives": curves | {"across": curve_values(links.across)}}
    return f"overlap_slowdown = {SLOWDOWN:g}\n{toml_text(values).lstrip()}"
