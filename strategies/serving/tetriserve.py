"""Rounds of a few steps in which each request has the degree that its deadline needs."""

from collections.abc import Sequence
from dataclasses import dataclass

from strategies.degrees import fastest_s, least_degrees, least_gpu_seconds, steps_of_round, survives, widen
from strategies.parameters import parameter
from strategies.policy import ElasticPolicy, Fleet, Job, Run, Shape


@dataclass(frozen=True, slots=True)
class TetriServe(ElasticPolicy):
    """Source: TetriServe (arXiv 2510.01565): rounds, degrees by least GPU-hours, packing, scale-up, best effort.

    Its knapsack gives all requests that survive a round the same value, so that the fewest GPUs first are an optimum.
    Assumed: a round is ``steps`` of the slowest shape on its fastest degree, and starts at once where nothing runs;
    the decoder may outlast it; late requests run in the order of arrival on what is left, by the fewest GPU-seconds.
    """

    name = "tetriserve"
    summary = "rounds of some steps on the least degrees that hold the deadlines (TetriServe, 2025)"
    steps: int = parameter(5, "denoising steps of the slowest shape in a round")

    def round_s(self, fleet: Fleet, shapes: Sequence[Shape]) -> float:
        """Seconds of the steps of the slowest shape."""
        return self.steps * max(
            min(times.step_s for times in fleet.choices(shape).values()) for shape in shapes
        )

    def divide(self, queue: Sequence[Job], free: int, fleet: Fleet) -> list[Run]:
        """Requests that a round of waiting makes late, then others by deadline, then late ones; idle GPUs widen all."""
        urgent: list[tuple[int, Job]] = []
        calm, late = list[Job](), list[Job]()
        given, known = dict[Job, int](), dict[tuple[Shape, int], float]()
        now, round_s = fleet.now, fleet.round_s
        for job in queue:
            left, slack_s = (job.shape, job.steps_left), job.deadline_s - now
            least_s = known[left] if left in known else known.setdefault(left, fastest_s(job, fleet))
            degrees = least_degrees(job, fleet) if least_s <= slack_s < least_s + round_s else ()
            if degrees and (sizes := [gpus for gpus in degrees if survives(job, gpus, fleet)]):
                urgent.append((min(sizes), job))
            else:
                (late if slack_s < least_s + round_s else calm).append(job)
        for gpus, job in sorted(urgent, key=lambda item: (item[0], item[1].deadline_s)):
            if gpus <= free:
                given[job] = gpus
                free -= gpus
            else:
                late.append(job)
        calm.sort(key=lambda job: job.deadline_s)
        late.sort(key=lambda job: job.number)
        for place, job in enumerate((*calm, *late)):
            if not free:
                break
            keeps = place < len(calm)
            most = least_degrees(job, fleet)[0] if keeps else least_gpu_seconds(job, fleet, step_s=round_s)
            sizes = [gpus for gpus in fleet.choices(job.shape) if gpus <= min(most, free)]
            if size := max((gpus for gpus in sizes if not keeps or survives(job, gpus, fleet)), default=0):
                given[job] = size
                free -= size
        widen(given, free, fleet)
        return [Run((job,), steps_of_round(job, gpus, fleet), gpus) for job, gpus in given.items()]
