"""The fleet: a discrete-event simulation of requests that queue, run and move on, on SimPy's clock."""

from abc import ABC, abstractmethod
from bisect import insort
from collections import Counter
from collections.abc import Generator, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, fields
from itertools import accumulate, cycle, islice, pairwise, product
from math import inf
from operator import attrgetter
from typing import Any, NamedTuple

import simpy

from profiles.errors import InfeasibleError, InputError, counted, shown
from profiles.mappings import FrozenMapping
from strategies.policy import PARTS, ElasticPolicy, Fleet, Job, Policy, Replica, Run, Shape, Times
from strategies.serving.fcfs import FirstComeFirstServed


class Service(ABC):
    """How long things take: by the simulator, as somebody measured, or by a law."""

    @abstractmethod
    def times(self, gpus: int, shape: Shape, batch: int = 1) -> Times:
        """Return the seconds of a batch on so many GPUs."""

    def handover_s(self, shape: Shape) -> float:
        """Return the seconds until a request that moves, or whose GPUs change, goes on: those of its latents.

        Setting up groups takes none, an assumption: all groups of neighbours (15 in a node of 8 GPUs) are taken to be
        made when the fleet starts, as TetriServe (arXiv 2510.01565) says that it does.
        """
        return 0.0

    def of(self, parts: tuple[str, ...]) -> "Service":
        """Return the service of GPUs that run some parts of requests alone, and hold what these need."""
        return self


class Ran(NamedTuple):
    """What ran where: seconds, GPUs, the numbers of the requests, the parts, and the denoising steps."""

    start_s: float
    end_s: float
    gpus: tuple[int, ...]
    jobs: tuple[int, ...]
    part: str
    steps: int = 0


@dataclass(frozen=True, slots=True)
class Pool:
    """Replicas of one number of GPUs each, or elastic GPUs of nodes, that run some parts of each request."""

    replicas: tuple[int, ...]
    parts: tuple[str, ...] = PARTS


@dataclass(frozen=True, slots=True)
class Plan:
    """A fleet and how it is run.

    Attributes:
        pools: in the order in which a request passes through them; usually one that does all.
        policy: of the pool that denoises; the others serve first come, first served.
        dispatch: ``shared``: one queue; ``round-robin`` or ``least-loaded``: a queue for each replica.
        max_batch: requests that may share a batch.
        batch_wait_s: seconds that the first of a batch waits for others.
        degrees: GPUs on which an elastic policy may run one request.
        cluster: its name; empty where service times are from a table.
        strategy: sampler of its largest replicas; ``parameters`` are its own.
        degree: GPUs of its largest replicas; of elastic ones the most that a request may get.
    """

    pools: tuple[Pool, ...]
    policy: Policy
    dispatch: str = "shared"
    max_batch: int = 1
    batch_wait_s: float = 0.0
    degrees: tuple[int, ...] = (1,)
    cluster: str = ""
    strategy: str = ""
    parameters: Mapping[str, Any] = field(default_factory=FrozenMapping)
    degree: int = 1

    @property
    def gpus(self) -> int:
        """GPUs of all pools, which are paid for."""
        return sum(sum(pool.replicas) for pool in self.pools)

    @property
    def elastic(self) -> bool:
        """Whether the policy gives each request as many GPUs as it likes."""
        return isinstance(self.policy, ElasticPolicy)

    @property
    def sizes(self) -> tuple[int, ...]:
        """GPUs of each replica that denoises; of elastic ones of each node."""
        return next(pool.replicas for pool in self.pools if "denoise" in pool.parts)

    @property
    def replicas(self) -> str:
        """Its name: 4x2 are four replicas of two GPUs."""
        each = "+".join(f"{number}x{size}" for size, number in Counter(self.sizes).items())
        return f"{sum(self.sizes)} elastic" if self.elastic else each

    @property
    def stages(self) -> Mapping[str, int]:
        """GPUs of each stage; none where all stages share them."""
        return (
            {} if len(self.pools) == 1 else {f"{pool.parts[0]}r": sum(pool.replicas) for pool in self.pools}
        )

    @property
    def rule(self) -> str:
        """Name of its policy, and the parameters that differ from their defaults."""
        values = {item: getattr(self.policy, item.name) for item in fields(self.policy)}  # type: ignore[arg-type]
        return " ".join(
            [self.policy.name, *(f"{item.name} {x}" for item, x in values.items() if x != item.default)]
        )

    @property
    def rule_and_cap(self) -> str:
        """Its policy with the batch cap, where it forms batches."""
        return f"{self.rule} {self.max_batch}" if self.max_batch > 1 else self.rule

    def to_json(self) -> dict[str, Any]:
        """The plan under its public keys."""
        row = {name: getattr(self, name) for name in ("replicas", "strategy", "max_batch", "cluster", "gpus")}
        row |= {"parameters": dict(self.parameters), "policy": self.rule, "pools": self.stages}
        return {key: value for key, value in row.items() if value or key == "parameters"}


