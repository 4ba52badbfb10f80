"""Comparison: a real run beside the simulation of the same plan."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from math import nan
from statistics import mean, median

from sim.engine import simulate
from sim.metrics import idle_s
from strategies.plan import Op, Plan
from validate.running.clock import LATE_SHARE, QUIET_CORES
from validate.running.executor import OpTimes
from validate.running.job import Iteration, Job, Outcome


@dataclass(frozen=True, slots=True)
class Pair:
    """One iteration: what the run took and what the simulator says, in seconds and as bubble ratios."""

    measured_s: float
    simulated_s: float
    measured_bubble_ratio: float
    simulated_bubble_ratio: float
    others_cores: float = 0.0
    late_share: float = 0.0

    @property
    def disturbed(self) -> bool:
        """Whether the machine let ops start too late."""
        return self.late_share > LATE_SHARE

    @property
    def error(self) -> float:
        """Simulated over measured, less one."""
        return self.simulated_s / self.measured_s - 1

    @property
    def bubble_error(self) -> float:
        """Simulated less measured bubble ratio."""
        return self.simulated_bubble_ratio - self.measured_bubble_ratio


@dataclass(frozen=True, slots=True)
class Comparison:
    """All iterations of a job."""

    name: str
    mode: str
    pairs: tuple[Pair, ...]
    gradient_error: float | None

    @property
    def counted(self) -> list[Pair]:
        """The iterations that were not disturbed; virtual time never is, of wall time the quiet guard decides."""
        every = self.mode in ("virtual", "wall")
        return [pair for pair in self.pairs if every or not pair.disturbed]

    @property
    def error(self) -> float:
        """Median over iterations of the absolute error of the iteration time; NaN where none counts."""
        return median([abs(pair.error) for pair in self.counted] or [nan])

    @property
    def bubble_error(self) -> float:
        """Median over iterations of the absolute error of the bubble ratio; NaN where none counts."""
        return median([abs(pair.bubble_error) for pair in self.counted] or [nan])

    @property
    def invalid(self) -> str | None:
        """Why the result says nothing; None where it does."""
        if not self.counted:
            return f"in all {len(self.pairs)} iterations ops started late by more than {LATE_SHARE:.0%} of it"
        cores = max(pair.others_cores for pair in self.pairs)
        if self.mode != "wall" or cores <= QUIET_CORES:
            return None
        return f"other programs used {cores:.2f} cores, must be at most {QUIET_CORES}"


def compare(job: Job, outcome: Outcome) -> Comparison:
    """Return a run beside its simulation.

    ``sleep`` is held against the plan itself, ``replay`` against the plan with each iteration's own durations;
    ``virtual`` and ``wall`` against the plan with the medians of every other iteration, and only the rest is compared.
    """
    return Comparison(job.name, job.mode, tuple(_pairs(job, outcome)), outcome.gradient_error)


def _pairs(job: Job, outcome: Outcome) -> Iterator[Pair]:
    iterations, virtual = outcome.iterations, job.mode == "virtual"
    if job.mode == "sleep":
        plan = job.plan
    elif job.mode != "replay":
        plan = _with_durations(job.plan, iterations[::2], virtual=virtual)
        iterations = iterations[1::2]
    for iteration in iterations:
        if job.mode == "replay":
            plan = _with_durations(job.plan, [iteration], virtual=False)
        yield _pair(job, plan, iteration, virtual=virtual)


def _pair(job: Job, plan: Plan, iteration: Iteration, *, virtual: bool) -> Pair:
    trace = simulate(plan, job.network)
    measured_s = max(rank.end[virtual] for rank in iteration.ranks)
    busy_s = mean(sum(op.end[virtual] - op.start[virtual] for op in rank.ops) for rank in iteration.ranks)
    return Pair(
        measured_s,
        trace.end_s,
        1 - busy_s / measured_s,
        idle_s(trace) / trace.end_s,
        iteration.others_cores,
        iteration.late_share,
    )


def _with_durations(plan: Plan, iterations: Sequence[Iteration], *, virtual: bool) -> Plan:
    """Return a plan whose ops take as long as they did, and write when they did; medians over iterations.

    Of the ranks that carry out the same device the slowest counts.
    """
    ranks_of = [plan.placement.ranks(device) for device in range(plan.num_devices)]
    rows = [
        tuple(
            _timed(op, [[it.ranks[rank].ops[index] for it in iterations] for rank in ranks], virtual=virtual)
            for index, op in enumerate(row)
        )
        for row, ranks in zip(plan.ops, ranks_of, strict=True)
    ]
    return replace(plan, ops=tuple(rows))


def _timed(op: Op, times: Sequence[Sequence[OpTimes]], *, virtual: bool) -> Op:
    written_s = max(median(t.written[virtual] - t.start[virtual] for t in rank) for rank in times)
    duration_s = max(median(t.end[virtual] - t.start[virtual] for t in rank) for rank in times)
    early = [(min(offset_s, written_s), tensor) for offset_s, tensor in op.early]
    if times[0][0].early and not virtual:
        early = [
            (median(t.early[number] - t.start.wall for t in times[0]), tensor)
            for number, (_, tensor) in enumerate(op.early)
        ]
    early += [(written_s, tensor) for tensor in op.writes]
    return replace(op, duration_s=duration_s, writes=(), early=tuple(early))
