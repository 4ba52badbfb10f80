"""Lanes: queues of work that run side by side, each in its order; and such lanes as threads, to rehearse on a CPU."""

import threading
from collections.abc import Callable
from queue import SimpleQueue
from typing import Any, Final, Protocol

import torch

from profiles.errors import DiffusimError
from validate.running.clock import now, sleep_until

Mark = Any  # a point in the order of a lane: what it is made of is known to the lanes alone
TIMEOUT_S: Final = 120.0  # threads that take longer than this to settle wait for each other


class Lanes(Protocol):
    """Queues of work; everything is put in at once, and carried out later."""

    @property
    def device(self) -> torch.device:
        """The device of torch on which the work runs."""

    def submit(self, lane: int, work: Callable[[], object]) -> None:
        """Put work into a lane."""

    def record(self, lane: int, *, stamped: bool = False) -> Mark:
        """Mark the point up to which a lane was filled; with a time stamp if ``hold`` is to count from there."""

    def wait(self, lane: int, mark: Mark) -> None:
        """Let a lane go on only after a mark that has been recorded."""

    def hold(self, lane: int, mark: Mark, seconds: float) -> None:
        """Let a lane go on only so long after a stamped mark that it, or a wait in it, is behind of."""

    def settle(self) -> None:
        """Wait until all lanes are empty."""

    def seconds(self, start: Mark, end: Mark) -> float:
        """The seconds between two marks of settled lanes."""

    def close(self) -> None:
        """Give everything back."""


class ThreadMark:
    """When a thread came by."""

    __slots__ = ("at", "passed")

    def __init__(self) -> None:
        self.passed = threading.Event()
        self.at = float("nan")


class ThreadLanes:
    """Lanes that are threads of this process."""

    device = torch.device("cpu")

    def __init__(self, count: int) -> None:
        self._queues: list[SimpleQueue[Callable[[], object] | None]] = [SimpleQueue() for _ in range(count)]
        self._errors: list[Exception] = []
        self._threads = [threading.Thread(target=self._run, args=(q,), daemon=True) for q in self._queues]
        for thread in self._threads:
            thread.start()

    def _run(self, queue: "SimpleQueue[Callable[[], object] | None]") -> None:
        while (work := queue.get()) is not None:
            try:
                work()
            except Exception as error:  # raised again where the lanes settle
                self._errors.append(error)

    def submit(self, lane: int, work: Callable[[], object]) -> None:
        """Put work into a lane; after a failure nothing is carried out any more."""
        self._queues[lane].put(lambda: None if self._errors else work())

    def record(self, lane: int, *, stamped: bool = False) -> ThreadMark:
        """Mark the point up to which a lane was filled; every mark has its time."""
        mark = ThreadMark()

        def pass_by() -> None:
            mark.at = now()
            mark.passed.set()

        self._queues[lane].put(pass_by)
        return mark

    def wait(self, lane: int, mark: ThreadMark) -> None:
        self._queues[lane].put(mark.passed.wait)

    def hold(self, lane: int, mark: ThreadMark, seconds: float) -> None:
        self.submit(lane, lambda: sleep_until(mark.at + seconds))

    def settle(self) -> None:
        """Wait until all lanes are empty."""
        last = [self.record(lane) for lane in range(len(self._queues))]
        if not all(mark.passed.wait(TIMEOUT_S) for mark in last):
            raise DiffusimError(f"the lanes did not settle in {TIMEOUT_S:g} s: they wait for each other")
        if self._errors:
            error, self._errors = self._errors[0], []
            raise error

    def seconds(self, start: ThreadMark, end: ThreadMark) -> float:
        return end.at - start.at

    def close(self) -> None:
        for queue in self._queues:
            queue.put(None)
        for thread in self._threads:
            thread.join(TIMEOUT_S)
