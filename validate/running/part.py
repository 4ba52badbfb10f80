"""The part of one rank in a job: its iterations, and what it recorded of them."""

import os
import signal
import threading
from collections.abc import Sequence
from datetime import timedelta
from typing import Any, Final

import torch
from torch import distributed as dist

from strategies.plans.wiring import Wiring, wire
from validate.machine import OtherPrograms
from validate.running.clock import now
from validate.running.executor import Executor, RankIteration
from validate.running.job import Iteration, Job, Outcome
from validate.running.kernels import SleepKernels
from validate.running.modules import ModuleKernels
from validate.running.ordered import OrderedMessages, make_groups
from validate.running.reference import Gradients
from validate.running.samples import FrozenSamples
from validate.running.seats import RankSeat, seats
from validate.running.torch_runtime import run_torch
from validate.running.turns import Turns

TIMEOUT: Final = timedelta(minutes=3)
"""A rank that does not answer for so long is lost; one that dies is missed at once, as its connections end."""
CHECKED: Final = 3
"""Gradients are compared after so many iterations: they depend on steps and frozen work of those before."""
HEAD_START_S: Final = 0.01
"""All ranks have heard of the beginning of an iteration so long before it."""
KILLED_AFTER_S: Final = 0.02
Result = tuple[Outcome, list[Gradients]]
"""What was recorded, and the gradients of every rank."""


class Part:
    """What this rank does of one job."""

    def __init__(self, job: Job) -> None:
        self._job, self._rank = job, dist.get_rank()
        self._wiring, everyone = wire(job.plan), seats(job.plan.placement)
        self._seat = everyone[self._rank]
        self._kernels = _kernels(job, self._wiring, self._seat)
        groups = _groups(self._wiring, everyone, self._rank, torch.device(job.device))
        payloads = None if job.tags and job.device == "cpu" else self._ordered(everyone)
        self._executor = Executor(
            self._wiring, self._seat, self._kernels, groups, job.link_s, payloads=payloads
        )
        self._turns = Turns() if job.mode == "wall" else None

    def _ordered(self, everyone: Sequence[RankSeat]) -> OrderedMessages:
        wiring, device = self._wiring, torch.device(self._job.device)
        tensors = {slot: transfer.tensor for slot, transfer in enumerate(wiring.transfers) if transfer}
        numel = {slot: self._kernels.numel(tensor) for slot, tensor in tensors.items()}
        groups = make_groups(wiring, everyone, device, TIMEOUT)
        return OrderedMessages(wiring, self._seat, groups, numel, device)

    def run(self) -> Result:
        """Carry out all iterations; return them, and the gradients of all ranks."""
        job, records = self._job, []
        gradients: Gradients = {}
        for number in range(max(CHECKED, job.warm_up + job.iterations)):
            if number == job.warm_up:
                others = OtherPrograms()
            if number == 1 and job.die == self._rank:
                threading.Timer(KILLED_AFTER_S, os.kill, (os.getpid(), signal.SIGKILL)).start()
            alone = (number - job.warm_up) % 2 == 0
            records.append(self._executor.run(number, self._synchronize, self._turns if alone else None))
            if number == CHECKED - 1 and isinstance(self._kernels, ModuleKernels):
                gradients = self._kernels.gradients()
        return self._collect(records[job.warm_up :], others.cores(_added(others.own_s())), gradients)

    def _synchronize(self) -> float:
        """Return the moment at which all begin."""
        dist.barrier()
        begin = torch.tensor(now() + HEAD_START_S, dtype=torch.float64)
        dist.broadcast(begin, 0)
        return begin.item()

    def _collect(self, records: list[RankIteration], others_cores: float, gradients: Gradients) -> Result:
        gathered: list[Any] = [None] * dist.get_world_size()
        dist.all_gather_object(gathered, (records, gradients))
        ranks = zip(*(records for records, _ in gathered), strict=True)
        iterations = tuple(Iteration(tuple(rank)) for rank in ranks)
        return Outcome(self._job.name, iterations, others_cores), [gradients for _, gradients in gathered]


def run_part(job: Job) -> Result:
    """Carry out this rank's part of a job, by whose runtime it asks for."""
    if job.runtime != "torch":
        return Part(job).run()
    others = OtherPrograms()
    steps_s, gradients = run_torch(job)
    gathered: list[Any] = [None] * dist.get_world_size()
    dist.all_gather_object(gathered, gradients)
    return Outcome(
        job.name, others_cores=others.cores(_added(others.own_s())), steps_s=tuple(steps_s)
    ), gathered


def _added(value: float) -> float:
    """Return the sum of what all ranks say."""
    total = torch.tensor(value, dtype=torch.float64)
    dist.all_reduce(total)
    return total.item()


def _kernels(job: Job, wiring: Wiring, seat: RankSeat) -> SleepKernels | ModuleKernels:
    if job.model is None:
        return SleepKernels()
    samples = job.samples or FrozenSamples({}, {})
    return ModuleKernels(job, wiring, seat, samples.of_replica(seat.replica, seat.placement.replicas))


def _groups(
    wiring: Wiring, everyone: Sequence[RankSeat], rank: int, device: torch.device
) -> dict[int, dist.ProcessGroup]:
    """Make the process groups of all collectives, the same at every rank; return those of one rank.

    Each is used once: NCCL connects at the first collective, which must not be in an iteration.
    """
    made: dict[tuple[int, ...], Any] = {}
    own = {}
    for number, collective in enumerate(wiring.plan.collectives):
        members = {seat.members(collective) for seat in everyone if seat.device in collective.devices}
        for ranks in sorted(members):
            if ranks not in made:
                made[ranks] = dist.new_group(list(ranks), timeout=TIMEOUT)
                if rank in ranks:
                    dist.all_reduce(torch.zeros(1, dtype=torch.float64, device=device), group=made[ranks])
            if rank in ranks:
                own[number] = made[ranks]
    return own
