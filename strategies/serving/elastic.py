"""Greedy elastic degrees."""

from collections.abc import Sequence
from dataclasses import dataclass

from strategies.policy import ElasticPolicy, Fleet, Job, Run


@dataclass(frozen=True, slots=True)
class Elastic(ElasticPolicy):
    """Source: DDiT (arXiv 2506.13497): greedy allocation, and promotion of degrees between steps.

    A request starts on what is idle, up to its best degree, and grows towards it between its steps while none waits.
    Assumed: the best degree is where GPUs times the square of seconds are least: twice as many must be 1.41 times as
    fast. The decoder runs on the GPUs of the last step; ``--pools`` gives decoders GPUs of their own.
    """

    name = "elastic"
    summary = "requests start on idle GPUs and grow to their best degree between steps (DDiT, 2025)"

    def divide(self, queue: Sequence[Job], free: int, fleet: Fleet) -> list[Run]:
        """Those under way, then those that wait, each on as many idle GPUs as it can use."""
        runs: list[Run] = []
        for job in sorted(queue, key=lambda job: job.place is None):
            if not free:
                break
            choices = fleet.choices(job.shape)
            best = min((gpus * times.run_s(job.shape) ** 2, gpus) for gpus, times in choices.items())[1]
            gpus = max((gpus for gpus in choices if gpus <= min(best, free)), default=0)
            if gpus:
                free -= gpus
                runs.append(Run((job,), job.steps_left if gpus == best else 1, gpus))
        return runs
