"""Requests that make way for more urgent ones between steps."""

from collections.abc import Sequence
from dataclasses import dataclass
from math import inf

from strategies.policy import Fleet, Job, Policy, Replica, Run


@dataclass(frozen=True, slots=True)
class Preemptive(Policy):
    """Source: Liu and Layland, 1973 (deadlines); Schrage, 1968 (least work left): optimal on one server.

    A request that goes on elsewhere pays for the hand-over of its latents; one that waits keeps them where it ran.
    """

    name = "preemptive"
    summary = (
        "between steps the earliest deadline goes first, of those without SLO the least work left (textbook)"
    )

    def rank(self, job: Job, fleet: Fleet) -> tuple[float, float]:
        """Its deadline, then the seconds left of it; only these where it has none."""
        left_s = fleet.left_s(next(iter(fleet.choices(job.shape))), job)
        return job.deadline_s, left_s if job.deadline_s == inf else 0.0

    def start(self, queue: Sequence[Job], replica: Replica, fleet: Fleet) -> Run:
        """One step of the first."""
        return Run((queue[0],), 1)
