"""Launching: ranks as processes of this machine, and what each of them returns.

A rank finds its place in the variables that torchrun sets, whoever started it.
"""

import logging
import os
import pickle
import socket
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Final, NamedTuple, TypeVar

from profiles.errors import DiffusimError, InputError

T = TypeVar("T")

MOST: Final = 32
"""Most ranks: each takes some 300 MB once it has imported torch, so hundreds of them would halt the machine."""
LINGER_S: Final = 1.0
"""Time for which a rank whose connection broke lives on, so that the launcher meets the rank that died first."""


class Place(NamedTuple):
    """Rank of this process and its node among all."""

    rank: int
    num_ranks: int
    local_rank: int
    devices_per_node: int

    @property
    def num_nodes(self) -> int:
        """Nodes of all ranks."""
        return self.num_ranks // self.devices_per_node


def launched_place() -> Place | None:
    """This process's place if a launcher such as torchrun gave it one."""
    if "RANK" not in os.environ:
        return None
    try:
        rank, num_ranks = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
        local_rank = int(os.environ.get("LOCAL_RANK", rank))
        per_node = int(os.environ.get("LOCAL_WORLD_SIZE", num_ranks))
    except (KeyError, ValueError) as error:
        raise InputError(f"RANK is set, but not as torchrun sets it and WORLD_SIZE: {error}") from None
    if num_ranks % per_node:
        raise InputError(f"{num_ranks} ranks are not nodes of {per_node} ranks each")
    return Place(rank, num_ranks, local_rank, per_node)


def check_least(*flags: tuple[str, float | None, float]) -> None:
    """Refuse a value that is infinite, or below the least that its flag takes; None: the flag was not given."""
    for flag, value, least in flags:
        if value is not None and not least <= value < float("inf"):
            raise InputError(f"{flag} is {value:g}, must be at least {least}")


def launch(num_ranks: int, work: Callable[..., T], *arguments: object) -> list[T]:
    """Return the results of some work on each of so many ranks of this machine."""
    from torch import multiprocessing  # noqa: PLC0415  importing torch takes seconds
    from torch.multiprocessing.spawn import ProcessException, start_processes  # noqa: PLC0415  as above

    if num_ranks > MOST:
        raise InputError(f"{num_ranks} ranks on this machine, must be at most {MOST}; torchrun starts more")
    # one server imports torch once and is the parent of all ranks: half a second in place of three for each
    multiprocessing.get_context("forkserver").set_forkserver_preload(["torch", "torch.distributed"])
    logging.getLogger("torch.multiprocessing").setLevel(logging.ERROR)  # a failure becomes one line
    with socket.create_server(("localhost", 0)) as server:
        port = server.getsockname()[1]
    with tempfile.TemporaryDirectory(prefix="diffusim-ranks-") as name:
        folder = Path(name)
        start = (num_ranks, port, folder, work, *arguments)
        try:
            start_processes(_run_rank, start, num_ranks, start_method="forkserver")  # type: ignore[no-untyped-call]
        except ProcessException as error:
            raise DiffusimError(_reason(error, folder)) from None
        return [pickle.loads((folder / str(rank)).read_bytes()) for rank in range(num_ranks)]


def _run_rank(
    rank: int, num_ranks: int, port: int, folder: Path, work: Callable[..., T], *arguments: object
) -> None:
    """Work of one rank; all ranks are on this machine, whose name need not be known to its network."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), 2)
    places = {"RANK": rank, "LOCAL_RANK": rank, "WORLD_SIZE": num_ranks, "LOCAL_WORLD_SIZE": num_ranks}
    loopback = next(name for _, name in socket.if_nameindex() if name.startswith("lo"))
    os.environ |= {key: str(value) for key, value in places.items()}
    os.environ |= {"MASTER_ADDR": "localhost", "MASTER_PORT": str(port), "GLOO_SOCKET_IFNAME": loopback}
    try:
        (folder / str(rank)).write_bytes(pickle.dumps(work(*arguments)))
    except DiffusimError as error:
        (folder / f"{rank}.error").write_text(str(error))
        raise


def _reason(error: Exception, folder: Path) -> str:
    """One line: which rank was killed, or what a rank complained of, or how one failed."""
    rank, killed_by = getattr(error, "error_index", 0), getattr(error, "signal_name", None)
    complaints = sorted(folder.glob("*.error"), key=lambda path: path.stem != str(rank))
    if complaints and killed_by in (None, "SIGABRT"):  # may abort as another's messages broke off
        return complaints[0].read_text()
    if killed_by:
        return f"rank {rank} was killed by {killed_by}; the others were stopped"
    return f"rank {rank} failed: {str(error).strip().splitlines()[-1]}"


@contextmanager
def unbroken(rank: int) -> Iterator[None]:
    """Turn the error of a connection that breaks, as when another rank dies, into one line."""
    try:
        yield
    except RuntimeError as error:  # of torch.distributed and of its store
        time.sleep(LINGER_S)
        reason = next(iter(str(error).splitlines()), type(error).__name__)
        raise DiffusimError(f"rank {rank} stopped: {reason}") from error
