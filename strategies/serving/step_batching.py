"""Batches that requests join and leave between steps."""

from collections.abc import Sequence
from dataclasses import dataclass

from strategies.policy import Fleet, Job, Policy, Replica, Run


@dataclass(frozen=True, slots=True)
class StepBatching(Policy):
    """Source: vLLM-Omni PR 2822: requests join a running batch between two of its steps.

    Requests of one shape join up to the cap, and end on the replica on which they began. None joins past an earlier
    one of another shape, so that none starves (an assumption). Encoders of those that join and decoders of those that
    leave hold up the others.
    """

    name = "step-batching"
    summary = "requests of one shape join a running batch between steps (vLLM-Omni PR 2822)"
    batches = True

    def start(self, queue: Sequence[Job], replica: Replica, fleet: Fleet) -> Run | None:
        """Those that run here and those that may join: to the first end where the batch is full, else one step."""
        jobs = [job for job in queue if job.place is replica]
        for job in queue:
            if len(jobs) == fleet.max_batch or (jobs and job.place is None and job.shape != jobs[0].shape):
                break
            if job.place is None:
                jobs.append(job)
        if not jobs:
            return None
        return Run(jobs, min(job.steps_left for job in jobs) if len(jobs) == fleet.max_batch else 1)
