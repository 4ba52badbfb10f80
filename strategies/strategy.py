"""Strategies as protocols: frozen dataclasses of parameters that turn a scenario into plans.

A strategy that draws images is a sampler.
"""

from collections.abc import Iterable, Iterator
from typing import Any, ClassVar, NamedTuple, Protocol, Self, cast, runtime_checkable

from strategies.plans.actions import Order
from strategies.plans.plan import Plan
from strategies.plans.traces import Trace
from strategies.sampling_scenario import SamplingScenario
from strategies.scenario import Scenario


@runtime_checkable
class Strategy(Protocol):
    """One way of parallelising the training of a model; its fields are its parameters.

    Attributes:
        name: the one by which it is asked for.
        task: ``train``.
        summary: what it does, in a line.
    """

    name: ClassVar[str]
    task: ClassVar[str]
    summary: ClassVar[str]

    def plan(self, scenario: Scenario) -> Plan:
        """The plan of one iteration.

        Raises:
            InfeasibleError: this point does not exist for the scenario.
        """
        ...

    @classmethod
    def candidates(cls, scenario: Scenario) -> Iterator[Self]:
        """The points of the design space worth a look for a scenario.

        Raises:
            InfeasibleError: the strategy does not apply at all.
        """
        ...

    def bound(self, scenario: Scenario) -> float:
        """Seconds that no iteration of this point can undercut.

        Raises:
            InfeasibleError: this point does not exist for the scenario.
        """
        ...


@runtime_checkable
class Refining(Protocol):
    """A strategy that improves its plan once it has seen when everything happens."""

    def refine(self, scenario: Scenario, trace: Trace) -> Plan:
        """A better plan than the one that was replayed; that very plan where there is none.

        Args:
            scenario: what is asked about.
            trace: of the plan before.
        """
        ...


class Job(NamedTuple):
    """A strategy on a scenario of its own, beside others that it neither waits for nor exchanges anything with."""

    strategy: Strategy
    scenario: Scenario


@runtime_checkable
class Divided(Protocol):
    """A strategy that may divide the GPUs evenly among several jobs, each with a backbone of its own."""

    def jobs(self, scenario: Any) -> tuple[Job, ...]:  # noqa: ANN401  of its own task
        """The jobs in the order of their GPUs; the strategy itself is the only one where nothing is divided.

        Several jobs are planned and bounded one by one.

        Raises:
            InfeasibleError: this point does not exist for the scenario.
        """
        ...


@runtime_checkable
class MemoryBounded(Protocol):
    """A strategy with a lower bound of its memory, so that a sweep need not replay a point that cannot fit."""

    def least_memory_bytes(self, scenario: Any) -> float:  # noqa: ANN401  of its own task
        """Bytes that the fullest device cannot do without.

        Raises:
            InfeasibleError: this point does not exist for the scenario.
        """
        ...


@runtime_checkable
class Holding(Protocol):
    """A strategy whose order gives a sharper memory bound; a sweep asks for it only before it would replay."""

    def held_bytes(self, scenario: Any) -> float:  # noqa: ANN401  of its own task
        """Bytes that the fullest device holds at least; no less than ``least_memory_bytes``.

        Raises:
            InfeasibleError: this point does not exist for the scenario.
        """
        ...


@runtime_checkable
class Searching(Protocol):
    """A strategy that searches for its order, which takes longer than a bound may: it is asked only before a replay."""

    def ordered_s(self, scenario: Any) -> Iterator[float]:  # noqa: ANN401  of its own task
        """Seconds that no iteration in the order found can undercut, as they become clear while it is searched for.

        Raises:
            InfeasibleError: this point does not exist for the scenario.
        """
        ...


@runtime_checkable
class RoughlyBounded(Protocol):
    """A strategy whose bound takes long; a sweep asks for it only where compute alone does not rule a point out."""

    def busiest_s(self, scenario: Any) -> float:  # noqa: ANN401  of its own task
        """Seconds that the backbones' passes on the busiest device take; no more than ``bound``.

        Raises:
            InfeasibleError: this point does not exist for the scenario.
        """
        ...


