"""The fleet: a discrete-event simulation of requests that queue, run and move on, on SimPy's clock."""

from abc import ABC, abstractmethod
from bisect import insort
from collections.abc import Generator, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from functools import partial
from itertools import count
from math import inf
from typing import Final, NamedTuple

import simpy

from profiles.errors import InfeasibleError, InputError
from strategies.policy import ElasticPolicy, Fleet, Job, Policy, Replica, Run, Shape, Times
from strategies.serving.fcfs import FirstComeFirstServed

PARTS: Final = ("encode", "denoise", "decode")
"""Parts of a request, in the order in which they run."""


class Service(ABC):
    """How long things take: by the simulator, as somebody measured, or by a law."""

    @abstractmethod
    def times(self, gpus: int, shape: Shape, batch: int = 1) -> Times:
        """Return the seconds of a batch on so many GPUs."""

    def handover_s(self, gpus: int, shape: Shape) -> float:
        """Return the seconds until a request that moves, or whose GPUs change, goes on."""
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

    @property
    def gpus(self) -> int:
        """GPUs of all its replicas."""
        return sum(self.replicas)


@dataclass(frozen=True, slots=True)
class Setup:
    """A fleet and how it is run.

    Attributes:
        pools: in the order in which a request passes through them; usually one that does all.
        policy: of the pool that denoises; the others serve first come, first served.
        dispatch: ``shared``: one queue; ``round-robin`` or ``least-loaded``: a queue for each replica.
        max_batch: requests that may share a batch.
        batch_wait_s: seconds that the first of a batch waits for others.
        degrees: GPUs on which an elastic policy may run one request.
        loading_s: seconds from the start until replicas have loaded the model, before which nothing runs.
    """

    pools: tuple[Pool, ...]
    policy: Policy | ElasticPolicy
    dispatch: str = "shared"
    max_batch: int = 1
    batch_wait_s: float = 0.0
    degrees: tuple[int, ...] = (1,)
    loading_s: float = 0.0

    @property
    def gpus(self) -> int:
        """GPUs of all pools."""
        return sum(pool.gpus for pool in self.pools)

    @property
    def elastic(self) -> bool:
        """Whether the policy gives each request as many GPUs as it likes."""
        return isinstance(self.policy, ElasticPolicy)


@dataclass(slots=True)
class Log:
    """What a run gave: requests as they ended, busy GPU-seconds, and, where it was recorded, what ran where."""

    jobs: list[Job] = field(default_factory=list)
    busy_gpu_s: float = 0.0
    ran: list[Ran] = field(default_factory=list)
    end_s: float = 0.0


class TooManyMissedError(Exception):
    """More requests miss their deadline than may: what else happens does not matter."""


