"""Jobs: each rank joins the others, carries out its part and returns its records, to be held beside the simulation."""

import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from datetime import timedelta
from statistics import mean
from typing import Any, Final, NamedTuple

import torch
from torch import distributed as dist
from torch._C._distributed_c10d import Store
from torch.distributed.rendezvous import rendezvous

from profiles.measuring.launching import launch, unbroken
from sim.replay.engine import simulate
from sim.replay.metrics import idle_s
from strategies.plans.network import Network
from strategies.plans.plan import Op, Plan
from strategies.plans.wiring import Wiring, wire
from validate.running.executor import Executor, Kernels, OpTimes, RankIteration, RankSeat, now, seats

TIMEOUT: Final = timedelta(minutes=3)
"""Time without an answer after which a rank is lost."""
HEAD_START_S: Final = 0.01  # all ranks know the beginning of an iteration this long before it


@dataclass(frozen=True, slots=True)
class Job:
    """A plan for ranks to carry out; messages take ``link_s`` seconds.

    ``task`` is for the ``kernels`` of each rank, which get its wiring and its seat as well; without them ops sleep.
    """

    name: str
    plan: Plan
    link_s: float = 0.0
    iterations: int = 1
    warm_up: int = 0
    task: Any = None
    kernels: Callable[[Any, Wiring, RankSeat], Kernels] | None = None

    @property
    def num_ranks(self) -> int:
        """Number of its ranks."""
        return self.plan.placement.num_gpus


class Outcome(NamedTuple):
    """The iterations of a job after its warm-up, each with the times of every rank, and the result of each rank."""

    iterations: Sequence[Sequence[RankIteration]]
    results: Sequence[Any]


class Pair(NamedTuple):
    """One iteration, measured and simulated: seconds and bubble ratios, and their absolute errors.

    ``late_share`` is the total delay of the ops of the latest rank, as a share of the iteration. ``mismatch`` is the
    relative difference between engine and executor where the delays of ops count as part of them: with all durations
    given, both must agree to rounding, unless replicas are folded into one, for which the slowest stands.
    """

    measured_s: float
    simulated_s: float
    error: float
    measured_bubble_ratio: float
    simulated_bubble_ratio: float
    bubble_error: float
    late_share: float
    mismatch: float


def compare(job: Job, outcome: Outcome) -> list[Pair]:
    """Each iteration beside the plan's simulation, of real kernels at the durations of the iteration."""
    pairs, network = [], Network(job.plan.placement)
    for ranks in outcome.iterations:
        trace = simulate(_with_durations(job.plan, ranks) if job.kernels else job.plan, network)
        charged = simulate(_with_durations(job.plan, ranks, charged=True), network)
        measured_s = max(rank.end for rank in ranks)
        bubbles = 1 - mean(rank.busy_s for rank in ranks) / measured_s, idle_s(trace) / trace.end_s
        late_share = max(rank.late_s for rank in ranks) / measured_s
        error, mismatch = (abs(end_s / measured_s - 1) for end_s in (trace.end_s, charged.end_s))
        bubble_error = abs(bubbles[1] - bubbles[0])
        pairs.append(Pair(measured_s, trace.end_s, error, *bubbles, bubble_error, late_share, mismatch))
    return pairs


def _with_durations(plan: Plan, iteration: Sequence[RankIteration], *, charged: bool = False) -> Plan:
    """A plan whose ops take as long, and write when, they did; if ``charged``, with the delay of each op.

    Of the ranks that carry out the same device the slowest counts.
    """
    rows = []
    for device, row in enumerate(plan.ops):
        ranks = (iteration[rank] for rank in plan.placement.ranks(device))
        slowest = max(ranks, key=lambda rank: rank.busy_s)
        rows.append(tuple(_timed(op, at, charged=charged) for op, at in zip(row, slowest.ops, strict=True)))
    return replace(plan, ops=tuple(rows))


def _timed(op: Op, at: OpTimes, *, charged: bool) -> Op:
    begin = at.start - (at.late_s if charged else 0.0)
    early = [(moment - begin, tensor) for moment, (_, tensor) in zip(at.early, op.early, strict=True)]
    early += [(at.written - begin, tensor) for tensor in op.writes]
    return op._replace(duration_s=at.end - begin, writes=(), early=tuple(early))


def run_jobs(jobs: Sequence[Job]) -> list[Outcome]:
    """Outcomes of jobs of equally many ranks, which are started for them."""
    (num_ranks,) = {job.num_ranks for job in jobs}
    outcomes = []
    for ranks in zip(*launch(num_ranks, _take_part, jobs), strict=True):
        records, results = zip(*ranks, strict=True)
        outcomes.append(Outcome(list(zip(*records, strict=True)), results))
    return outcomes


@contextmanager
def joined() -> Iterator[Store]:
    """Join the ranks, which share a clock, and leave together with them."""
    torch.set_num_threads(1)
    sys.setswitchinterval(5e-4)  # the communication stream is a thread
    store, rank, num_ranks = next(rendezvous("env://", timeout=TIMEOUT))
    dist.init_process_group("gloo", store=store, rank=rank, world_size=num_ranks, timeout=TIMEOUT)
    with unbroken(rank):
        yield store
        dist.barrier()
    dist.destroy_process_group()


def _take_part(jobs: Sequence[Job]) -> list[tuple[list[RankIteration], Any]]:
    """Carry out jobs as one of their ranks; return its iterations and its result of each."""
    with joined() as store:
        return [_carry_out(job, store) for job in jobs]


def _carry_out(job: Job, store: Store) -> tuple[list[RankIteration], Any]:
    wiring, everyone, rank = wire(job.plan), seats(job.plan.placement), dist.get_rank()
    kernels = job.kernels(job.task, wiring, everyone[rank]) if job.kernels else Kernels()
    groups = _groups(wiring, everyone, rank)
    executor = Executor(wiring, everyone[rank], kernels, groups, store=store, link_s=job.link_s)
    records = [executor.run(number, _synchronize) for number in range(job.warm_up + job.iterations)]
    return records[job.warm_up :], kernels.result()


def _synchronize() -> float:
    dist.barrier()
    begin = torch.tensor(now() + HEAD_START_S, dtype=torch.float64)
    dist.broadcast(begin, 0)
    return begin.item()


def _groups(wiring: Wiring, everyone: Sequence[RankSeat], rank: int) -> dict[int, dist.ProcessGroup]:
    """Make the process groups of all collectives, the same at every rank; return those of one rank."""
    made: dict[tuple[int, ...], Any] = {}
    groups = {}
    for number, collective in enumerate(wiring.plan.collectives):
        for ranks in sorted(
            {seat.members(collective) for seat in everyone if seat.device in collective.devices}
        ):
            made[ranks] = made.get(ranks) or dist.new_group(list(ranks), timeout=TIMEOUT)
            if rank in ranks:
                groups[number] = made[ranks]
    return groups
