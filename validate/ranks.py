"""Ranks: who takes part in a run, whether all are on one machine, and which of them is lost."""

import os
import signal
import socket
import sys
import threading
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from types import FrameType
from typing import Any, Final

from torch import distributed as dist

from profiles.errors import DiffusimError, InputError

POLL_S: Final = 0.1  # a rank that died is missed by the others after so long
BURIAL_S: Final = 0.5  # the connections of a process break a moment before it counts as dead: so long at most
LINGER_S: Final = 1.0
"""Who stops because another died stays so long: nobody is to take it for one of the dead."""


class LostRankError(DiffusimError):
    """A rank stopped answering; it is -1 where it is not known which."""

    def __init__(self, rank: int) -> None:
        super().__init__(f"rank {rank} stopped answering" if rank >= 0 else "a rank stopped answering")
        self.rank = rank


def gather_pids() -> dict[int, int]:
    """Process of each rank of the default group."""
    return dict(enumerate(_gathered(os.getpid())))


def one_machine() -> None:
    """Refuse ranks that do not share a machine: its clock, and the numbers of its processes."""
    check_places(_gathered((_machine(), socket.gethostname())))


def check_places(places: list[tuple[str, str]]) -> None:
    """Refuse (machine, name of its host) pairs of several machines."""
    first = {machine: rank for rank, (machine, _) in reversed(list(enumerate(places)))}
    if len(first) > 1:
        named = ", ".join(f"rank {rank} on {places[rank][1]}" for rank in sorted(first.values()))
        raise InputError(f"ranks are on {len(first)} machines ({named}), must all be on one")


def name_lost(error: Exception, pids: Mapping[int, int], waited_for: int = -1) -> DiffusimError:
    """Reason in one line why this rank stops: the ranks that are dead, or the one waited for, or the error itself."""
    end = time.monotonic() + BURIAL_S
    while not (gone := _gone(pids)) and time.monotonic() < end:
        time.sleep(0.01)
    if gone:
        text = _epitaph(gone, pids)
        time.sleep(LINGER_S)
        return DiffusimError(text)
    if waited_for >= 0:
        process = f"rank {waited_for} (process {pids[waited_for]})"
        return DiffusimError(f"{process} stopped answering; rank {dist.get_rank()} stopped")
    reason = next(iter(str(error).splitlines()), type(error).__name__)
    return DiffusimError(f"rank {dist.get_rank()} stopped: {reason}")


@contextmanager
def watched(pids: Mapping[int, int], command: str) -> Iterator[None]:
    """End this process with one line as soon as another rank dies, wherever it waits; NCCL would wait on.

    No rank may leave before all have left this context. ``torchrun`` terminates the others when one died: they first
    say which, by the name of the command.
    """
    over, speaking = threading.Event(), threading.Lock()

    def watch() -> None:
        while not over.wait(POLL_S):
            if gone := _gone(pids):
                time.sleep(POLL_S)  # what failed by itself meanwhile is told by who called
                if not speaking.acquire(blocking=False):
                    return
                sys.stderr.write(f"validate: error: {command}: {_epitaph(gone, pids)}\n")
                sys.stderr.flush()
                time.sleep(LINGER_S)
                os._exit(2)

    def terminate(number: int, _: FrameType | None) -> None:
        if not _gone(pids):
            sys.exit(128 + number)

    before = signal.signal(signal.SIGTERM, terminate)
    threading.Thread(target=watch, daemon=True).start()
    try:
        yield  # where it fails the handler stays: who called has still to say what broke off
    finally:
        over.set()
        speaking.acquire()  # for ever, if the line is being said
    signal.signal(signal.SIGTERM, before)


def _gathered(own: Any) -> list[Any]:  # noqa: ANN401  whatever can be pickled
    found: list[Any] = [None] * dist.get_world_size()
    dist.all_gather_object(found, own)
    return found


def _epitaph(gone: list[int], pids: Mapping[int, int]) -> str:
    names = " and ".join(f"rank {rank} (process {pids[rank]})" for rank in gone)
    return f"{names} died; rank {dist.get_rank()} stopped"


def _gone(pids: Mapping[int, int]) -> list[int]:
    return [rank for rank, pid in pids.items() if not _is_alive(pid)]


def _is_alive(pid: int) -> bool:
    """Whether a process runs; one that has ended and is still to be waited for does not."""
    try:
        if Path("/proc/self/stat").exists():
            return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] not in "ZX"
        os.kill(pid, 0)
    except OSError as error:
        return isinstance(error, PermissionError)
    return True


def _machine() -> str:
    """What two ranks share that share clock and process numbers: a boot, and where there are, a namespace."""
    try:
        boot = Path("/proc/sys/kernel/random/boot_id").read_text().strip()
        return f"{boot} {Path('/proc/self/ns/pid').readlink()}"
    except OSError:
        return socket.gethostname()