class _Station(Fleet):
    """A pool at work."""

    def __init__(self, replay: "Replay", number: int, setup: Setup) -> None:
        self.replay, self.env, self.log, self.number = replay, replay.env, replay.log, number
        self.parts = setup.pools[number].parts
        self.whole = self.parts == PARTS
        self.as_is = self.whole and replay.scale == 1
        self.service, self.degrees = replay.service.of(self.parts), setup.degrees
        self.known: dict[Shape, Mapping[int, Times]] = {}
        self.moves: dict[tuple[int, Shape], float] = {}
        self.policy: Policy | ElasticPolicy = FirstComeFirstServed()
        if "denoise" in self.parts:
            self.policy, self.max_batch = setup.policy, setup.max_batch
            self.batch_wait_s = setup.batch_wait_s

    @property
    def now(self) -> float:
        """Seconds since the start."""
        return float(self.env.now)

    def times(self, gpus: int, shape: Shape, batch: int = 1) -> Times:
        """Return the seconds of a batch on so many GPUs, of the parts that run here."""
        times = self.service.times(gpus, shape, batch)
        if self.as_is:
            return times
        factors = (self.replay.scale * (part in self.parts) for part in PARTS)
        return Times(*(factor * seconds for factor, seconds in zip(factors, times, strict=True)))

    def choices(self, shape: Shape) -> Mapping[int, Times]:
        """Return the seconds of a request of a shape by degree, the lowest first, where it fits."""
        if shape not in self.known:
            self.known[shape] = dict(self._choices(shape))
        return self.known[shape]

    def _choices(self, shape: Shape) -> Iterator[tuple[int, Times]]:
        for gpus in self.degrees:
            with suppress(InfeasibleError):
                yield gpus, self.times(gpus, shape)

    def move_s(self, gpus: int, shape: Shape) -> float:
        """Seconds until a request that moves to so many GPUs goes on: those of its latents.

        Setting up groups takes none, an assumption: all groups of neighbours (15 in a node of 8 GPUs) are taken to be
        made when the fleet starts, as TetriServe (arXiv 2510.01565) says that it does.
        """
        if (gpus, shape) not in self.moves:
            self.moves[gpus, shape] = self.service.handover_s(gpus, shape)
        return self.moves[gpus, shape]

    def seconds(self, run: Run, gpus: int) -> float:
        """Seconds of a run: encoders of those that are fresh, its steps, and the decoder of those that end."""
        first = run.jobs[0]
        batch = len(run.jobs)
        if batch == 1:
            times = self.times(gpus, first.shape)
            fresh, ends = first.fresh or not self.whole, first.steps_left <= run.steps
            return times.encode_s * fresh + run.steps * times.step_s + times.decode_s * ends
        times = self.times(gpus, first.shape, batch)
        begins = sum(job.fresh for job in run.jobs)
        ending = sum(job.steps_left <= run.steps for job in run.jobs)
        encode_s = self.times(gpus, first.shape, begins).encode_s if begins else 0.0
        decode_s = self.times(gpus, first.shape, ending).decode_s if ending else 0.0
        return encode_s + run.steps * times.step_s + decode_s

    def take(self, run: Run, queue: list[Job]) -> None:
        """Take the requests of a run out of a queue.

        Raises:
            InputError: the policy chose no steps, or requests that do not wait.
        """
        steps, left = run.steps, len(queue) - len(run.jobs)
        for job in run.jobs if steps > 0 else ():
            if job in queue:
                queue.remove(job)
        if not run.jobs or len(queue) != left:
            words = f"chose {steps} steps of {len(run.jobs)} requests, must be at least one of some that wait"
            raise InputError(f"`policy` {self.policy.name} {words}")

    def begin(self, run: Run, place: object, gpus: Sequence[int]) -> simpy.Event:
        """Start a run; return the event of its end, until which requests that move there are waited for."""
        moved = any(job.place not in (None, place) for job in run.jobs)
        seconds = self.seconds(run, len(gpus))
        if moved:
            seconds += self.move_s(len(gpus), run.jobs[0].shape)
        now = self.env.now
        for job in run.jobs:
            if job.start_s == inf:
                job.start_s = now
            job.place = place
        self.log.busy_gpu_s += seconds * len(gpus)
        if self.replay.recorded:
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
                self.replay.passed(job, self.number)


class _Fixed(_Station):
    """Replicas of fixed size, with one queue for all or one for each."""

    policy: Policy

    def __init__(self, replay: "Replay", number: int, setup: Setup, first_gpu: int) -> None:
        super().__init__(replay, number, setup)
        starts = [first_gpu]
        for gpus in setup.pools[number].replicas:
            starts.append(starts[-1] + gpus)
        self.replicas = [Replica(k, gpus) for k, gpus in enumerate(setup.pools[number].replicas)]
        self.gpus = [range(start, start + of.gpus) for start, of in zip(starts, self.replicas, strict=False)]
        shared = setup.dispatch == "shared"
        self.dispatch = setup.dispatch
        self.queues: list[list[Job]] = [[]] if shared else [[] for _ in self.replicas]
        self.idle: list[list[Replica]] = [[*self.replicas]] if shared else [[of] for of in self.replicas]
        self.loads = [0] * len(self.queues)
        self.turn = count()
        self.ranked = type(self.policy).rank is not Policy.rank
        self.asked_s = [-1.0] * len(self.queues)

    def submit(self, job: Job) -> None:
        """Put a request into a queue, and let idle replicas look at it."""
        match self.dispatch:
            case "round-robin":
                at = next(self.turn) % len(self.queues)
            case "least-loaded":
                at = min(range(len(self.queues)), key=self.loads.__getitem__)
            case _:
                at = 0
        self.loads[at] += 1
        self._put(job, at)
        self._feed(at)

    def _put(self, job: Job, at: int) -> None:
        if self.ranked:
            insort(self.queues[at], job, key=lambda of: (self.policy.rank(of, self), of.number))
        else:
            self.queues[at].append(job)

    def _feed(self, at: int) -> None:
        """Let the idle replicas of a queue start what the policy says."""
        queue, idle = self.queues[at], self.idle[at]
        if not queue or not idle:
            return
        for replica in idle[:] if len(idle) > 1 else (idle[0],):
            if not queue:
                return
            chosen = self.policy.start(queue, replica, self)
            if isinstance(chosen, Run):
                self.take(chosen, queue)
                idle.remove(replica)
                end = self.begin(chosen, replica, self.gpus[replica.number])
                end.callbacks.append(partial(self._end, chosen, replica, at))
            elif chosen is not None:
                self._ask_again(at, chosen)
                return

    def _ask_again(self, at: int, time_s: float) -> None:
        """Let the policy look at a queue again at a time."""
        if self.asked_s[at] != time_s:
            self.asked_s[at] = time_s
            self.env.timeout(max(0.0, time_s - self.env.now)).callbacks.append(lambda _: self._feed(at))

    def _end(self, run: Run, replica: Replica, at: int, _: simpy.Event) -> None:
        back = [*self.ended(run)]
        here = 0 if back else len(self.idle[at])  # what is not done goes on where it ran
        self.idle[at].insert(here, replica)
        if self.ranked:
            for job in back:
                self._put(job, at)
        else:
            self.queues[at][:0] = back
        self.loads[at] -= len(run.jobs) - len(back)
        self._feed(at)


