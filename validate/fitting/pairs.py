"""Pairs: what one message between two devices takes, pair by pair, and which links messages cross inside a node."""

from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Final

import numpy as np

from profiles.clusters import Cluster, Link
from profiles.collectives import Group
from profiles.errors import InputError
from profiles.units import GB, MICROSECOND
from validate.fitting.least_squares import Law, fit_law
from validate.fitting.link_samples import PING_PONG, Sample, by_pair, seconds_of

NVSWITCH: Final = "nvswitch"
PCIE: Final = "pcie"
SPREAD: Final = 0.2
"""By how much pairs may differ before one link no longer stands for all."""

Pair = tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Wiring:
    """What joins the devices of a node: ``nvswitch`` (every two alike), or ``pcie`` with so many under one switch."""

    kind: str = NVSWITCH
    switch_size: int = 0

    def __post_init__(self) -> None:
        if self.kind == PCIE and self.switch_size < 1:
            raise InputError("--kind pcie needs --switch-size, the devices under one switch, at least 1")
        if self.kind != PCIE and self.switch_size:
            raise InputError(f"--switch-size is of --kind pcie, not of {self.kind}")

    def check(self, devices_per_node: int) -> None:
        """Refuse switches that do not divide a node."""
        if self.kind == PCIE and devices_per_node % self.switch_size:
            rule = f"must divide the {devices_per_node} devices of a node"
            raise InputError(f"--switch-size is {self.switch_size}, {rule}")

    def kind_of(self, sample: Sample) -> str:
        """Where a message runs, in words."""
        if sample.group.num_nodes > 1:
            return "between nodes"
        return "across switches" if crosses(self.switch_size, sample.pair) else "inside a node"


def crosses(switch_size: int, pair: Pair) -> bool:
    """Whether two devices hang under different switches; ``switch_size`` is 0 where there are none."""
    return bool(switch_size and pair) and pair[0] // switch_size != pair[1] // switch_size


def message_s(cluster: Cluster, sample: Sample) -> float:
    """Seconds that the simulator gives a message that has all ports on its way to itself."""
    link = cluster.intra_node if sample.group.num_nodes == 1 else cluster.inter_node
    assert link is not None
    slowest = link.bandwidth_bytes_per_s
    if sample.group.num_nodes == 1 and crosses(link.switch_size, sample.pair):
        slowest = min(slowest, link.switch_bandwidth_bytes_per_s, link.host_bandwidth_bytes_per_s)
    return link.latency_s + link.call_s + sample.size_bytes / slowest


def messages(samples: Iterable[Sample], num_nodes: int) -> list[Sample]:
    """Single messages: ping-pong, else a round of two."""
    pairs = [sample for sample in samples if sample.group == Group(2, num_nodes)]
    chosen = [sample for sample in pairs if sample.operation == PING_PONG]
    return chosen or [sample for sample in pairs if sample.operation == "send_recv"]


def law_of(samples: Sequence[Sample]) -> Law:
    """Law of messages by their bytes."""
    return fit_law(np.array([sample.size_bytes for sample in samples]), seconds_of(samples))


def across_switches(samples: Sequence[Sample], port: Link, wiring: Wiring, notes: list[str]) -> Link:
    """A link over PCIe with what its switches and its host carry, as far as measured messages say.

    Both are at least what one message across switches reaches, and the host what all of a ring reach at once; where
    no message crosses, the port's bandwidth stands in. What has to be said is added to the notes.
    """
    crossing = [sample for sample in messages(samples, 1) if crosses(wiring.switch_size, sample.pair)]
    slope = law_of(crossing).s_per_unit if crossing else 0.0
    one = 1 / slope if slope > 0 else port.bandwidth_bytes_per_s
    rings = (sample for sample in samples if sample.operation == "send_recv" and sample.group.num_nodes == 1)
    together = max((_across(sample, wiring.switch_size) for sample in rings), default=0.0)
    notes.append(
        "switches and host: at least as fast as one message across switches, the host as all messages of a ring at once"
        if crossing
        else "switches and host: no single message crossed switches, the port's bandwidth stands in"
    )
    return replace(
        port,
        kind=PCIE,
        switch_size=wiring.switch_size,
        switch_bandwidth_bytes_per_s=one,
        host_bandwidth_bytes_per_s=max(one, together),
    )


def _across(ring: Sample, switch_size: int) -> float:
    """Bytes per second that all messages of a ring from rank 0 on carry across switches."""
    size = ring.group.size
    crossing = sum(crosses(switch_size, (rank, (rank + 1) % size)) for rank in range(size))
    return crossing * ring.size_bytes / ring.seconds


def spread_notes(samples: Sequence[Sample], wiring: Wiring) -> Iterator[str]:
    """One line for each kind of pairs that differ too much for one link to stand for all."""
    kinds: dict[str, dict[Pair, Law]] = defaultdict(dict)
    for pair, of_pair in by_pair(samples).items():
        kinds[wiring.kind_of(of_pair[0])][pair] = law_of(of_pair)
    hint = "; if some cross switches, say so by --kind pcie --switch-size" if wiring.kind != PCIE else ""
    for where, laws in kinds.items():
        rates = {pair: 1 / law.s_per_unit / GB for pair, law in laws.items() if law.s_per_unit > 0}
        fixed = {pair: law.fixed_s / MICROSECOND for pair, law in laws.items() if law.fixed_s > 0}
        found = [said for said in (_spread(rates, "GB/s"), _spread(fixed, "us")) if said]
        if found:
            yield f"pairs {where} differ: {', '.join(found)}; one link stands for all{hint}"


def _spread(values: dict[Pair, float], unit: str) -> str:
    """Extremes of some pairs, where they are too far from one another."""
    if not values or max(values.values()) <= (1 + SPREAD) * min(values.values()):
        return ""
    ends = min(values, key=values.__getitem__), max(values, key=values.__getitem__)
    return " to ".join(f"{values[pair]:.3g} {unit} ({'-'.join(map(str, pair))})" for pair in ends)
