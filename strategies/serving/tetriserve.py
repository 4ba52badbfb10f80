"""Rounds of a few steps in which each request has the degree that its deadline needs."""

from collections.abc import Sequence
from dataclasses import dataclass

from strategies.degrees import least_degrees, steps_of_round, survives, thriftiest, widen
from strategies.parameters import parameter
from strategies.policy import ElasticPolicy, Fleet, Job, Run, Shape


@dataclass(frozen=True, slots=True)
class TetriServe(ElasticPolicy):
    """Source: TetriServe (arXiv 2510.01565): rounds, degrees by least GPU-hours, packing, scale-up, best effort.

    Its knapsack gives all requests that survive a round the same value, so that the fewest GPUs first are an optimum.
    Assumed: a round is ``steps`` of the slowest shape on its fastest degree, and starts at once where nothing runs;
    the decoder may outlast it; late requests run in the order of arrival on what is left, thriftily.
    """

    name = "tetriserve"
    summary = "rounds of some steps on the least degrees that hold the deadlines (TetriServe, 2025)"
    steps: int = parameter(5, "denoising steps of the slowest shape in a round")

    def round_s(self, fleet: Fleet, shapes: Sequence[Shape]) -> float:
        """Seconds of the steps of the slowest shape."""
        return self.steps * max(min(of.step_s for _, of in fleet.choices(shape)) for shape in shapes)

    def divide(self, queue: Sequence[Job], free: int, fleet: Fleet) -> list[Run]:
        """Requests that a round of waiting makes late, then others by deadline, then late ones; idle GPUs widen all."""
        urgent, other, late, given = [], [], [], {}
        for job in queue:
            degrees = least_degrees(job, fleet) if job.deadline_s > fleet.now else ()
            surviving = [gpus for gpus in degrees if survives(job, gpus, fleet)]
            if surviving and survives(job, 0, fleet):
                other.append((degrees[0], job))
            elif surviving:
                urgent.append((min(surviving), job))
            else:
                late.append((0, job))
        for gpus, job in sorted(urgent, key=lambda item: (item[0], item[1].deadline_s)):
            if gpus <= free:
                given[job] = gpus
                free -= gpus
            else:
                late.append((0, job))
        late.sort(key=lambda item: item[1].number)
        for gpus, job in (*sorted(other, key=lambda item: item[1].deadline_s), *late) if free else ():
            most = min(free, gpus or thriftiest(job, fleet, step_s=fleet.round_s)) if free else 0
            sizes = [of for of, _ in fleet.choices(job.shape) if of <= most]
            if size := max((of for of in sizes if not gpus or survives(job, of, fleet)), default=0):
                given[job] = size
                free -= size
        widen(given, free, fleet)
        return [Run((job,), steps_of_round(job, gpus, fleet), gpus) for job, gpus in given.items()]
