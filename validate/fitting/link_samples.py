"""Link samples: what was measured on the links of a machine, by own runs or by nccl-tests."""

from collections.abc import Callable, Hashable, Iterable
from dataclasses import dataclass
from typing import Final, TypeVar

import numpy as np

from profiles.collectives import Group, bus_volume
from profiles.costs import FloatArray
from profiles.units import GB, MICROSECOND
from validate.machine import NOT_KNOWN
from validate.writing import csv_text

PING_PONG: Final = "ping_pong"
"""One message from one device to another: half a round trip. All other operations are those of a cluster file."""
COLUMNS: Final = (
    *("operation", "group_size", "num_nodes", "pair", "beside_compute", "held_back"),
    *("size_bytes", "us"),
)

Key = TypeVar("Key", bound=Hashable)
Curve = tuple[str, Group]
"""Operation and members, of which there are times by size."""


@dataclass(frozen=True, slots=True)
class Sample:
    """The time of one operation at one size.

    Attributes:
        operation: ``ping_pong``, or an operation of ``profiles.collectives.collective_time``.
        group: its members.
        size_bytes: as ``collective_time`` counts them.
        seconds: of one call.
        beside_compute: every device computed meanwhile.
        pair: the two ranks, of ``ping_pong``.
    """

    operation: str
    group: Group
    size_bytes: float
    seconds: float
    beside_compute: bool = False
    pair: tuple[int, ...] = ()

    @property
    def curve(self) -> Curve:
        """Operation and members."""
        return self.operation, self.group

    @property
    def bus_gb_per_s(self) -> float:
        """Bus bandwidth, as nccl-tests prints it."""
        factor = 1.0 if self.operation == PING_PONG else bus_volume(self.operation, self.group.size)
        return factor * self.size_bytes / self.seconds / GB


@dataclass(frozen=True, slots=True)
class Measurement:
    """Everything that was measured on a machine.

    Attributes:
        devices_per_node: ranks of a node.
        num_nodes: nodes.
        environment: what ran where, one sentence for the ``source`` of a cluster file.
        samples: the medians of odd rounds, to which links are fitted.
        slowdowns: compute beside a collective over compute alone, by operation; empty where it was not measured.
        missing: operations that the backend has not.
        other_cores: cores that other programs kept busy meanwhile on any node; NaN where that is not known.
        held_back: the medians of even rounds, idle, by which links are judged; none of logs.
    """

    devices_per_node: int
    num_nodes: int
    environment: str
    samples: tuple[Sample, ...]
    slowdowns: tuple[tuple[str, float], ...] = ()
    missing: tuple[str, ...] = ()
    other_cores: float = NOT_KNOWN
    held_back: tuple[Sample, ...] = ()

    def idle(self) -> list[Sample]:
        """Samples of a machine that did nothing else."""
        return [sample for sample in self.samples if not sample.beside_compute]

    def judges(self) -> list[Sample]:
        """Idle samples by which a fit is judged: those held back, or all where none were."""
        return list(self.held_back) or self.idle()


def grouped(samples: Iterable[Sample], key: Callable[[Sample], Key]) -> dict[Key, list[Sample]]:
    """Samples by a key, in their order."""
    groups: dict[Key, list[Sample]] = {}
    for sample in samples:
        groups.setdefault(key(sample), []).append(sample)
    return groups


def by_curve(samples: Iterable[Sample]) -> dict[Curve, list[Sample]]:
    """Samples by operation and members."""
    return grouped(samples, lambda sample: sample.curve)


def by_pair(samples: Iterable[Sample]) -> dict[tuple[int, ...], list[Sample]]:
    """Ping-pong samples of each pair."""
    return grouped((s for s in samples if s.operation == PING_PONG and s.pair), lambda sample: sample.pair)


def seconds_of(samples: Iterable[Sample]) -> FloatArray:
    """Measured seconds."""
    return np.array([sample.seconds for sample in samples])


def sample_text(measurement: Measurement) -> str:
    """Samples as CSV."""
    parts = ((measurement.samples, "no"), (measurement.held_back, "yes"))
    return csv_text(COLUMNS, (_row(sample, held_back) for samples, held_back in parts for sample in samples))


def _row(sample: Sample, held_back: str) -> list[object]:
    pair, beside = "-".join(map(str, sample.pair)), "yes" if sample.beside_compute else "no"
    where = [sample.operation, sample.group.size, sample.group.num_nodes, pair, beside, held_back]
    return [*where, f"{sample.size_bytes:.0f}", f"{sample.seconds / MICROSECOND:.3f}"]
