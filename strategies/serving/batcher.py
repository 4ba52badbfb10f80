"""Batches of whole requests."""

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import islice

from strategies.policy import Fleet, Job, Policy, Replica, Run, Shape


@dataclass(frozen=True, slots=True)
class Batcher(Policy):
    """Source: MLPerf Inference v4.1, NVIDIA's harness for SDXL: `batch_size` and `batcher_time_limit`."""

    name = "batcher"
    summary = "batches of one shape, which start when full or when the first has waited long enough"
    batches = True

    def start(self, queue: Sequence[Job], replica: Replica, fleet: Fleet) -> Run | float:
        """The first shape of which a batch is full, or of which a request has waited long enough."""
        tried: set[Shape] = set()
        for first in queue:
            if first.shape not in tried:
                tried.add(first.shape)
                jobs = [*islice((job for job in queue if job.shape == first.shape), fleet.max_batch)]
                if len(jobs) == fleet.max_batch or fleet.now >= first.ready_s + fleet.batch_wait_s:
                    return Run(jobs, first.steps_left)
        return queue[0].ready_s + fleet.batch_wait_s
