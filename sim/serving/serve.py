"""Questions about serving: plans made, run under one load, and searched for capacity; and what a plan gave."""

import json
from bisect import bisect_left
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import accumulate, product
from math import ceil, inf
from pathlib import Path
from typing import Any, Final

import numpy as np

from profiles.errors import InfeasibleError, wrong
from profiles.outputs import whole_file
from sim.outcomes.runs import parameters_of
from sim.serving.fleet import Log, Plan, Pool, Replay
from sim.serving.options import REQUESTS, Kind, Load, ServingOptions, Trace
from sim.serving.service import Site
from strategies.policy import PARTS, ElasticPolicy, Policy, Shape

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
        names = (
            "rate_per_s", "attainment", "mean_s", "completed_per_s", "use", "keeps_up", "gpu_s_per_request",
        )  # fmt: skip
        row: dict[str, Any] = {"plan": self.plan.to_json()} | {name: getattr(self, name) for name in names}
        row |= {f"p{percent}_s": self.percentile_s(percent) for percent in (50, 90, 99)}
        row["requests"] = len(self.latencies_s)
        if interval := interval_of_p99(self.latencies_s):
            row["interval_s"] = [*interval]
        for name in ("dollars_per_1000", "capacity_per_s"):
            if (value := getattr(self, name)) is not None:
                row[name] = value
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
    waits = (job for job in log.jobs if job.start_s > job.arrival_s)
    changes = sorted(change for job in waits for change in ((job.arrival_s, 1), (job.start_s, -1)))
    waiting = accumulate(change for _, change in changes)
    return [(0.0, 0), *zip((time_s for time_s, _ in changes), waiting, strict=True)]


CAPS: Final = (2, 4, 8)
"""Batch caps that are tried where none is given."""
WARMUP: Final = 0.1
"""Share of the duration whose requests are not counted: they meet an empty fleet."""
EXACT: Final = 0.01
"""A capacity is found to this share of itself."""


