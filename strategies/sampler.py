"""What a sampler is: a frozen dataclass of its parameters that turns a sampling scenario into plans."""

from collections.abc import Callable, Iterator, Sequence
from typing import ClassVar, NamedTuple, Protocol, Self, runtime_checkable

from profiles.errors import InfeasibleError
from strategies.plan import Plan
from strategies.sampling import SamplingScenario


class Phase(NamedTuple):
    """A part of a run that happens several ``times`` alike; all devices meet before and after it.

    ``name`` says what it is, ``steps`` how many denoising steps it has: none where text encoders or the VAE run.
    """

    name: str
    plan: Plan
    times: int
    steps: int = 1


@runtime_checkable
class Sampler(Protocol):
    """One way of drawing images on several GPUs; its fields are its parameters."""

    name: ClassVar[str]
    task: ClassVar[str]
    summary: ClassVar[str]

    def plan(self, scenario: SamplingScenario) -> Plan:
        """Return who does what in which order in all steps of a run.

        Raises:
            InfeasibleError: this point does not exist for the scenario.
        """
        ...

    def phases(self, scenario: SamplingScenario) -> tuple[Phase, ...]:
        """Return the run in parts, of which those that are alike need be replayed only once.

        Raises:
            InfeasibleError: this point does not exist for the scenario.
        """
        ...

    @classmethod
    def candidates(cls, scenario: SamplingScenario) -> Iterator[Self]:
        """Yield the points of the design space worth a look for a scenario.

        Raises:
            InfeasibleError: the sampler does not apply at all.
        """
        ...

    def bound(self, scenario: SamplingScenario) -> float:
        """Return seconds below which no run of this point can take.

        Raises:
            InfeasibleError: this point does not exist for the scenario.
        """
        ...


@runtime_checkable
class MemoryBoundedSampler(Protocol):
    """A sampler that knows a lower bound of the memory of its fullest device."""

    def least_memory_bytes(self, scenario: SamplingScenario) -> float:
        """Return bytes that no run of this point can do without.

        Raises:
            InfeasibleError: this point does not exist for the scenario.
        """
        ...


def is_seamless(sampler: object) -> bool:
    """Whether no seams show between the patches of an image; so it is where a sampler's ``seamless`` says nothing."""
    return bool(getattr(sampler, "seamless", True))


def gpu_counts(sampler: Sampler | type[Sampler], num_gpus: int) -> list[int]:
    """Return the numbers of GPUs to look at, up to as many as there are, the largest first.

    They are those of a sampler's ``gpu_counts``; where it says nothing all GPUs and the powers of two below, except
    one: a single GPU has nothing to divide.
    """
    own: tuple[int, ...] | None = getattr(sampler, "gpu_counts", None)
    counts = {num_gpus, *(2**k for k in range(1, num_gpus.bit_length()))} - {1} if own is None else own
    return sorted((count for count in counts if count <= num_gpus), reverse=True)


def guidance_groups(sampler: Sampler, scenario: SamplingScenario) -> int:
    """Return the groups of devices that each do one of an image's predictions; 1 where none is divided."""
    degree: int | None = getattr(sampler, "guidance_degree", None)
    return degree or scenario.guidance_groups


Build = Callable[[SamplingScenario, Sequence[int]], Plan]
"""Returns the plan of some successive steps."""


def alike_phases(scenario: SamplingScenario, build: Build, warmup_steps: int = 0) -> tuple[Phase, ...]:
    """Return the phases of a sampler whose devices meet at the end of each step: warm-up steps, and the others."""
    steps = scenario.workload.steps
    phases = []
    if warmup_steps:
        phases.append(Phase("warm-up", build(scenario, [warmup_steps - 1]), warmup_steps))
    if steps > warmup_steps:
        phases.append(Phase("steady", build(scenario, [steps - 1]), steps - warmup_steps))
    return tuple(phases)


def check_warmup(scenario: SamplingScenario, warmup_steps: int) -> None:
    """Refuse a warm-up that is longer than the run.

    Raises:
        InfeasibleError: it is.
    """
    steps = scenario.workload.steps
    if warmup_steps > steps:
        raise InfeasibleError(
            f"warmup_steps({warmup_steps}) exceeds steps({steps})", "warm-up longer than the run"
        )
