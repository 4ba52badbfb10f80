"""Launching: one process for each rank, spawned here or by torchrun, and what they ended with."""

import logging
import os
import pickle
import signal
import socket
import tempfile
import time
from collections.abc import Sequence
from dataclasses import replace
from datetime import timedelta
from pathlib import Path
from typing import Final

import torch
from torch import distributed as dist
from torch import multiprocessing
from torch.multiprocessing.spawn import ProcessContext, ProcessException, start_processes

from profiles.errors import DiffusimError, InputError
from strategies.plans.wiring import wire
from validate.own_ranks import check_own_ranks
from validate.ranks import gather_pids, name_lost, one_machine, watched
from validate.sampling_runs.executor import Outcome, run_rank
from validate.sampling_runs.faults import faulty_plan
from validate.sampling_runs.messages import PATIENCE_S
from validate.sampling_runs.settings import Settings

BACKENDS: Final = {"cpu": "gloo", "cuda": "cpu:gloo,cuda:nccl"}
LIMIT_S: Final = 300.0
"""After this long all ranks are stopped."""


def run_all(settings: Sequence[Settings]) -> list[list[Outcome]]:
    """Run settings of as many ranks one after the other in new processes; return the outcomes of all ranks of each.

    Raises:
        DiffusimError: there is no such plan; or a rank failed or was killed, and the others are stopped.
    """
    for one in settings:
        wire(faulty_plan(one))  # what cannot be is said before processes start
    ranks = settings[0].ranks
    assert all(other.ranks == ranks for other in settings)
    check_own_ranks(ranks)
    check_devices(settings[0])
    with tempfile.TemporaryDirectory(prefix="diffusim-sample-") as name:
        folder = Path(name)
        _spawn(settings, ranks, folder)
        found = [pickle.loads((folder / f"{rank}.pickle").read_bytes()) for rank in range(ranks)]
    return [list(outcomes) for outcomes in zip(*found, strict=True)]


def _spawn(settings: Sequence[Settings], ranks: int, folder: Path) -> None:
    # one server imports torch once and is the parent of all ranks; the project is theirs to import, from this path
    multiprocessing.get_context("forkserver").set_forkserver_preload(["torch", "torch.distributed"])
    logging.getLogger(start_processes.__module__).setLevel(logging.ERROR)  # who is stopped is told below
    context = start_processes(  # type: ignore[no-untyped-call]
        _work,
        ([replace(one) for one in settings], ranks, folder),
        nprocs=ranks,
        join=False,
        start_method="forkserver",
    )
    assert context is not None
    end = time.monotonic() + LIMIT_S
    try:
        while not context.join(timeout=1.0):
            if time.monotonic() > end:
                raise DiffusimError(f"sample: {ranks} ranks did not end in {LIMIT_S:.0f} s")
    except ProcessException as error:
        raise DiffusimError(_reason(context, error, folder)) from None
    finally:
        for process in context.processes:
            if process.is_alive():
                process.kill()
            process.join()


def _reason(context: ProcessContext, error: ProcessException, folder: Path) -> str:
    """Return in one line why a run failed: what a rank complained of itself, before what its end did to others."""
    complaints = [path.read_text() for path in sorted(folder.glob("*.complaint"))]
    if complaints:
        return complaints[0]
    codes = [(rank, -(process.exitcode or 0)) for rank, process in enumerate(context.processes)]
    killed = [(rank, code) for rank, code in codes if code > 0 and code != signal.SIGTERM]
    # a rank may abort because another's messages broke off
    for rank, code in sorted(killed, key=lambda pair: pair[1] == signal.SIGABRT):
        return f"sample: rank {rank} was killed by {signal.Signals(code).name}; the others were stopped"
    lines = [line for line in str(error).splitlines() if line.strip()]
    return f"sample: rank {error.error_index} failed: {lines[-1] if lines else 'without a word'}"


def _work(rank: int, settings: Sequence[Settings], ranks: int, folder: Path) -> None:
    """Run all settings as one rank, and leave the outcomes in a folder."""
    torch.set_num_threads(1)
    _join(settings[0].device, rank, ranks, f"file://{folder / 'store'}")
    try:
        outcomes = [run_rank(one, rank) for one in settings]
    except DiffusimError as error:
        (folder / f"{rank}.complaint").write_text(f"sample: {error}")
        raise
    dist.barrier()
    dist.destroy_process_group()
    (folder / f"{rank}.pickle").write_bytes(pickle.dumps(outcomes))


def _join(device: str, rank: int, ranks: int, method: str) -> None:
    """Join the other ranks; what lies on a GPU travels by NCCL, everything else by gloo.

    Raises:
        InputError: not all of them came.
    """
    if device == "cuda":
        torch.cuda.set_device(rank)
    try:
        dist.init_process_group(
            BACKENDS[device],
            init_method=method,
            rank=rank,
            world_size=ranks,
            timeout=timedelta(seconds=PATIENCE_S),
        )
    except RuntimeError as error:
        reason = str(error).splitlines()[0]
        raise InputError(
            f"rank {rank}: not all of ranks({ranks}) came within {PATIENCE_S:.0f} s: {reason}"
        ) from None


def launched() -> bool:
    """Return whether torchrun started this process as one rank of several."""
    return "RANK" in os.environ and "WORLD_SIZE" in os.environ


def run_as_rank(settings: Settings) -> list[Outcome] | None:
    """Run settings as the rank that torchrun made of this process; return all outcomes on rank 0.

    Raises:
        DiffusimError: torchrun started another number of ranks, or on several machines; or a rank is lost, which the
            text names.
    """
    rank, ranks = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
    if ranks != settings.ranks:
        raise InputError(
            f"--ranks is {settings.ranks}, but torchrun started {ranks} on {socket.gethostname()}"
        )
    check_devices(settings)
    torch.set_num_threads(1)
    _join(settings.device, rank, ranks, "env://")
    pids: dict[int, int] = {}
    try:
        one_machine()
        pids = gather_pids()
        with watched(pids, "sample"):
            outcome = run_rank(settings, rank)
        gathered: list[Outcome] | None = [outcome] * ranks if rank == 0 else None
        dist.gather_object(outcome, gathered)
    except RuntimeError as error:
        raise DiffusimError(f"sample: {name_lost(error, pids)}") from error
    dist.destroy_process_group()
    return gathered


def check_devices(settings: Settings) -> None:
    """Refuse a GPU for each rank where there are fewer.

    Raises:
        InputError: there are.
    """
    if settings.device == "cuda" and torch.cuda.device_count() < settings.ranks:
        raise InputError(
            f"--device is cuda, but torch sees {torch.cuda.device_count()} GPUs for ranks({settings.ranks})"
        )
