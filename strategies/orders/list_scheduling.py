"""List scheduling: an order in which each device runs the forwards and backwards of its stages, found at once.

A one-machine bound says how far from the best the order may be. For solvers see ``strategies.orders.synthesis``.
"""

from collections import deque
from collections.abc import Callable, Mapping, Sequence
from heapq import heappop, heappush
from math import inf
from operator import itemgetter
from typing import Any, Final

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
    makespan_s, taken = min((_listed(problem, lanes, each) for each in ranks), key=itemgetter(0))
    numbers = (problem.chains[lane.chain].micro_batches for lane in lanes)
    coming = [iter(passes_of(lane.stage, lane.kind, span)) for lane, span in zip(lanes, numbers, strict=True)]
    rows = tuple([tuple([next(coming[lane]) for lane, _ in row]) for row in taken])
    return Ordering(rows, tuple([tuple([start for _, start in row]) for row in taken]), makespan_s)


def _listed(
    problem: Problem, lanes: Sequence[Lane], keys: Sequence[Sequence[float]]
) -> tuple[float, list[list[tuple[int, float]]]]:
    """Return the seconds of an order, and for each device the lanes of its passes with their starts.

    Each device runs, of the passes that are ready and may be held, the one of the least key; of equals the older. It
    looks for one when it is free, and when something comes later than that.

    Args:
        problem: What is to be ordered.
        lanes: Its lanes.
        keys: For each lane and micro-batch of its chain its rank.
    """
    devices, done = range(problem.num_devices), [0] * len(lanes)
    limits = problem.in_flight or (inf,) * len(problem.positions)
    most = [limits[lane.stage] if lane.kind == FORWARD else inf for lane in lanes]
    backward = {lane.stage: number for number, lane in enumerate(lanes) if lane.kind != FORWARD}
    freeing = [backward[lane.stage] for lane in lanes]
    lanes_on = [[n for n, lane in enumerate(lanes) if lane.device == device] for device in devices]
    free_s, wakes = [0.0 for _ in devices], [(0.0, device) for device in devices]
    taken: list[list[tuple[int, float]]] = [[] for _ in devices]
    arrivals_s = [deque[float]() for _ in lanes]  # of micro-batches that a lane is still to serve
    first = 0
    for chain in problem.chains:
        arrivals_s[first].extend([0.0] * len(chain.micro_batches))
        first += len(chain.passes)
    while wakes:
        now, device = heappop(wakes)
        if free_s[device] > now:
            continue
        best = (inf, 0, -1)
        for number in lanes_on[device]:
            count, coming_s = done[number], arrivals_s[number]
            if coming_s and coming_s[0] <= now and (rank := (keys[number][count], count, number)) < best:
                best = rank if count - done[freeing[number]] < most[number] else best
        number = best[-1]
        if number < 0:
            continue
        lane, here_s = lanes[number], arrivals_s[number]
        taken[device].append((number, now))
        done[number] += 1
        here_s.popleft()
        end = free_s[device] = now + lane.duration_s
        heappush(wakes, (end, device))
        if here_s and here_s[0] > end:
            heappush(wakes, (here_s[0], device))
        if lane.following is not None:
            there_s, there = arrivals_s[lane.following], lanes[lane.following].device
            there_s.append(end + lane.lag_s)
            if len(there_s) == 1 and there_s[0] >= free_s[there]:
                heappush(wakes, (there_s[0], there))
    assert all(count == len(row) for count, row in zip(done, keys, strict=True)), "list scheduling is stuck"
    return max(free_s), taken


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
