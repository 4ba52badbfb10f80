"""List scheduling: an order in which each device runs the forwards and backwards of its stages, found at once.

A one-machine bound says how far from the best the order may be. For solvers see ``strategies.orders.synthesis``.
"""

from collections import deque
from collections.abc import Callable, Mapping, Sequence
from heapq import heappop, heappush
from math import inf
from operator import attrgetter
from typing import Any, Final, Self

import numpy as np

from profiles.errors import InfeasibleError
from strategies.orders.problem import Lane, Ordering, Problem, heads, lanes_of, tails
from strategies.plans.actions import FORWARD, passes_of

PRIORITIES: Final[Mapping[str, Callable[[float, Any], Any]]] = {
    "most-advanced": lambda tail_s, rest_s: tail_s,
    "longest-tail": lambda tail_s, rest_s: -rest_s,
    "balanced": lambda tail_s, rest_s: tail_s / 4 - 3 * rest_s / 4,
}
"""The key of each priority: of the passes that are ready, a device runs the one with the least first.

``tail_s`` is what the micro-batch itself still needs after the pass, ``rest_s`` what it and those behind it in the
same lanes need. With as many micro-batches as devices the most advanced pass does best, with twice as many or
more the longest tail; three parts of the one and one of the other lie between, and help where stages are many or
backbones unlike.
"""
BEST: Final = "best"
"""The priority with the shortest order; the first where several are as short."""


def list_schedule(problem: Problem, priority: str = BEST) -> Ordering:
    """Return an order in which no device idles while one of its passes is ready and may be held.

    Args:
        problem: What is to be ordered.
        priority: One of ``PRIORITIES``, or ``BEST``.

    Raises:
        InfeasibleError: a stage may hold no micro-batch.
    """
    for stage, limit in enumerate(problem.in_flight or ()):
        if limit < 1:
            words = f"in_flight of stage {stage} is {limit}, must be at least 1"
            raise InfeasibleError(words, "nothing may be in flight")
    lanes = lanes_of(problem)
    rests_s = [np.array(of_lane) for of_lane in tails(problem, lanes)]
    keys = [key for name, key in PRIORITIES.items() if priority in (name, BEST)]
    ranks = (
        [
            np.broadcast_to(key(lane.tail_s, rest_s), rest_s.shape).tolist()
            for lane, rest_s in zip(lanes, rests_s, strict=True)
        ]
        for key in keys
    )
    runs = (ListScheduler(problem, lanes, each).run() for each in ranks)
    return min(runs, key=attrgetter("makespan_s")).order()


