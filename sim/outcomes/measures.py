"""Measures of an iteration, or of a run of the sampler, and the sums of those of its parts."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields, replace
from typing import Final, Self

from sim.replay.memory import peak_memory_bytes
from sim.replay.metrics import collective_s, dispatch_s, exposed_communication_s, idle_s
from strategies.plans.traces import Trace


@dataclass(frozen=True, slots=True)
class Measures:
    """Measures of one iteration, or one run; means over devices where a quantity has one value per device.

    Attributes:
        duration_s: of an iteration its makespan with the frozen work of one iteration, which is the period; of a run
            the time from its first denoising step, or the text encoders where they are included, to its end.
        first_s: duration of the first iteration, which also runs its own frozen work.
        idle_s: seconds without compute.
        exposed_communication_s: idle seconds while something awaited, or what it queues behind, is on the wire.
        dispatch_s: seconds in which the busiest host hands over operators and calls, whether GPUs wait for it or not.
        p2p_bytes: what all GPUs together send in messages.
        collective_bytes: what all GPUs together send in collectives.
        peak_memory_bytes: the largest over devices.
    """

    duration_s: float
    first_s: float
    idle_s: float
    exposed_communication_s: float
    collective_s: float
    dispatch_s: float
    p2p_bytes: float
    collective_bytes: float
    peak_memory_bytes: float

    @property
    def busy_s(self) -> float:
        """Seconds in which compute runs."""
        return self.duration_s - self.idle_s

    @classmethod
    def of(cls, trace: Trace) -> Self:
        """Return the measures of the trace of an iteration, or of a run."""
        return cls(
            duration_s=trace.end_s,
            first_s=trace.end_s + trace.plan.prologue_s,
            idle_s=idle_s(trace),
            exposed_communication_s=exposed_communication_s(trace),
            collective_s=collective_s(trace),
            dispatch_s=dispatch_s(trace.plan.ops),
            p2p_bytes=trace.p2p_bytes,
            collective_bytes=trace.collective_bytes,
            peak_memory_bytes=float(peak_memory_bytes(trace).max()),
        )


SUMMED: Final = tuple(item.name for item in fields(Measures) if item.name != "peak_memory_bytes")
"""Quantities that add up."""


def _weighted(measured: Sequence[Measures], weights: Mapping[str, Sequence[float]]) -> Measures:
    """Return the weighted sum of each quantity over parts, with the largest peak."""
    sums = {
        name: float(sum(x * getattr(one, name) for x, one in zip(factors, measured, strict=True)))
        for name, factors in weights.items()
    }
    return Measures(**sums, peak_memory_bytes=max(measures.peak_memory_bytes for measures in measured))


def in_turn(measured: Sequence[Measures], times: Sequence[int]) -> Measures:
    """Return the measures of parts that follow one another, each so many times."""
    return _weighted(measured, dict.fromkeys(SUMMED, times))


def expectation(
    measured: Sequence[Measures], probabilities: Sequence[float], shares: Sequence[float]
) -> Measures:
    """Return expected measures: times weighted by probability, the work of groups by the share that does it.

    Args:
        measured: of each kind of iteration.
        probabilities: how often an iteration takes as long as these; the slowest group decides.
        shares: the share of the groups that do this work.
    """
    if len(measured) == 1:
        return measured[0]
    waited = {"duration_s": probabilities, "first_s": probabilities}
    expected = _weighted(measured, dict.fromkeys(SUMMED, shares) | waited)
    busy_s = sum(share * one.busy_s for share, one in zip(shares, measured, strict=True))
    return replace(expected, idle_s=max(0.0, expected.duration_s - busy_s))


def together_s(jobs_s: Sequence[float]) -> float:
    """Return the seconds in which jobs side by side train as many samples as each does in one iteration.

    Their throughputs add up, so it is the harmonic mean. Source: DiffusionPipe, section 6, DeepSpeed-P.
    """
    if len(jobs_s) == 1:
        return jobs_s[0]
    if not all(jobs_s):  # nothing is known of one
        return 0.0
    return len(jobs_s) / sum(1 / seconds for seconds in jobs_s)


def side_by_side(jobs: Sequence[Measures]) -> Measures:
    """Return the measures of jobs on equally many GPUs while they train each backbone on one batch.

    Each runs as many of its iterations, or such a part of one, as fit; times are means over all devices.
    """
    if len(jobs) == 1:
        return jobs[0]
    duration_s = together_s([job.duration_s for job in jobs])
    times = [duration_s / job.duration_s for job in jobs]
    means = [each / len(jobs) for each in times]
    sums = {name: times if name.endswith("bytes") else means for name in SUMMED}
    return replace(_weighted(jobs, sums), duration_s=duration_s)