@runtime_checkable
class Scheduled(Protocol):
    """A strategy whose order depends on its own parameters alone."""

    def order(self) -> Order:
        """The forwards and backwards of each position, in order."""
        ...


@runtime_checkable
class Remarking(Protocol):
    """A strategy with remarks on points that run, but not quite as its name promises."""

    def remarks(self, scenario: Any) -> list[str]:  # noqa: ANN401  of its own task
        """Remarks for the user, one line each."""
        ...


class Phase(NamedTuple):
    """A part of a run that happens several times alike; all devices wait for one another before and after it.

    Attributes:
        name: what it is.
        plan: of one time, on the devices of one guidance group.
        times: how often it happens.
        steps: denoising steps of one time; 0 where text encoders or the VAE run.
        standing_in: for each device, which of the plan stands for it; empty where each is there itself.
    """

    name: str
    plan: Plan
    times: int
    steps: int = 1
    standing_in: tuple[int, ...] = ()


@runtime_checkable
class Sampler(Protocol):
    """One way of drawing images on several GPUs; its fields are its parameters.

    Attributes:
        name: the one by which it is asked for.
        task: ``sample``.
        summary: what it does, in a line.
        seamless: whether no seams show between the patches of an image.
        baseline: whether others are compared with it.
        gpu_counts: the numbers of GPUs that it can use; None where its degrees decide that.
    """

    name: ClassVar[str]
    task: ClassVar[str]
    summary: ClassVar[str]
    seamless: ClassVar[bool]
    baseline: ClassVar[bool]
    gpu_counts: ClassVar[tuple[int, ...] | None]

    def plan(self, scenario: SamplingScenario) -> Plan:
        """The plan of all steps of a run.

        Raises:
            InfeasibleError: this point does not exist for the scenario.
        """
        ...

    def phases(self, scenario: SamplingScenario) -> tuple[Phase, ...]:
        """The run in parts; those that are alike are one phase, which is replayed once.

        Raises:
            InfeasibleError: this point does not exist for the scenario.
        """
        ...

    @classmethod
    def candidates(cls, scenario: SamplingScenario) -> Iterator[Self]:
        """The points of the design space worth a look for a scenario.

        Raises:
            InfeasibleError: the sampler does not apply at all.
        """
        ...

    def bound(self, scenario: SamplingScenario) -> float:
        """Seconds that no run of this point can undercut.

        Raises:
            InfeasibleError: this point does not exist for the scenario.
        """
        ...

    def guidance_groups(self, scenario: SamplingScenario) -> int:
        """Groups of devices that each compute one of an image's predictions; 1 where none is divided.

        Raises:
            InfeasibleError: this point does not exist for the scenario.
        """
        ...


@runtime_checkable
class Drawing(Protocol):
    """A sampler that says how its GPUs draw, and what."""

    def image_groups(self, scenario: Any) -> int:  # noqa: ANN401  as the others
        """Groups of GPUs that each draw images of their own.

        Raises:
            InfeasibleError: this point does not exist for the scenario.
        """
        ...

    def approximation(self, scenario: Any) -> str:  # noqa: ANN401  as the others
        """Why an image is not the one that a single GPU draws, in words; empty where it is.

        Raises:
            InfeasibleError: this point does not exist for the scenario.
        """
        ...


AnyScenario = Scenario | SamplingScenario
AnyStrategy = Strategy | Sampler


def is_seamless(strategy: AnyStrategy | type[AnyStrategy]) -> bool:
    """Whether no seams show between the patches of an image; a strategy that trains draws none."""
    return strategy.task == "train" or cast(Sampler, strategy).seamless


def gpu_counts(strategy: AnyStrategy | type[AnyStrategy], num_gpus: int) -> list[int]:
    """The numbers of GPUs to look at, up to as many as there are, the largest first.

    Training uses all. A sampler that names none is looked at on all GPUs and on the powers of two below, except one: a
    single GPU has nothing to divide.
    """
    if strategy.task == "train":
        return [num_gpus]
    counts: Iterable[int] | None = cast(Sampler, strategy).gpu_counts
    if counts is None:
        counts = {num_gpus, *(2**k for k in range(1, num_gpus.bit_length()))} - {1}
    return sorted((count for count in counts if count <= num_gpus), reverse=True)
