"""Samples: what was measured on the links of a machine, by own runs or by nccl-tests."""

from dataclasses import dataclass
from typing import Final

from profiles.collectives import Group
from validate.machine import NOT_KNOWN

PING_PONG: Final = "ping_pong"
"""One message from one device to another: half a round trip. All other operations are those of a cluster file."""
HEADER: Final = "operation,group_size,num_nodes,pair,beside_compute,held_back,size_bytes,us"


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


@dataclass(frozen=True, slots=True)
class Measurement:
    """Everything that was measured on a machine.

    Attributes:
        devices_per_node: ranks of a node.
        num_nodes: nodes.
        environment: what ran where, one sentence for the ``source`` of a cluster file.
        samples: the medians of odd rounds, to which links are fitted.
        held_back: those of even rounds, idle, by which they are judged; none of logs.
        slowdowns: compute beside a collective over compute alone, by operation; empty where it was not measured.
        missing: operations that the backend has not.
        other_cores: cores that other programs kept busy meanwhile on any node; NaN where that is not known.
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
        """Return the samples of a machine that did nothing else."""
        return [sample for sample in self.samples if not sample.beside_compute]

    def judges(self) -> list[Sample]:
        """Return the idle samples by which a fit is judged: those held back, or all where none were."""
        return list(self.held_back) or self.idle()


def sample_text(measurement: Measurement) -> str:
    """Return samples as CSV."""
    lines = [_row(sample, "no") for sample in measurement.samples]
    lines += [_row(sample, "yes") for sample in measurement.held_back]
    return "\n".join([HEADER, *lines]) + "\n"


def _row(sample: Sample, held_back: str) -> str:
    pair = "-".join(map(str, sample.pair))
    beside = "yes" if sample.beside_compute else "no"
    where = f"{sample.operation},{sample.group.size},{sample.group.num_nodes},{pair},{beside}"
    return f"{where},{held_back},{sample.size_bytes:.0f},{sample.seconds * 1e6:.3f}"
