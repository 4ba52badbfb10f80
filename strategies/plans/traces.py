"""The trace: when everything in a plan happened."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Self

from strategies.plans.plan import Plan
from strategies.plans.wiring import Wiring

Span = tuple[float, float]
Moments = Sequence[Sequence[float]]


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

    """

    wiring: Wiring
    starts: tuple[tuple[float, ...], ...]
    ends: tuple[tuple[float, ...], ...]
    early: tuple[tuple[float, ...], ...]
    sent: tuple[float, ...]
    arrived: tuple[float, ...]
    collectives: tuple[Span, ...]
    end_s: float
    p2p_bytes: float
    collective_bytes: float

    @classmethod
    def of(
        cls,
        wiring: Wiring,
        ops: tuple[Moments, Moments, Moments],
        slots: tuple[Sequence[float], Sequence[float]],
        collectives: Sequence[Span],
        *,
        p2p_bytes: float,
        collective_bytes: float,
    ) -> Self:
        """The trace of what was replayed to its end; ``ops`` are starts, ends and early, ``slots`` sent and arrived."""
        starts, ends, early = (tuple(map(tuple, rows)) for rows in ops)
        sent, arrived = map(tuple, slots)
        kept = [arrived[wiring.slots[key]] for key in wiring.plan.kept if key in wiring.slots]
        last = [*(row[-1] for row in ends if row), *(end for _, end in collectives), *kept]
        end_s = max(last, default=0.0)
        spans, volumes = tuple(collectives), (p2p_bytes, collective_bytes)
        return cls(wiring, starts, ends, early, sent, arrived, spans, end_s, *volumes)

    def __repr__(self) -> str:
        return f"<Trace of {self.plan!r}: {self.end_s:.4g} s>"

    @property
    def plan(self) -> Plan:
        """The plan that was replayed."""
        return self.wiring.plan

    def busy(self, device: int) -> list[Span]:
        """The compute spans of a device, in order."""
        return list(zip(self.starts[device], self.ends[device], strict=True))