@dataclass(slots=True)
class Log:
    """What a run gave: requests as they ended, what ran where, and the end of all."""

    jobs: list[Job] = field(default_factory=list)
    ran: list[Ran] = field(default_factory=list)
    end_s: float = 0.0

    @property
    def busy_gpu_s(self) -> float:
        """GPU-seconds in which something ran."""
        return sum((ran.end_s - ran.start_s) * len(ran.gpus) for ran in self.ran)


class _Station(Fleet, ABC):
    """GPUs with a queue of their own, of which a policy says what they run.

    Args:
        number: of its pool.
        gpus: those of each replica, or of each node.
    """

    def __init__(self, replay: "Replay", number: int, gpus: Sequence[range]) -> None:
        plan = replay.plan
        self.replay, self.number, self.gpus, self.parts = replay, number, gpus, plan.pools[number].parts
        self.service, self.degrees = replay.service.of(self.parts), plan.degrees
        self.known: dict[Shape, dict[int, Times]] = {}
        self.policy: Policy = FirstComeFirstServed()
        if "denoise" in self.parts:
            self.policy, self.max_batch, self.batch_wait_s = plan.policy, plan.max_batch, plan.batch_wait_s
        self.queue: list[Job] = []
        self.load = 0
        self.tick: simpy.Event | None = None

    @property
    def now(self) -> float:
        """Seconds since the start."""
        return float(self.replay.env.now)

    def times(self, gpus: int, shape: Shape, batch: int = 1) -> Times:
        """Return the seconds of a batch on so many GPUs, of the parts that run here."""
        return self.service.times(gpus, shape, batch).only(self.parts)

    def choices(self, shape: Shape) -> Mapping[int, Times]:
        """Return the seconds of a request of a shape by degree, the lowest first, where it fits."""
        known = self.known.get(shape)
        if known is None:
            known = self.known[shape] = {}
            for gpus in self.degrees:
                with suppress(InfeasibleError):
                    known[gpus] = self.times(gpus, shape)
        return known

    def submit(self, job: Job) -> None:
        """Put a request into the queue."""
        self.load += 1
        self._put(job)
        self.replay.changed[self] = None

    def _put(self, job: Job) -> None:
        insort(self.queue, job, key=lambda job: (self.policy.rank(job, self), job.number))

    def look(self) -> None:
        """Let the policy look at the queue after a change."""
        self.start()

    @abstractmethod
    def start(self) -> None:
        """Start what the policy says on idle GPUs."""

    @abstractmethod
    def free(self, place: Any, *, goes_on: bool) -> None:  # noqa: ANN401
        """Let a replica, or some GPUs, be idle; ``goes_on`` says that requests of theirs are not complete."""

    def start_at(self, time_s: float) -> None:
        """Look at the queue again at a time, in place of any other."""
        self.tick = tick = self.replay.env.timeout(time_s - self.now)
        tick.callbacks.append(lambda _: self.start() if tick is self.tick else None)

    def seconds(self, run: Run, gpus: int) -> float:
        """Seconds of a run: encoders of those that are fresh, its steps, and the decoder of those that end."""
        begins = sum(job.fresh for job in run.jobs)
        ends = sum(job.steps_left <= run.steps for job in run.jobs)
        batch, shape = len(run.jobs), run.jobs[0].shape
        times = {size: self.times(gpus, shape, size or 1) for size in {batch, begins, ends}}
        encode_s, decode_s = times[begins].encode_s * (begins > 0), times[ends].decode_s * (ends > 0)
        return encode_s + run.steps * times[batch].step_s + decode_s

    def checked(self, run: object) -> Run:
        """Return what the policy chose; refuse what cannot run."""
        name = f"`policy` {self.policy.name} chose"
        if not isinstance(run, Run) or not isinstance(run.jobs, Sequence):
            raise InputError(f"{name} {shown(run)}, must be a Run of a list of requests")
        steps, jobs, rule = run.steps, run.jobs, ""
        if steps < 1 or not jobs or len(set(jobs)) < len(jobs) or not all(job in self.queue for job in jobs):
            rule = "at least one of some that wait"
        elif steps > (left := min(job.steps_left for job in jobs)):
            rule = f"at most the {left} that are left"
        elif any(job.shape != jobs[0].shape for job in jobs):
            rule = "of requests of one shape"
        elif len(jobs) > self.max_batch:
            rule = f"of at most {self.max_batch} (`max_batch`)"
        elif isinstance(self.policy, ElasticPolicy) and run.gpus not in self.choices(jobs[0].shape):
            rule = f"on {', '.join(map(str, self.choices(jobs[0].shape)))} GPUs, not {run.gpus}"
        if rule:
            raise InputError(f"{name} {steps} steps of {counted(len(jobs), 'request')}, must be {rule}")
        return run

    def begin(self, run: Run, place: object, gpus: Sequence[int]) -> None:
        """Start a run of requests that wait; those that come from another place are handed over first."""
        seconds, now = self.seconds(run, len(gpus)), self.now
        if any(job.place not in (None, place) for job in run.jobs):
            seconds += self.service.handover_s(run.jobs[0].shape)
        for job in run.jobs:
            self.queue.remove(job)
            job.start_s, job.place = min(job.start_s, now), place
        numbers = tuple(job.number for job in run.jobs)
        part, steps = "+".join(self.parts), run.steps * ("denoise" in self.parts)
        self.replay.log.ran.append(Ran(now, now + seconds, tuple(gpus), numbers, part, steps))
        self.replay.env.timeout(seconds).callbacks.append(lambda _: self._end(run, place))

    def _end(self, run: Run, place: object) -> None:
        """Pass on the requests that are done here; the others wait again."""
        for job in run.jobs:
            job.steps_left -= run.steps
            if job.steps_left > 0:
                job.ready_s = self.now
                self._put(job)
            else:
                self.load -= 1
                self.replay.passed(job, self.number + 1)
        self.free(place, goes_on=any(job.steps_left > 0 for job in run.jobs))
        self.replay.changed[self] = None


