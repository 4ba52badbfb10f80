"""One rank: joins the others, carries out its part of every job, and tells rank 0 what it recorded."""

import ctypes
import os
import sys
from collections.abc import Callable, Hashable, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from datetime import timedelta
from typing import Any, Final, TypeVar

import torch
from torch import distributed as dist

from profiles.errors import DiffusimError, InputError
from validate.ranks import gather_pids, name_lost, one_machine
from validate.running.errors import LostRankError
from validate.running.job import Job, Outcome
from validate.running.part import CHECKED, TIMEOUT, run_part
from validate.running.reference import Gradients, gradient_error, single_process_gradients

T = TypeVar("T")

PATIENCE: Final = timedelta(hours=1)
"""So long ranks wait for a plan."""
BACKENDS: Final = {"cpu": "gloo", "cuda": "cpu:gloo,cuda:nccl"}
_MMAP_MAX, _TRIM_THRESHOLD, _TOP_PAD = -4, -1, -2  # malloc.h


def keep_memory() -> None:
    """Let glibc keep what it once got: page faults make GPipe 16 % slower than 1F1B (measured, two cores)."""
    with suppress(OSError, AttributeError):
        libc = ctypes.CDLL("libc.so.6")
        for option, value in ((_MMAP_MAX, 0), (_TRIM_THRESHOLD, 2**30), (_TOP_PAD, 2**26)):
            libc.mallopt(option, value)


def join(rank: int, num_ranks: int, init_method: str = "env://", device: str = "cpu") -> dict[int, int]:
    """Join the other ranks; return the process of each.

    What lies on a GPU travels by NCCL, everything else by gloo.

    Raises:
        InputError: not all of them came, or they are not on one machine, whose clock they share.
    """
    keep_memory()
    torch.set_num_threads(1)
    sys.setswitchinterval(5e-4)  # the communication stream is a thread
    if device == "cuda":
        torch.cuda.set_device(int(os.environ.get("LOCAL_RANK", rank)))
    try:
        dist.init_process_group(
            BACKENDS[device], init_method=init_method, rank=rank, world_size=num_ranks, timeout=TIMEOUT
        )
        pids = gather_pids()
    except (RuntimeError, dist.DistError) as error:
        reason = str(error).splitlines()[0]
        raise InputError(
            f"rank {rank}: not all of {num_ranks} ranks came within {TIMEOUT.seconds} s: {reason}"
        ) from None
    one_machine()
    return pids


def shared(make: Callable[[], T]) -> T:
    """Return on all ranks what rank 0 makes, however long that takes.

    Raises:
        DiffusimError: what rank 0 says.
    """
    group = dist.new_group(backend="gloo", timeout=PATIENCE)
    made: list[Any] = [None]
    if dist.get_rank() == 0:
        try:
            made = [make()]
        except DiffusimError as error:
            made = [error]
    dist.broadcast_object_list(made, group=group)
    if isinstance(made[0], DiffusimError):
        if dist.get_rank() == 0:
            raise made[0]
        sys.exit(2)
    value: T = made[0]
    return value


def leave() -> None:
    """Leave the other ranks."""
    dist.destroy_process_group()


def carry_out(jobs: Sequence[Job], pids: Mapping[int, int]) -> list[Outcome]:
    """Carry out jobs; on rank 0 return what came of them, elsewhere nothing.

    Raises:
        DiffusimError: a rank died on the way; the text names it.
    """
    found = named_if_lost(lambda: [run_part(job) for job in jobs], pids)
    if dist.get_rank():
        return []
    expected: dict[Hashable, Gradients] = {}
    return [_judged(job, *part, expected) for job, part in zip(jobs, found, strict=True)]


def named_if_lost(work: Callable[[], T], pids: Mapping[int, int]) -> T:
    """Return what some work returns that all ranks do together.

    Raises:
        DiffusimError: a rank died meanwhile; the text names it.
    """
    try:
        return work()
    except LostRankError as error:
        raise name_lost(error, pids, error.rank) from error
    except (RuntimeError, dist.DistError) as error:
        raise name_lost(error, pids) from error


def _judged(
    job: Job, outcome: Outcome, gradients: list[Gradients], expected: dict[Hashable, Gradients]
) -> Outcome:
    """Return what came of a job, its gradients held against those of this one process."""
    if job.model is None:
        return outcome
    count = 1 if job.runtime == "torch" else CHECKED
    key = job.model, job.batch_size, job.extra_forward, count
    if key not in expected:
        expected[key] = single_process_gradients(
            job.model, count, job.batch_size, extra_forward=job.extra_forward
        )
    return replace(outcome, gradient_error=gradient_error(gradients, expected[key]))
