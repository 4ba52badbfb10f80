"""Comparison: a job that ranks carry out, what they recorded, and the simulation of the same plan beside it."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from statistics import mean, median
from typing import Any

from profiles.checks import sum_in_order
from sim.replay.engine import simulate
from sim.replay.metrics import idle_s
from strategies.plans.network import Network
from strategies.plans.plan import Op, Plan
from validate.running.executor import OpTimes, RankIteration
from validate.running.sampling.settings import Settings
from validate.running.training.samples import Training


@dataclass(frozen=True, slots=True)
class Job:
    """What the ranks are to do; every message takes ``link_s`` seconds, and ops without a ``task`` sleep."""

    name: str
    plan: Plan
    link_s: float = 0.0
    iterations: int = 1
    warm_up: int = 0
    task: Training | Settings | None = None

    @property
    def num_ranks(self) -> int:
        """Number of its ranks."""
        return self.plan.placement.num_gpus


Iteration = tuple[RankIteration, ...]
"""What each rank recorded of one iteration."""


@dataclass(frozen=True, slots=True)
class Outcome:
    """The iterations of a job after its warm-up, and the result of each rank.

    The gradient error is the largest difference of a gradient from that of a single process, over the largest gradient
    of the layer.
    """

    iterations: tuple[Iteration, ...] = ()
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
    late_share: float
    charged_s: float

    @property
    def error(self) -> float:
        """Absolute error of the simulated time."""
        return abs(self.simulated_s / self.measured_s - 1)

    @property
    def bubble_error(self) -> float:
        """Absolute error of the bubble ratio."""
        return abs(self.simulated_bubble_ratio - self.measured_bubble_ratio)

    @property
    def mismatch(self) -> float:
        """Relative difference between engine and executor where the delays of ops count as part of them.

        This is no measure of accuracy: with all durations given, only order and links are left, and both must agree to
        rounding, unless replicas are folded into one, for which the slowest stands.
        """
        return abs(self.charged_s / self.measured_s - 1)


def compare(job: Job, outcome: Outcome) -> list[Pair]:
    """Each iteration beside its simulation.

    Sleeping kernels are compared with the plan itself, real ones with the plan at the durations of the iteration.
    """
    return [_pair(job, iteration) for iteration in outcome.iterations]


def _pair(job: Job, iteration: Iteration) -> Pair:
    network = Network(job.plan.placement)
    trace = simulate(job.plan if job.task is None else _with_durations(job.plan, iteration), network)
    charged = simulate(_with_durations(job.plan, iteration, charged=True), network)
    measured_s = max(rank.end for rank in iteration)
    busy_s = mean(sum_in_order(op.end - op.start for op in rank.ops) for rank in iteration)
    bubbles = 1 - busy_s / measured_s, idle_s(trace) / trace.end_s
    late_share = max(rank.late_s for rank in iteration) / measured_s
    return Pair(measured_s, trace.end_s, *bubbles, late_share, charged.end_s)


def _with_durations(plan: Plan, iteration: Iteration, *, charged: bool = False) -> Plan:
    """A plan whose ops take as long, and write when, they did; if ``charged``, with the delay of each op.

    Of the ranks that carry out the same device the slowest counts.
    """
    rows = []
    for device, row in enumerate(plan.ops):
        ranks = [iteration[rank].ops for rank in plan.placement.ranks(device)]
        slowest = max(ranks, key=lambda ops: sum_in_order(op.end - op.start for op in ops))
        rows.append(tuple(_timed(op, at, charged=charged) for op, at in zip(row, slowest, strict=True)))
    return replace(plan, ops=tuple(rows))


def _timed(op: Op, at: OpTimes, *, charged: bool) -> Op:
    begin = at.start - (at.late_s if charged else 0.0)
    early = [(moment - begin, tensor) for moment, (_, tensor) in zip(at.early, op.early, strict=True)]
    early += [(at.written - begin, tensor) for tensor in op.writes]
    return op._replace(duration_s=at.end - begin, writes=(), early=tuple(early))


def middle(pairs: Iterable[Pair], quantity: str) -> float:
    """The median of a quantity over iterations."""
    return median(float(getattr(pair, quantity)) for pair in pairs)


def worst(pairs: Sequence[Pair], quantity: str) -> float:
    """The largest of a quantity over iterations."""
    return max(float(getattr(pair, quantity)) for pair in pairs)