class _Fixed(_Station):
    """Replicas of fixed size."""

    def __init__(self, replay: "Replay", number: int, gpus: Sequence[range]) -> None:
        super().__init__(replay, number, gpus)
        self.idle = [Replica(k, len(span)) for k, span in enumerate(gpus)]

    def start(self) -> None:
        """Start what the policy says on each idle replica."""
        for replica in self.idle[:]:
            if not self.queue:
                return
            chosen = self.policy.start(self.queue, replica, self)
            if isinstance(chosen, int | float):
                if not chosen > self.now:
                    rule = f"must be a Run, None, or a time to ask again after {self.now:g} s"
                    raise InputError(f"`policy` {self.policy.name} chose {shown(chosen)}, {rule}")
                self.start_at(chosen)
                return
            if chosen is not None:
                self.idle.remove(replica)
                self.begin(self.checked(chosen), replica, self.gpus[replica.number])

    def free(self, place: Replica, *, goes_on: bool) -> None:
        """Let a replica be idle: the first that is asked where it is to go on with what it ran."""
        self.idle.insert(0 if goes_on else len(self.idle), place)


class _Elastic(_Station):
    """GPUs of nodes, of which a policy gives each request as many as it likes; aligned, so that they are neighbours."""

    policy: ElasticPolicy

    def __init__(self, replay: "Replay", number: int, gpus: Sequence[range]) -> None:
        super().__init__(replay, number, gpus)
        self.idle = {gpu for node in gpus for gpu in node}
        self.count = len(self.idle)
        self.round_s = self.policy.round_s(self, replay.shapes) if replay.shapes else 0.0
        moves_s = max(map(self.service.handover_s, replay.shapes), default=0.0)
        self.tick_s = self.round_s * (1 + 1e-7) + moves_s  # more than rounding takes
        self.began_s = 0.0

    def look(self) -> None:
        """Divide the idle GPUs now, or at the start of the next round; one starts at once where nothing runs."""
        if not self.round_s or len(self.idle) == self.count:
            self.start()
        elif self.queue and self.tick is None:
            self.start_at(self.now + self.tick_s - (self.now - self.began_s) % self.tick_s)

    def start(self) -> None:
        """Divide the idle GPUs."""
        self.tick, self.began_s = None, self.now
        if not self.queue or not self.idle:
            return
        chosen: object = self.policy.divide(self.queue, len(self.idle), self)
        runs = [self.checked(run) for run in (chosen if isinstance(chosen, Sequence) else (chosen,))]
        for run in runs if self.policy.strict else sorted(runs, key=_placing):
            block = self._block(run)
            if block is None and self.policy.strict:
                break
            if block is not None:
                if (gpus := len(block)) < run.gpus:  # the steps of about as many seconds
                    times = self.choices(run.jobs[0].shape)
                    steps = int(run.steps * times[run.gpus].step_s / times[gpus].step_s)
                    run = run._replace(steps=min(run.steps, max(1, steps)), gpus=gpus)  # noqa: PLW2901
                self.idle.difference_update(block)
                self.begin(run, block, block)

    def _block(self, run: Run) -> tuple[int, ...] | None:
        """Return idle GPUs of one node for a run, those of its last or aligned ones; None where there are none."""
        last = run.jobs[0].place if isinstance(run.jobs[0].place, tuple) else ()
        sizes = [gpus for gpus in reversed([*self.choices(run.jobs[0].shape)]) if gpus <= run.gpus]
        nodes = sorted(
            self.gpus, key=lambda node: (not {*last}.intersection(node), len(self.idle.intersection(node)))
        )
        for size, node in product((run.gpus,) if self.policy.strict else sizes, nodes):
            starts = range(node.start, node.stop - size + 1, size)
            for block in (last, *(tuple(range(start, start + size)) for start in starts)):
                if len(block) == size and self.idle.issuperset(block):
                    return block
        return None

    def free(self, place: tuple[int, ...], *, goes_on: bool) -> None:
        """Let GPUs be idle."""
        self.idle.update(place)


