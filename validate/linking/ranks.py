"""Ranks: those that a launcher started, or processes of our own over gloo."""

import os
import subprocess
import tempfile
import time
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path
from signal import Signals
from typing import IO, Final

from profiles.errors import DiffusimError, InputError

LAUNCHED: Final = ("RANK", "WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT")
CHECKOUT: Final = Path(__file__).parents[2]
POLL_S: Final = 0.05
GRACE_S: Final = 1.0
"""A rank that was killed takes others with it: how long after the first end the cause may still show."""


@dataclass(frozen=True, slots=True)
class Place:
    """Where this process stands among the ranks."""

    rank: int
    num_ranks: int
    local_rank: int
    devices_per_node: int

    @property
    def num_nodes(self) -> int:
        """Nodes of all ranks."""
        return self.num_ranks // self.devices_per_node


def launched_place() -> Place | None:
    """Return this process's place if a launcher such as torchrun gave it one.

    Raises:
        InputError: the variables contradict one another.
    """
    if "RANK" not in os.environ:
        return None
    missing = [name for name in LAUNCHED if name not in os.environ]
    if missing:
        raise InputError(f"RANK is set, but not {', '.join(missing)}: start with torchrun")
    try:
        rank, num_ranks = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
        local_rank = int(os.environ.get("LOCAL_RANK", rank))
        per_node = int(os.environ.get("LOCAL_WORLD_SIZE", num_ranks))
    except ValueError as error:
        raise InputError(f"RANK, WORLD_SIZE and their like must be integers: {error}") from None
    if per_node < 1 or num_ranks % per_node:
        raise InputError(f"{num_ranks} ranks are not nodes of {per_node} ranks each")
    return Place(rank, num_ranks, local_rank, per_node)


def check_count(num_ranks: int) -> None:
    """Refuse fewer than two ranks.

    Raises:
        InputError: there are fewer.
    """
    if num_ranks < 2:
        raise InputError(
            f"{num_ranks} rank has no link to another: start at least 2, with --ranks or torchrun --nproc-per-node"
        )


def spawn(num_ranks: int, command: Sequence[str]) -> None:
    """Run a command as so many ranks on this machine and wait for them.

    The store lives here, as under torchrun, so it outlives any rank.

    Raises:
        DiffusimError: a rank was killed or failed; the others are stopped.
    """
    from torch.distributed import (  # type: ignore[attr-defined]  # noqa: PLC0415  takes seconds
        TCPStore,
    )

    store = TCPStore("localhost", 0, is_master=True, wait_for_workers=False, timeout=timedelta(seconds=60))
    with tempfile.TemporaryFile("w+") as complaints:
        ranks = [_start(rank, num_ranks, store.port, command, complaints) for rank in range(num_ranks)]
        try:
            ended = _wait(ranks)
        finally:
            _end(ranks)
        if any(ended):
            raise DiffusimError(_reason(ended, complaints))


def _start(
    rank: int, num_ranks: int, port: int, command: Sequence[str], complaints: IO[str]
) -> "subprocess.Popen[bytes]":
    place = {
        "RANK": rank,
        "LOCAL_RANK": rank,
        "WORLD_SIZE": num_ranks,
        "LOCAL_WORLD_SIZE": num_ranks,
        "MASTER_ADDR": "localhost",
        "MASTER_PORT": port,
        "TORCHELASTIC_USE_AGENT_STORE": True,
    }
    environment = {**os.environ, **{name: str(value) for name, value in place.items()}}
    return subprocess.Popen(list(command), env=environment, stderr=complaints, cwd=CHECKOUT)


def _wait(ranks: Sequence["subprocess.Popen[bytes]"]) -> list[int]:
    """Return the exit status of every rank, as soon as all have ended well or shortly after one has not."""
    failed_at: float | None = None
    while True:
        codes = [rank.poll() for rank in ranks]
        if all(code == 0 for code in codes):
            return [0] * len(codes)
        if failed_at is None and any(codes):
            failed_at = time.monotonic()
        killed = any(code is not None and code < 0 for code in codes)
        if killed or (failed_at is not None and time.monotonic() - failed_at > GRACE_S):
            return [code or 0 for code in codes]
        time.sleep(POLL_S)


def _end(ranks: Sequence["subprocess.Popen[bytes]"]) -> None:
    for rank in ranks:
        if rank.poll() is None:
            rank.kill()
    for rank in ranks:
        rank.wait()


def _reason(ended: Sequence[int], complaints: IO[str]) -> str:
    """Return one line: who was killed, or else what a rank complained of."""
    for rank, code in enumerate(ended):
        if code < 0:
            name = Signals(-code).name
            return f"rank {rank} was killed by {name}; the other ranks were stopped, nothing was written"
    complaints.seek(0)
    lines = [line.strip() for line in complaints if line.strip()]
    ours = [line.removeprefix("validate: error: ") for line in lines if line.startswith("validate: error: ")]
    rank = next(rank for rank, code in enumerate(ended) if code)
    said = ours[0] if ours else (lines[-1] if lines else "it said nothing")
    return said if ours else f"rank {rank} ended with status {ended[rank]}: {said}"
