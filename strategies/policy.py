"""The base classes of serving policies: which requests run next, on which GPUs, and for how many denoising steps."""

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from math import inf
from typing import ClassVar, Final, NamedTuple

from strategies.parameters import check_parameters


class Shape(NamedTuple):
    """What a request asks for: pixels, frames and denoising steps; requests of one shape can share a batch."""

    height: int
    width: int
    frames: int
    steps: int
    guidance: str = ""

    @property
    def words(self) -> str:
        """Width and height, frames and steps, as tables show them."""
        sides = f"{self.width}x{self.height}" if self.width != self.height else str(self.width)
        return f"{sides}{f' x {self.frames} frames' if self.frames > 1 else ''}, {self.steps} steps"


PARTS: Final = ("encode", "denoise", "decode")
"""Parts of a request, in the order in which they run."""


class Times(NamedTuple):
    """Seconds of a batch: of its text encoders, of one denoising step, and of its decoder."""

    encode_s: float
    step_s: float
    decode_s: float

    def run_s(self, shape: Shape) -> float:
        """Seconds from the encoders to the image."""
        return self.encode_s + shape.steps * self.step_s + self.decode_s

    def only(self, parts: Sequence[str], scale: float = 1.0) -> "Times":
        """Return the seconds of some parts, those of the others none, all times a factor."""
        if scale == 1 and len(parts) == len(PARTS):
            return self
        return Times(*(scale * seconds * (part in parts) for part, seconds in zip(PARTS, self, strict=True)))


@dataclass(slots=True, eq=False)
class Job:
    """A request in the fleet, and what is left of it.

    Attributes:
        number: of the request, in the order of arrival.
        deadline_s: when it is to be complete; infinite where it has no SLO.
        steps_left: denoising steps that were not run; none before its encoders ran either.
        place: the replica, or the GPUs, on which it ran last.
        ready_s: when it came into its queue, or back.
        start_s: when it first ran.
        end_s: when it was complete.
    """

    number: int
    arrival_s: float
    shape: Shape
    deadline_s: float = inf
    steps_left: int = 0
    place: object = None
    ready_s: float = 0.0
    start_s: float = inf
    end_s: float = inf

    def __post_init__(self) -> None:
        self.steps_left, self.ready_s = self.shape.steps, self.arrival_s

    @property
    def missed(self) -> bool:
        """Whether it was complete after its deadline."""
        return self.end_s > self.deadline_s + 1e-9

    @property
    def fresh(self) -> bool:
        """Whether nothing of it ran yet."""
        return self.start_s == inf


@dataclass(slots=True, eq=False)
class Replica:
    """GPUs that hold the whole model and run one batch at a time."""

    number: int
    gpus: int


class Run(NamedTuple):
    """Requests of one shape that run as a batch for some denoising steps, on so many GPUs where these are elastic."""

    jobs: Sequence[Job]
    steps: int
    gpus: int = 0


class Fleet(ABC):
    """What a policy may ask: the time, and how long things take.

    Attributes:
        max_batch: requests that may share a batch.
        batch_wait_s: seconds that the first of a batch waits for others.
        degrees: numbers of GPUs on which a request can run, ascending.
        round_s: seconds of a round; 0 where there are none.
    """

    max_batch = 1
    batch_wait_s = 0.0
    degrees: Sequence[int] = ()
    round_s = 0.0

    @property
    @abstractmethod
    def now(self) -> float:
        """Seconds since the start."""

    @abstractmethod
    def times(self, gpus: int, shape: Shape, batch: int = 1) -> Times:
        """Return the seconds of a batch on so many GPUs."""

    @abstractmethod
    def choices(self, shape: Shape) -> Mapping[int, Times]:
        """Return the seconds of a request of a shape by degree, the lowest first, where it fits."""

    def left_s(self, gpus: int, job: Job, steps: int = 0) -> float:
        """Return the seconds that the rest of a request takes alone on so many GPUs, after some more steps of it."""
        times = self.choices(job.shape)[gpus]
        first = job.fresh and not steps
        return times.encode_s * first + (job.steps_left - steps) * times.step_s + times.decode_s


Rank = float | tuple[float, ...]


class Policy:
    """Chooses what an idle replica runs: by default whole requests by rank; its fields are its parameters.

    Attributes:
        name: the name that selects it.
        summary: its description, in a line, with its source: a paper, or a program and its version.
        batches: whether it forms batches, so that several caps are worth a look.
    """

    __slots__ = ()
    name: ClassVar[str]
    summary: ClassVar[str]
    batches: ClassVar[bool] = False

    def __post_init__(self) -> None:
        check_parameters(self)

    def rank(self, job: Job, fleet: Fleet) -> Rank:
        """Return the key that orders a queue, the same while a request waits; ties go by arrival."""
        return 0.0

    def start(self, queue: Sequence[Job], replica: Replica, fleet: Fleet) -> Run | float | None:
        """Return what an idle replica runs next; None for nothing, or the time at which to ask again.

        Args:
            queue: requests that wait, by rank; at least one. What runs is taken out of it.
            replica: the idle replica.
            fleet: the time, and how long things take.
        """
        first = queue[0]
        return Run((first,), first.steps_left)


class ElasticPolicy(Policy, ABC):
    """Divides all GPUs of a node anew at each arrival and each end, or, with rounds, at the start of each round.

    Attributes:
        strict: whether runs start in the order given on exactly their GPUs, and wait, as do those behind, until as
            many are free side by side; otherwise the widest goes first, and takes fewer where there are no more.
    """

    __slots__ = ()
    strict: ClassVar[bool] = False

    def round_s(self, fleet: Fleet, shapes: Sequence[Shape]) -> float:
        """Return the seconds of a round; 0 where there are none."""
        return 0.0

    @abstractmethod
    def divide(self, queue: Sequence[Job], free: int, fleet: Fleet) -> Sequence[Run]:
        """Return what starts now on some of the free GPUs, on degrees of the fleet.

        Args:
            queue: requests that wait, in the order of their arrival.
            free: GPUs that are idle.
            fleet: the time, and how long things take.
        """
