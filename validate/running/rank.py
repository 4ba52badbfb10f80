"""Jobs: each rank joins the others, carries out its part and sends its records to rank 0, beside the simulation."""

import socket
import sys
from collections.abc import Callable, Hashable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from datetime import timedelta
from statistics import mean, median
from typing import Any, Final

import torch
from torch import distributed as dist
from torch._C._distributed_c10d import Store
from torch.distributed.rendezvous import rendezvous

from profiles.checks import sum_in_order
from profiles.errors import DiffusimError, InputError
from profiles.measuring.launching import launch, launched_place, unbroken
from profiles.measuring.machine import identity
from sim.replay.engine import simulate
from sim.replay.metrics import idle_s
from strategies.plans.network import Network
from strategies.plans.plan import Op, Plan
from strategies.plans.wiring import Wiring, wire
from validate.running.executor import Executor, Kernels, Mailbox, OpTimes, RankIteration
from validate.running.links import RankSeat, now, seats
from validate.running.sampling.kernels import SamplerKernels
from validate.running.sampling.settings import Settings
from validate.running.training.kernels import ModuleKernels
from validate.running.training.layers import Gradients, gradient_error, single_process_gradients
from validate.running.training.samples import Training


@dataclass(frozen=True, slots=True)
class Job:
    """A plan for ranks to carry out; messages take ``link_s`` seconds, and ops without a ``task`` sleep."""

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
"""Times of each rank in one iteration."""


@dataclass(frozen=True, slots=True)
class Outcome:
    """The iterations of a job after its warm-up, and the result of each rank.

    The gradient error is the largest difference of a gradient from that of a single process, over the largest gradient
    of the layer.
    """

    iterations: tuple[Iteration, ...] = ()
    results: tuple[Any, ...] = ()
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


TIMEOUT: Final = timedelta(minutes=3)
"""Time without an answer after which a rank is lost."""
CHECKED: Final = 3
"""Iterations after which gradients are compared: these depend on steps and frozen work of earlier iterations."""
HEAD_START_S: Final = 0.01  # all ranks know the beginning of an iteration this long before it


def run_jobs(jobs: Sequence[Job]) -> list[Outcome]:
    """Outcomes of jobs of equally many ranks, which are started for them."""
    (num_ranks,) = {job.num_ranks for job in jobs}
    return launch(num_ranks, _take_part, jobs)[0]


def run_job(make: Callable[[], Job]) -> tuple[Job, Outcome] | None:
    """One job and its outcome, on ranks started for it, or on those of ``torchrun``, where it is None but on rank 0."""
    place = launched_place()
    if place is None:
        job = make()
        return job, run_jobs([job])[0]
    try:
        job = fitting(make(), place.num_ranks)
    except DiffusimError:
        if place.rank == 0:  # one line is enough
            raise
        sys.exit(2)
    outcomes = _take_part([job])
    return (job, outcomes[0]) if outcomes else None


def fitting(job: Job, num_ranks: int) -> Job:
    """The job itself, checked to take so many ranks.

    Raises:
        InputError: it takes more or fewer.
    """
    if job.num_ranks != num_ranks:
        raise InputError(f"{job.name} takes {job.num_ranks} ranks, but torchrun started {num_ranks}")
    return job


@contextmanager
def joined() -> Iterator[Store]:
    """Join the ranks, which must be on one machine as they share a clock, and leave together with them."""
    place = launched_place()
    assert place is not None
    torch.set_num_threads(1)
    sys.setswitchinterval(5e-4)  # the communication stream is a thread
    try:
        store, rank, num_ranks = next(rendezvous("env://", timeout=TIMEOUT))
        dist.init_process_group("gloo", store=store, rank=rank, world_size=num_ranks, timeout=TIMEOUT)
        places: list[Any] = [None] * num_ranks
        dist.all_gather_object(places, (identity(), socket.gethostname()))
    except RuntimeError as error:
        late = f"not all of {place.num_ranks} ranks came within {TIMEOUT.seconds} s"
        raise InputError(f"rank {place.rank}: {late}: {str(error).splitlines()[0]}") from None
    if len(hosts := dict(places)) > 1:
        raise InputError(
            f"ranks are on {len(hosts)} machines ({', '.join(hosts.values())}), must all be on one"
        )
    with unbroken(place.rank):
        yield store
        dist.barrier()
    dist.destroy_process_group()


def _take_part(jobs: Sequence[Job]) -> list[Outcome]:
    """Outcomes of jobs on rank 0, none on the others; this process is one of the ranks."""
    with joined() as store:
        outcomes = [_carry_out(job, store) for job in jobs]
        expected: dict[Hashable, Gradients] = {}
        return (
            [] if dist.get_rank() else [_judged(*pair, expected) for pair in zip(jobs, outcomes, strict=True)]
        )


def _judged(job: Job, outcome: Outcome, expected: dict[Hashable, Gradients]) -> Outcome:
    if not isinstance(job.task, Training):
        return outcome
    task = job.task
    key = task.model, task.batch_size, task.extra_forward
    if key not in expected:
        extra = task.extra_forward
        expected[key] = single_process_gradients(task.model, CHECKED, task.batch_size, extra_forward=extra)
    return replace(outcome, results=(), gradient_error=gradient_error(outcome.results, expected[key]))


def _carry_out(job: Job, store: Store) -> Outcome:
    """Return the iterations and the results of all ranks, of which this is one."""
    wiring, everyone, rank = wire(job.plan), seats(job.plan.placement), dist.get_rank()
    kernels, groups = _kernels(job, wiring, everyone[rank]), _groups(wiring, everyone, rank)
    mailbox = Mailbox(wiring, everyone[rank], store, job.link_s)
    executor = Executor(wiring, everyone[rank], kernels, groups, mailbox)
    checked = CHECKED if isinstance(job.task, Training) else 1
    records, result = [], None
    for number in range(max(checked, job.warm_up + job.iterations)):
        records.append(executor.run(number, _synchronize))
        if number == checked - 1:
            result = kernels.result()
    gathered: list[Any] = [None] * job.num_ranks
    dist.all_gather_object(gathered, (records[job.warm_up :], result))
    iterations = tuple(zip(*(rank for rank, _ in gathered), strict=True))
    return Outcome(iterations, tuple(result for _, result in gathered))


def _synchronize() -> float:
    dist.barrier()
    begin = torch.tensor(now() + HEAD_START_S, dtype=torch.float64)
    dist.broadcast(begin, 0)
    return begin.item()


def _kernels(job: Job, wiring: Wiring, seat: RankSeat) -> Kernels:
    if job.task is None:
        return Kernels()
    if isinstance(job.task, Training):
        return ModuleKernels(job.task, wiring, seat)
    return SamplerKernels(job.task, wiring, dist.get_rank())


def _groups(wiring: Wiring, everyone: Sequence[RankSeat], rank: int) -> dict[int, dist.ProcessGroup]:
    """Make the process groups of all collectives, the same at every rank; return those of one rank."""
    made: dict[tuple[int, ...], Any] = {}
    joined_groups = {}
    for number, collective in enumerate(wiring.plan.collectives):
        members = {seat.members(collective) for seat in everyone if seat.device in collective.devices}
        for ranks in sorted(members):
            if ranks not in made:
                made[ranks] = dist.new_group(list(ranks), timeout=TIMEOUT)
            if rank in ranks:
                joined_groups[number] = made[ranks]
    return joined_groups