@dataclass(frozen=True, slots=True)
class Question:
    """A question about serving on one site.

    Attributes:
        policies: those to compare.
        kinds: classes of requests; of a trace those that occur.
        trace: requests as they arrived.
        gpus: numbers of GPUs of the fleet: one, or a span of which the fewest that hold are wanted.
        least: requests that arrive in each run at least.
    """

    site: Site
    options: ServingOptions
    policies: Sequence[Policy]
    kinds: tuple[Kind, ...]
    trace: Trace | None
    gpus: Sequence[int]
    least: int = 0

    @property
    def has_slo(self) -> bool:
        """Whether any class of requests has an SLO."""
        return any(kind.slo_s < inf for kind in self.kinds)

    @property
    def rates(self) -> tuple[float, float]:
        """The lowest and the highest rate that is asked for; 0 where none is."""
        usual = 0.0 if self.trace is None else self.trace.rate_per_s
        return self.options.rates or (usual, usual)

    @property
    def caps(self) -> Sequence[int]:
        """The batch caps to try with policies that form batches."""
        known = [cap for cap in CAPS if cap <= self.site.most_batch]
        return known if self.options.max_batch is None else (self.options.max_batch,)

    def plans(self, gpus: int) -> Iterator[Plan]:
        """Yield the plans on so many GPUs that fit in memory."""
        for policy in self.policies:
            sizes: Iterable[int | tuple[int, ...]] = self.options.divisions or self.site.samplers
            if isinstance(policy, ElasticPolicy) or (self.options.stages and not self.options.divisions):
                sizes = (1,)
            for size, cap in product(sizes, self.caps if policy.batches else (1,)):
                if (plan := self.plan(policy, size, cap, gpus)) and self.ceiling_per_s(plan) > 0:
                    yield plan

    def plan(self, policy: Policy, size: int | tuple[int, ...], cap: int, gpus: int) -> Plan | None:
        """Return replicas of a size on so many GPUs, or given ones; None where there is no room for any."""
        stages, options = self.options.stages, self.options
        there = stages.get("denoiser", gpus)
        replicas = (size,) * (there // size) if isinstance(size, int) else size
        if isinstance(policy, ElasticPolicy):
            node = min(self.site.per_node, there)
            replicas = (node,) * (there // node) + (there % node,) * (there % node > 0)
        if stages and sum(replicas) != there:
            raise wrong("replicas", f"has {sum(replicas)} GPUs, but `pools` gives denoiser {there}")
        if not replicas:
            return None
        of_stage = {name: (1,) * number for name, number in stages.items()} | {"denoiser": replicas}
        pools = tuple(Pool(of_stage[stage], (part,)) for stage, part in zip(stages, PARTS, strict=False))
        degrees = tuple(degree for degree in self.site.samplers if degree <= max(replicas))
        degree = max(degrees, default=replicas[0])
        sampler = self.site.samplers.get(degree)
        named = ("measured", {}) if sampler is None else (sampler.name, parameters_of(sampler))
        return Plan(
            pools or (Pool(replicas),), policy, options.dispatch, cap, options.batch_wait, degrees,
            self.site.name, *named, degree,
        )  # fmt: skip

    def ceiling_per_s(self, plan: Plan) -> float:
        """Return the requests a second that a plan completes at most, however batched; 0 where one does not fit."""
        rates = []
        for pool in plan.pools:
            by_gpus, cap = dict[int, float](), plan.max_batch if "denoise" in pool.parts else 1
            for gpus in set(pool.replicas):
                sizes = [degree for degree in plan.degrees if degree <= gpus] if plan.elastic else [gpus]
                by_gpus[gpus] = gpus / self._mean_gpu_s(sizes, (cap,), pool.parts)
                if not by_gpus[gpus]:
                    return 0.0
            each = [by_gpus[gpus] for gpus in pool.replicas]
            rates.append(min(each) * len(each) if plan.dispatch == "round-robin" else sum(each))
        return min(rates)

    def _mean_gpu_s(self, sizes: Iterable[int], caps: Iterable[int], parts: tuple[str, ...]) -> float:
        """Return the least GPU-seconds of parts of a request on replicas of some sizes; infinite where none fits."""
        pairs = [(gpus, cap) for gpus in sizes for cap in caps]
        least_gpu_s = {
            shape: min((gpus * self._least_s(gpus, shape, cap, parts) for gpus, cap in pairs), default=inf)
            for shape in dict.fromkeys(kind.shape for kind in self.kinds)
        }
        return sum(kind.share * least_gpu_s[kind.shape] for kind in self.kinds)

    def _least_s(self, gpus: int, shape: Shape, cap: int, parts: tuple[str, ...]) -> float:
        """Return the least seconds of a replica for a request, in the best batch up to a cap that fits."""
        sizes = {1, *(size for size in CAPS if size < cap), cap}
        try:
            times = {size: self.site.of(parts).times(gpus, shape, size) for size in sorted(sizes)}
        except InfeasibleError as error:
            self.site.impossible[str(error)] = None
            return inf
        return min(every.only(parts).run_s(shape) / size for size, every in times.items())

    def load(self, rate_per_s: float, plan: Plan) -> Load:
        """Return the requests of a run at a rate."""
        options, duration_s = self.options, self.options.duration
        if self.trace is not None:
            span_s = len(self.trace.arrival_s) / rate_per_s
            return Load(self.kinds, rate_per_s, span_s, seed=options.seed, trace=self.trace)
        if clients := options.clients:
            rate_per_s = self.ceiling_per_s(plan) * 1.05
        least = max(REQUESTS, 20 * clients) if duration_s is None else self.least  # each client asks 20 times
        duration_s = max(duration_s or 0.0, least / rate_per_s)
        return Load(self.kinds, rate_per_s, duration_s, options.arrivals, options.seed)

    def run(self, plan: Plan, rate_per_s: float, *, loaded: bool = False, recorded: bool = False) -> Outcome:
        """Return what a plan gives at a rate; requests that arrive in the warm-up are not counted.

        ``loaded`` says that replicas hold the model already, and that a run ends where too many miss the SLO.
        """
        load, clients = self.load(rate_per_s, plan), self.options.clients
        requests, lasts_s, loading_s = list(load.jobs()), load.duration_s, self.options.loading * (not loaded)
        warmup_s, may_miss = 0.0 if loading_s or self.trace is not None else WARMUP * lasts_s, inf
        if loaded:
            counted_jobs = sum(job.arrival_s >= warmup_s for job in requests)
            may_miss = int((1 - self.options.slo_share) * counted_jobs + 1e-9)
        log = Replay(
            plan, requests, self.site, clients=clients, until_s=lasts_s, loaded_s=loading_s, may_miss=may_miss,
            counted_from_s=warmup_s,
        ).run()  # fmt: skip
        jobs = sorted((job for job in log.jobs if job.arrival_s >= warmup_s), key=lambda job: job.number)
        held = np.array([not job.missed for job in jobs], dtype=bool)
        completed = sum(job.end_s <= load.duration_s for job in log.jobs) / load.duration_s
        return Outcome(
            plan=plan,
            rate_per_s=completed if clients else rate_per_s,
            attainment=float(held.mean()) if self.has_slo and jobs else None,
            latencies_s=np.array([job.end_s - job.arrival_s for job in jobs]),
            held=held,
            completed_per_s=completed,
            use=log.busy_gpu_s / (plan.gpus * max(load.duration_s, log.end_s)),
            ceiling_per_s=self.ceiling_per_s(plan),
            price_per_gpu_hour=self.site.price,
            warmup_s=warmup_s,
            log=log if recorded else None,
        )

    def holds(self, plan: Plan, rate_per_s: float) -> bool:
        """Return whether a plan, loaded, holds the SLO at a rate."""
        return self.run(plan, rate_per_s, loaded=True).holds(self.options.slo_share)

    def late_alone(self, plan: Plan | None = None) -> list[tuple[Kind, float]]:
        """Return the classes that miss their SLO alone on a plan, or on any, with seconds on the fastest replica."""
        if plan is not None and plan.stages:
            return []
        sizes = self.site.samplers if plan is None else plan.degrees if plan.elastic else plan.sizes
        alone = [(kind, min(self.site.run_s(gpus, kind.shape) for gpus in sizes)) for kind in self.kinds]
        return [(kind, seconds) for kind, seconds in alone if seconds > kind.slo_s]

    def capacity_per_s(self, plan: Plan, least_per_s: float = 0.0) -> float:
        """Return the highest rate at which a plan holds the SLO, by bisection under the same draws.

        0 where it never does, or not above a rate that is of no interest.
        """
        if sum(kind.share for kind, _ in self.late_alone(plan)) > 1 - self.options.slo_share + 1e-9:
            return 0.0
        ceiling = high = self.ceiling_per_s(plan)
        if least_per_s and not (least_per_s < high and self.holds(plan, least_per_s)):
            return 0.0
        low = least_per_s
        while high - low > EXACT * high and high > EXACT * ceiling:
            middle = (low + high) / 2
            low, high = (middle, high) if self.holds(plan, middle) else (low, middle)
        return low

    def scaled(self, factor: float, draw: int = 0) -> "Question":
        """Return the question where everything takes so many times as long, or with another draw of the requests."""
        options = replace(self.options, seed=self.options.seed + draw)
        return replace(self, options=options, site=self.site.scaled(factor))

    def fewest(self, like: Plan, rate_per_s: float) -> Plan | None:
        """Return the plan like another on the fewest GPUs that hold the SLO at a rate, by bisection; None of none."""
        plans, size = [like], 1 if like.elastic else like.sizes[0]
        if not like.stages and (like.elastic or not self.options.divisions):
            every = (self.plan(like.policy, size, like.max_batch, n) for n in self.gpus if n % size == 0)
            plans = [plan for plan in every if plan is not None]
        least = bisect_left(
            plans,
            True,
            key=lambda plan: self.ceiling_per_s(plan) >= rate_per_s and self.holds(plan, rate_per_s),
        )
        return next(iter(plans[least:]), None)

    def fewest_bound(self, rate_per_s: float) -> int:
        """Return the GPUs that no plan can do without at a rate, whatever waits: those that are busy on average."""
        least_gpu_s = self._mean_gpu_s(self.site.samplers, (1, *self.caps), PARTS)
        if least_gpu_s == inf:
            raise InfeasibleError(f"no replica fits: {'; '.join(self.site.impossible)}")
        return max(1, ceil(rate_per_s * least_gpu_s))
