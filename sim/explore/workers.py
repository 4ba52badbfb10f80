"""Workers: the processes that bound and simulate the points of a sweep; none where there is little to do."""

import signal
import sys
from collections.abc import Iterable, Iterator, Sequence
from concurrent.futures import Executor, ProcessPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from multiprocessing import active_children, get_start_method
from types import ModuleType
from typing import Final

from profiles.errors import InfeasibleError
from sim.explore.points import Asked
from sim.results import Result
from sim.runs import bound, check_held_memory, least_memory_bytes, run_within
from strategies.strategy import AnyScenario


@dataclass(frozen=True, slots=True)
class Bounds:
    """Lower bounds of a point: seconds, and bytes of its fullest device."""

    bound_s: float
    least_memory_bytes: float


Outcome = Result | InfeasibleError | float
"""A result, the reason for none, or a lower bound in seconds."""


def bounds_of(asked: Asked, scenario: AnyScenario) -> Bounds | InfeasibleError:
    """Bounds of a point, or the reason why it does not exist."""
    there = scenario.on(asked.num_gpus)
    try:
        return Bounds(bound(asked.strategy, there), least_memory_bytes(asked.strategy, there))
    except InfeasibleError as error:
        return error


def outcome_of(asked: Asked, scenario: AnyScenario, limit_s: float) -> Outcome:
    """The outcome of a point: its result, or only seconds where these are at least the limit."""
    there = scenario.on(asked.num_gpus)
    try:
        check_held_memory(asked.strategy, there)
        return run_within(asked.strategy, there, limit_s)
    except InfeasibleError as error:
        return error


SERIAL_POINTS: Final = 48
"""Fewer points than this are done before worker processes would have started."""


@dataclass(frozen=True, slots=True)
class Workers:
    """Processes that know a scenario; without an executor this process does it all.

    Attributes:
        scenario: what all points are asked about.
        executor: runs the processes.
    """

    scenario: AnyScenario
    executor: Executor | None = None

    def bounds(self, groups: Iterable[Sequence[Asked]]) -> Iterator[list[Bounds | InfeasibleError]]:
        """The bounds of groups of points that have much in common, in their order."""
        if self.executor is not None:
            with script_aside():
                return self.executor.map(_bounds_in_worker, groups)
        return ([bounds_of(asked, self.scenario) for asked in group] for group in groups)

    def outcomes(self, points: Sequence[Asked], limits_s: Sequence[float]) -> Iterator[Outcome]:
        """The outcomes of some points, in their order."""
        if self.executor is not None:
            with script_aside():
                return self.executor.map(_outcome_in_worker, points, limits_s)
        pairs = zip(points, limits_s, strict=True)
        return (outcome_of(asked, self.scenario, limit_s) for asked, limit_s in pairs)


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


@contextmanager
def start_workers(scenario: AnyScenario, count: int) -> Iterator[Workers]:
    """Start processes, and stop them at the end; none where one would do."""
    if count == 1:
        yield Workers(scenario)
        return
    executor = ProcessPoolExecutor(count, initializer=_start_worker, initargs=(scenario,))
    others = set(active_children())
    try:
        yield Workers(scenario, executor)
    except BaseException:
        executor.shutdown(wait=False, cancel_futures=True)
        for process in set(active_children()) - others:
            process.terminate()  # or the exit would wait for the points they are at
        raise
    executor.shutdown(wait=False, cancel_futures=True)


_scenario_of_worker: list[AnyScenario] = []
"""The scenario a worker process was started with; empty elsewhere."""


def _start_worker(scenario: AnyScenario) -> None:
    """Give a process its scenario once; an interrupt is the parent's to handle."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    _scenario_of_worker.append(scenario)


def _bounds_in_worker(group: Sequence[Asked]) -> list[Bounds | InfeasibleError]:
    return [bounds_of(asked, _scenario_of_worker[0]) for asked in group]


def _outcome_in_worker(asked: Asked, limit_s: float) -> Outcome:
    return outcome_of(asked, _scenario_of_worker[0], limit_s)
