"""Launching: ranks as processes of this machine, and what each of them returns.

``elastic_launch`` is what ``torchrun`` uses: a rank finds its place in the same variables whoever started it.
"""

import logging
import os
import signal
import socket
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, NamedTuple, TypeVar

from profiles.errors import DiffusimError, InputError

if TYPE_CHECKING:
    from torch.distributed.elastic.multiprocessing.errors import ChildFailedError

T = TypeVar("T")

LAUNCHED: Final = ("RANK", "WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT")
MOST: Final = 32
"""Most ranks: each takes some 300 MB once it has imported torch, so hundreds of them would halt the machine."""
POLL_S: Final = 0.05
GRACE_S: Final = 3  # after which ranks that were told to end are killed
COMPLAINT: Final = "error of a rank: "
LINGER_S: Final = 1.0
"""Time for which a rank whose connection broke lives on, so that the launcher meets the rank that died first."""


class Place(NamedTuple):
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
    """This process's place if a launcher such as torchrun gave it one."""
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


def check_least(*flags: tuple[str, float | None, float]) -> None:
    """Refuse a value that is infinite, or below the least that its flag takes; None: the flag was not given."""
    for flag, value, least in flags:
        if value is not None and not least <= value < float("inf"):
            raise InputError(f"{flag} is {value:g}, must be at least {least}")


def launch(num_ranks: int, work: Callable[..., T], *arguments: object) -> list[T]:
    """Results of some work on each of so many ranks of this machine.

    Raises:
        DiffusimError: a rank fails or is killed; the text says which in one line.
    """
    from torch import multiprocessing  # noqa: PLC0415  importing torch takes seconds
    from torch.distributed.elastic.multiprocessing import DefaultLogsSpecs, Std  # noqa: PLC0415  as above
    from torch.distributed.elastic.multiprocessing.errors import ChildFailedError  # noqa: PLC0415  as above
    from torch.distributed.launcher.api import LaunchConfig, elastic_launch  # noqa: PLC0415  as above

    if num_ranks > MOST:
        raise InputError(f"{num_ranks} ranks on this machine, must be at most {MOST}; torchrun starts more")
    # one server imports torch once and is the parent of all ranks: half a second in place of three for each
    multiprocessing.get_context("forkserver").set_forkserver_preload(["torch", "torch.distributed"])
    with tempfile.TemporaryDirectory(prefix="diffusim-ranks-") as folder, _undisturbed():
        config = LaunchConfig(
            min_nodes=1, max_nodes=1, nproc_per_node=num_ranks, run_id="measure", max_restarts=0,
            rdzv_backend="c10d", rdzv_endpoint="localhost:0", local_addr="localhost",
            logs_specs=DefaultLogsSpecs(folder, redirects=Std.ERR), start_method="forkserver",
            monitor_interval=POLL_S, shutdown_timeout=GRACE_S,
        )  # fmt: skip
        try:
            found: dict[int, T] = elastic_launch(config, _on_loopback)(work, arguments)
        except ChildFailedError as error:
            raise DiffusimError(_reason(error, Path(folder))) from None
    return [found[rank] for rank in range(num_ranks)]


def _on_loopback(work: Callable[..., T], arguments: tuple[object, ...]) -> T:
    """Work of one rank; all ranks are on this machine, whose name need not be known to its network."""
    loopback = next(name for _, name in socket.if_nameindex() if name.startswith("lo"))
    os.environ["GLOO_SOCKET_IFNAME"] = loopback
    try:
        return work(*arguments)
    except DiffusimError as error:
        print(f"{COMPLAINT}{error}", file=sys.stderr)
        sys.exit(2)


@contextmanager
def unbroken(rank: int) -> Iterator[None]:
    """Turn the error of a connection that breaks, as when another rank dies, into one line."""
    try:
        yield
    except RuntimeError as error:  # of torch.distributed and of its store
        time.sleep(LINGER_S)
        reason = next(iter(str(error).splitlines()), type(error).__name__)
        raise DiffusimError(f"rank {rank} stopped: {reason}") from error


@contextmanager
def _undisturbed() -> Iterator[None]:
    """Silence torch's launcher, whose failures become one line, and restore the signal handlers that it replaces."""
    from torch.distributed.elastic.multiprocessing import SignalException  # noqa: PLC0415  as above

    loggers = [logging.getLogger(f"torch.{name}") for name in ("distributed.elastic", "multiprocessing")]
    levels = [logger.level for logger in loggers]
    numbers = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGQUIT)
    handlers = {number: signal.getsignal(number) for number in numbers}
    for logger in loggers:
        logger.setLevel(logging.CRITICAL)
    try:
        yield
    except SignalException as error:
        if error.sigval == signal.SIGINT:
            raise KeyboardInterrupt from None
        raise SystemExit(128 + error.sigval) from None
    finally:
        for logger, level in zip(loggers, levels, strict=True):
            logger.setLevel(level)
        for number, handler in handlers.items():
            signal.signal(number, handler)


def _reason(error: "ChildFailedError", folder: Path) -> str:
    """One line: what a rank complained of, or else which rank was killed, or else how it failed."""
    rank, failure = error.get_first_failure()
    paths = sorted(folder.rglob("stderr.log"), key=lambda path: path.parent.name != str(rank))
    logs = [path.read_text(errors="replace") for path in paths]
    ours = [line for log in logs for line in log.splitlines() if line.startswith(COMPLAINT)]
    if ours and failure.exitcode in (2, -signal.SIGABRT):  # may abort as another's messages broke off
        return ours[0].removeprefix(COMPLAINT)
    if failure.exitcode < 0:
        return f"rank {rank} was killed by {signal.Signals(-failure.exitcode).name}; the others were stopped"
    message: Any = failure.message
    said = str(message["message"] if isinstance(message, dict) else message)
    return f"rank {rank} failed: {said.splitlines()[0] if said else 'without a word'}"
