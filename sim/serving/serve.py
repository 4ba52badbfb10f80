"""Answers about serving: plans made, run under one load, and searched for capacity and for the fewest GPUs."""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from inspect import signature
from math import ceil, inf
from typing import Any, Final

from profiles.costs.bands import Band
from profiles.errors import InfeasibleError, counted, wrong
from profiles.mappings import FrozenMapping
from sim.outcomes.results import Result
from sim.outcomes.runs import parameters_of
from sim.serving.fleet import PARTS, Pool, Replay, Setup, TooManyMissedError
from sim.serving.inputs import POOLS, pools_of, replicas_of
from sim.serving.load import Kind, Load, Trace
from sim.serving.options import REQUESTS, ServingOptions
from sim.serving.outcomes import Outcome, Plan, outcome_of
from sim.serving.service import AnyService, Asked, Simulated, Tabled, best_sampler
from strategies.policy import AnyPolicy, ElasticPolicy, Job, Shape
from strategies.serving.fcfs import FirstComeFirstServed
from strategies.strategy import Sampler

CAPS: Final = (2, 4, 8)
"""Batch caps that are tried where none is given."""
POINTS: Final = 10
"""Rates of a curve."""
WARMUP: Final = 0.1
"""Share of the duration whose requests are not counted: they meet an empty fleet."""
EXACT: Final = 0.01
"""A capacity is found to this share of itself."""


@dataclass(slots=True)
class Site:
    """A cluster, or a table of service times, on which plans can be made.

    Attributes:
        name: of the cluster; empty of a table.
        service: seconds of batches.
        degrees: numbers of GPUs that a replica can have.
        samplers: name and parameters of the sampler on each.
        band: factors on service times between which eight of ten measured ones lie, by GPUs of a replica.
        per_node: GPUs of a node.
        results: a request alone on a replica of so many GPUs, simulated; none of a table.
        impossible: what cannot be, in words, as it was found.
        price: dollars a GPU-hour.
    """

    name: str
    service: AnyService
    degrees: tuple[int, ...]
    samplers: Mapping[int, tuple[str, Mapping[str, Any]]]
    band: Mapping[int, Band]
    per_node: int
    results: Mapping[int, Result] = field(default_factory=FrozenMapping)
    impossible: dict[str, None] = field(default_factory=dict)
    price: float | None = None

    def run_s(self, gpus: int, shape: Shape, batch: int = 1) -> float:
        """Seconds of a batch on so many GPUs; infinite where it does not fit."""
        try:
            return self.service.times(gpus, shape, batch).run_s(shape)
        except InfeasibleError:
            return inf

    def alone_s(self, shape: Shape) -> float:
        """Seconds of a request alone on the fewest GPUs on which it fits."""
        return next((s for s in (self.run_s(gpus, shape) for gpus in self.degrees) if s < inf), inf)

    def fastest_s(self, shape: Shape) -> float:
        """Seconds of a request alone on the GPUs on which it is the fastest."""
        return min(self.run_s(gpus, shape) for gpus in self.degrees)


def simulated_site(asked: Asked, shape: Shape, degrees: Sequence[int]) -> Site:
    """Return a cluster with the fastest sampler of a shape on each number of GPUs.

    Raises:
        InfeasibleError: none fits on any.
    """
    cluster = asked.scenario.cluster
    found = {gpus: best_sampler(asked, shape, gpus) for gpus in degrees}
    results = {gpus: result for gpus, result in found.items() if result is not None}
    if not results:
        sizes = ", ".join(map(str, degrees))
        words = f"no sampler of {asked.scenario.model.name} fits on {sizes} GPUs of {cluster.name}"
        raise InfeasibleError(f"{words}, one replica")
    lacking = (counted(gpus, "GPU") for gpus in degrees if gpus not in results)
    none = {f"a replica of {words}: no sampler fits": None for words in lacking}
    made = {gpus: (of.source, of.uncertainty.band) for gpus, of in results.items() if of.source is not None}
    samplers = {
        gpus: source.strategy for gpus, (source, _) in made.items() if isinstance(source.strategy, Sampler)
    }
    return Site(
        cluster.name,
        Simulated(asked.scenario, samplers),
        tuple(samplers),
        {gpus: (of.name, parameters_of(of)) for gpus, of in samplers.items()},
        {gpus: band for gpus, (_, band) in made.items()},
        cluster.devices_per_node,
        results,
        none,
    )


