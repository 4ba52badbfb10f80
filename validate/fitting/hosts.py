"""The hosts of boxes: how slow they are, from published rows of small images whose time the GPUs do not explain.

A run takes no less than its host does: the ratio of a row's published seconds to those in which a host of slowness 1
dispatches its operators and makes its calls is the most that a box's slowness can be (``pace`` in files and tables).
Where the GPUs explain less than ``EXPLAINED`` of a row, the run waits for the host, and the ratio is the slowness; a
box has the median of such rows. One without such rows has the least ratio if that is below 1, else 1.
"""

from argparse import Namespace
from collections.abc import Iterator
from dataclasses import dataclass, replace
from functools import cached_property
from statistics import median
from typing import Final

from profiles.checks import sum_in_order
from profiles.machines.clusters import Cluster
from profiles.machines.hosts import BOX, FREE, Host
from profiles.measuring.tables import show, table
from validate.points import cluster_of
from validate.published.rows import SamplingRow, samplers, sampling_rows
from validate.published.runs import HOST_METHODS, HOST_PIXELS, place_of, predict, scenario_of

BOXES: Final = ("a100-nvlink-8", "a100-pcie-4", "l40-pcie-8")
"""Boxes on which a source published several methods on small images."""
SOURCES: Final = ("PipeFusion", "xdit_assets", "xDiT")
"""Beginnings of the sources whose runs are dispatched operator by operator."""
EXPLAINED: Final = 2 / 3
COLUMNS: Final = ("box", "GPUs", "method", "published", "GPUs alone", "host of pace 1", "pace")


@dataclass(frozen=True)
class HostRow:
    """A published row beside the seconds of the GPUs alone, and of a host of slowness 1 alone."""

    row: SamplingRow

    @cached_property
    def gpu_s(self) -> float:
        """Seconds of the GPUs, beside a host that takes no time."""
        return predict(self.row, self._beside(FREE)).outcome.latency_s  # type: ignore[union-attr]  # rows are covered

    @cached_property
    def host_s(self) -> float:
        """Seconds of the busiest host, of slowness 1."""
        scenario = scenario_of(place_of(self.row, self._beside(BOX)))
        phases = samplers(self.row, scenario)[0].phases(scenario)
        busiest = [max(sum_in_order(op.host_s for op in ops) for ops in phase.plan.ops) for phase in phases]
        return sum_in_order(phase.times * seconds for phase, seconds in zip(phases, busiest, strict=True))

    @property
    def slowness(self) -> float:
        """The most that the box's slowness can be."""
        assert self.row.latency_s is not None
        return self.row.latency_s / self.host_s

    @property
    def waits(self) -> bool:
        """Whether the run waits for the host."""
        assert self.row.latency_s is not None
        return self.gpu_s < EXPLAINED * self.row.latency_s

    def _beside(self, host: Host) -> dict[str, Cluster]:
        """The row's cluster with another host."""
        return {self.row.cluster: replace(cluster_of(self.row.cluster), host=host)}


def host_rows(box: str) -> list[HostRow]:
    """The rows of a box on as many GPUs as one node has, where the host counts most."""
    size = cluster_of(box).devices_per_node
    found = [row for row in sampling_rows() if _of_box(row, box) and row.num_gpus == size]
    return [HostRow(row) for row in {(row["method"], row.latency_s): row for row in found}.values()]


def _of_box(row: SamplingRow, box: str) -> bool:
    small = row["resolution_px"] == HOST_PIXELS and row["method"] in HOST_METHODS
    timed = row["source"].startswith(SOURCES) and row.latency_s is not None
    return small and timed and row.cluster == box


def slowness_of(rows: list[HostRow]) -> float:
    """The slowness of a box, by its rows."""
    waiting = [row.slowness for row in rows if row.waits]
    return median(waiting) if waiting else min([1.0, *(row.slowness for row in rows)])


def run_hosts(options: Namespace) -> None:
    """Print each box's rows, and its slowness."""
    found = {box: host_rows(box) for box in BOXES}
    lines = [line for box, rows in found.items() for line in _lines(box, rows)]
    show(100, table("Hosts", COLUMNS, lines, left=("box", "method")))
    show(100, *(f"{box}: pace = {slowness_of(rows):.3g}" for box, rows in found.items()))


def _lines(box: str, rows: list[HostRow]) -> Iterator[list[str]]:
    for row in rows:
        seconds = (row.row.latency_s or 0.0, row.gpu_s, row.host_s)
        slowness = f"{row.slowness:.2f}" if row.waits else f"at most {row.slowness:.2f}"
        yield [box, f"{row.row.num_gpus}", row.row["method"], *(f"{s:.3g} s" for s in seconds), slowness]
