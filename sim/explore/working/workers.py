"""Workers: who carries out the tasks of a sweep: this process, processes of its own, or anybody's executor.

None of them changes a result. What a worker was carrying out when it died is given to another, in the end to this
process.
"""

import gc
import os
import pickle
import signal
import sys
import zlib
from collections import deque
from collections.abc import Iterable, Iterator, Sequence
from concurrent.futures import FIRST_COMPLETED, BrokenExecutor, Executor, Future, ProcessPoolExecutor, wait
from contextlib import contextmanager
from multiprocessing import connection, get_start_method, parent_process
from threading import Thread
from types import ModuleType
from typing import Any, Final, Generic, NamedTuple, Protocol, TypeVar

from profiles.errors import DiffusimError, DiffusimWarning, InputError, warn_caller
from sim.interrupts import HANG_UP, check, held
from sim.outcomes.contents import engine
from strategies.strategy import AnyScenario

SERIAL_POINTS: Final = 48
"""Fewer points than this are done before worker processes would have started."""
LENT: Final = 16
"""Tasks at once of somebody's executor, unless its user says otherwise."""
CHUNK: Final = 4
"""Points that a task holds which is sent to somebody's executor."""
SCENARIOS: Final = 4
"""Scenarios that a worker of somebody's executor remembers."""
LOOK_S: Final = 5.0
"""Seconds without any answer after which it is checked that all workers are alive."""
QUIET: Final = 12
"""Looks in a row without any answer of somebody's executor after which one says so: a queue may be long, or dead."""
ORPHAN_S: Final = 1.0
"""Seconds between two looks whether the process that started a worker is still there."""


class NotStarted(BrokenExecutor):
    """No process could be started for a task."""


class Answerable(Protocol):
    """What a worker is asked for; it travels there, and its answers back."""

    def answers(self, known: Any, /) -> Sequence[Any]:  # noqa: ANN401  each task its own
        """What there is to know, from what all tasks are about."""
        ...


W = TypeVar("W", bound=Answerable)


