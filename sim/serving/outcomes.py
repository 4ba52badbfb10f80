"""Outcomes of serving: what a plan gave under a load, as its users and its owner see it."""

import json
from collections.abc import Iterator
from dataclasses import dataclass
from math import inf
from pathlib import Path
from typing import Any, Final

import numpy as np

from profiles.errors import InfeasibleError
from profiles.outputs import whole_file
from sim.serving.fleet import Log, Plan

BATCHES: Final = 3, 30
"""Batches of consecutive requests by which an interval is found, at most: short ones, and those long enough."""
OF_BATCH: Final = 100, 700
"""Requests of each at least: a p99 of fewer than 100 is their slowest; shorter ones than 700 are not independent."""

STUDENT: Final = (
    12.71, 4.30, 3.18, 2.78, 2.57, 2.45, 2.36, 2.31, 2.26, 2.23, 2.20, 2.18, 2.16, 2.14, 2.13, 2.12, 2.11, 2.10, 2.09,
    2.09, 2.08, 2.07, 2.07, 2.06, 2.06, 2.06, 2.05, 2.05, 2.05,
)  # fmt: skip
"""Quantiles of Student's distribution, 97.5 %, for 1 to 29 degrees of freedom."""


@dataclass(frozen=True, slots=True)
class Outcome:
    """What a plan gave; seconds run from arrival to completion.

    Attributes:
        rate_per_s: mean arrivals a second; of a closed loop, what its clients reached.
        attainment: share of the requests that held their SLO; None without one.
        latencies_s: of each counted request, in the order of arrival.
        held: whether each held its SLO.
        completed_per_s: requests a second over the time in which they arrived.
        use: share of the GPUs' time in which they run something.
        ceiling_per_s: requests a second that the plan can complete at most.
        capacity_per_s: highest rate under the SLO, where it is asked for.
        log: of the best plan what ran where.
        warmup_s: requests that arrived before are not counted.
    """

    plan: Plan
    rate_per_s: float
    attainment: float | None
    latencies_s: np.ndarray
    held: np.ndarray
    completed_per_s: float
    use: float
    ceiling_per_s: float
    price_per_gpu_hour: float | None
    warmup_s: float
    capacity_per_s: float | None = None
    log: Log | None = None

    def percentile_s(self, percent: float) -> float:
        """Seconds within which so many of a hundred requests are complete."""
        return float(np.percentile(self.latencies_s, percent)) if len(self.latencies_s) else inf

    @property
    def mean_s(self) -> float:
        """Mean seconds of a request."""
        return float(self.latencies_s.mean()) if len(self.latencies_s) else inf

    @property
    def gpu_s_per_request(self) -> float:
        """GPU-seconds that are paid for a request, idle ones too."""
        per_s = self.rate_per_s if self.keeps_up else self.completed_per_s
        return self.plan.gpus / per_s if per_s else inf

    @property
    def dollars_per_1000(self) -> float | None:
        """Dollars for a thousand requests; None without a price."""
        price = self.price_per_gpu_hour
        return None if price is None else 1000 * self.gpu_s_per_request * price / 3600

    @property
    def cost(self) -> float:
        """Dollars for a thousand requests; without a price GPU-seconds of one."""
        return self.gpu_s_per_request if (dollars := self.dollars_per_1000) is None else dollars

    @property
    def dollars_per_hour(self) -> float:
        """Dollars for an hour of its GPUs; without a price their number."""
        return self.plan.gpus * (1.0 if self.price_per_gpu_hour is None else self.price_per_gpu_hour)

    @property
    def keeps_up(self) -> bool:
        """Whether it completes requests as fast as they arrive, in the long run."""
        return self.rate_per_s < self.ceiling_per_s

    def holds(self, share: float) -> bool:
        """Whether at least so large a share of the requests held the SLO."""
        return self.attainment is None or self.attainment >= share

    def to_json(self) -> dict[str, Any]:
        """The outcome under its public keys."""
        names = ("rate_per_s", "attainment", "mean_s", "completed_per_s", "use", "keeps_up")
        row: dict[str, Any] = {"plan": self.plan.to_json()} | {name: getattr(self, name) for name in names}
        row |= {"gpu_s_per_request": self.gpu_s_per_request}
        row |= {f"p{percent}_s": self.percentile_s(percent) for percent in (50, 90, 99)}
        row["requests"] = len(self.latencies_s)
        interval = interval_of_p99(self.latencies_s)
        known = {"interval_s": interval and list(interval), "dollars_per_1000": self.dollars_per_1000}
        known["capacity_per_s"] = self.capacity_per_s
        row |= {key: value for key, value in known.items() if value is not None}
        return {key: None if value == inf else value for key, value in row.items()}