@dataclass(slots=True)
class _Node:
    """GPUs that are neighbours, and which of them are idle."""

    gpus: range
    idle: set[int]

    def take(self, gpus: int, last: object) -> tuple[int, ...] | None:
        """Take so many idle GPUs, those of the last run or aligned ones; None where there are none."""
        if len(self.idle) < gpus:
            return None
        starts = range(self.gpus.start, self.gpus.stop - gpus + 1, gpus)
        for block in (last, *(tuple(range(start, start + gpus)) for start in starts)):
            if isinstance(block, tuple) and len(block) == gpus and self.idle.issuperset(block):
                self.idle.difference_update(block)
                return block
        return None


class _Elastic(_Station):
    """GPUs of nodes, of which a policy gives each request as many as it likes; aligned, so that they are neighbours."""

    policy: ElasticPolicy

    def __init__(self, replay: "Replay", number: int, setup: Setup, first_gpu: int) -> None:
        super().__init__(replay, number, setup)
        self.nodes: list[_Node] = []
        for size in setup.pools[number].replicas:
            gpus = range(first_gpu, first_gpu + size)
            self.nodes.append(_Node(gpus, set(gpus)))
            first_gpu += size
        self.queue: list[Job] = []
        self.queues = [self.queue]
        self.running = 0
        self.round_s = self.policy.round_s(self, replay.shapes)
        moves_s = (self.move_s(max(self.degrees), shape) for shape in replay.shapes)
        self.tick_s = self.round_s * (1 + 1e-7) + max(moves_s, default=0.0)  # more than rounding takes
        self.began_s = 0.0
        self.tick: simpy.Event | None = None

    def submit(self, job: Job) -> None:
        """Put a request into the queue, and divide the idle GPUs."""
        self.queue.append(job)
        self._ask()

    def _ask(self) -> None:
        """Divide the GPUs now, or at the start of the next round; one starts at once where nothing runs."""
        if not self.round_s or not self.running:
            self._divide()
        elif self.tick is None:
            wait_s = self.tick_s - (self.env.now - self.began_s) % self.tick_s
            self.tick = self.env.timeout(wait_s)
            self.tick.callbacks.append(lambda tick: self._divide() if tick is self.tick else None)

    def _divide(self) -> None:
        self.tick, self.began_s = None, self.env.now
        free = sum(len(node.idle) for node in self.nodes)
        if not self.queue or not free:
            return
        runs = self.policy.divide(self.queue, free, self)
        for run in runs if self.policy.strict else sorted(runs, key=self._place_order):
            block = self._block(run)
            if block is None and self.policy.strict:
                break
            if block is not None:
                self.take(run, self.queue)
                self.running += 1
                now = self._narrowed(run, len(block))
                self.begin(now, block, block).callbacks.append(partial(self._end, now, block))

    def _narrowed(self, run: Run, gpus: int) -> Run:
        """Return a run on so many GPUs: on fewer than it asked for, the steps of about as many seconds."""
        if gpus == run.gpus:
            return run
        times = self.choices(run.jobs[0].shape)
        steps = int(run.steps * times[run.gpus].step_s / times[gpus].step_s)
        return run._replace(steps=min(run.steps, max(1, steps)), gpus=gpus)

    def _place_order(self, run: Run) -> tuple[int, bool]:
        """Return the key that places wide runs first, and of one width those that can stay."""
        last = run.jobs[0].place
        return -run.gpus, not (isinstance(last, tuple) and len(last) == run.gpus)

    def _block(self, run: Run) -> tuple[int, ...] | None:
        """Take idle GPUs of one node for a run; None where there are none."""
        job = run.jobs[0]
        sizes = [gpus for gpus in reversed([*self.choices(job.shape)]) if gpus <= run.gpus]
        stays = job.place[0] if isinstance(job.place, tuple) else -1
        nodes = sorted(self.nodes, key=lambda node: (stays not in node.gpus, len(node.idle)))
        for gpus in (run.gpus,) if self.policy.strict else sizes:
            for node in nodes:
                if block := node.take(gpus, job.place):
                    return block
        return None

    def _end(self, run: Run, block: tuple[int, ...], _: simpy.Event) -> None:
        self.running -= 1
        next(node for node in self.nodes if block[0] in node.gpus).idle.update(block)
        for job in self.ended(run):
            insort(self.queue, job, key=lambda of: of.number)
        if self.queue:
            self._ask()