class Workers(Generic[W]):
    """Workers that know what all tasks are about; to be used in a ``with`` statement, at whose end they stop.

    Attributes:
        known: what that is, such as a scenario; processes that are forked have it at once, whatever it holds.
        size: tasks that are carried out at once; 1 without any process or executor.
        chunk: points that a task is to hold.
        window: tasks asked for at once below which workers may become idle: one waits while an answer is looked at.
    """

    def __init__(self, known: Any, size: int, executor: Executor | None = None) -> None:  # noqa: ANN401
        self.known, self.size = known, size
        if executor is None:
            self.chunk, self.window = 1, size + 1 if size > 1 else 0
        else:
            self.chunk, self.window = CHUNK, 2 * size
        self._lent = executor
        self._question = None if executor is None else PackedScenario.of(known)
        self._own: ProcessPoolExecutor | None = None if executor or size == 1 else self._hired(size)
        self._open: dict[Future[Sequence[Any]], W] = {}
        self._here: deque[W] = deque()
        self._deaths = self._looks = 0

    def _hired(self, count: int) -> ProcessPoolExecutor:
        return ProcessPoolExecutor(count, initializer=_start_worker, initargs=(self.known,))

    def __enter__(self) -> "Workers[W]":
        return self

    def __exit__(self, *_: object) -> None:
        self._dismiss()

    @property
    def open_tasks(self) -> int:
        """Tasks that were asked for, and not answered yet."""
        return len(self._open) + len(self._here)

    def submit(self, task: W) -> None:
        """Ask for a task to be carried out."""
        try:
            if self._own is not None:
                with script_aside(), held():  # processes that start meanwhile are not interrupted half made
                    self._open[self._own.submit(_carry_out, task)] = task
            elif self._lent is not None and self._question is not None:
                self._open[self._lent.submit(_carry_out_elsewhere, self._question, task)] = task
            else:
                self._here.append(task)
        except (BrokenExecutor, RuntimeError, OSError) as error:
            ours = self._own is not None and not isinstance(
                error, BrokenExecutor
            )  # too many processes, or threads
            self._replace([task], NotStarted(_words(error)) if ours else error)

    def finished(self) -> list[tuple[W, Sequence[Any]]]:
        """Tasks that are done, with their answers; waits a while for one, and gives none where there is none."""
        check()
        if self._here:
            task = self._here.popleft()
            return [(task, task.answers(self.known))]
        done, _ = wait(self._open, timeout=LOOK_S, return_when=FIRST_COMPLETED)
        self._looks = 0 if done else self._looks + 1
        if not done:
            self._look_around()
        told: list[tuple[W, Sequence[Any]]] = []
        lost: list[W] = []
        for future in done:
            task, error = self._open.pop(future), None if future.cancelled() else future.exception()
            if isinstance(error, DiffusimError):
                raise error
            if future.cancelled() or error is not None:
                lost.append(task)
                cause = error
            else:
                told.append((task, future.result()))
        self._deaths = 0 if told and self._own is not None else self._deaths
        if lost:
            self._replace(lost, cause)
        return told

    def _look_around(self) -> None:
        """Notice a worker that died without notice, and an executor that has not answered for long."""
        if self._own is not None and connection.wait([of.sentinel for of in _processes(self._own)], 0):
            self._replace([], BrokenExecutor("a worker died half through an answer"))
        if self._lent is not None and self._looks == QUIET:
            _say(f"the executor has not answered for {QUIET * LOOK_S:g} s: still waiting for it")

    def run(self, tasks: Iterable[W]) -> Iterator[tuple[W, Sequence[Any]]]:
        """Carry out tasks; each comes with its answers as soon as it is done."""
        for task in tasks:
            self.submit(task)
        while self._open or self._here:
            yield from self.finished()

    def _replace(self, lost: list[W], error: BaseException | None) -> None:
        """Give tasks that were lost to others: new processes, then one process, then this one.

        What an executor of somebody else failed at is done here: where that is our fault, it fails again.
        """
        if self._own is None:
            if not self._deaths:
                _say(f"the executor failed ({_words(error)}): what it fails at is done without it")
            self._deaths += 1
            if isinstance(error, BrokenExecutor | RuntimeError):
                lost += self._withdrawn()
                self._lent = None
            self._here.extend(lost)
            return
        if not isinstance(error, BrokenExecutor):
            raise error or RuntimeError("a task was cancelled")
        self._deaths += 1
        lost += self._withdrawn()
        self._dismiss()
        count = (self.size, 1, 0)[min(self._deaths, 3) - 1]
        self._own = self._hired(count) if count else None
        others = ("this process goes on without", "a new one goes on", "new ones go on")[min(count, 2)]
        died = "a worker process died (killed, or out of memory)"
        _say(f"{f'no worker process starts ({error})' if isinstance(error, NotStarted) else died}: {others}")
        for task in lost:
            self.submit(task)

    def _withdrawn(self) -> list[W]:
        """The tasks that are open, which are so no more."""
        tasks = list(self._open.values())
        self._open.clear()
        return tasks

    def _dismiss(self) -> None:
        """Stop what is going on; own processes are killed, as one that has just started may not listen to less.

        Nobody could leave while a process of ours goes on: Python waits for it at its exit.
        """
        if self._own is not None:
            end(self._own)  # its thread fails on what somebody else has cancelled
        else:
            for future in self._open:
                future.cancel()
        self._open.clear()


def end(executor: ProcessPoolExecutor) -> None:
    """Kill the processes of an executor, and let Python wait for nothing of theirs.

    A process that is killed half through an answer leaves the executor's thread, and with it the exit, waiting for
    the rest: the thread is told of the end once nobody can write any more, so our own end for writing is closed.
    """
    with held():
        processes = _processes(executor)
        answers: Any = executor._result_queue
        thread: Any = executor._executor_manager_thread
        for process in processes:  # before the shutdown, whose lock the thread may hold until all have ended
            process.kill()
        executor.shutdown(wait=False, cancel_futures=True)
        if answers is not None:
            answers._writer.close()
        if thread is not None:  # whoever starts processes next forks them while no thread runs
            thread.join(LOOK_S)


