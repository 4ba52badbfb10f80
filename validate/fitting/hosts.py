"""The hosts of boxes: how slow they are, from published rows of small images whose time the GPUs do not explain.

A run takes no less than its host does: the ratio of a row's published seconds to those in which a host of slowness 1
dispatches its operators and makes its calls is the most that a box's slowness can be (``pace`` in files and tables).
Where the GPUs explain less than ``EXPLAINED`` of a row, the run waits for the host, and the ratio is the slowness; a
box has the median of such rows. One without such rows has the least ratio if that is below that of a box of which
nothing is known, else the latter.
"""

from argparse import Namespace
from collections.abc import Iterator
from dataclasses import replace
from statistics import median
from typing import Final, NamedTuple

from profiles.checks import sum_in_order
from profiles.machines.hosts import BOX, FREE, UNIT
from profiles.measuring.tables import show, table
from validate.points import cluster_of
from validate.published.rows import SamplingRow, sampling_rows
from validate.published.runs import place_of, predict, scenario_of

BOXES: Final = ("a100-nvlink-8", "a100-pcie-4", "l40-pcie-8")
"""Boxes on which a source published several methods on small images."""
SOURCES: Final = ("PipeFusion", "xdit_assets", "xDiT")
"""Beginnings of the sources whose runs are dispatched operator by operator."""
HOST_PIXELS: Final = "1024"
HOST_METHODS: Final = ("distrifusion", "sp_ring", "sp_ulysses", "tensor_parallel")
"""The methods of small images whose steps are all alike."""
EXPLAINED: Final = 2 / 3
COLUMNS: Final = ("box", "GPUs", "method", "published", "GPUs alone", "host of pace 1", "pace")


class HostRow(NamedTuple):
    """A published row with its seconds, those of the GPUs alone, and those of a host of slowness 1 alone."""

    row: SamplingRow
    published_s: float
    gpu_s: float
    host_s: float

    @property
    def slowness(self) -> float:
        """The most that the box's slowness can be."""
        return self.published_s / self.host_s

    @property
    def waits(self) -> bool:
        """Whether the run waits for the host."""
        return self.gpu_s < EXPLAINED * self.published_s


def host_rows(box: str) -> list[HostRow]:
    """The rows of a box on as many GPUs as one node has, where the host counts most."""
    cluster, distinct = cluster_of(box), dict[tuple[str, float], HostRow]()
    for row in sampling_rows():
        small = row["resolution_px"] == HOST_PIXELS and row["method"] in HOST_METHODS
        if not (small and row["source"].startswith(SOURCES) and row.latency_s and row["cluster"] == box):
            continue
        if row.num_gpus == cluster.devices_per_node:
            alone = predict(row, {box: replace(cluster, host=FREE)}).outcome
            assert alone is not None
            scenario = scenario_of(place_of(row, {box: replace(cluster, host=UNIT)}))
            host_s = sum_in_order(
                phase.times * max(sum_in_order(op.host_s for op in ops) for ops in phase.plan.ops)
                for phase in row.samplers(scenario)[0].phases(scenario)
            )
            distinct[row["method"], row.latency_s] = HostRow(row, row.latency_s, alone.latency_s, host_s)
    return list(distinct.values())


def slowness_of(rows: list[HostRow]) -> float:
    """The slowness of a box, by its rows."""
    waiting = [row.slowness for row in rows if row.waits]
    return median(waiting) if waiting else min([BOX.slowness, *(row.slowness for row in rows)])


def run_hosts(options: Namespace) -> None:
    """Print each box's rows, and its slowness."""
    by_box = {box: host_rows(box) for box in BOXES}
    lines = [line for box, rows in by_box.items() for line in _lines(box, rows)]
    show(100, table("Hosts", COLUMNS, lines, left=("box", "method")))
    show(100, *(f"{box}: pace = {slowness_of(rows):.3g}" for box, rows in by_box.items()))


def _lines(box: str, rows: list[HostRow]) -> Iterator[list[str]]:
    for row in rows:
        seconds = (row.published_s, row.gpu_s, row.host_s)
        slowness = f"{row.slowness:.2f}" if row.waits else f"at most {row.slowness:.2f}"
        yield [box, f"{row.row.num_gpus}", row.row["method"], *(f"{s:.3g} s" for s in seconds), slowness]
