"""Workers: processes of a sweep's own, or somebody's executor, that carry out its tasks.

No worker changes a result. What a worker was doing when it died is done again, in the end by this process.
"""

import gc
import logging
import os
import pickle
import signal
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import (
    FIRST_COMPLETED,
    BrokenExecutor,
    CancelledError,
    Executor,
    Future,
    ProcessPoolExecutor,
    wait,
)
from contextlib import contextmanager
from functools import lru_cache
from importlib import import_module
from importlib.util import find_spec
from multiprocessing import get_start_method, parent_process
from threading import Thread
from typing import Any, Final, Generic, NamedTuple, Protocol, TypeVar

from profiles.errors import DiffusimError, DiffusimWarning, InputError, warn_caller
from sim.interrupts import HANG_UP, postponed
from sim.outcomes.contents import engine

LENT: Final = 16
"""Tasks at once of somebody's executor, unless its user says otherwise."""
CHUNK: Final = 4
"""Points in a task that is sent to somebody's executor."""
DASK_S: Final = 10.0
"""Seconds to wait for a Dask scheduler."""
JOIN_S: Final = 5.0
"""Seconds to wait for the thread of an executor whose processes are killed."""


class Answerable(Protocol):
    """A task; it travels to a worker, and its answers back."""

    def answers(self, known: Any, /) -> Sequence[Any]:  # noqa: ANN401  each task its own
        """Return the answers, given what all tasks are about."""
        ...


W = TypeVar("W", bound=Answerable)


class Workers(Generic[W]):
    """Workers that know what all tasks are about; they stop at the end of a ``with`` statement.

    Attributes:
        known: what all tasks are about, such as a scenario; forked processes have it at once.
        size: tasks that are carried out at once; 1 without any process or executor.
        chunk: points that a task is to hold.
        window: open tasks below which workers may become idle: one waits while an answer is looked at.
    """

    def __init__(self, known: Any, size: int, executor: Executor | None = None) -> None:  # noqa: ANN401
        if executor is None and get_start_method() != "fork":
            size = 1  # a process that imports an unguarded script would sweep again
        self.known, self.size = known, size
        self.chunk, self.window = (CHUNK, 2 * size) if executor else (1, size + 1 if size > 1 else 0)
        self._carry_out: Any = _Elsewhere.of(known) if executor else _answers
        self._lent, self._own = executor, None if executor or size == 1 else self._hired(size)
        self._open: dict[Future[Sequence[Any]], W] = {}
        self._here: deque[W] = deque()
        self._deaths = 0

    def _hired(self, count: int) -> ProcessPoolExecutor:
        return ProcessPoolExecutor(count, initializer=_start_worker, initargs=(self.known,))

    def __enter__(self) -> "Workers[W]":
        return self

    def __exit__(self, *_: object) -> None:
        if self._own is not None:
            end(self._own)
        for future in self._open:
            future.cancel()

    @property
    def open_tasks(self) -> int:
        """Tasks that were submitted, and not answered yet."""
        return len(self._open) + len(self._here)

    def submit(self, task: W) -> None:
        """Submit a task; without workers, this process carries it out."""
        executor = self._own or self._lent
        if executor is None:
            self._here.append(task)
            return
        try:
            with postponed():  # a process that starts is not interrupted half made
                self._open[executor.submit(self._carry_out, task)] = task
        except (RuntimeError, OSError) as error:  # broken or shut down, or too many processes
            self._replace([task], error if isinstance(error, BrokenExecutor) else BrokenExecutor(str(error)))

    def finished(self) -> list[tuple[W, Sequence[Any]]]:
        """Wait for tasks, and return those that are done with their answers; none where one was lost.

        Raises:
            DiffusimError: a task did.
        """
        if self._here:
            task = self._here.popleft()
            return [(task, task.answers(self.known))]
        done, _ = wait(self._open, return_when=FIRST_COMPLETED)
        answered: list[tuple[W, Sequence[Any]]] = []
        lost: list[W] = []
        cause: BaseException = CancelledError()
        for future in done:
            task, error = self._open.pop(future), None if future.cancelled() else future.exception()
            if isinstance(error, DiffusimError):
                raise error
            if error is None and not future.cancelled():
                answered.append((task, future.result()))
            else:
                lost.append(task)
                cause = error or cause
        self._deaths = 0 if answered and self._own is not None else self._deaths
        if lost:
            self._replace(lost, cause)
        return answered

    def _replace(self, lost: list[W], error: BaseException) -> None:
        """Do lost tasks again: in new processes, then in one, then here, where a fault of our own fails again."""
        self._deaths += 1
        if not isinstance(error, BrokenExecutor):
            if self._deaths == 1:
                words = " ".join(f"{type(error).__name__}: {error}".split())
                warn_caller(f"workers failed ({words}): this process does it", DiffusimWarning)
            self._here.extend(lost)
            return
        lost += self._open.values()
        self._open.clear()
        count = 0 if self._own is None else (self.size, 1, 0)[min(self._deaths, 3) - 1]
        if self._own is not None:
            end(self._own)
        self._lent, self._own = None, self._hired(count) if count else None
        then = "new ones go on" if count else "this process goes on without"
        warn_caller(f"workers died (killed, or out of memory; {error}): {then}", DiffusimWarning)
        for task in lost:
            self.submit(task)


