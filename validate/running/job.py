"""A job: one plan that ranks carry out several times, and what they recorded."""

from dataclasses import dataclass
from typing import Any

from profiles.models import Model
from strategies.plans.network import Network
from strategies.plans.plan import Plan
from validate.running.executor import RankIteration
from validate.running.sampling.settings import Settings
from validate.running.training.samples import FrozenSamples


@dataclass(frozen=True, slots=True)
class Training:
    """What is trained.

    Attributes:
        model: whose structure is built small.
        batch_size: samples of all ranks together.
        micro_batch: samples of a micro-batch on one rank.
        samples: which samples its frozen work takes.
        extra_forward: whether the iteration runs the extra forward pass.
    """

    model: Model
    batch_size: int
    micro_batch: int
    samples: FrozenSamples
    extra_forward: bool = False


@dataclass(frozen=True, slots=True)
class Job:
    """What the ranks are to do.

    Attributes:
        name: for people.
        mode: ``sleep``, ``replay``, ``virtual`` or ``wall``: with which durations it is simulated.
        plan: the plan.
        link_s: what every message takes, whatever its size.
        iterations: how often, without those to warm up.
        warm_up: how often before.
        task: what ops do: train, draw, or, where there is nothing else, sleep.
        device: where they compute: ``cpu``, messages by gloo, or ``cuda``, by NCCL.
        tags: whether messages carry tags; those of NCCL cannot, whatever is said here.
        runtime: ``own``, or ``torch``: ``torch.distributed.pipelining``, which records no more than steps.
        die: rank that is killed in the midst of its last iteration; to show what then happens.
    """

    name: str
    mode: str
    plan: Plan
    link_s: float = 0.0
    iterations: int = 1
    warm_up: int = 0
    task: Training | Settings | None = None
    device: str = "cpu"
    tags: bool = True
    runtime: str = "own"
    die: int | None = None

    @property
    def num_ranks(self) -> int:
        """Ranks that it takes."""
        return self.plan.placement.num_gpus

    @property
    def network(self) -> Network:
        """How long the simulator takes messages and collectives to be; the ranks know ``link_s`` alone."""
        return Network(self.plan.placement)


@dataclass(frozen=True, slots=True)
class Iteration:
    """One iteration of all ranks: what each recorded."""

    ranks: tuple[RankIteration, ...]

    @property
    def late_share(self) -> float:
        """The share of the iteration by which the ops of the latest rank started late, in all."""
        return max(rank.late_s for rank in self.ranks) / max(rank.end.wall for rank in self.ranks)


@dataclass(frozen=True, slots=True)
class Outcome:
    """What came of a job.

    Attributes:
        name: of the job.
        iterations: without those to warm up.
        others_cores: cores that other programs used meanwhile; NaN where that is not known.
        found: what each rank drew.
        gradient_error: largest difference of a gradient from that of a single process, over the largest gradient of
            the layer; None where nothing is trained.
        steps_s: seconds of each step of torch's runtime.
    """

    name: str
    iterations: tuple[Iteration, ...] = ()
    others_cores: float = 0.0
    found: tuple[Any, ...] = ()
    gradient_error: float | None = None
    steps_s: tuple[float, ...] = ()
