"""One rank: joins the others, carries out its part of every job, and tells rank 0 what it recorded."""

import ctypes
import os
import signal
import sys
import time
from collections.abc import Callable, Hashable, Sequence
from contextlib import suppress
from dataclasses import replace
from datetime import timedelta
from typing import Any, Final, TypeVar

import torch
from torch import distributed as dist

from profiles.errors import DiffusimError, InputError
from strategies.wiring import Wiring, wire
from validate.running.clock import LATE_SHARE, machine_busy_s, now
from validate.running.errors import LostRankError
from validate.running.executor import Executor, RankIteration
from validate.running.job import ATTEMPTS, Iteration, Job, Outcome
from validate.running.kernels import SleepKernels
from validate.running.modules import ModuleKernels
from validate.running.ordered import OrderedMessages, make_groups
from validate.running.reference import Gradients, gradient_error, single_process_gradients
from validate.running.samples import FrozenSamples
from validate.running.seats import RankSeat, seats
from validate.running.torch_runtime import run_torch
from validate.running.turns import Turns

T = TypeVar("T")

TIMEOUT: Final = timedelta(seconds=25)
"""A rank that does not answer for so long is lost."""
BACKENDS: Final = {"cpu": "gloo", "cuda": "cpu:gloo,cuda:nccl"}
CHECKED: Final = 3
"""Gradients are compared after so many iterations: they depend on steps and frozen work of those before."""
HEAD_START_S: Final = 0.01
"""All ranks have heard of the beginning of an iteration so long before it."""
_MMAP_MAX, _TRIM_THRESHOLD, _TOP_PAD = -4, -1, -2  # malloc.h


def keep_memory() -> None:
    """Let glibc keep what it once got: page faults make GPipe 16 % slower than 1F1B (measured, two cores)."""
    with suppress(OSError, AttributeError):
        libc = ctypes.CDLL("libc.so.6")
        for option, value in ((_MMAP_MAX, 0), (_TRIM_THRESHOLD, 2**30), (_TOP_PAD, 2**26)):
            libc.mallopt(option, value)


def join(rank: int, num_ranks: int, init_method: str = "env://", device: str = "cpu") -> dict[int, int]:
    """Join the other ranks; return the process of each.

    What lies on a GPU travels by NCCL, everything else by gloo. All ranks are on one machine: they share its clock.

    Raises:
        LostRankError: not all of them came.
    """
    keep_memory()
    torch.set_num_threads(1)
    sys.setswitchinterval(5e-4)  # the communication stream is a thread
    if device == "cuda":
        torch.cuda.set_device(rank)
    try:
        dist.init_process_group(
            BACKENDS[device], init_method=init_method, rank=rank, world_size=num_ranks, timeout=TIMEOUT
        )
        pids: list[Any] = [None] * num_ranks
        dist.all_gather_object(pids, os.getpid())
    except (RuntimeError, dist.DistError) as error:
        raise InputError(
            f"rank {rank}: not all of {num_ranks} ranks came within {TIMEOUT}: {error}"
        ) from None
    return dict(enumerate(pids))


def shared(make: Callable[[], T]) -> T:
    """Return on all ranks what rank 0 makes.

    Raises:
        DiffusimError: what rank 0 says.
    """
    made: list[Any] = [None]
    if dist.get_rank() == 0:
        try:
            made = [make()]
        except DiffusimError as error:
            made = [error]
    dist.broadcast_object_list(made)
    if isinstance(made[0], DiffusimError):
        if dist.get_rank() == 0:
            raise made[0]
        sys.exit(2)
    value: T = made[0]
    return value


def leave() -> None:
    """Leave the other ranks."""
    dist.destroy_process_group()


def carry_out(jobs: Sequence[Job], pids: dict[int, int]) -> list[Outcome]:
    """Carry out jobs; on rank 0 return what came of them, elsewhere nothing.

    Raises:
        DiffusimError: a rank died on the way; the text names it.
    """
    try:
        found = [_run_torch(job) if job.runtime == "torch" else _Part(job).run() for job in jobs]
    except (RuntimeError, LostRankError, dist.DistError) as error:
        raise _name_lost(error, pids) from error
    if dist.get_rank():
        return []
    expected: dict[Hashable, Gradients] = {}
    return [_judged(job, *part, expected) for job, part in zip(jobs, found, strict=True)]


def _run_torch(job: Job) -> tuple[Outcome, list[Gradients]]:
    """Return the steps of torch's runtime, and the gradients of all ranks."""
    steps_s, gradients = run_torch(job)
    gathered: list[Any] = [None] * dist.get_world_size()
    dist.all_gather_object(gathered, gradients)
    return Outcome(job.name, steps_s=tuple(steps_s)), gathered


def _judged(
    job: Job, outcome: Outcome, gradients: list[Gradients], expected: dict[Hashable, Gradients]
) -> Outcome:
    """Return what came of a job, its gradients held against those of this one process."""
    if job.model is None:
        return outcome
    count = 1 if job.runtime == "torch" else CHECKED
    key = job.model.name, job.batch_size, job.extra_forward, count
    if key not in expected:
        expected[key] = single_process_gradients(
            job.model, count, job.batch_size, extra_forward=job.extra_forward
        )
    return replace(outcome, gradient_error=gradient_error(gradients, expected[key]))


