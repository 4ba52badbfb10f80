"""What a strategy is: a frozen dataclass of its parameters that turns a scenario into a plan."""

from collections.abc import Iterator
from typing import ClassVar, NamedTuple, Protocol, Self, runtime_checkable

from strategies.actions import Order
from strategies.plan import Plan
from strategies.scenario import Scenario
from strategies.traces import Trace


@runtime_checkable
class Strategy(Protocol):
    """One way of parallelising a model; its fields are its parameters."""

    name: ClassVar[str]
    task: ClassVar[str]
    summary: ClassVar[str]

    def plan(self, scenario: Scenario) -> Plan:
        """Return who does what in which order.

        Raises:
            InfeasibleError: this point does not exist for the scenario.
        """
        ...

    @classmethod
    def candidates(cls, scenario: Scenario) -> Iterator[Self]:
        """Yield the points of the design space worth a look for a scenario.

        Raises:
            InfeasibleError: the strategy does not apply at all.
        """
        ...

    def bound(self, scenario: Scenario) -> float:
        """Return seconds below which no iteration of this point can take.

        Raises:
            InfeasibleError: this point does not exist for the scenario.
        """
        ...


@runtime_checkable
class Refining(Protocol):
    """A strategy that improves its plan once it has seen when everything happens."""

    def refine(self, scenario: Scenario, trace: Trace) -> Plan:
        """Return a better plan than the one that was replayed; that very plan where there is none."""
        ...


class Job(NamedTuple):
    """A strategy on a scenario of its own, beside others that it neither waits for nor exchanges anything with."""

    strategy: Strategy
    scenario: Scenario


@runtime_checkable
class Divided(Protocol):
    """A strategy that may divide the GPUs evenly among several jobs, each with a backbone of its own."""

    def jobs(self, scenario: Scenario) -> tuple[Job, ...]:
        """Return the jobs in the order of their GPUs, the strategy itself where there is nothing to divide.

        What has several jobs is planned and bounded job by job.

        Raises:
            InfeasibleError: this point does not exist for the scenario.
        """
        ...


@runtime_checkable
class MemoryBounded(Protocol):
    """A strategy that knows what it cannot do without, so that a sweep need not replay what cannot fit."""

    def least_memory_bytes(self, scenario: Scenario) -> float:
        """Return bytes that the fullest device cannot do without.

        Raises:
            InfeasibleError: this point does not exist for the scenario.
        """
        ...


@runtime_checkable
class Holding(Protocol):
    """A strategy whose order, once made, tells what a full device holds; a sweep asks only before it would replay."""

    def held_bytes(self, scenario: Scenario) -> float:
        """Return bytes that the fullest device holds at least, no less than it cannot do without.

        Raises:
            InfeasibleError: this point does not exist for the scenario.
        """
        ...


@runtime_checkable
class Scheduled(Protocol):
    """A strategy whose order depends on its own parameters alone."""

    def order(self) -> Order:
        """Return the forwards and backwards of each position, in order."""
        ...


@runtime_checkable
class Remarking(Protocol):
    """A strategy that has something to say about a point that works, but not quite as its name promises."""

    def remarks(self, scenario: Scenario) -> list[str]:
        """Return what a user should know, one line each."""
        ...
