"""The trace: when everything in a plan happened."""

from dataclasses import dataclass

from strategies.plans.plan import Plan
from strategies.plans.wiring import Wiring

Span = tuple[float, float]


@dataclass(frozen=True, slots=True)
class Trace:
    """Times of one replayed iteration, in seconds from its start.

    Args:
        wiring: the plan with its deliveries.
        starts: for each device the start of each op.
        ends: for each device the end of each op.
        early: for each device the times of its ops' writes before their ends, in order.
        sent: for each slot when it went on the wire.
        arrived: for each slot when it arrived.
        collectives: for each collective when it ran.
        end_s: when the last op, collective and kept tensor was done: the makespan.
        p2p_bytes: what all GPUs together send in messages.
        collective_bytes: what all GPUs together send in collectives.
        nearest_s: least seconds between the arrivals of a chunk of a collective and of anything else at a port: where
            these are few, last digits decide which goes first. Zero: not known; infinite: no two share a port.
    """

    wiring: Wiring
    starts: list[list[float]]
    ends: list[list[float]]
    early: list[list[float]]
    sent: list[float]
    arrived: list[float]
    collectives: list[Span]
    end_s: float
    p2p_bytes: float
    collective_bytes: float
    nearest_s: float = 0.0

    def __repr__(self) -> str:
        return f"<Trace of {self.plan!r}: {self.end_s:.4g} s>"

    @property
    def plan(self) -> Plan:
        """The plan that was replayed."""
        return self.wiring.plan

    def busy(self, device: int) -> list[Span]:
        """The compute spans of a device, in order."""
        return list(zip(self.starts[device], self.ends[device], strict=True))
