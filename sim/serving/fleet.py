"""The fleet: a discrete-event simulation of requests that queue, run and move on, on SimPy's clock."""

from abc import ABC, abstractmethod
from bisect import insort
from collections import Counter
from collections.abc import Generator, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, fields
from functools import partial
from itertools import accumulate, count, pairwise, product
from math import inf
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

    def handover_s(self, gpus: int, shape: Shape) -> float:
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
        size: GPUs of each of as many replicas as there is room for; or of each of some that are given.
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
    size: int | tuple[int, ...] = 1
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
        each = "+".join(f"{number}x{of}" for of, number in Counter(self.sizes).items())
        return f"{sum(self.sizes)} elastic" if self.elastic else each

    @property
    def stages(self) -> Mapping[str, int]:
        """GPUs of each stage; none where all stages share them."""
        return {} if len(self.pools) == 1 else {f"{of.parts[0]}r": sum(of.replicas) for of in self.pools}

    @property
    def rule(self) -> str:
        """Name of its policy, and the parameters that differ from their defaults."""
        values = {item: getattr(self.policy, item.name) for item in fields(self.policy)}  # type: ignore[arg-type]
        return " ".join(
            [self.policy.name, *(f"{of.name} {x}" for of, x in values.items() if x != of.default)]
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
        return sum((of.end_s - of.start_s) * len(of.gpus) for of in self.ran)


class TooManyMissedError(Exception):
    """More requests miss their deadline than may: what else happens does not matter."""


class _Station(Fleet):
    """A pool at work, its GPUs by replica or by node."""

    def __init__(self, replay: "Replay", number: int, plan: Plan, first_gpu: int) -> None:
        self.replay, self.env, self.log, self.number = replay, replay.env, replay.log, number
        self.parts, sizes = plan.pools[number].parts, plan.pools[number].replicas
        self.gpus = [range(*ends) for ends in pairwise(accumulate(sizes, initial=first_gpu))]
        self.service, self.degrees = replay.service.of(self.parts), plan.degrees
        self.known: dict[Shape, dict[int, Times]] = {}
        self.policy: Policy = FirstComeFirstServed()
        if "denoise" in self.parts:
            self.policy, self.max_batch = plan.policy, plan.max_batch
            self.batch_wait_s = plan.batch_wait_s

    @property
    def now(self) -> float:
        """Seconds since the start."""
        return float(self.env.now)

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

    def seconds(self, run: Run, gpus: int) -> float:
        """Seconds of a run: encoders of those that are fresh, its steps, and the decoder of those that end."""
        begins = sum(job.fresh for job in run.jobs)
        ends = sum(job.steps_left <= run.steps for job in run.jobs)
        batch, shape = len(run.jobs), run.jobs[0].shape
        times = {size: self.times(gpus, shape, size or 1) for size in {batch, begins, ends}}
        encode_s, decode_s = times[begins].encode_s * (begins > 0), times[ends].decode_s * (ends > 0)
        return encode_s + run.steps * times[batch].step_s + decode_s

    def checked(self, run: object, queue: Sequence[Job]) -> Run:
        """Return what the policy chose; refuse what cannot run."""
        name = f"`policy` {self.policy.name} chose"
        if not isinstance(run, Run) or not isinstance(run.jobs, Sequence):
            raise InputError(f"{name} {shown(run)}, must be a Run of a list of requests")
        steps, jobs, rule = run.steps, run.jobs, ""
        if steps < 1 or not jobs or len(set(jobs)) < len(jobs) or not all(job in queue for job in jobs):
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

    def begin(self, run: Run, place: object, gpus: Sequence[int]) -> simpy.Event:
        """Start a run; return the event of its end, until which requests that move there are waited for."""
        seconds, now = self.seconds(run, len(gpus)), self.env.now
        if any(job.place not in (None, place) for job in run.jobs):
            seconds += self.service.handover_s(len(gpus), run.jobs[0].shape)
        for job in run.jobs:
            job.start_s, job.place = min(job.start_s, now), place
        numbers = tuple(job.number for job in run.jobs)
        part, steps = "+".join(self.parts), run.steps * ("denoise" in self.parts)
        self.log.ran.append(Ran(now, now + seconds, tuple(gpus), numbers, part, steps))
        return self.env.timeout(seconds)

    def ended(self, run: Run) -> Iterator[Job]:
        """Pass on the requests of a run that are done here; yield those that are not."""
        for job in run.jobs:
            job.steps_left -= run.steps
            if job.steps_left > 0:
                job.ready_s = self.env.now
                yield job
            else:
                self.replay.passed(job, self.number + 1)


class _Fixed(_Station):
    """Replicas of fixed size, with one queue for all or one for each."""

    def __init__(self, replay: "Replay", number: int, plan: Plan, first_gpu: int) -> None:
        super().__init__(replay, number, plan, first_gpu)
        replicas = [Replica(k, len(gpus)) for k, gpus in enumerate(self.gpus)]
        self.least_loaded, shared = plan.dispatch == "least-loaded", plan.dispatch == "shared"
        self.queues: list[list[Job]] = [[]] if shared else [[] for _ in replicas]
        self.idle: list[list[Replica]] = [replicas] if shared else [[of] for of in replicas]
        self.loads = [0] * len(self.queues)
        self.turn = count()
        self.asked_s = [-1.0] * len(self.queues)

    def submit(self, job: Job) -> None:
        """Put a request into a queue, and let idle replicas look at it."""
        at = next(self.turn) % len(self.queues)
        if self.least_loaded:
            at = min(range(len(self.queues)), key=self.loads.__getitem__)
        self.loads[at] += 1
        self._put(job, at)
        self._feed(at)

    def _put(self, job: Job, at: int) -> None:
        insort(self.queues[at], job, key=lambda of: (self.policy.rank(of, self), of.number))

    def _feed(self, at: int) -> None:
        """Let the idle replicas of a queue start what the policy says."""
        queue, idle = self.queues[at], self.idle[at]
        for replica in idle[:]:
            if not queue:
                return
            chosen = self.policy.start(queue, replica, self)
            if chosen is not None and not isinstance(chosen, int | float):
                run = self.checked(chosen, queue)
                for job in run.jobs:
                    queue.remove(job)
                idle.remove(replica)
                end = self.begin(run, replica, self.gpus[replica.number])
                end.callbacks.append(partial(self._end, run, replica, at))
            elif chosen is not None:
                if not chosen > self.env.now:
                    rule = f"must be a Run, None, or a time to ask again after {self.env.now:g} s"
                    raise InputError(f"`policy` {self.policy.name} chose {shown(chosen)}, {rule}")
                if self.asked_s[at] != chosen:  # the policy looks at the queue again at that time
                    self.asked_s[at] = chosen
                    again = self.env.timeout(chosen - self.env.now)
                    again.callbacks.append(partial(self._ask_again, at))
                return

    def _ask_again(self, at: int, _: simpy.Event) -> None:
        self.asked_s[at] = -1.0  # rounding may end a wait just before its time
        self._feed(at)

    def _end(self, run: Run, replica: Replica, at: int, _: simpy.Event) -> None:
        back = [*self.ended(run)]
        here = 0 if back else len(self.idle[at])  # what is not done goes on where it ran
        self.idle[at].insert(here, replica)
        for job in back:
            self._put(job, at)
        self.loads[at] -= len(run.jobs) - len(back)
        self._feed(at)


class _Elastic(_Station):
    """GPUs of nodes, of which a policy gives each request as many as it likes; aligned, so that they are neighbours."""

    policy: ElasticPolicy

    def __init__(self, replay: "Replay", number: int, plan: Plan, first_gpu: int) -> None:
        super().__init__(replay, number, plan, first_gpu)
        self.nodes = [(gpus, set(gpus)) for gpus in self.gpus]  # neighbours, and which of them are idle
        self.queue: list[Job] = []
        self.queues = [self.queue]
        self.round_s = self.policy.round_s(self, replay.shapes) if replay.shapes else 0.0
        moves_s = (self.service.handover_s(max(self.degrees), shape) for shape in replay.shapes)
        self.tick_s = self.round_s * (1 + 1e-7) + max(moves_s, default=0.0)  # more than rounding takes
        self.began_s = 0.0
        self.tick: simpy.Event | None = None

    def submit(self, job: Job) -> None:
        """Put a request into the queue, and divide the idle GPUs."""
        self.queue.append(job)
        self._ask()

    def _ask(self) -> None:
        """Divide the GPUs now, or at the start of the next round; one starts at once where nothing runs."""
        if not self.round_s or all(len(gpus) == len(idle) for gpus, idle in self.nodes):
            self._divide()
        elif self.tick is None:
            wait_s = self.tick_s - (self.env.now - self.began_s) % self.tick_s
            self.tick = self.env.timeout(wait_s)
            self.tick.callbacks.append(lambda tick: self._divide() if tick is self.tick else None)

    def _divide(self) -> None:
        self.tick, self.began_s = None, self.env.now
        free = sum(len(idle) for _, idle in self.nodes)
        if not self.queue or not free:
            return
        chosen: object = self.policy.divide(self.queue, free, self)
        every = chosen if isinstance(chosen, Sequence) else (chosen,)
        runs = [self.checked(run, self.queue) for run in every]
        for run in runs if self.policy.strict else sorted(runs, key=_placing):
            block = self._block(run)
            if block is None and self.policy.strict:
                break
            if block is not None:
                for job in run.jobs:
                    self.queue.remove(job)
                if (gpus := len(block)) < run.gpus:  # the steps of about as many seconds
                    times = self.choices(run.jobs[0].shape)
                    steps = int(run.steps * times[run.gpus].step_s / times[gpus].step_s)
                    run = run._replace(steps=min(run.steps, max(1, steps)), gpus=gpus)  # noqa: PLW2901
                self.begin(run, block, block).callbacks.append(partial(self._end, run, block))

    def _block(self, run: Run) -> tuple[int, ...] | None:
        """Take idle GPUs of one node for a run, those of its last or aligned ones; None where there are none."""
        last = run.jobs[0].place if isinstance(run.jobs[0].place, tuple) else ()
        sizes = [gpus for gpus in reversed([*self.choices(run.jobs[0].shape)]) if gpus <= run.gpus]
        nodes = sorted(self.nodes, key=lambda node: (not {*last}.intersection(node[0]), len(node[1])))
        for size, (gpus, idle) in product((run.gpus,) if self.policy.strict else sizes, nodes):
            starts = range(gpus.start, gpus.stop - size + 1, size) if len(idle) >= size else ()
            for block in (last, *(tuple(range(start, start + size)) for start in starts)):
                if len(block) == size and idle.issuperset(block):
                    idle.difference_update(block)
                    return block
        return None

    def _end(self, run: Run, block: tuple[int, ...], _: simpy.Event) -> None:
        next(idle for gpus, idle in self.nodes if block[0] in gpus).update(block)
        for job in self.ended(run):
            insort(self.queue, job, key=lambda of: of.number)
        if self.queue:
            self._ask()


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
        self.stations: list[_Fixed | _Elastic] = []
        first_gpu = 0
        for number, pool in enumerate(plan.pools):
            elastic = plan.elastic and "denoise" in pool.parts
            self.stations.append((_Elastic if elastic else _Fixed)(self, number, plan, first_gpu))
            first_gpu += sum(pool.replicas)
        self.waiting = iter(jobs)

    def run(self) -> Log:
        """Serve all requests, and return what happened.

        Raises:
            InputError: the policy does not start some of them, though nothing runs.
        """
        for _ in range(self.clients):
            self._ask_next()
        if not self.clients:
            self.env.process(self._arrive())
        try:
            self.env.run()
        except Exception as error:
            error.add_note(f"at {self.plan.replicas}, {self.plan.policy.name}")
            raise
        if left := sum(len(queue) for station in self.stations for queue in station.queues):
            words = f"`policy` {self.plan.policy.name} leaves requests waiting on idle GPUs for ever"
            raise InputError(f"{words}: {left} of {left + len(self.log.jobs)}")
        self.log.end_s = float(self.env.now)
        return self.log

    def _arrive(self) -> Generator[simpy.Event]:
        env = self.env
        for job in self.waiting:
            if job.arrival_s > env.now:
                yield env.timeout(job.arrival_s - env.now)
            self._submit(job)

    def _submit(self, job: Job) -> None:
        """Hand a request to the first pool, once the model is loaded."""
        first, wait_s = self.stations[0], self.loaded_s - self.env.now
        if wait_s > 0:
            self.env.timeout(wait_s).callbacks.append(lambda _: first.submit(job))
        else:
            first.submit(job)

    def _ask_next(self) -> None:
        """Let a client of a closed loop ask for its next image, while requests are to arrive."""
        job = next(self.waiting, None) if self.env.now < self.until_s else None
        if job is not None:
            job.deadline_s += self.env.now - job.arrival_s
            job.arrival_s = job.ready_s = float(self.env.now)
            self._submit(job)

    def passed(self, job: Job, number: int) -> None:
        """Hand a request over to the pool of a number, or let it be complete where there is none."""
        if number < len(self.stations):
            job.steps_left, job.place, after = job.shape.steps, None, self.stations[number]
            move_s = after.service.handover_s(1, job.shape)
            job.ready_s = self.env.now + move_s
            self.env.timeout(move_s).callbacks.append(lambda _: after.submit(job))
            return
        job.end_s = float(self.env.now)
        self.log.jobs.append(job)
        self.may_miss -= job.missed and job.arrival_s >= self.counted_from_s
        if self.may_miss < 0:
            raise TooManyMissedError
        if self.clients:
            self._ask_next()
