"""Workers: processes of a sweep's own, or somebody's executor, that carry out its tasks.

No worker changes a result. Where one dies, this process does again what they were doing, and goes on alone.
"""

import gc
import logging
import os
import pickle
import signal
from collections import deque
from collections.abc import Callable, Iterable, Iterator
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
from functools import lru_cache, partial
from multiprocessing import current_process, get_start_method, parent_process
from threading import Thread
from typing import Any, Final, Generic, TypeVar

from profiles.errors import DiffusimError, DiffusimWarning, InputError, warn_caller
from sim.interrupts import HANG_UP, postponed
from sim.outcomes.contents import engine

LENT: Final = 16
"""Tasks at once of somebody's executor, unless its user says otherwise."""
DASK_S: Final = 10.0
"""Seconds to wait for a Dask scheduler."""
JOIN_S: Final = 5.0
"""Seconds to wait for the thread of an executor whose processes are killed."""

T = TypeVar("T")
Task = Callable[[Any], T]
"""A function of what all tasks are about; it travels to a worker, and its value back."""


def why_alone(strategies: Iterable[Any]) -> str:
    """Return why no own process can look at points of some strategies, in words; empty where they can."""
    if current_process().daemon:
        return "processes of a multiprocessing.Pool start no others"
    for strategy in strategies:
        try:
            pickle.dumps(strategy)
        except (pickle.PicklingError, AttributeError, TypeError) as error:
            words = f"strategy {strategy.name} is sent to no other process ({error})"
            return f"{words}: its class must stand at the top of a file or of a notebook's cell"
    return ""


class Workers(Generic[T]):
    """Workers that know what all tasks are about; they stop at the end of a ``with`` statement.

    Attributes:
        known: what all tasks are about, such as a scenario; forked processes have it at once.
        size: tasks that are carried out at once; 1 without any process or executor.
    """

    def __init__(self, known: Any, size: int, executor: Executor | None = None) -> None:  # noqa: ANN401
        if executor is None and get_start_method() != "fork":
            size = 1  # a process that imports an unguarded script would sweep again
        self.known, self.size, self._lent = known, size, executor
        self._carry_out = partial(_elsewhere, engine(), pickle.dumps(known)) if executor else _in_worker
        self._own: ProcessPoolExecutor | None = None
        if executor is None and size > 1:
            self._own = ProcessPoolExecutor(size, initializer=_start_worker, initargs=(known,))
        self._open: dict[Future[T], Task[T]] = {}
        self._here: deque[Task[T]] = deque()

    def __enter__(self) -> "Workers[T]":
        return self

    def __exit__(self, *_: object) -> None:
        if self._own is not None:
            _end(self._own)
        for future in self._open:
            future.cancel()

    @property
    def window(self) -> int:
        """Open tasks below which workers may become idle: one waits while a value is looked at."""
        return 2 * self.size if self._lent else self.size + 1 if self._own else 0

    @property
    def open_tasks(self) -> int:
        """Tasks that were submitted, and whose values were not given back yet."""
        return len(self._open) + len(self._here)

    def submit(self, task: Task[T]) -> None:
        """Submit a task; without workers, this process carries it out."""
        executor = self._own or self._lent
        if executor is None:
            self._here.append(task)
            return
        try:
            with postponed():  # a process that starts is not interrupted half made
                self._open[executor.submit(self._carry_out, task)] = task
        except (RuntimeError, OSError) as error:  # broken or shut down, or too many processes
            self._replace([task], error)

    def finished(self) -> list[T]:
        """Wait for tasks, and return the values of those that are done; none where one was lost.

        Raises:
            DiffusimError: a task did.
        """
        if self._here:
            return [self._here.popleft()(self.known)]
        done, _ = wait(self._open, return_when=FIRST_COMPLETED)
        values, lost = list[T](), list[Task[T]]()
        cause: BaseException = CancelledError("cancelled")
        for future in done:
            task, error = self._open.pop(future), None if future.cancelled() else future.exception()
            if isinstance(error, DiffusimError) or (
                self._own and error and not isinstance(error, BrokenExecutor | MemoryError)
            ):
                raise error
            if error is None and not future.cancelled():
                values.append(future.result())
            else:
                lost, cause = [*lost, task], error or cause
        if lost:
            self._replace(lost, cause)
        return values

    def _replace(self, lost: list[Task[T]], error: BaseException) -> None:
        """Do lost tasks, and all others, here."""
        self._here += [*lost, *self._open.values()]
        self.__exit__()
        self._open.clear()
        self._lent = self._own = None
        words = " ".join(f"{type(error).__name__}: {error}".split())
        then = "this process goes on without"
        warn_caller(f"workers failed, as if killed or out of memory ({words}): {then}", DiffusimWarning)


