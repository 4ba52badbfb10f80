"""Degrees of a request that is served: the fastest, the one of the fewest GPU-seconds, and those for a deadline."""

from collections.abc import Sequence
from math import ceil, inf

from strategies.policy import Fleet, Job


def fastest_s(job: Job, fleet: Fleet, steps: int = 0) -> float:
    """Seconds that the rest of a request takes at least, after some more steps of it."""
    return min(fleet.left_s(gpus, job, steps) for gpus in fleet.choices(job.shape))


def least_gpu_seconds(job: Job, fleet: Fleet, within_s: float = inf, step_s: float = inf) -> int:
    """GPUs that take the fewest GPU-seconds for the rest, where it and each step are in time; else the fastest."""
    left = [(fleet.left_s(gpus, job), gpus, times.step_s) for gpus, times in fleet.choices(job.shape).items()]
    held = [
        (gpus * seconds, gpus) for seconds, gpus, each_s in left if seconds <= within_s and each_s <= step_s
    ]
    return min(held)[1] if held else min(left)[1]


def least_degrees(job: Job, fleet: Fleet) -> Sequence[int]:
    """GPUs of one degree, or of two in turn, that meet the deadline with the fewest GPU-seconds; none where none do."""
    slack_s = job.deadline_s - fleet.now
    left = [(gpus, fleet.left_s(gpus, job), times.step_s) for gpus, times in fleet.choices(job.shape).items()]
    plans: list[tuple[float, tuple[int, ...]]] = [
        (gpus * seconds, (gpus,)) for gpus, seconds, _ in left if seconds <= slack_s
    ]
    for fast, fast_s, fast_step_s in left:
        for slow, slow_s, slow_step_s in left if fast_s <= slack_s else ():
            if slow_s > slack_s and slow_step_s > fast_step_s:
                steps = ceil((slow_s - slack_s) / (slow_step_s - fast_step_s))
                gpu_s = slow * (slow_s - steps * slow_step_s) + fast * steps * fast_step_s
                plans += [(gpu_s, (slow, fast))] * (steps < job.steps_left)
    return min(plans)[1] if plans else ()


def widen(given: dict[Job, int], free: int, fleet: Fleet) -> None:
    """Give idle GPUs to requests that are faster on the next degree, in turn."""
    before = -1
    while free and free != before:
        before = free
        for job, gpus in [*given.items()]:
            more = [
                (degree, times.step_s) for degree, times in fleet.choices(job.shape).items() if degree >= gpus
            ]
            if len(more) > 1 and more[1][1] < more[0][1] and more[1][0] - gpus <= free:
                given[job] = more[1][0]
                free -= more[1][0] - gpus


def steps_of_round(job: Job, gpus: int, fleet: Fleet) -> int:
    """Steps that a request runs in a round: at least one."""
    times = fleet.choices(job.shape)[gpus]
    steps = int((fleet.round_s - times.encode_s * job.fresh) / times.step_s + 1e-9)
    return min(job.steps_left, max(1, steps))


def survives(job: Job, gpus: int, fleet: Fleet) -> bool:
    """Whether a request that has so many GPUs in this round, or none, can still be in time."""
    steps, run_s = 0, 0.0
    if gpus:
        steps, times = steps_of_round(job, gpus, fleet), fleet.choices(job.shape)[gpus]
        run_s = times.encode_s * job.fresh + steps * times.step_s
        if steps == job.steps_left:
            return fleet.now + run_s + times.decode_s <= job.deadline_s
    return fleet.now + max(run_s, fleet.round_s) + fastest_s(job, fleet, steps) <= job.deadline_s
