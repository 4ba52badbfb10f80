"""Batches of whole requests."""

from collections.abc import Sequence
from dataclasses import dataclass

from strategies.policy import Fleet, Job, Policy, Replica, Run


@dataclass(frozen=True, slots=True)
class Batcher(Policy):
    """Source: MLPerf Inference v4.1, NVIDIA's harness for SDXL: `batch_size` and `batcher_time_limit`."""

    name = "batcher"
    summary = "batches of one shape, which start when full or when the first has waited long enough"
    batches = True
    work_conserving = False

    def start(self, queue: Sequence[Job], replica: Replica, fleet: Fleet) -> Run | float:
        """The first request and those of its shape, as many as the cap allows."""
        first = queue[0]
        jobs = [job for job in queue if job.shape == first.shape][: fleet.max_batch]
        due_s = first.ready_s + fleet.batch_wait_s
        if len(jobs) < fleet.max_batch and fleet.now < due_s:
            return due_s
        return Run(jobs, first.steps_left)
