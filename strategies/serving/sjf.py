"""Shortest job first."""

from dataclasses import dataclass

from strategies.policy import Fleet, Job, Policy


@dataclass(frozen=True, slots=True)
class ShortestJobFirst(Policy):
    """Source: Schrage, 1968: no order has a lower mean of the time in the system where jobs are not interrupted.

    A request's seconds alone on the fewest GPUs order it, known beforehand as those of diffusion models are.
    """

    name = "sjf"
    summary = "the shortest request first: the lowest mean, at the cost of long ones (textbook)"

    def rank(self, job: Job, fleet: Fleet) -> float:
        """Seconds alone on the fewest GPUs on which it fits."""
        return fleet.left_s(next(iter(fleet.choices(job.shape))), job)
