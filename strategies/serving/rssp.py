"""The best fixed degree for each resolution."""

from collections.abc import Sequence
from dataclasses import dataclass

from strategies.degrees import least_gpu_seconds
from strategies.policy import ElasticPolicy, Fleet, Job, Run


@dataclass(frozen=True, slots=True)
class ResolutionSpecific(ElasticPolicy):
    """Source: resolution-specific sequence parallelism (RSSP), the baseline of TetriServe (arXiv 2510.01565).

    Assumed: the best degree is the one of the fewest GPU-seconds that holds the SLO alone, else the fastest; requests
    start in the order of arrival, and one that does not fit in the idle GPUs holds up those behind it.
    """

    name = "rssp"
    summary = "a fixed degree for each resolution, first come, first served (TetriServe's baseline, 2025)"
    strict = True

    def divide(self, queue: Sequence[Job], free: int, fleet: Fleet) -> list[Run]:
        """The first requests whose degrees fit into the idle GPUs, to their end."""
        runs: list[Run] = []
        for job in queue:
            gpus = least_gpu_seconds(job, fleet, job.deadline_s - job.arrival_s)
            if gpus > free:
                break
            free -= gpus
            runs.append(Run((job,), job.steps_left, gpus))
        return runs
