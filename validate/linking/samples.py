"""Samples: what was measured on the links of a machine, by own runs or by nccl-tests."""

from dataclasses import dataclass
from typing import Final

from profiles.collectives import Group

PING_PONG: Final = "ping_pong"
"""One message from one device to another: half a round trip. All other operations are those of a cluster file."""
HEADER: Final = "operation,group_size,num_nodes,beside_compute,size_bytes,us"


@dataclass(frozen=True, slots=True)
class Sample:
    """The time of one operation at one size.

    Attributes:
        operation: ``ping_pong``, or an operation of ``profiles.collectives.collective_time``.
        group: its members.
        size_bytes: as ``collective_time`` counts them.
        seconds: of one call.
        beside_compute: every device computed meanwhile.
    """

    operation: str
    group: Group
    size_bytes: float
    seconds: float
    beside_compute: bool = False


@dataclass(frozen=True, slots=True)
class Measurement:
    """Everything that was measured on a machine.

    Attributes:
        devices_per_node: ranks of a node.
        num_nodes: nodes.
        environment: what ran where, one sentence for the ``source`` of a cluster file.
        samples: the medians.
        slowdowns: compute beside a collective over compute alone, by operation; empty where it was not measured.
        missing: operations that the backend has not.
        other_cores: cores that other programs held meanwhile, nothing where that is not known.
    """

    devices_per_node: int
    num_nodes: int
    environment: str
    samples: tuple[Sample, ...]
    slowdowns: tuple[tuple[str, float], ...] = ()
    missing: tuple[str, ...] = ()
    other_cores: float | None = None

    def idle(self) -> list[Sample]:
        """Return the samples of a machine that did nothing else."""
        return [sample for sample in self.samples if not sample.beside_compute]


def sample_text(samples: tuple[Sample, ...]) -> str:
    """Return samples as CSV."""
    lines = [
        f"{sample.operation},{sample.group.size},{sample.group.num_nodes},"
        f"{'yes' if sample.beside_compute else 'no'},{sample.size_bytes:.0f},{sample.seconds * 1e6:.3f}"
        for sample in samples
    ]
    return "\n".join([HEADER, *lines]) + "\n"