class ListScheduler:
    """One order, pass by pass: each device runs, of the passes that are ready and may be held, the least.

    Args:
        keys: For each lane and micro-batch of its chain its rank; of equals the older goes first.

    Attributes:
        due_s: when the next micro-batch of each lane arrives; infinite where it is not under way.
        waiting_s: for each lane the arrivals of micro-batches that are under way after the next one.
        taken: lane by lane, what each device runs, and the seconds at which that starts.
        wakes: when each device next looks for something to run.
    """

    def __init__(self, problem: Problem, lanes: Sequence[Lane], keys: Sequence[Sequence[float]]) -> None:
        self.problem, self.lanes, self.keys = problem, lanes, keys
        self.done = [0] * len(lanes)
        limits = problem.in_flight or (inf,) * len(problem.positions)
        self.limits = [limits[lane.stage] if lane.kind == FORWARD else inf for lane in lanes]
        ends = {lane.stage: number for number, lane in enumerate(lanes) if lane.kind != FORWARD}
        self.ends = [ends[lane.stage] for lane in lanes]
        self.due_s = [inf] * len(lanes)
        self.waiting_s: list[deque[float]] = [deque() for _ in lanes]
        devices = range(problem.num_devices)
        self.lanes_on = [[n for n, lane in enumerate(lanes) if lane.device == device] for device in devices]
        self.free_s = [0.0 for _ in devices]
        self.taken: list[list[tuple[int, float]]] = [[] for _ in devices]
        self.wakes = [(0.0, device) for device in devices]

    def run(self) -> Self:
        """Start all passes."""
        self._start_all()
        assert all(done == len(keys) for done, keys in zip(self.done, self.keys, strict=True)), (
            "list scheduling is stuck"
        )
        return self

    @property
    def makespan_s(self) -> float:
        """Seconds until all devices are free."""
        return max(self.free_s)

    def order(self) -> Ordering:
        """Return the whole order, once it has run."""
        chains = self.problem.chains
        coming = [
            iter(passes_of(lane.stage, lane.kind, chains[lane.chain].micro_batches)) for lane in self.lanes
        ]
        rows = tuple([tuple([next(coming[lane]) for lane, _ in row]) for row in self.taken])
        return Ordering(
            rows, tuple([tuple([start for _, start in row]) for row in self.taken]), self.makespan_s
        )

    def _start_all(self) -> None:
        """Start one pass after another."""
        first = 0
        for chain in self.problem.chains:
            self.due_s[first] = 0.0
            self.waiting_s[first] = deque([0.0] * (len(chain.micro_batches) - 1))
            first += len(chain.passes)
        wakes, free_s, due_s, limits, ends = self.wakes, self.free_s, self.due_s, self.limits, self.ends
        lanes_on, keys, done, start = self.lanes_on, self.keys, self.done, self._start
        while wakes:
            now, device = heappop(wakes)
            if free_s[device] > now:
                continue
            best, best_key = -1, inf
            for number in lanes_on[device]:
                if due_s[number] <= now:
                    count = done[number]
                    key = keys[number][count]
                    first = key < best_key or best < 0 or (key == best_key and count < done[best])
                    if first and count - done[ends[number]] < limits[number]:
                        best, best_key = number, key
            if best >= 0:
                start(best, now)

    def _start(self, number: int, now: float) -> None:
        """Run the next micro-batch of a lane.

        A device looks again when it is free, and when something comes later than that.
        """
        lane, waiting_s, wakes, due_s = self.lanes[number], self.waiting_s[number], self.wakes, self.due_s
        device, following = lane.device, lane.following
        self.taken[device].append((number, now))
        self.done[number] += 1
        end = self.free_s[device] = now + lane.duration_s
        heappush(wakes, (end, device))
        due = due_s[number] = waiting_s.popleft() if waiting_s else inf
        if end < due < inf:
            heappush(wakes, (due, device))
        if following is None:
            return
        due = end + lane.lag_s
        if due_s[following] < inf:
            self.waiting_s[following].append(due)
            return
        due_s[following] = due
        there = self.lanes[following].device
        if due >= self.free_s[there]:
            heappush(wakes, (due, there))


def lower_bound_s(problem: Problem) -> float:
    """Seconds below which no order can end.

    Each device waits until work can reach it, runs it, and the rest of the chain follows: the largest of head +
    work + tail over all devices and thresholds, where the work is of all passes with at least that head and tail.
    """
    lanes = lanes_of(problem)
    heads_s, tails_s = heads(problem, lanes), tails(problem, lanes)
    passes: list[list[tuple[float, float, float]]] = [[] for _ in range(problem.num_devices)]
    for lane, before, after in zip(lanes, heads_s, tails_s, strict=True):
        passes[lane.device] += [(h, lane.duration_s, q) for h, q in zip(before, after, strict=True)]
    return max(one_machine_s(of_device) for of_device in passes)


def one_machine_s(passes: list[tuple[float, float, float]]) -> float:
    """Return the largest head + work + tail of a device from the heads, durations and tails of its passes.

    It is the time that the passes take if each may be interrupted and the longest tail always goes first. Source:
    J. Carlier, "The one-machine sequencing problem", European Journal of Operational Research 11, 1982.
    """
    now = longest = 0.0
    waiting: list[tuple[float, float]] = []
    arrivals = sorted(passes, reverse=True)
    while arrivals or waiting:
        if not waiting:
            now = max(now, arrivals[-1][0])
        while arrivals and arrivals[-1][0] <= now:
            _, duration, tail = arrivals.pop()
            heappush(waiting, (-tail, duration))
        negative_tail, left = heappop(waiting)
        if arrivals and arrivals[-1][0] < now + left:
            heappush(waiting, (negative_tail, now + left - arrivals[-1][0]))
            now = arrivals[-1][0]
        else:
            now += left
            longest = max(longest, now - negative_tail)
    return longest