def tabled_site(table: Tabled) -> Site:
    """Return the site of a table of service times."""
    sizes = table.degrees
    as_is: Mapping[int, tuple[str, Mapping[str, Any]]] = {gpus: ("measured", {}) for gpus in sizes}
    return Site("", table, tuple(sizes), as_is, dict.fromkeys(sizes, Band()), max(sizes))


@dataclass(slots=True)
class Question:
    """A question about serving on one site.

    Attributes:
        site: where.
        options: what is asked.
        policies: those to compare.
        kinds: classes of requests; of a trace those that occur.
        trace: requests as they arrived.
        gpus: numbers of GPUs of the fleet: one, or a span of which the fewest that hold are wanted.
    """

    site: Site
    options: ServingOptions
    policies: Sequence[AnyPolicy]
    kinds: tuple[Kind, ...]
    trace: Trace | None
    gpus: Sequence[int]
    scale: float = 1.0
    _memory: dict[object, Any] = field(default_factory=dict)

    def plans(self, gpus: int) -> Iterator[tuple[Plan, Setup]]:
        """Yield the plans on so many GPUs that fit in memory."""
        for policy in self.policies:
            for name, pools in self._pools(gpus, policy):
                for cap in self.caps if policy.batches else (1,):
                    setup = self._setup(pools, policy, cap)
                    if self.ceiling_per_s(setup) > 0:
                        yield self._plan(name, setup), setup

    def _pools(self, gpus: int, policy: AnyPolicy) -> Iterator[tuple[str, tuple[Pool, ...]]]:
        """Yield the ways to divide GPUs into replicas, with their names."""
        options, elastic = self.options, isinstance(policy, ElasticPolicy)
        if options.pools is not None:
            stages = pools_of(options.pools)
            there = stages["denoiser"]
            sizes = replicas_of(options.replicas) if options.replicas and not elastic else (1,) * there
            if sum(sizes) != there:
                raise wrong("replicas", f"has {sum(sizes)} GPUs, but `pools` gives denoiser {there}")
            sizes = self._nodes(there) if elastic else sizes
            of_stage = {name: (1,) * number for name, number in stages.items()} | {"denoiser": sizes}
            name = f"{there} elastic" if elastic else named(sizes)
            yield name, tuple(Pool(replicas, POOLS[stage]) for stage, replicas in of_stage.items())
        elif elastic:
            yield f"{gpus} elastic", (Pool(self._nodes(gpus)),)
        elif options.replicas is not None:
            for text in options.replicas.split(","):
                yield named(replicas_of(text)), (Pool(replicas_of(text)),)
        else:
            for degree in self.site.degrees:
                if count := gpus // degree:
                    yield f"{count}x{degree}", (Pool((degree,) * count),)

    def _nodes(self, gpus: int) -> tuple[int, ...]:
        """Return the GPUs of each node of so many."""
        node = min(self.site.per_node, gpus)
        return (node,) * (gpus // node) + ((gpus % node,) if gpus % node else ())

    @property
    def caps(self) -> Sequence[int]:
        """The batch caps to try with policies that form batches."""
        known = [cap for cap in CAPS if self.site.service.has_batches(cap)]
        return known if self.options.max_batch is None else (self.options.max_batch,)

    def _setup(self, pools: tuple[Pool, ...], policy: AnyPolicy, cap: int) -> Setup:
        largest = max(max(pool.replicas) for pool in pools)
        degrees = tuple(gpus for gpus in self.site.degrees if gpus <= largest)
        return Setup(pools, policy, self.options.dispatch, cap, self.options.batch_wait, degrees)

    def _plan(self, name: str, setup: Setup) -> Plan:
        degree = max(max(pool.replicas) for pool in setup.pools if "denoise" in pool.parts)
        degree = max((of for of in self.site.degrees if of <= degree), default=degree)
        sampler, parameters = self.site.samplers[degree]
        pools = pools_of(self.options.pools) if self.options.pools else {}
        usual = {name: of.default for name, of in signature(type(setup.policy)).parameters.items()}
        values = {name: getattr(setup.policy, name) for name in usual}
        changed = [f"{name} {value}" for name, value in values.items() if value != usual[name]]
        policy = " ".join([setup.policy.name, *changed])
        return Plan(
            name, self.site.name, setup.gpus, sampler, parameters, policy, setup.max_batch, pools, degree
        )

    def ceiling_per_s(self, setup: Setup) -> float:
        """The requests a second that a fleet completes at most, however they are batched; 0 where one does not fit."""
        rates: list[float] = []
        for pool in setup.pools:
            elastic = isinstance(setup.policy, ElasticPolicy)
            rate = 0.0
            for gpus in pool.replicas:
                sizes = [of for of in setup.degrees if of <= gpus] if elastic else [gpus]
                mean_s = sum(
                    kind.share * min((self._gpu_s(of, kind, setup, pool) for of in sizes), default=inf)
                    for kind in self.kinds
                )
                if mean_s == inf:
                    return 0.0
                rate += gpus / mean_s
            rates.append(rate)
        return min(rates)

    def _gpu_s(self, gpus: int, kind: Kind, setup: Setup, pool: Pool) -> float:
        return gpus * self._least_s(gpus, kind.shape, setup.max_batch, pool.parts)

    def _least_s(self, gpus: int, shape: Shape, cap: int, parts: tuple[str, ...]) -> float:
        """Return the least seconds of a replica for a request, in the best batch up to a cap."""
        key = gpus, shape, cap, parts
        if key not in self._memory:
            sizes = {1, *(size for size in CAPS if size < cap), cap}
            self._memory[key] = min(self._parts_s(gpus, shape, size, parts) / size for size in sizes)
            if self._parts_s(gpus, shape, cap, parts) == inf:
                self._memory[key] = inf
        return float(self._memory[key]) * self.scale

    def _parts_s(self, gpus: int, shape: Shape, batch: int, parts: tuple[str, ...]) -> float:
        try:
            times = self.site.service.times(gpus, shape, batch)
        except InfeasibleError as error:
            self.site.impossible[str(error)] = None
            return inf
        each = dict(zip(PARTS, (times.encode_s, shape.steps * times.step_s, times.decode_s), strict=True))
        return sum(each[part] for part in parts)

    def load(self, rate_per_s: float, setup: Setup) -> Load:
        """The requests of a run at a rate."""
        options, duration_s = self.options, self.options.duration
        if self.trace is not None:
            span_s = len(self.trace.arrival_s) / rate_per_s
            return Load(self.kinds, rate_per_s, span_s, seed=options.seed, trace=self.trace)
        if options.arrivals.startswith("closed"):
            rate_per_s = self.ceiling_per_s(setup) * 1.05
        duration_s = REQUESTS / rate_per_s if duration_s is None else duration_s
        return Load(self.kinds, rate_per_s, duration_s, options.arrivals, options.seed)

    def run(self, plan: Plan, setup: Setup, rate_per_s: float, *, recorded: bool = False) -> Outcome:
        """Run a plan at a rate."""
        load = self.load(rate_per_s, setup)
        log = self._replay(setup, load, load.jobs(), recorded=recorded).run()
        done = sum(job.end_s <= load.duration_s for job in log.jobs)
        reached = done / max(load.duration_s, 1e-12) if load.clients else rate_per_s
        return outcome_of(
            plan,
            log,
            rate_per_s=reached,
            warmup_s=self._warmup_s(load),
            duration_s=load.duration_s,
            has_slo=any(kind.slo_s < inf for kind in self.kinds),
            alone_s={
                kind.shape: self.scale * self.site.run_s(plan.degree, kind.shape) for kind in self.kinds
            },
            ceiling_per_s=self.ceiling_per_s(setup),
            price=self.site.price,
            recorded=recorded,
        )

    def _replay(self, setup: Setup, load: Load, jobs: Iterable[Job], **rules: Any) -> Replay:  # noqa: ANN401
        service = self.site.service if self.scale == 1 else self.site.service.scaled(self.scale)
        return Replay(
            setup, jobs, service, FirstComeFirstServed(),
            clients=load.clients, until_s=load.duration_s, **rules,
        )  # fmt: skip

    def _warmup_s(self, load: Load) -> float:
        """Return the seconds whose requests are not counted."""
        return 0.0 if self.trace is not None else WARMUP * load.duration_s

    def holds(self, setup: Setup, rate_per_s: float) -> bool:
        """Whether a fleet holds the SLO at a rate; a run ends once too many requests missed it."""
        load = self.load(rate_per_s, setup)
        jobs, warmup_s = list(load.jobs()), self._warmup_s(load)
        counted_jobs = sum(job.arrival_s >= warmup_s for job in jobs)
        may_miss = int((1 - self.options.slo_share) * counted_jobs + 1e-9)
        try:
            self._replay(setup, load, jobs, may_miss=may_miss, counted_from_s=warmup_s).run()
        except TooManyMissedError:
            return False
        return True

    def capacity_per_s(self, setup: Setup, least_per_s: float = 0.0) -> float:
        """The highest rate at which a fleet holds the SLO, by bisection under the same draws.

        0 where it never does, or not above a rate that is of no interest.
        """
        ceiling = high = self.ceiling_per_s(setup)
        if least_per_s and not (least_per_s < high and self.holds(setup, least_per_s)):
            return 0.0
        low = least_per_s
        while high - low > EXACT * high and high > EXACT * ceiling:
            middle = (low + high) / 2
            low, high = (middle, high) if self.holds(setup, middle) else (low, middle)
        return low

    def scaled(self, factor: float, draw: int = 0) -> "Question":
        """The same question where everything takes so many times as long, or with another draw of the requests."""
        options = replace(self.options, seed=self.options.seed + draw)
        return replace(self, options=options, scale=self.scale * factor, _memory=self._memory)

    def band(self, plan: Plan) -> Band:
        """Factors on the service times of a plan between which eight of ten measured ones lie."""
        return self.site.band.get(plan.degree, Band())

    def fewest(self, rate_per_s: float) -> Iterator[Outcome]:
        """Yield runs on the fewest GPUs that hold the SLO at a rate, one for each degree, policy and cap that does."""
        for plan, _ in self.plans(max(self.gpus)):
            if (run := self.fewest_like(plan, rate_per_s)) is not None:
                yield run

    def fewest_like(self, like: Plan, rate_per_s: float) -> Outcome | None:
        """Return the run of plans like this one on the fewest GPUs that holds, by bisection; None where none does."""
        counts = [gpus for gpus in self.gpus if self._like(like, gpus) is not None]
        best: tuple[Plan, Setup] | None = None
        first, last = 0, len(counts)
        while first < last:
            middle = (first + last) // 2 if best is not None else last - 1
            found = self._like(like, counts[middle])
            setup = None if found is None else found[1]
            if (
                setup is not None
                and self.ceiling_per_s(setup) >= rate_per_s
                and self.holds(setup, rate_per_s)
            ):
                best, last = found, middle
            elif best is None:
                return None
            else:
                first = middle + 1
        return None if best is None else self.run(*best, rate_per_s)

    def _like(self, like: Plan, gpus: int) -> tuple[Plan, Setup] | None:
        """Return the plan on exactly so many GPUs with the degree, policy and cap of another."""
        key = "like", gpus
        if key not in self._memory:
            made = {(self._kin(plan), setup.gpus): (plan, setup) for plan, setup in self.plans(gpus)}
            self._memory[key] = made
        of: Mapping[Any, tuple[Plan, Setup]] = self._memory[key]
        return of.get((self._kin(like), gpus))

    def _kin(self, plan: Plan) -> tuple[str, str, int]:
        """Return what plans of one degree, policy and cap have in common, on however many GPUs."""
        given = self.options.replicas is not None or self.options.pools is not None
        size = plan.replicas if given else plan.replicas.rpartition("x")[2].rpartition(" ")[2]
        return size, plan.policy, plan.max_batch

    def fewest_bound(self, rate_per_s: float) -> int:
        """GPUs that no plan can do without at a rate, whatever waits: those that are busy on average."""
        least_gpu_s = sum(
            kind.share
            * min(
                of * self._least_s(of, kind.shape, cap, PARTS)
                for of in self.site.degrees
                for cap in (1, *self.caps)
            )
            for kind in self.kinds
        )
        if least_gpu_s == inf:
            raise InfeasibleError(f"no replica fits: {'; '.join(self.site.impossible)}")
        return max(1, ceil(rate_per_s * least_gpu_s))


def named(sizes: Sequence[int]) -> str:
    """Return the name of replicas of these numbers of GPUs: 2x4+8x1."""
    return "+".join(f"{sizes.count(of)}x{of}" for of in dict.fromkeys(sizes))