class Replay:
    """One run of a fleet under some requests; ``run`` gives its log.

    Args:
        setup: the fleet.
        jobs: requests in the order of their arrival.
        service: how long things take; all of it times ``scale``.
        clients: of a closed loop, each of which asks until ``until_s``; 0 where requests arrive by themselves.
        recorded: whether the log says what ran where.
        may_miss: requests arriving from ``counted_from_s`` on that may miss their deadline before the run is given up.
    """

    def __init__(
        self,
        setup: Setup,
        jobs: Iterable[Job],
        service: Service,
        *,
        scale: float = 1.0,
        clients: int = 0,
        until_s: float = inf,
        recorded: bool = False,
        may_miss: float = inf,
        counted_from_s: float = 0.0,
    ) -> None:
        self.env, self.log, self.setup, self.service = simpy.Environment(), Log(), setup, service
        self.scale, self.recorded, self.until_s = scale, recorded, until_s
        jobs = list(jobs)
        self.shapes = list(dict.fromkeys(job.shape for job in jobs))
        self.stations: list[_Fixed | _Elastic] = []
        first_gpu = 0
        for number, pool in enumerate(setup.pools):
            elastic = setup.elastic and "denoise" in pool.parts
            self.stations.append((_Elastic if elastic else _Fixed)(self, number, setup, first_gpu))
            first_gpu += pool.gpus
        self.waiting = iter(jobs)
        self.clients, self.may_miss, self.counted_from_s = clients, may_miss, counted_from_s

    def run(self) -> Log:
        """Serve all requests, and return what happened.

        Raises:
            InputError: the policy does not start some of them, though nothing runs.
            TooManyMissedError: of those that are counted, more missed their deadline than may.
        """
        if self.clients:
            for _ in range(self.clients):
                self._ask_next()
        else:
            self.env.process(self._arrive())
        self.env.run()
        if left := sum(len(queue) for station in self.stations for queue in station.queues):
            words = f"`policy` {self.setup.policy.name} leaves requests waiting on idle GPUs for ever"
            raise InputError(f"{words}: {left} of {left + len(self.log.jobs)}")
        self.log.end_s = float(self.env.now)
        return self.log

    def _arrive(self) -> Generator[simpy.Event]:
        env, submit = self.env, self.stations[0].submit
        for job in self.waiting:
            if max(job.arrival_s, self.setup.loading_s) > env.now:
                yield env.timeout(max(job.arrival_s, self.setup.loading_s) - env.now)
            submit(job)

    def _ask_next(self) -> None:
        """Let a client of a closed loop ask for its next image, while requests are to arrive."""
        job = next(self.waiting, None) if self.env.now < self.until_s else None
        if job is not None:
            job.deadline_s += self.env.now - job.arrival_s
            job.arrival_s = job.ready_s = float(self.env.now)
            self.stations[0].submit(job)

    def passed(self, job: Job, station: int) -> None:
        """Hand a request over to the next pool, or let it be complete."""
        if station + 1 < len(self.stations):
            job.steps_left, job.place = job.shape.steps, None
            after = self.stations[station + 1]
            move = self.env.timeout(after.move_s(1, job.shape))
            move.callbacks.append(lambda _: self._hand(job, after))
            return
        job.end_s = float(self.env.now)
        self.log.jobs.append(job)
        if job.missed and job.arrival_s >= self.counted_from_s:
            self.may_miss -= 1
            if self.may_miss < 0:
                raise TooManyMissedError
        if self.clients:
            self._ask_next()

    def _hand(self, job: Job, station: "_Fixed | _Elastic") -> None:
        job.ready_s = float(self.env.now)
        station.submit(job)
