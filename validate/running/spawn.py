"""Spawning: starts the ranks of a run on this machine, watches over them, and ends all where one dies."""

import os
import pickle
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Final

from profiles.errors import DiffusimError
from validate.own_ranks import check_own_ranks
from validate.running.job import Job, Outcome

POLL_S: Final = 0.05
CUDA: Final = {"CUDA_MODULE_LOADING": "EAGER", "CUDA_DEVICE_MAX_CONNECTIONS": "32"}
"""A kernel that waits for a message holds up neither the loading of another one nor another stream's queue."""
ROOT: Final = Path(__file__).parents[2]


def run_ranks(jobs: Sequence[Job]) -> list[Outcome]:
    """Start the ranks that jobs take, all as many, and return what came of each job.

    Raises:
        DiffusimError: a rank failed or died; the text names it. The others are ended.
    """
    (num_ranks,) = {job.num_ranks for job in jobs}
    check_own_ranks(num_ranks)
    with tempfile.TemporaryDirectory(prefix="diffusim-run-") as name:
        folder = Path(name)
        (folder / "jobs").write_bytes(pickle.dumps(list(jobs)))
        _watch([start_rank(rank, num_ranks, folder) for rank in range(num_ranks)], folder)
        outcomes: list[Outcome] = pickle.loads((folder / "outcomes").read_bytes())
        return outcomes


def start_rank(rank: int, num_ranks: int, folder: Path) -> subprocess.Popen[bytes]:
    """Start the process of one rank; its jobs lie in a folder, where it writes its errors too."""
    loopback = next(name for _, name in socket.if_nameindex() if name.startswith("lo"))
    environment = {
        **os.environ,
        "GLOO_SOCKET_IFNAME": loopback,
        "OMP_NUM_THREADS": "1",
        **CUDA,
        "MALLOC_MMAP_MAX_": "0",
        "MALLOC_TRIM_THRESHOLD_": str(2**30),
        "MALLOC_TOP_PAD_": str(2**26),
        "PYTHONPATH": os.pathsep.join(filter(None, [str(ROOT), os.environ.get("PYTHONPATH")])),
    }
    command = [sys.executable, "-m", "validate.running.worker", str(rank), str(num_ranks), str(folder)]
    with (folder / f"error-{rank}").open("wb") as error:
        return subprocess.Popen(command, env=environment, stdout=subprocess.DEVNULL, stderr=error)


def _watch(processes: Sequence[subprocess.Popen[bytes]], folder: Path) -> None:
    """Wait for all ranks; end them as soon as one fails."""
    try:
        while any(process.poll() is None for process in processes):
            if any(process.poll() for process in processes):
                break
            time.sleep(POLL_S)
        failed = [rank for rank, process in enumerate(processes) if process.poll()]
        if failed:
            raise DiffusimError(_describe(failed, processes, folder))
    finally:
        for process in processes:
            process.kill()
            process.wait()


def _describe(failed: Sequence[int], processes: Sequence[subprocess.Popen[bytes]], folder: Path) -> str:
    """Return one line: the rank that a signal ended, else what the first rank said that failed."""
    for rank in failed:
        code = processes[rank].returncode
        if code < 0:
            return f"rank {rank} died of {signal.Signals(-code).name}; the others were stopped"
    words = (folder / f"error-{failed[0]}").read_text().strip().splitlines()
    return f"rank {failed[0]} failed: {words[-1] if words else 'without a word'}"
