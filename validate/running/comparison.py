"""Comparison: a job that ranks carry out, what they recorded, and the simulation of the same plan beside it."""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from math import nan
from statistics import mean, median
from typing import Any

from profiles.checks import sum_in_order
from profiles.measuring.machine import disturbance
from sim.replay.engine import simulate
from sim.replay.metrics import idle_s
from strategies.plans.network import Network
from strategies.plans.plan import Op, Plan
from validate.running.executor import OpTimes, RankIteration
from validate.running.sampling.settings import Settings
from validate.running.training.samples import Training


@dataclass(frozen=True, slots=True)
class Job:
    """What the ranks are to do.

    ``mode`` says with which durations it is simulated: sleep, replay, virtual or wall. Every message takes ``link_s``
    seconds, whatever its size. Ops carry out ``task``; without one they sleep.
    """

    name: str
    mode: str
    plan: Plan
    link_s: float = 0.0
    iterations: int = 1
    warm_up: int = 0
    task: Training | Settings | None = None

    @property
    def num_ranks(self) -> int:
        """Number of its ranks."""
        return self.plan.placement.num_gpus

    @property
    def network(self) -> Network:
        """The simulator's network; the ranks know only ``link_s``."""
        return Network(self.plan.placement)


Iteration = tuple[RankIteration, ...]
"""What each rank recorded of one iteration."""


@dataclass(frozen=True, slots=True)
class Outcome:
    """The outcome of a job, without its warm-up iterations.

    ``others_cores`` is the number of cores that other programs used, NaN where not known; ``found`` the result of each
    rank. The gradient error is the largest difference of a gradient from that of a single process, over the largest
    gradient of the layer.
    """

    iterations: tuple[Iteration, ...] = ()
    others_cores: float = 0.0
    found: tuple[Any, ...] = ()
    gradient_error: float | None = None


@dataclass(frozen=True, slots=True)
class Pair:
    """One iteration, measured and simulated: seconds and bubble ratios.

    ``late_share`` is the total delay of the ops of the latest rank, as a share of the iteration; ``charged_s`` are the
    simulated seconds where the delay of an op counts as part of it.
    """

    measured_s: float
    simulated_s: float
    measured_bubble_ratio: float
    simulated_bubble_ratio: float
    late_share: float = 0.0
    charged_s: float = nan

    @property
    def error(self) -> float:
        """Simulated over measured time, less one."""
        return self.simulated_s / self.measured_s - 1


@dataclass(frozen=True, slots=True)
class RankComparison:
    """All iterations of a job."""

    name: str
    mode: str
    pairs: tuple[Pair, ...]
    gradient_error: float | None
    others_cores: float = 0.0

    @property
    def predicts(self) -> bool:
        """Whether one simulation stands for all iterations, so that their medians are compared."""
        return self.mode in ("virtual", "wall")

    @property
    def error(self) -> float:
        """Absolute error of the iteration time: of the medians where one simulation stands for all, else the median."""
        if self.predicts:
            simulated_s = median(pair.simulated_s for pair in self.pairs)
            return abs(simulated_s / median(pair.measured_s for pair in self.pairs) - 1)
        return median(abs(pair.error) for pair in self.pairs)

    @property
    def worst_error(self) -> float:
        """Largest absolute error of any iteration."""
        return max(abs(pair.error) for pair in self.pairs)

    @property
    def bubble_error(self) -> float:
        """Absolute error of the bubble ratio, as ``error``."""
        errors = [pair.simulated_bubble_ratio - pair.measured_bubble_ratio for pair in self.pairs]
        return abs(median(errors)) if self.predicts else median(map(abs, errors))

    @property
    def mismatch(self) -> float:
        """Largest relative difference between engine and executor where the delays of ops count as part of them.

        This is no measure of accuracy: with all durations given, only order and links are left, and both must agree to
        rounding, unless replicas are folded into one, for which the slowest stands.
        """
        return max(abs(pair.charged_s / pair.measured_s - 1) for pair in self.pairs)

    @property
    def invalid(self) -> str | None:
        """Why the result is not valid; None where it is."""
        return (disturbance(self.others_cores) or None) if self.mode == "wall" else None


