"""Outcomes of serving: what a plan gave under a load, as its users and its owner see it."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from math import inf
from typing import Any, Final

import numpy as np

from profiles.mappings import FrozenMapping
from sim.serving.fleet import Log
from strategies.policy import Job

BATCHES: Final = 5
"""Batches of consecutive requests by which an interval is found, at most; shorter ones are not independent."""
LEAST_OF_BATCH: Final = 100
"""Requests of such a batch: a p99 of fewer is their slowest."""
STUDENT: Final = (12.71, 4.30, 3.18, 2.78)
"""Quantiles of Student's distribution, 97.5 %, for 1 to 4 degrees of freedom."""


@dataclass(frozen=True, slots=True)
class Plan:
    """A fleet, its samplers and its policy.

    Attributes:
        replicas: such as 4x2: four of two GPUs.
        cluster: its name; empty where service times are from a table.
        gpus: GPUs that are paid for.
        strategy: sampler of its largest replicas; ``parameters`` are its own.
        policy: name of the policy.
        max_batch: requests that may share a batch.
        pools: GPUs of each stage, where stages have their own.
        degree: GPUs of its largest replicas; of elastic ones the most that a request may get.
    """

    replicas: str
    cluster: str
    gpus: int
    strategy: str
    parameters: Mapping[str, Any]
    policy: str
    max_batch: int
    pools: Mapping[str, int] = field(default_factory=FrozenMapping)
    degree: int = 1

    def to_json(self) -> dict[str, Any]:
        """The plan under its public keys."""
        plain = {
            "replicas": self.replicas,
            "strategy": self.strategy,
            "parameters": dict(self.parameters),
            "policy": self.policy,
            "max_batch": self.max_batch,
        }
        where = {"cluster": self.cluster} if self.cluster else {}
        return plain | where | {"gpus": self.gpus} | ({"pools": dict(self.pools)} if self.pools else {})


@dataclass(frozen=True, slots=True)
class Outcome:
    """What a plan gave; seconds run from arrival to completion.

    Attributes:
        rate_per_s: mean arrivals a second; of a closed loop, what its clients reached.
        attainment: share of the requests that held their SLO; None without one.
        latencies_s: of each counted request, in the order of arrival.
        held: whether each held its SLO.
        wait_s: mean seconds before a request first runs.
        alone_s: mean seconds that the requests take alone on their replica.
        completed_per_s: requests a second over the time in which they arrived.
        use: share of the GPUs' time in which they run something.
        ceiling_per_s: requests a second that the plan can complete at most.
        capacity_per_s: highest rate under the SLO: by the middle estimate of service times, the high and the low one.
        log: of the best plan what ran where.
        warmup_s: requests that arrived before are not counted.
    """

    plan: Plan
    rate_per_s: float
    attainment: float | None
    latencies_s: np.ndarray
    held: np.ndarray
    wait_s: float
    alone_s: float
    completed_per_s: float
    use: float
    ceiling_per_s: float
    capacity_per_s: tuple[float, ...] = ()
    price_per_gpu_hour: float | None = None
    log: Log | None = None
    warmup_s: float = 0.0

    def percentile_s(self, percent: float) -> float:
        """Seconds within which so many of a hundred requests are complete."""
        return float(np.percentile(self.latencies_s, percent)) if len(self.latencies_s) else inf

    @property
    def mean_s(self) -> float:
        """Mean seconds of a request."""
        return float(self.latencies_s.mean()) if len(self.latencies_s) else inf

    @property
    def interval_s(self) -> tuple[float, float] | None:
        """The 95 % interval of p99 from batch means; None of too few requests.

        The wider of two: by how p99 varies over the batches, and by how the share above the p99 of all does. Up to
        half of the capacity it holds the truth as often as it says, near the capacity, where long queues make many
        requests alike, less often.
        """
        batches = min(BATCHES, len(self.latencies_s) // LEAST_OF_BATCH)
        if batches < 2:
            return None
        p99 = self.percentile_s(99)
        parts = np.array_split(self.latencies_s, batches)
        errors = [(np.percentile(part, 99) - p99, np.mean(part > p99) - 0.01) for part in parts]
        seconds, share = STUDENT[batches - 2] * np.sqrt(np.square(errors).mean(axis=0) / (batches - 1))
        low, high = (
            self.percentile_s(float(at)) for at in np.clip((99 - 100 * share, 99 + 100 * share), 0, 100)
        )
        return max(float(self.latencies_s.min()), min(low, p99 - seconds)), max(high, p99 + seconds)

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
    def keeps_up(self) -> bool:
        """Whether it completes requests as fast as they arrive, in the long run."""
        return self.rate_per_s < self.ceiling_per_s

    def holds(self, share: float) -> bool:
        """Whether at least so large a share of the requests held the SLO."""
        return self.attainment is None or self.attainment >= share

    def to_json(self) -> dict[str, Any]:
        """The outcome under its public keys."""
        row: dict[str, Any] = {
            "plan": self.plan.to_json(),
            "rate_per_s": self.rate_per_s,
            "attainment": self.attainment,
            "p50_s": self.percentile_s(50),
            "p90_s": self.percentile_s(90),
            "p99_s": self.percentile_s(99),
            "mean_s": self.mean_s,
            "completed_per_s": self.completed_per_s,
            "use": self.use,
            "gpu_s_per_request": self.gpu_s_per_request,
            "requests": len(self.latencies_s),
        }
        if (interval := self.interval_s) is not None:
            row["interval_s"] = list(interval)
        if self.capacity_per_s:
            names = ("capacity_per_s", "capacity_per_s_low", "capacity_per_s_high")
            row |= zip(names, self.capacity_per_s, strict=False)
        if self.dollars_per_1000 is not None:
            row["dollars_per_1000"] = self.dollars_per_1000
        return {key: None if value == inf else value for key, value in row.items()}


def outcome_of(
    plan: Plan,
    log: Log,
    *,
    rate_per_s: float,
    warmup_s: float,
    duration_s: float,
    has_slo: bool,
    alone_s: Mapping[object, float],
    ceiling_per_s: float,
    price: float | None,
    recorded: bool,
) -> Outcome:
    """Return the outcome of a run; requests that arrived before the end of the warm-up are not counted."""
    jobs: Sequence[Job] = sorted(
        (job for job in log.jobs if job.arrival_s >= warmup_s), key=lambda job: job.number
    )
    latencies = np.array([job.end_s - job.arrival_s for job in jobs])
    held = np.array([not job.missed for job in jobs], dtype=bool)
    span_s = max(duration_s, log.end_s)
    done = sum(job.end_s <= duration_s for job in log.jobs)
    return Outcome(
        plan=plan,
        rate_per_s=rate_per_s,
        attainment=float(held.mean()) if has_slo and len(held) else None,
        latencies_s=latencies,
        held=held,
        wait_s=float(np.mean([job.start_s - job.arrival_s for job in jobs])) if jobs else 0.0,
        alone_s=float(np.mean([alone_s[job.shape] for job in jobs])) if jobs else 0.0,
        completed_per_s=done / duration_s if duration_s else 0.0,
        use=log.busy_gpu_s / (plan.gpus * span_s) if span_s else 0.0,
        ceiling_per_s=ceiling_per_s,
        price_per_gpu_hour=price,
        log=log if recorded else None,
        warmup_s=warmup_s,
    )