def _placing(run: Run) -> tuple[int, bool]:
    """Return the key that places wide runs first, and of one width those that can stay."""
    last = run.jobs[0].place
    return -run.gpus, not (isinstance(last, tuple) and len(last) == run.gpus)


class Replay:
    """One run of a fleet under some requests; ``run`` gives its log.

    Args:
        jobs: requests in the order of their arrival.
        service: how long things take.
        clients: of a closed loop, each of which asks until ``until_s``; 0 where requests arrive by themselves.
        loaded_s: seconds until replicas have loaded the model; nothing runs before.
        may_miss: requests arriving from ``counted_from_s`` on that may miss their deadline before the run is given up.
    """

    def __init__(
        self,
        plan: Plan,
        jobs: Iterable[Job],
        service: Service,
        *,
        clients: int = 0,
        until_s: float = inf,
        loaded_s: float = 0.0,
        may_miss: float = inf,
        counted_from_s: float = 0.0,
    ) -> None:
        self.env, self.log, self.plan, self.service = simpy.Environment(), Log(), plan, service
        self.clients, self.until_s, self.loaded_s = clients, until_s, loaded_s
        self.may_miss, self.counted_from_s = may_miss, counted_from_s
        jobs = list(jobs)
        self.shapes = list(dict.fromkeys(job.shape for job in jobs))
        self.waiting = iter(jobs)
        self.changed: dict[_Station, None] = {}
        self.pools: list[Sequence[_Station]] = []
        first_gpu = 0
        for number, pool in enumerate(plan.pools):
            gpus = [range(*ends) for ends in pairwise(accumulate(pool.replicas, initial=first_gpu))]
            first_gpu += sum(pool.replicas)
            if plan.elastic and "denoise" in pool.parts:
                self.pools.append([_Elastic(self, number, gpus)])
            else:
                queues = [gpus] if plan.dispatch == "shared" else [[span] for span in gpus]
                self.pools.append([_Fixed(self, number, queue) for queue in queues])
        self.turns = [cycle(stations) for stations in self.pools]

    def run(self) -> Log:
        """Serve all requests, or those until too many miss their deadline, and return what happened.

        Raises:
            InputError: the policy does not start some of them, though nothing runs.
        """
        self.env.process(self._arrive())
        try:
            while self.env.peek() < inf and self.may_miss >= 0:
                self.env.step()
                for station in self.changed:
                    station.look()
                self.changed.clear()
        except Exception as error:
            error.add_note(f"at {self.plan.replicas}, {self.plan.policy.name}")
            raise
        left = sum(len(station.queue) for stations in self.pools for station in stations)
        if left and self.may_miss >= 0:
            words = f"`policy` {self.plan.policy.name} leaves requests waiting on idle GPUs for ever"
            raise InputError(f"{words}: {left} of {left + len(self.log.jobs)}")
        self.log.end_s = float(self.env.now)
        return self.log

    def _arrive(self) -> Generator[simpy.Event]:
        """Submit requests as they arrive, of a closed loop the first of each client, once the model is loaded."""
        for job in islice(self.waiting, self.clients or None):
            yield self.env.timeout(max(job.arrival_s, self.loaded_s, self.env.now) - self.env.now)
            self._submit(job, 0)

    def _submit(self, job: Job, number: int) -> None:
        """Hand a request to a queue of a pool."""
        station = next(self.turns[number])
        if self.plan.dispatch == "least-loaded":
            station = min(self.pools[number], key=attrgetter("load"))
        station.submit(job)

    def passed(self, job: Job, number: int) -> None:
        """Hand a request over to the pool of a number, or let it be complete where there is none."""
        now = float(self.env.now)
        if number < len(self.pools):
            move_s = self.service.handover_s(job.shape)
            job.steps_left, job.place, job.ready_s = job.shape.steps, None, now + move_s
            self.env.timeout(move_s).callbacks.append(lambda _: self._submit(job, number))
            return
        job.end_s = now
        self.log.jobs.append(job)
        self.may_miss -= job.missed and job.arrival_s >= self.counted_from_s
        if self.clients and now < self.until_s and (following := next(self.waiting, None)):
            following.deadline_s += now - following.arrival_s
            following.arrival_s = following.ready_s = now
            self._submit(following, 0)
