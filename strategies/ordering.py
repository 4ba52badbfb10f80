"""Ordering: in which order each device runs the forwards and backwards of its stages.

A problem says how long every pass takes, on which device each stage lives and what a device may hold. List
scheduling answers it at once, a one-machine bound says how far from the best the answer may be; no solver here.

Every micro-batch walks the *lanes* of its chain: the forward of each stage, then the backward of each stage in
reverse. A lane serves its micro-batches in order. Source: PULSE, section V, Eq. 6-13, on a given device map.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from heapq import heappop, heappush
from operator import attrgetter
from typing import Final

from profiles.errors import DeadlockError, InfeasibleError
from strategies.actions import BACKWARD, FORWARD, StageAction

Rows = tuple[tuple[StageAction, ...], ...]

ROUNDING: Final = 1e-9
"""Share of a capacity by which sums of bytes may miss it."""


@dataclass(frozen=True, slots=True)
class Chain:
    """One pipeline through the devices.

    Attributes:
        stages: Stage numbers in forward order.
        micro_batches: Numbers of the micro-batches that run through it, in order.
    """

    stages: tuple[int, ...]
    micro_batches: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Problem:
    """What is to be ordered.

    Attributes:
        forward_s: Forward of one micro-batch, per stage, in seconds.
        backward_s: Backward of one micro-batch, per stage, in seconds.
        positions: The device of each stage.
        chains: The pipelines; each stage belongs to one of them.
        forward_lag_s: From the end of a stage's forward to when the next stage of its chain may begin.
        backward_lag_s: From the end of a stage's backward to when the previous stage of its chain may begin.
        held_bytes: Activations of one micro-batch on each stage, from the start of its forward to the end of
            its backward.
        capacity_bytes: Most that each device may hold of them.
        in_flight: Most micro-batches of each stage between the two.
    """

    forward_s: tuple[float, ...]
    backward_s: tuple[float, ...]
    positions: tuple[int, ...]
    chains: tuple[Chain, ...]
    forward_lag_s: tuple[float, ...]
    backward_lag_s: tuple[float, ...]
    held_bytes: tuple[float, ...] | None = None
    capacity_bytes: tuple[float, ...] | None = None
    in_flight: tuple[int, ...] | None = None

    @property
    def num_devices(self) -> int:
        """Devices that the stages live on."""
        return max(self.positions) + 1


@dataclass(frozen=True, slots=True)
class Ordering:
    """An order and its times.

    Attributes:
        rows: The actions of each device, in order.
        starts_s: When each of them starts, in seconds.
        makespan_s: When the last of them ends, in seconds.
    """

    rows: Rows
    starts_s: tuple[tuple[float, ...], ...]
    makespan_s: float


@dataclass(frozen=True, slots=True)
class Lane:
    """One pass of a stage, which the micro-batches of its chain take one after the other.

    Attributes:
        stage: The stage.
        kind: Forward or backward.
        device: Where it runs.
        duration_s: How long one micro-batch takes, in seconds.
        lag_s: From its end to when the next lane may begin, in seconds.
        tail_s: From its end to the end of the chain, in seconds.
        chain: Number of its chain.
        following: Number of the next lane of its chain; None at the end.
    """

    stage: int
    kind: str
    device: int
    duration_s: float
    lag_s: float
    tail_s: float
    chain: int
    following: int | None


PRIORITIES: Final[Mapping[str, Callable[[Lane], float]]] = {
    "most-advanced": attrgetter("tail_s"),
    "farthest": lambda lane: -lane.tail_s,
}
"""What a device runs first of the passes that are ready: the one with the least of this.