def _end(executor: ProcessPoolExecutor) -> None:
    """Kill the processes of an executor; Python waits for none of them at its exit."""
    with postponed():
        thread: Any = executor._executor_manager_thread
        answers: Any = executor._result_queue
        for process in list((executor._processes or {}).values()):  # nothing public tells before Python 3.14
            process.kill()
        executor.shutdown(wait=False, cancel_futures=True)
        if answers is not None:
            answers._writer.close()  # else its thread waits for the rest of an answer that was cut off
        if thread is not None:
            thread.join(JOIN_S)


_known_to_worker: list[Any] = []
"""The shared value that a worker process was started with; empty elsewhere."""


def _start_worker(known: Any) -> None:  # noqa: ANN401
    """Let a worker end with its parent, and leave interrupts to it."""
    for number in filter(None, (signal.SIGINT, HANG_UP)):
        signal.signal(number, signal.SIG_IGN)
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    Thread(target=_end_with_parent, daemon=True).start()
    gc.disable()  # points leave few cycles behind; what they share would be walked again and again
    _known_to_worker[:] = [known]  # not that of the process that it was forked from


def _end_with_parent() -> None:
    if (parent := parent_process()) is not None:
        parent.join()
        os._exit(1)


def _in_worker(task: Task[T]) -> T:
    return task(_known_to_worker[0])


@lru_cache(maxsize=4)
def _unpacked(packed: bytes) -> Any:  # noqa: ANN401
    return pickle.loads(packed)


def _elsewhere(code: str, packed: bytes, task: Task[T]) -> T:
    """Carry out a task in somebody's executor: what it is about travels as bytes, with the code's hash."""
    if code != engine():
        raise InputError(f"a worker runs diffusim {engine()}, but {code} asks: install one version on both")
    return task(_unpacked(packed))


Call = tuple[Callable[..., Any], tuple[Any, ...]]
"""A function and its arguments."""


def _call_at(number: int, calls: tuple[Call, ...]) -> tuple[int, Any]:
    call, arguments = calls[number]
    return number, call(*arguments)


def finished_calls(
    calls: tuple[Call, ...], size: int, executor: Executor | None = None
) -> Iterator[tuple[int, Any]]:
    """Yield the number and the value of each call as it is done; the other arguments are those of ``Workers``."""
    with Workers[tuple[int, Any]](calls, size, executor) as workforce:
        for number in range(len(calls)):
            workforce.submit(partial(_call_at, number))
            while workforce.open_tasks > workforce.window:
                yield from workforce.finished()
        while workforce.open_tasks:
            yield from workforce.finished()


def parallel_calls(workers: int, *calls: Call) -> list[Any]:
    """Return the values of calls, the longest of which come first, from forked processes where there are several.

    Args:
        workers: processes; of 1, or where processes are not forked, this one makes all calls.
        calls: functions with their arguments; forked processes have them, so only the values travel.
    """
    values = dict(finished_calls(calls, min(workers, len(calls))))
    return [values[number] for number in range(len(calls))]


@contextmanager
def on_cluster(address: str | None) -> Iterator[dict[str, Any]]:
    """Yield a Dask cluster's executor and the number of its threads, as ``run_sweep`` takes them; {} without one."""
    if address is None:
        yield {}
        return
    try:
        from distributed import Client  # noqa: PLC0415  it is optional
    except ImportError:
        raise InputError(
            f"`dask` is '{address}', but that needs Dask: pip install 'diffusim[dask]'"
        ) from None
    logging.getLogger("distributed").setLevel(logging.CRITICAL)  # errors are worded here
    try:
        client: Any = Client(address, timeout=DASK_S)  # type: ignore[no-untyped-call]
    except (OSError, ValueError, TypeError) as error:
        words = " ".join(str(error).split())
        raise InputError(f"`dask` is '{address}', where no scheduler answers: {words}") from None
    with client:
        threads = sum(client.nthreads().values())
        if not threads:
            raise InputError(f"`dask` is '{address}', a cluster without workers")
        yield {"executor": client.get_executor(pure=False), "workers": threads}