def _name_lost(error: Exception, pids: dict[int, int]) -> DiffusimError:
    """Return the error that names the ranks that are dead, or else the one that was waited for."""
    time.sleep(0.2)  # whoever started them has buried them by then
    gone = [rank for rank, pid in pids.items() if not _is_alive(pid)]
    if gone:
        names = " and ".join(f"rank {rank} (process {pids[rank]})" for rank in gone)
        return DiffusimError(f"{names} died; rank {dist.get_rank()} stopped")
    if isinstance(error, LostRankError) and error.rank >= 0:
        return DiffusimError(f"{error} (process {pids[error.rank]}); rank {dist.get_rank()} stopped")
    return DiffusimError(f"rank {dist.get_rank()} stopped: {str(error).splitlines()[0]}")


def _is_alive(pid: int) -> bool:
    try:
        with open(f"/proc/{pid}/stat") as file:  # noqa: PTH123  a file of the kernel
            return file.read().rpartition(")")[2].split()[0] not in "ZX"
    except OSError:
        return False


class _Part:
    """What this rank does of one job."""

    def __init__(self, job: Job) -> None:
        self._job, self._rank = job, dist.get_rank()
        self._wiring = wire(job.plan)
        self._seat = seats(job.plan.placement)[self._rank]
        self._kernels = _kernels(job, self._wiring, self._seat)
        everyone = seats(job.plan.placement)
        groups = _groups(self._wiring, everyone, self._rank)
        payloads = None if job.tags and job.device == "cpu" else self._ordered(everyone)
        self._executor = Executor(
            self._wiring, self._seat, self._kernels, groups, job.network, payloads=payloads
        )
        self._turns = Turns() if job.mode == "wall" else None

    def _ordered(self, everyone: Sequence[RankSeat]) -> OrderedMessages:
        wiring, device = self._wiring, torch.device(self._job.device)
        tensors = {slot: transfer.tensor for slot, transfer in enumerate(wiring.transfers) if transfer}
        numel = {slot: self._kernels.numel(tensor) for slot, tensor in tensors.items()}
        groups = make_groups(wiring, everyone, device, TIMEOUT)
        return OrderedMessages(wiring, self._seat, groups, numel, device)

    def run(self) -> tuple[Outcome, list[Gradients]]:
        """Carry out iterations until enough were not disturbed; return them, and the gradients of all ranks."""
        job, records, good = self._job, [], 0
        gradients: Gradients = {}
        if job.die == self._rank:
            os.kill(os.getpid(), signal.SIGKILL)
        for number in range(max(CHECKED, job.warm_up + ATTEMPTS * job.iterations)):
            if number == job.warm_up:
                began_s, busy_s, cpu_s = now(), machine_busy_s(), time.process_time()
            alone = (number - job.warm_up) % 2 == 0
            record = self._executor.run(number, self._synchronize, self._turns if alone else None)
            if number == CHECKED - 1 and isinstance(self._kernels, ModuleKernels):
                gradients = self._kernels.gradients()
            if number < job.warm_up:
                continue
            records.append(record)
            good += self._is_good(record)
            if good >= job.iterations and number + 1 >= CHECKED:
                break
        used = torch.tensor(time.process_time() - cpu_s, dtype=torch.float64)
        dist.all_reduce(used)
        others_cores = max(0.0, machine_busy_s() - busy_s - used.item()) / (now() - began_s)
        return self._collect(records, others_cores, gradients)

    def _is_good(self, record: RankIteration) -> bool:
        """Whether an iteration was not disturbed; virtual time never is, of wall time the quiet guard decides."""
        latest = torch.tensor([record.late_s, record.end.wall], dtype=torch.float64)
        dist.all_reduce(latest, dist.ReduceOp.MAX)
        late_s, end_s = latest.tolist()
        return self._job.mode in ("virtual", "wall") or late_s <= LATE_SHARE * end_s

    def _synchronize(self) -> float:
        """Return the moment at which all begin."""
        dist.barrier()
        begin = torch.tensor(now() + HEAD_START_S, dtype=torch.float64)
        dist.broadcast(begin, 0)
        return begin.item()

    def _collect(
        self, records: list[RankIteration], others_cores: float, gradients: Gradients
    ) -> tuple[Outcome, list[Gradients]]:
        gathered: list[Any] = [None] * dist.get_world_size()
        dist.all_gather_object(gathered, (records, gradients))
        ranks = zip(*(records for records, _ in gathered), strict=True)
        iterations = tuple(Iteration(tuple(rank)) for rank in ranks)
        return Outcome(self._job.name, iterations, others_cores), [gradients for _, gradients in gathered]


def _kernels(job: Job, wiring: Wiring, seat: RankSeat) -> SleepKernels | ModuleKernels:
    if job.model is None:
        return SleepKernels()
    samples = job.samples or FrozenSamples({}, {})
    return ModuleKernels(job, wiring, seat, samples.of_replica(seat.replica, seat.placement.replicas))


def _groups(wiring: Wiring, everyone: Sequence[RankSeat], rank: int) -> dict[int, dist.ProcessGroup]:
    """Make the process groups of all collectives, the same at every rank; return those of one rank."""
    made: dict[tuple[int, ...], Any] = {}
    own = {}
    for number, collective in enumerate(wiring.plan.collectives):
        members = {seat.members(collective) for seat in everyone if seat.device in collective.devices}
        for ranks in sorted(members):
            if ranks not in made:
                made[ranks] = dist.new_group(list(ranks), timeout=TIMEOUT)
            if rank in ranks:
                own[number] = made[ranks]
    return own
