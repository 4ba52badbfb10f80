"""A job: one plan that ranks carry out several times, and what they recorded."""

from dataclasses import dataclass
from typing import Any

from strategies.plans.network import Network
from strategies.plans.plan import Plan
from validate.running.executor import RankIteration
from validate.running.sampling.settings import Settings
from validate.running.training.samples import Training


@dataclass(frozen=True, slots=True)
class Job:
    """What the ranks are to do.

    ``mode`` says with which durations it is simulated: sleep, replay, virtual or wall. Every message takes ``link_s``,
    whatever its size. Ops train or draw, or, without a task, sleep; on a ``cpu``, messages by gloo, or on ``cuda``, by
    NCCL, whose messages carry no ``tags``.
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
    """What came of a job, without the iterations to warm up.

    ``others_cores`` were used by other programs, NaN where not known; ``found`` is what each rank drew. The gradient
    error is the largest difference of a gradient from that of a single process, over the largest gradient of the layer.
    """

    name: str
    iterations: tuple[Iteration, ...] = ()
    others_cores: float = 0.0
    found: tuple[Any, ...] = ()
    gradient_error: float | None = None
