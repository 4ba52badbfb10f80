"""Workers: the processes that bound and simulate the points of a sweep; none where there is little to do."""

import signal
from collections.abc import Iterable, Iterator, Sequence
from concurrent.futures import Executor, ProcessPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Final

from profiles.errors import InfeasibleError
from sim.experiment import (
    TrainingResult,
    bound,
    check_held_memory,
    least_memory_bytes,
    run_training_within,
)
from strategies.scenario import Scenario
from strategies.strategy import Strategy

SERIAL_POINTS: Final = 48
"""Fewer points than this are done before worker processes would have started."""


@dataclass(frozen=True, slots=True)
class Bounds:
    """What a point cannot undercut: seconds, and bytes of its fullest device."""

    bound_s: float
    least_memory_bytes: float


Outcome = TrainingResult | InfeasibleError | float
"""A result, why there is none, or seconds that the point cannot undercut."""


def bounds_of(strategy: Strategy, scenario: Scenario) -> Bounds | InfeasibleError:
    """Return what a point cannot undercut, or why it does not exist."""
    try:
        return Bounds(bound(strategy, scenario), least_memory_bytes(strategy, scenario))
    except InfeasibleError as error:
        return error


def outcome_of(strategy: Strategy, scenario: Scenario, limit_s: float) -> Outcome:
    """Return what comes out of a point; only seconds where these are at least the limit."""
    try:
        check_held_memory(strategy, scenario)
        return run_training_within(strategy, scenario, limit_s)
    except InfeasibleError as error:
        return error


@dataclass(frozen=True, slots=True)
class Workers:
    """Processes that know a scenario; without an executor this process does it all.

    Attributes:
        scenario: what all points are asked about.
        executor: runs the processes.
    """

    scenario: Scenario
    executor: Executor | None = None

    def bounds(self, groups: Iterable[Sequence[Strategy]]) -> Iterator[list[Bounds | InfeasibleError]]:
        """Yield the bounds of groups of points that have much in common, in their order."""
        if self.executor is not None:
            return self.executor.map(_bounds_in_worker, groups)
        return ([bounds_of(strategy, self.scenario) for strategy in group] for group in groups)

    def outcomes(self, strategies: Sequence[Strategy], limits_s: Sequence[float]) -> Iterator[Outcome]:
        """Yield what comes out of some points, in their order."""
        if self.executor is not None:
            return self.executor.map(_outcome_in_worker, strategies, limits_s)
        pairs = zip(strategies, limits_s, strict=True)
        return (outcome_of(strategy, self.scenario, limit_s) for strategy, limit_s in pairs)


@contextmanager
def start_workers(scenario: Scenario, count: int) -> Iterator[Workers]:
    """Start processes, and stop them at the end; none where one would do."""
    if count == 1:
        yield Workers(scenario)
        return
    executor = ProcessPoolExecutor(count, initializer=_start_worker, initargs=(scenario,))
    try:
        yield Workers(scenario, executor)
    finally:
        executor.shutdown(wait=False, cancel_futures=True)


_scenario_of_worker: list[Scenario] = []
"""The scenario a worker process was started with; empty elsewhere."""


def _start_worker(scenario: Scenario) -> None:
    """Give a process its scenario once; an interrupt is the parent's to handle."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    _scenario_of_worker.append(scenario)


def _bounds_in_worker(group: Sequence[Strategy]) -> list[Bounds | InfeasibleError]:
    return [bounds_of(strategy, _scenario_of_worker[0]) for strategy in group]


def _outcome_in_worker(strategy: Strategy, limit_s: float) -> Outcome:
    return outcome_of(strategy, _scenario_of_worker[0], limit_s)
