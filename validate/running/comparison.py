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
    late_share: float = 0.0
    charged_s: float = nan

    @property
    def charged_error(self) -> float:
        """The error where what an op started late counts as part of it."""
        return self.charged_s / self.measured_s - 1

    @property
    def disturbed(self) -> bool:
        """Whether the machine let ops start too late."""
        return self.late_share > LATE_SHARE

    @property
    def error(self) -> float:
        """Simulated over measured time, less one."""
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
    others_cores: float = 0.0

    @property
    def predicts(self) -> bool:
        """Whether one simulation stands for all iterations, so that their medians are compared."""
        return self.mode in ("virtual", "wall")

    @property
    def counted(self) -> list[Pair]:
        """The iterations that were not disturbed; virtual time never is, of wall time the quiet guard decides."""
        return [pair for pair in self.pairs if self.predicts or not pair.disturbed]

    @property
    def error(self) -> float:
        """Absolute error of the iteration time, of medians or the median over iterations; NaN where none counts."""
        if self.predicts:
            simulated_s = median(pair.simulated_s for pair in self.pairs)
            return abs(simulated_s / median(pair.measured_s for pair in self.pairs) - 1)
        return median([abs(pair.error) for pair in self.counted] or [nan])

    @property
    def bubble_error(self) -> float:
        """Absolute error of the bubble ratio, as above."""
        errors = [pair.bubble_error for pair in self.counted] or [nan]
        return abs(median(errors)) if self.predicts else median(map(abs, errors))

    @property
    def charged_error(self) -> float:
        """Median over all iterations of the absolute error where what an op started late counts as part of it."""
        return median(abs(pair.charged_error) for pair in self.pairs)

    @property
    def invalid(self) -> str | None:
        """Why the result says nothing; None where it does."""
        if not self.counted:
            return f"in all {len(self.pairs)} iterations ops started late by more than {LATE_SHARE:.0%} of it"
        if self.mode != "wall" or self.others_cores <= QUIET_CORES:
            return None
        return f"other programs used {self.others_cores:.2f} cores, must be at most {QUIET_CORES}"


def compare(job: Job, outcome: Outcome) -> Comparison:
    """Return a run beside its simulation.

    ``sleep`` is held against the plan itself, ``replay`` against the plan with each iteration's own durations. Of both
    there is a second simulation, of each iteration's own durations with what the machine let an op start late: it tells
    an error of the order or of the links from a busy machine. ``virtual`` and ``wall`` are held against the plan with
    the medians of every other iteration, and only the rest is compared. In the iterations that ``wall`` predicts from,
    ranks take turns: an op takes as long as one that is profiled alone.
    """
    pairs = tuple(_pairs(job, outcome))
    return Comparison(job.name, job.mode, pairs, outcome.gradient_error, outcome.others_cores)


def _pairs(job: Job, outcome: Outcome) -> Iterator[Pair]:
    iterations = outcome.iterations
    if job.mode in ("sleep", "replay"):
        for iteration in iterations:
            plan = job.plan if job.mode == "sleep" else with_durations(job.plan, [iteration])
            charged = with_durations(job.plan, [iteration], charged=True)
            pair = _pair(job, plan, iteration)
            yield replace(pair, charged_s=simulate(charged, job.network).end_s)
    else:
        virtual = job.mode == "virtual"
        plan = with_durations(job.plan, iterations[::2], virtual=virtual)
        yield from (_pair(job, plan, iteration, virtual=virtual) for iteration in iterations[1::2])


def _pair(job: Job, plan: Plan, iteration: Iteration, *, virtual: bool = False) -> Pair:
    trace = simulate(plan, job.network)
    measured_s = max(rank.end[virtual] for rank in iteration.ranks)
    busy_s = mean(sum(op.end[virtual] - op.start[virtual] for op in rank.ops) for rank in iteration.ranks)
    return Pair(
        measured_s,
        trace.end_s,
        1 - busy_s / measured_s,
        idle_s(trace) / trace.end_s,
        iteration.late_share,
        trace.end_s,
    )


def with_durations(
    plan: Plan, iterations: Sequence[Iteration], *, virtual: bool = False, charged: bool = False
) -> Plan:
    """Return a plan whose ops take as long as they did, and write when they did; medians over iterations.

    Args:
        plan: what was carried out.
        iterations: of all ranks; of those that carry out the same device the slowest counts.
        virtual: whether virtual time counts, or wall time.
        charged: whether what an op started late counts as part of it.
    """
    rows = []
    for device, row in enumerate(plan.ops):
        ranks = [[it.ranks[rank].ops for it in iterations] for rank in plan.placement.ranks(device)]
        slowest = max(
            ranks, key=lambda lists: sum(t.end[virtual] - t.start[virtual] for x in lists for t in x)
        )
        own = zip(row, zip(*slowest, strict=True), strict=True)
        rows.append(tuple(_timed(op, times, virtual=virtual, charged=charged) for op, times in own))
    return replace(plan, ops=tuple(rows))


def _timed(op: Op, times: Sequence[OpTimes], *, virtual: bool, charged: bool) -> Op:
    begins = [t.start[virtual] - (t.late_s if charged else 0.0) for t in times]
    written_s = median(t.written[virtual] - begin for t, begin in zip(times, begins, strict=True))
    duration_s = median(t.end[virtual] - begin for t, begin in zip(times, begins, strict=True))
    early = [(written_s, tensor) for _, tensor in op.early]
    if not virtual:
        early = [
            (median(t.early[number] - begin for t, begin in zip(times, begins, strict=True)), tensor)
            for number, (_, tensor) in enumerate(op.early)
        ]
    early += [(written_s, tensor) for tensor in op.writes]
    return replace(op, duration_s=duration_s, writes=(), early=tuple(early))