def compare(job: Job, outcome: Outcome) -> RankComparison:
    """A run beside its simulation.

    ``sleep`` is compared with the plan itself, ``replay`` with the plan at each iteration's own durations. Both are
    also simulated with each iteration's own durations and delays: what then differs is an error of the order or of the
    links. ``virtual`` and ``wall`` are compared with the plan at the median durations of every other iteration, and
    only the remaining iterations count. In the iterations from which ``wall`` predicts, ranks take turns, so that an op
    takes as long as one that is profiled alone.
    """
    pairs = tuple(_pairs(job, outcome))
    return RankComparison(job.name, job.mode, pairs, outcome.gradient_error, outcome.others_cores)


def _pairs(job: Job, outcome: Outcome) -> Iterator[Pair]:
    iterations = outcome.iterations
    if job.mode in ("sleep", "replay"):
        for iteration in iterations:
            plan = job.plan if job.mode == "sleep" else _with_durations(job.plan, [iteration])
            charged = _with_durations(job.plan, [iteration], charged=True)
            pair = _pair(job, plan, iteration)
            yield replace(pair, charged_s=simulate(charged, job.network).end_s)
    else:
        virtual = job.mode == "virtual"
        plan = _with_durations(job.plan, iterations[::2], virtual=virtual)
        yield from (_pair(job, plan, iteration, virtual=virtual) for iteration in iterations[1::2])


def _pair(job: Job, plan: Plan, iteration: Iteration, *, virtual: bool = False) -> Pair:
    trace = simulate(plan, job.network)
    measured_s = max(rank.end[virtual] for rank in iteration)
    busy_s = mean(sum_in_order(op.end[virtual] - op.start[virtual] for op in rank.ops) for rank in iteration)
    late_s = max(rank.late_s for rank in iteration)
    bubbles = 1 - busy_s / measured_s, idle_s(trace) / trace.end_s
    return Pair(measured_s, trace.end_s, *bubbles, late_s / max(rank.end.wall for rank in iteration))


def _with_durations(
    plan: Plan, iterations: Sequence[Iteration], *, virtual: bool = False, charged: bool = False
) -> Plan:
    """A plan whose ops take as long, and write when, they did; medians over iterations.

    Of the ranks that carry out the same device the slowest counts. Times are wall time, or virtual time; if
    ``charged``, the delay of an op is part of it.
    """
    rows = []
    for device, row in enumerate(plan.ops):
        ranks = [[it[rank].ops for it in iterations] for rank in plan.placement.ranks(device)]
        slowest = max(
            ranks, key=lambda own: sum_in_order(t.end[virtual] - t.start[virtual] for x in own for t in x)
        )
        own = zip(row, zip(*slowest, strict=True), strict=True)
        rows.append(tuple(_timed(op, times, virtual=virtual, charged=charged) for op, times in own))
    return replace(plan, ops=tuple(rows))


def _timed(op: Op, times: Sequence[OpTimes], *, virtual: bool, charged: bool) -> Op:
    begins = [t.start[virtual] - (t.late_s if charged else 0.0) for t in times]

    def after_begin(moments: Iterable[float]) -> float:
        return median(at - begin for at, begin in zip(moments, begins, strict=True))

    written_s = after_begin(t.written[virtual] for t in times)
    early = [(written_s, tensor) for _, tensor in op.early]
    if not virtual:
        early = [(after_begin(t.early[n] for t in times), tensor) for n, (_, tensor) in enumerate(op.early)]
    early += [(written_s, tensor) for tensor in op.writes]
    duration_s = after_begin(t.end[virtual] for t in times)
    return op._replace(duration_s=duration_s, writes=(), early=tuple(early))
