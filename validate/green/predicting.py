"""Predicting: an iteration from the durations of its ops, each alone on its partition and with the others busy.

Partitions share memory and its cache, so an op takes longer beside others, and how many others run depends on the
schedule. The prediction therefore takes each op as long as alone, plus what all others busy add to it, times the share
of the others that are busy meanwhile; as the simulation says, over and over until it says the same again. Nothing is
fitted: both durations are measured without the schedule. The two extremes are predicted as well.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Final

from sim.replay.engine import simulate
from sim.replay.metrics import idle_s
from strategies.plans.plan import Op, Plan
from strategies.plans.traces import Trace
from validate.green.iteration import Durations, Span

ROUNDS: Final = 50
SETTLED: Final = 1e-6
"""An iteration that changes by a smaller share than this between two simulations changes no more."""


@dataclass(frozen=True, slots=True)
class Prediction:
    """What the simulator says of one iteration; ``alone_s`` and ``busy_s`` where every op takes as long as so."""

    end_s: float
    bubble_ratio: float
    alone_s: float
    busy_s: float


def predict(plan: Plan, alone: Durations, busy: Durations) -> Prediction:
    """The prediction of an iteration from the seconds of each op while all others are idle, and while they are busy."""
    trace = _shared(plan, alone, busy)
    extremes = [simulate(with_durations(plan, durations)).end_s for durations in (alone, busy)]
    return Prediction(trace.end_s, idle_s(trace) / trace.end_s, *extremes)


def with_durations(plan: Plan, durations: Durations) -> Plan:
    """A plan whose ops take so long, and whose tensors are there when their op ends."""
    rows = (
        tuple(_timed(op, seconds) for op, seconds in zip(row, own, strict=True))
        for row, own in zip(plan.ops, durations, strict=True)
    )
    return replace(plan, ops=tuple(rows))


def _timed(op: Op, seconds: float) -> Op:
    writes = op.writes + tuple(tensor for _, tensor in op.early)
    return replace(op, duration_s=seconds, writes=writes, early=())


def _shared(plan: Plan, alone: Durations, busy: Durations) -> Trace:
    """The trace in which each op takes as long as the others that run beside it let it."""
    shares = [[1.0] * len(row) for row in alone]
    end_s = 0.0
    for _ in range(ROUNDS):
        durations = [
            [a + (b - a) * share for a, b, share in zip(*rows, strict=True)]
            for rows in zip(alone, busy, shares, strict=True)
        ]
        trace = simulate(with_durations(plan, durations))
        if abs(trace.end_s - end_s) <= SETTLED * trace.end_s:
            break
        end_s = trace.end_s
        found = busy_shares([list(trace.busy(device)) for device in range(plan.num_devices)])
        shares = [
            [(x + y) / 2 for x, y in zip(*pair, strict=True)] for pair in zip(shares, found, strict=True)
        ]
    return trace


def busy_shares(rows: Sequence[Sequence[Span]]) -> list[list[float]]:
    """For each op of each device the share of the other devices that are busy while it runs, in the mean."""
    return [
        [_share(span, [other for number, other in enumerate(rows) if number != device]) for span in row]
        for device, row in enumerate(rows)
    ]


def _share(span: Span, others: Sequence[Sequence[Span]]) -> float:
    start, end = span
    if end <= start or not others:
        return 0.0
    overlap = sum(max(0.0, min(end, b) - max(start, a)) for row in others for a, b in row)
    return overlap / (end - start) / len(others)
