"""Earliest deadline first."""

from dataclasses import dataclass

from strategies.policy import Fleet, Job, Policy


@dataclass(frozen=True, slots=True)
class EarliestDeadlineFirst(Policy):
    """Source: Jackson, 1955: no order has a lower maximum of the lateness of jobs that are there at once.

    Requests that can no longer be in time keep their place: under overload it does worse than others.
    """

    name = "edf"
    summary = "the earliest deadline first; requests without an SLO come last (textbook)"

    def rank(self, job: Job, fleet: Fleet) -> float:
        """Its deadline."""
        return job.deadline_s