def end(executor: ProcessPoolExecutor) -> None:
    """Kill the processes of an executor; Python waits for none of them at its exit."""
    with postponed():
        processes = list((executor._processes or {}).values())  # nothing public tells before Python 3.14
        answers: Any = executor._result_queue
        thread: Any = executor._executor_manager_thread
        for process in processes:
            process.kill()
        executor.shutdown(wait=False, cancel_futures=True)
        if answers is not None:
            answers._writer.close()  # else its thread waits for the rest of an answer that was cut off
        if thread is not None:
            thread.join(JOIN_S)


_known_to_worker: list[Any] = []
"""What a worker process was started with; empty elsewhere."""


def _start_worker(known: Any) -> None:  # noqa: ANN401
    follow_parent()
    gc.disable()  # points leave few cycles behind; what they share would be walked again and again
    _known_to_worker.append(known)


def follow_parent() -> None:
    """Let a process end with its parent, and leave interrupts to it."""
    for number in filter(None, (signal.SIGINT, HANG_UP)):
        signal.signal(number, signal.SIG_IGN)
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    Thread(target=_end_with_parent, daemon=True).start()


def _end_with_parent() -> None:
    if (parent := parent_process()) is not None:
        parent.join()
        os._exit(1)


def _answers(task: Answerable) -> Sequence[Any]:
    return task.answers(_known_to_worker[0])


@lru_cache(maxsize=4)
def _unpacked(packed: bytes) -> Any:  # noqa: ANN401
    return pickle.loads(packed)


class _Elsewhere(NamedTuple):
    """Carries out tasks in somebody's executor: what they are about travels as bytes, with the code's hash."""

    code: str
    packed: bytes

    @classmethod
    def of(cls, known: Any) -> "_Elsewhere":  # noqa: ANN401
        return cls(engine(), pickle.dumps(known))

    def __call__(self, task: Answerable) -> Sequence[Any]:
        if self.code != engine():
            raise InputError(
                f"a worker runs diffusim {engine()}, but {self.code} asks: install the same version on both"
            )
        return task.answers(_unpacked(self.packed))


Call = tuple[Callable[..., Any], tuple[Any, ...]]
"""A function and its arguments."""


class _Place(NamedTuple):
    """The place of a call in a list, which forked processes have; only the answer travels."""

    number: int

    def answers(self, calls: Sequence[Call]) -> list[Any]:
        call, arguments = calls[self.number]
        return [call(*arguments)]


def parallel_calls(workers: int, *calls: Call, meanwhile: Callable[[], object] = lambda: None) -> list[Any]:
    """Return the values of calls, the longest of which come first, from forked processes where there are several.

    Args:
        workers: processes at most; 1, or where processes are not forked, this one makes all calls.
        calls: functions with their arguments.
        meanwhile: what this process does before it waits.
    """
    count = min(workers, len(calls))
    if count <= 1 or get_start_method() != "fork":
        meanwhile()
        return [call(*arguments) for call, arguments in calls]
    values: dict[int, Any] = {}
    with Workers[_Place](calls, count) as workforce:
        for number in range(len(calls)):
            workforce.submit(_Place(number))
        meanwhile()
        while workforce.open_tasks:
            values |= {place.number: answer for place, (answer,) in workforce.finished()}
    return [values[number] for number in range(len(calls))]


@contextmanager
def on_cluster(address: str | None) -> Iterator[dict[str, Any]]:
    """Yield a Dask cluster's executor and the number of its threads, as ``run_sweep`` takes them; {} without one.

    Raises:
        InputError: Dask is not installed, no scheduler answers at the address, or it has no worker.
    """
    if address is None:
        yield {}
        return
    if find_spec("distributed") is None:
        raise InputError(f"`dask` is '{address}', but that needs Dask: pip install 'diffusim[dask]'")
    logging.getLogger("distributed").setLevel(logging.CRITICAL)  # errors are worded here
    try:
        client: Any = import_module("distributed").Client(address, timeout=DASK_S)
    except (OSError, ValueError, TypeError) as error:
        words = " ".join(str(error).split())
        raise InputError(f"`dask` is '{address}', where no scheduler answers: {words}") from None
    with client:
        threads = sum(client.nthreads().values())
        if not threads:
            raise InputError(f"`dask` is '{address}', a cluster without workers")
        yield {"executor": client.get_executor(pure=False), "workers": threads}
