"""The base classes of strategies: frozen dataclasses of parameters that turn a scenario into plans.

A strategy that samples images is a sampler. Every method may raise ``InfeasibleError`` where its point does not exist
for the scenario.
"""

from abc import ABC, abstractmethod
from collections.abc import Iterable, Iterator
from typing import Any, ClassVar, Final, NamedTuple, Self

from strategies.parameters import check_parameters
from strategies.plans.actions import Order
from strategies.plans.plan import Plan
from strategies.plans.traces import Trace
from strategies.plans.workloads import ONE_DRAW
from strategies.sampling_scenario import SamplingScenario
from strategies.scenario import Scenario

TaskScenario = Any
"""A scenario of the strategy's own task, which a subclass names: callers hold strategies of either."""
EXCERPT: Final = 4
"""Steps, or micro-batches, of an excerpt: the first, two that are compared, and the last, which nothing follows."""


class Job(NamedTuple):
    """A strategy on a scenario of its own, beside others that it neither waits for nor exchanges anything with."""

    strategy: "AnyStrategy"
    scenario: "AnyScenario"


class Phase(NamedTuple):
    """A part of a run that happens several times alike; all devices wait for one another before and after it.

    Attributes:
        name: what it is.
        plan: of one time, on the devices of one guidance group.
        times: how often it happens.
        steps: denoising steps of one time; 0 where text encoders or the VAE run.
        standing_in: for each device, which of the plan stands for it; empty where each is there itself.
        omitted: denoising steps that are not in the plan, before its last.
    """

    name: str
    plan: Plan
    times: int
    steps: int = 1
    standing_in: tuple[int, ...] = ()
    omitted: int = 0


class _Method(ABC):
    """One way of parallelising a task; its fields are its parameters.

    Attributes:
        name: the name that selects it.
        summary: its description, in a line.
        baseline: whether others are compared with it.
        complexity: what has to be set up: 0 one GPU or data parallelism, 1 sharded states, 2 sequence or tensor
            parallelism, 3 pipelines, patches and mixtures.
        awaits: the collective that it awaits layer by layer; empty where there is none, or sums alone.
    """

    __slots__ = ()
    name: ClassVar[str]
    summary: ClassVar[str]
    baseline: ClassVar[bool] = False
    complexity: ClassVar[int] = 3
    awaits: ClassVar[str] = ""

    def __post_init__(self) -> None:
        check_parameters(self)

    @abstractmethod
    def bound(self, scenario: TaskScenario) -> float:
        """Seconds that no iteration, or run of the sampler, can undercut."""

    def order_bound(self, scenario: TaskScenario) -> float:
        """Seconds that none can undercut in its own order; a sweep asks for them only before a replay."""
        return self.bound(scenario)

    def coarse_bounds(self, scenario: TaskScenario) -> tuple[float, float]:
        """Seconds, and bytes of the fullest device, that none can undercut, and that a search soon finds."""
        return 0.0, 0.0

    def jobs(self, scenario: TaskScenario) -> tuple[Job, ...]:
        """Return the jobs among which the GPUs are divided evenly, in the order of their GPUs.

        Several jobs are planned and bounded one by one.
        """
        return (Job(self, scenario),)  # type: ignore[arg-type]  # every method is a strategy or a sampler

    def least_memory_bytes(self, scenario: TaskScenario) -> float:
        """Bytes that the fullest device cannot do without, so that a sweep need not replay what cannot fit."""
        return 0.0

    def remarks(self, scenario: TaskScenario) -> list[str]:
        """Remarks for the user on a point that does not run quite as its name promises, one line each."""
        return []


class Strategy(_Method):
    """One way of parallelising the training of a model.

    Attributes:
        draws: who draws self-conditioning in its runtimes. The stages of a pipeline must all know of the extra forward.
    """

    __slots__ = ()
    task: ClassVar[str] = "train"
    draws: ClassVar[str] = ONE_DRAW

    @abstractmethod
    def plan(self, scenario: Scenario) -> Plan:
        """Return the plan of one iteration."""

    @classmethod
    @abstractmethod
    def candidates(cls, scenario: Scenario) -> Iterator[Self]:
        """Yield the points of the design space worth a look for a scenario."""

    def refine(self, scenario: Scenario, trace: Trace) -> Plan:
        """Return a better plan than the one that was replayed; that very plan where there is none."""
        return trace.plan

    def excerpt(self, scenario: Scenario) -> tuple[Self, Scenario, int]:
        """Return a point and a scenario with the first of micro-batches that may repeat, and how many it leaves out."""
        return self, scenario, 0

    def order(self) -> Order | None:
        """Return the forwards and backwards of each position; None where they depend on the scenario."""
        return None


class Sampler(_Method):
    """One way of sampling images on several GPUs.

    Attributes:
        seamless: whether no seams show between the patches of an image.
        gpu_counts: the numbers of GPUs that it can use; None where its degrees decide that.
    """

    __slots__ = ()
    task: ClassVar[str] = "sample"
    seamless: ClassVar[bool] = True
    gpu_counts: ClassVar[tuple[int, ...] | None] = None

    @abstractmethod
    def plan(self, scenario: SamplingScenario) -> Plan:
        """Return the plan of all steps of a run."""

    @abstractmethod
    def phases(self, scenario: SamplingScenario) -> tuple[Phase, ...]:
        """Return the run in parts; those that are alike are one phase, which is replayed once."""

    def folded_phases(self, scenario: SamplingScenario, *, excerpt: bool = False) -> tuple[Phase, ...]:
        """Return the phases, with plans of less where that stands for all.

        Args:
            scenario: model, cluster and workload.
            excerpt: of a long run whose steps overlap only the first are planned.
        """
        return self.phases(scenario)

    @classmethod
    def candidates(cls, scenario: SamplingScenario) -> Iterator[Self]:
        """Yield the points of the design space worth a look for a scenario: one, of a sampler without parameters."""
        yield cls()

    def guidance_groups(self, scenario: SamplingScenario) -> int:
        """Groups of devices that each compute one of an image's predictions; 1 where none is divided."""
        return 1

    def image_groups(self, scenario: TaskScenario) -> int:
        """Groups of GPUs that each sample images of their own."""
        return 1

    def approximation(self, scenario: TaskScenario) -> str:
        """Why an image is not the one that a single GPU samples, in words; empty where it is."""
        return ""


AnyScenario = Scenario | SamplingScenario
AnyStrategy = Strategy | Sampler


def is_seamless(strategy: AnyStrategy | type[AnyStrategy]) -> bool:
    """Whether no seams show between the patches of an image; a strategy that trains makes none."""
    return bool(getattr(strategy, "seamless", True))


def gpu_counts(strategy: AnyStrategy | type[AnyStrategy], num_gpus: int) -> list[int]:
    """The numbers of GPUs to look at, up to as many as there are, the largest first.

    Training uses all. A sampler that names none is looked at on all GPUs and on the powers of two below, except one: a
    single GPU has nothing to divide.
    """
    if strategy.task == "train":
        return [num_gpus]
    counts: Iterable[int] | None = getattr(strategy, "gpu_counts", None)
    if counts is None:
        counts = {num_gpus, *(2**k for k in range(1, num_gpus.bit_length()))} - {1}
    return sorted((count for count in counts if count <= num_gpus), reverse=True)