def interval_of_p99(latencies_s: np.ndarray) -> tuple[float, float] | None:
    """Return the 95 % interval of p99 from batch means; None of too few requests.

    The wider of two: by how p99 varies over the batches, and by how the share above the p99 of all does. Long queues
    make many requests alike, so that it says too much near the capacity: of one exponential server and 2,000 requests
    it holds the truth in 97 of 100 draws at a load of 0.5, in 90 at 0.7, in 81 at 0.8, and in 64 at 0.9; of 20,000 in
    98, 94, 87 and 83.

    Args:
        latencies_s: in the order of arrival.
    """
    batches = max(min(most, len(latencies_s) // each) for most, each in zip(BATCHES, OF_BATCH, strict=True))
    if batches < 2:
        return None
    p99 = float(np.percentile(latencies_s, 99))
    parts = np.array_split(latencies_s, batches)
    errors = [(np.percentile(part, 99) - p99, np.mean(part > p99) - 0.01) for part in parts]
    seconds, share = STUDENT[batches - 2] * np.sqrt(np.square(errors).mean(axis=0) / (batches - 1))
    low, high = np.percentile(latencies_s, np.clip((99 - 100 * share, 99 + 100 * share), 0, 100))
    return max(float(latencies_s.min()), min(float(low), p99 - seconds)), max(float(high), p99 + seconds)


def log_of(outcome: Outcome) -> Log:
    """Return what a plan ran.

    Raises:
        InfeasibleError: it was not recorded, as of all plans but the best.
    """
    if outcome.log is None:
        raise InfeasibleError("what ran is recorded of the best plan alone, once it is known")
    return outcome.log


def request_rows(outcome: Outcome) -> Iterator[dict[str, Any]]:
    """Yield the requests of a recorded run in the order of their arrival; seconds, an SLO after the arrival."""
    for job in sorted(log_of(outcome).jobs, key=lambda job: job.number):
        slo = None if job.deadline_s == inf else job.deadline_s - job.arrival_s
        times = {"arrival_s": job.arrival_s, "start_s": job.start_s, "end_s": job.end_s}
        yield {**times, "shape": job.shape.words, "slo": slo, "held": not job.missed}


def write_trace(outcome: Outcome, path: Path) -> None:
    """Write what each GPU ran as Chrome trace events, and a counter of the requests that wait."""
    with whole_file(path) as file, file.open("w", encoding="utf-8") as out:
        json.dump({"traceEvents": [*_events(log_of(outcome))], "displayTimeUnit": "ms"}, out)


def _events(log: Log) -> Iterator[dict[str, Any]]:
    for gpu in sorted({gpu for ran in log.ran for gpu in ran.gpus}):
        name = {"name": "thread_name", "args": {"name": f"GPU {gpu}"}}
        yield {"ph": "M", "pid": 1, "tid": gpu, "ts": 0, **name}
    for ran in log.ran:
        span = {"ts": ran.start_s * 1e6, "dur": (ran.end_s - ran.start_s) * 1e6}
        names = {"name": f"request {', '.join(map(str, ran.jobs))}", "cat": ran.part}
        yield from ({"ph": "X", "pid": 1, "tid": gpu, **span, **names} for gpu in ran.gpus)
    for time_s, waiting in waiting_over_time(log):
        count = {"name": "waiting", "args": {"requests": waiting}}
        yield {"ph": "C", "pid": 1, "tid": 0, "ts": time_s * 1e6, **count}


def waiting_over_time(log: Log) -> list[tuple[float, int]]:
    """Return the seconds at which a request arrives or first runs, and how many wait from then on."""
    waits = [(job.arrival_s, job.start_s) for job in log.jobs if job.start_s > job.arrival_s]
    changes = sorted((time_s, change) for wait in waits for time_s, change in zip(wait, (1, -1), strict=True))
    curve, waiting = [(0.0, 0)], 0
    for time_s, change in changes:
        waiting += change
        curve.append((time_s, waiting))
    return curve