def _processes(executor: ProcessPoolExecutor) -> list[Any]:
    """The processes of an executor; nothing public tells before Python 3.14."""
    return list((executor._processes or {}).values())


def _say(words: str) -> None:
    warn_caller(words, DiffusimWarning)


def _words(error: BaseException | None) -> str:
    if error is None:
        return "cancelled"
    unsent = isinstance(error, pickle.PicklingError) or "pickle" in str(error)
    rule = "; only what stands at the top of a module can be sent" if unsent else ""
    return " ".join(f"{type(error).__name__}: {error}".split()) + rule


@contextmanager
def script_aside() -> Iterator[None]:
    """Let no process that starts meanwhile import the script that is running: it may not guard what it does.

    Processes that are spawned import the module ``__main__`` again, by the file it is from; work is handed over by
    modules of this package alone. Those that are forked do not.
    """
    if get_start_method() == "fork":
        yield
        return
    script = sys.modules["__main__"]
    sys.modules["__main__"] = ModuleType("__main__")
    try:
        yield
    finally:
        sys.modules["__main__"] = script


def stays(classes: Iterable[type[Any]]) -> str:
    """Why one of some classes cannot be sent to processes of ours, in words; empty where all can.

    Those that are not forked do not know what the script that is running defines.
    """
    for cls in classes:
        try:
            pickle.dumps(cls)
        except (pickle.PicklingError, AttributeError, TypeError):
            return f"strategy {cls.__qualname__} stands at the top of no module"
        if cls.__module__ == "__main__" and get_start_method() != "fork":
            return f"strategy {cls.__qualname__} stands in the script or notebook that runs, not in a module"
    return ""


# What runs in a process of our own


_known_to_worker: list[Any] = []
"""What a worker process was started with; empty elsewhere."""


def _start_worker(known: Any) -> None:  # noqa: ANN401
    """Give a process once what all its tasks are about."""
    follow_parent()
    gc.disable()  # points leave few cycles behind; what they have in common would be walked again and again
    _known_to_worker.append(known)


def follow_parent() -> None:
    """Let a process of ours end with its parent, and leave interrupts to it."""
    for number in filter(None, (signal.SIGINT, HANG_UP)):
        signal.signal(number, signal.SIG_IGN)
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    Thread(target=_end_with_parent, daemon=True).start()


def _end_with_parent() -> None:
    """Wait until the parent is gone, however it ended, and follow it.

    A process forked after this one holds a copy of what tells of the parent's end, hence the second look.
    """
    parent, by = parent_process(), os.getppid()
    while parent is not None and os.getppid() == by:
        if connection.wait([parent.sentinel], ORPHAN_S):
            break
    os._exit(1)


def _carry_out(task: Answerable) -> Sequence[Any]:
    return task.answers(_known_to_worker[0])


# What runs wherever somebody's executor takes it


class PackedScenario(NamedTuple):
    """A scenario on its way: the code that asks, and the scenario as bytes."""

    engine: str
    packed: bytes

    @classmethod
    def of(cls, scenario: AnyScenario) -> "PackedScenario":
        """A scenario, packed."""
        return cls(engine(), zlib.compress(pickle.dumps(scenario)))


_scenarios: dict[bytes, AnyScenario] = {}
"""The scenarios that this process was sent last."""


def _carry_out_elsewhere(question: PackedScenario, task: Answerable) -> Sequence[Any]:
    """The answers of a task.

    Raises:
        InputError: this is another version of the code, whose results may differ.
    """
    if question.engine != engine():
        where = f"a worker runs diffusim {engine()}, but {question.engine} asks"
        raise InputError(f"{where}: install the same version on both")
    if question.packed not in _scenarios:
        while len(_scenarios) >= SCENARIOS:
            _scenarios.pop(next(iter(_scenarios)), None)
        _scenarios[question.packed] = pickle.loads(zlib.decompress(question.packed))
    return task.answers(_scenarios[question.packed])