``farthest`` keeps the end of a chain supplied, and needs limits on what is in flight: with those of FIFO-1F1B it
gives that very order on a chain of one stage per device, and the shorter orders where two chains meet.
"""


def wave_positions(degree: int, waves: int = 1) -> tuple[int, ...]:
    """Return the device of each of the 2 x waves x degree stages, laid out down and up again."""
    wave = (*range(degree), *reversed(range(degree)))
    return wave * waves


def wave_problem(
    degree: int, micro_batches: int, waves: int = 1, forward_s: float = 1.0, backward_s: float = 2.0
) -> Problem:
    """Return the problem of one chain of equal stages laid out in waves, on free links."""
    positions = wave_positions(degree, waves)
    count = len(positions)
    return Problem(
        forward_s=(forward_s,) * count,
        backward_s=(backward_s,) * count,
        positions=positions,
        chains=(Chain(tuple(range(count)), tuple(range(micro_batches))),),
        forward_lag_s=(0.0,) * count,
        backward_lag_s=(0.0,) * count,
    )


def lanes_of(problem: Problem) -> list[Lane]:
    """Return the lanes, chain after chain, each in the order in which a micro-batch takes them."""
    lanes: list[Lane] = []
    for number, chain in enumerate(problem.chains):
        passes = _passes(problem, chain)
        tail_s = 0.0
        backwards = []
        for index, (stage, kind, duration_s, lag_s) in reversed(list(enumerate(passes))):
            tail_s += lag_s
            following = len(lanes) + index + 1 if index + 1 < len(passes) else None
            device = problem.positions[stage]
            backwards.append(Lane(stage, kind, device, duration_s, lag_s, tail_s, number, following))
            tail_s += duration_s
        lanes += reversed(backwards)
    return lanes


def _passes(problem: Problem, chain: Chain) -> list[tuple[int, str, float, float]]:
    """Return stage, kind, duration and lag of each pass of a chain; it turns round without a lag."""
    forward_lag_s = {stage: problem.forward_lag_s[stage] for stage in chain.stages[:-1]}
    backward_lag_s = {stage: problem.backward_lag_s[stage] for stage in chain.stages[1:]}
    forwards = [(s, FORWARD, problem.forward_s[s], forward_lag_s.get(s, 0.0)) for s in chain.stages]
    backwards = [(s, BACKWARD, problem.backward_s[s], backward_lag_s.get(s, 0.0)) for s in chain.stages]
    return forwards + backwards[::-1]


def list_schedule(problem: Problem, priority: str = "most-advanced") -> Ordering:
    """Return the order in which no device idles while one of its passes is ready and may be held.

    Args:
        problem: What is to be ordered.
        priority: One of ``PRIORITIES``.

    Raises:
        InfeasibleError: a device cannot even hold one micro-batch.
    """
    return _ListScheduler(problem, priority).run()


class _Room:
    """Whether a forward may start: within the caps, and so that every micro-batch can still end.

    A micro-batch frees nothing before its last forward, so a device keeps free what the oldest micro-batch of
    each chain still lacks there, as if those that are younger never freed anything. Micro-batches end in the
    order of their numbers within the chain, chains in turn: in that order all can end from any state, so
    nothing ever deadlocks.
    """

    def __init__(self, problem: Problem, done: list[int], lanes: Sequence[Lane]) -> None:
        self.done = done
        self.in_flight = problem.in_flight
        self.capacity_bytes = problem.capacity_bytes
        self.held_bytes = problem.held_bytes or (0.0,) * len(problem.positions)
        self.forward = {lane.stage: number for number, lane in enumerate(lanes) if lane.kind == FORWARD}
        self.backward = {lane.stage: number for number, lane in enumerate(lanes) if lane.kind == BACKWARD}
        self.stages = [
            [[s for s in chain.stages if problem.positions[s] == device] for chain in problem.chains]
            for device in range(problem.num_devices)
        ]
        self.counts = [len(chain.micro_batches) for chain in problem.chains]
        self.claims = [
            [sum(self.held_bytes[stage] for stage in stages) for stages in chains] for chains in self.stages
        ]
        self._check()

    def _check(self) -> None:
        for device, capacity in enumerate(self.capacity_bytes or ()):
            for stages, claim in zip(self.stages[device], self.claims[device], strict=True):
                if claim > capacity * (1 + ROUNDING):
                    terms = " + ".join(f"{self.held_bytes[stage]:g}" for stage in stages)
                    raise InfeasibleError(
                        f"device {device} holds {terms} = {claim:g} of one micro-batch, more than its"
                        f" capacity of {capacity:g}",
                        "a device cannot hold one micro-batch",
                    )
        for stage, limit in enumerate(self.in_flight or ()):
            if limit < 1:
                raise InfeasibleError(
                    f"in_flight of stage {stage} is {limit}, must be at least 1", "nothing may be in flight"
                )

    def allows(self, lane: Lane) -> bool:
        """Return whether the next forward of a lane may start."""
        done, stage = self.done, lane.stage
        in_flight = done[self.forward[stage]] - done[self.backward[stage]]
        if self.in_flight is not None and in_flight >= self.in_flight[stage]:
            return False
        if self.capacity_bytes is None:
            return True
        done[self.forward[stage]] += 1
        safe = self._is_safe(lane.device, self.capacity_bytes[lane.device] * (1 + ROUNDING))
        done[self.forward[stage]] -= 1
        return safe

    def _is_safe(self, device: int, capacity: float) -> bool:
        if self._held_beyond(device, 0, -1) > capacity:
            return False
        for chain, stages in enumerate(self.stages[device]):
            if stages:
                oldest = self.done[self.forward[stages[-1]]]
                if oldest < self.counts[chain]:
                    younger = self._held_beyond(device, chain, oldest)
                    if younger + self.claims[device][chain] > capacity:
                        return False
        return True

    def _held_beyond(self, device: int, chain: int, micro_batch: int) -> float:
        """Return bytes that a device holds for micro-batches that end after a given one."""
        held = 0.0
        for number, stages in enumerate(self.stages[device]):
            first = micro_batch + 1 if number <= chain else micro_batch
            for stage in stages:
                begun, ended = self.done[self.forward[stage]], self.done[self.backward[stage]]
                held += self.held_bytes[stage] * max(0, begun - max(ended, first))
        return held


class _ListScheduler:
    def __init__(self, problem: Problem, priority: str) -> None:
        self.problem = problem
        self.lanes = lanes_of(problem)
        self.done = [0] * len(self.lanes)
        self.room = _Room(problem, self.done, self.lanes)
        key = PRIORITIES[priority]
        by_rank = sorted(range(len(self.lanes)), key=lambda number: (key(self.lanes[number]), number))
        self.candidates = [
            [number for number in by_rank if self.lanes[number].device == device]
            for device in range(problem.num_devices)
        ]
        self.ready: list[list[float]] = [[] for _ in self.lanes]
        self.free_s = [0.0] * problem.num_devices
        self.rows: list[list[StageAction]] = [[] for _ in self.free_s]
        self.starts: list[list[float]] = [[] for _ in self.free_s]
        self.wakes: list[tuple[float, int]] = [(0.0, device) for device in range(problem.num_devices)]
        self.makespan_s = 0.0

    def run(self) -> Ordering:
        first = 0
        for chain in self.problem.chains:
            self.ready[first] = [0.0] * len(chain.micro_batches)
            first += 2 * len(chain.stages)
        while self.wakes:
            now, device = heappop(self.wakes)
            if self.free_s[device] <= now:
                number = self._choose(device, now)
                if number is not None:
                    self._start(number, now)
        return Ordering(tuple(map(tuple, self.rows)), tuple(map(tuple, self.starts)), self.makespan_s)

    def _choose(self, device: int, now: float) -> int | None:
        for number in self.candidates[device]:
            ready, done = self.ready[number], self.done[number]
            if done < len(ready) and ready[done] <= now:
                lane = self.lanes[number]
                if lane.kind == BACKWARD or self.room.allows(lane):
                    return number
        return None

    def _start(self, number: int, now: float) -> None:
        lane = self.lanes[number]
        micro_batch = self.problem.chains[lane.chain].micro_batches[self.done[number]]
        self.rows[lane.device].append(StageAction(lane.stage, lane.kind, micro_batch))
        self.starts[lane.device].append(now)
        self.done[number] += 1
        end = now + lane.duration_s
        self.makespan_s = max(self.makespan_s, end)
        self.free_s[lane.device] = end
        heappush(self.wakes, (end, lane.device))
        if lane.following is not None:
            self.ready[lane.following].append(end + lane.lag_s)
            heappush(self.wakes, (end + lane.lag_s, self.lanes[lane.following].device))


def lower_bound_s(problem: Problem) -> float:
    """Return seconds below which no order can end.

    Each device first waits until work can reach it, then runs all of it, then waits until the rest is done: the
    largest of head + work + tail over all devices and all passes with at least that head and that tail.
    """
    lanes = lanes_of(problem)
    ops: list[list[tuple[float, float, float]]] = [[] for _ in range(problem.num_devices)]
    heads_s, tails_s = heads(problem, lanes), tails(problem, lanes)
    for lane, before, after in zip(lanes, heads_s, tails_s, strict=True):
        ops[lane.device] += [(h, lane.duration_s, q) for h, q in zip(before, after, strict=True)]
    return max(_one_machine_s(of) for of in ops)


def heads(problem: Problem, lanes: Sequence[Lane]) -> list[list[float]]:
    """Return for each lane and micro-batch of its chain the seconds before which it cannot start."""
    result: list[list[float]] = []
    for number, lane in enumerate(lanes):
        if number == 0 or lane.chain != lanes[number - 1].chain:
            reach = [0.0] * len(problem.chains[lane.chain].micro_batches)
        else:
            before = lanes[number - 1]
            reach = [head + before.duration_s + before.lag_s for head in result[-1]]
        for index in range(1, len(reach)):
            reach[index] = max(reach[index], reach[index - 1] + lane.duration_s)
        result.append(reach)
    return result


def tails(problem: Problem, lanes: Sequence[Lane]) -> list[list[float]]:
    """Return for each lane and micro-batch of its chain the seconds that must follow its end."""
    result: list[list[float]] = []
    for number, lane in reversed(list(enumerate(lanes))):
        if lane.following is None:
            rest = [0.0] * len(problem.chains[lane.chain].micro_batches)
        else:
            duration_s = lanes[number + 1].duration_s
            rest = [lane.lag_s + duration_s + tail for tail in result[-1]]
        for index in reversed(range(len(rest) - 1)):
            rest[index] = max(rest[index], rest[index + 1] + lane.duration_s)
        result.append(rest)
    return result[::-1]


def _one_machine_s(ops: list[tuple[float, float, float]]) -> float:
    """Return the largest head + work + tail of a device.

    That is how long it takes when a pass may be interrupted and the longest tail always goes first. Source:
    J. Carlier, "The one-machine sequencing problem", European Journal of Operational Research 11, 1982.
    """
    ops = sorted(ops)
    waiting: list[tuple[float, float]] = []
    now = longest = 0.0
    index = 0
    while index < len(ops) or waiting:
        if not waiting:
            now = max(now, ops[index][0])
        while index < len(ops) and ops[index][0] <= now:
            heappush(waiting, (-ops[index][2], ops[index][1]))
            index += 1
        negative_tail, left = heappop(waiting)
        until = ops[index][0] if index < len(ops) else now + left
        if now + left <= until:
            now += left
            longest = max(longest, now - negative_tail)
        else:
            heappush(waiting, (negative_tail, left - (until - now)))
            now = until
    return longest


class _Replay:
    """Walks the rows of all devices as far as their inputs are there, again and again."""

    def __init__(self, problem: Problem, rows: Sequence[Sequence[StageAction]]) -> None:
        self.rows = rows
        self.lanes = {(lane.stage, lane.kind): lane for lane in lanes_of(problem)}
        self.ready = self._first(problem)
        _check_rows(problem, rows)
        self.starts: list[list[float]] = [[] for _ in rows]
        self.free_s = [0.0] * len(rows)

    def _first(self, problem: Problem) -> dict[StageAction, float]:
        chains = problem.chains
        return {StageAction(c.stages[0], FORWARD, m): 0.0 for c in chains for m in c.micro_batches}

    def run(self) -> Ordering:
        following = list(self.lanes)
        self.after = {
            key: following[lane.following] for key, lane in self.lanes.items() if lane.following is not None
        }
        while sum(self._walk(device) for device in range(len(self.rows))):
            pass
        self._check_end()
        return Ordering(
            tuple(map(tuple, self.rows)), tuple(map(tuple, self.starts)), max(self.free_s, default=0.0)
        )

    def _walk(self, device: int) -> bool:
        row, starts = self.rows[device], self.starts[device]
        before = len(starts)
        while len(starts) < len(row) and row[len(starts)] in self.ready:
            action = row[len(starts)]
            lane = self.lanes[action.stage, action.kind]
            starts.append(max(self.free_s[device], self.ready[action]))
            self.free_s[device] = starts[-1] + lane.duration_s
            if (key := self.after.get((action.stage, action.kind))) is not None:
                self.ready[StageAction(*key, action.micro_batch)] = self.free_s[device] + lane.lag_s
        return len(starts) > before

    def _check_end(self) -> None:
        stuck = [
            f"device {device} waits in {row[len(starts)]} for {self._missing(row[len(starts)])}"
            for device, (row, starts) in enumerate(zip(self.rows, self.starts, strict=True))
            if len(starts) < len(row)
        ]
        if stuck:
            raise DeadlockError("deadlock: " + "; ".join(stuck))

    def _missing(self, action: StageAction) -> StageAction:
        before = {after: key for key, after in self.after.items()}
        return StageAction(*before[action.stage, action.kind], action.micro_batch)


def _check_rows(problem: Problem, rows: Sequence[Sequence[StageAction]]) -> None:
    """Refuse rows that do not hold every pass once, on the device of its stage."""
    due = sorted(
        (problem.positions[stage], StageAction(stage, kind, micro_batch))
        for chain in problem.chains
        for stage in chain.stages
        for kind in (FORWARD, BACKWARD)
        for micro_batch in chain.micro_batches
    )
    if sorted((device, action) for device, row in enumerate(rows) for action in row) != due:
        raise ValueError("rows must hold every forward and backward once, on the device of its stage")


def evaluate(problem: Problem, rows: Sequence[Sequence[StageAction]]) -> Ordering:
    """Return the times of a given order: each pass starts as soon as its device and its input are there.

    Raises:
        DeadlockError: the order can never be carried out.
    """
    return _Replay(problem, rows).run()
