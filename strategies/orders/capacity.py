"""Capacity: whether a forward may start under caps on what devices hold, so that every micro-batch can still end.

A micro-batch frees nothing before its last forward, so a device that fills up with young ones leaves the oldest
stuck for ever. The room that the oldest still needs is therefore kept free.
"""

import math
from collections import Counter
from collections.abc import Sequence
from itertools import accumulate
from typing import Final

from profiles.errors import InfeasibleError
from strategies.orders.problem import Lane, Problem
from strategies.plans.actions import BACKWARD, BACKWARD_WEIGHT, FORWARD, Rows, StageAction


def check_room(problem: Problem) -> None:
    """Refuse caps that leave no room for a single micro-batch; under all others there is an order."""
    for device in range(problem.num_devices if problem.capacity else 0):
        for _, stages in _claims_on(problem, device):
            if (claim := len(stages)) > (problem.capacity or 0):
                equation = f"{' + '.join(['1'] * claim)} = {claim}"
                raise InfeasibleError(
                    f"one micro-batch takes {equation} on device {device} (stages {', '.join(map(str, stages))}),"
                    f" which may hold {problem.capacity}",
                    "a device cannot hold one micro-batch",
                )
    for stage, limit in enumerate(problem.in_flight or ()):
        if limit < 1:
            raise InfeasibleError(
                f"in_flight of stage {stage} is {limit}, must be at least 1", "nothing may be in flight"
            )


def _claims_on(problem: Problem, device: int) -> list[tuple[int, list[int]]]:
    """For each chain on a device its number, and its stages there, all of which one micro-batch may hold."""
    claims = (
        (number, [stage for stage in chain.stages if problem.positions[stage] == device])
        for number, chain in enumerate(problem.chains)
    )
    return [(number, stages) for number, stages in claims if stages]


class Room:
    """The caps of a problem and what is held of them.

    Micro-batches are taken to end in the order of their numbers, chains in turn. In that order all can end, from
    any state that this class allows: what is held for later ones and what an earlier one needs in all fit
    together. For a single chain the rule forbids nothing else; its micro-batches do end in that order.

    ``done`` are for each lane the micro-batches that have started; the caller counts them up.
    """

    def __init__(self, problem: Problem, lanes: Sequence[Lane], done: Sequence[int]) -> None:
        self.problem = problem
        self.done = done
        self.forward = {lane.stage: number for number, lane in enumerate(lanes) if lane.kind == FORWARD}
        self.backward = {lane.stage: number for number, lane in enumerate(lanes) if lane.kind == BACKWARD}
        self.lanes, limits = lanes, problem.in_flight or (math.inf,) * len(problem.positions)
        self.limits = [limits[lane.stage] if lane.kind == FORWARD else math.inf for lane in lanes]
        self.ends = [self.backward[lane.stage] for lane in lanes]
        self.claims = [_claims_on(problem, device) for device in range(problem.num_devices)]

    def allows(self, number: int) -> bool:
        """True if the next pass of a lane may start, as every backward may."""
        if self.done[number] - self.done[self.ends[number]] >= self.limits[number]:
            return False
        lane, capacity = self.lanes[number], self.problem.capacity
        if capacity is None or lane.kind == BACKWARD:
            return True
        stage = lane.stage
        if self._held(lane.device, stage) > capacity:
            return False
        for chain, stages in self.claims[lane.device]:
            oldest = self._begun(stages[-1], stage)
            pending = oldest < len(self.problem.chains[chain].micro_batches)
            if pending and self._held(lane.device, stage, chain, oldest) + len(stages) > capacity:
                return False
        return True

    def _begun(self, stage: int, starting: int = -1) -> int:
        return self.done[self.forward[stage]] + (stage == starting)

    def _held(self, device: int, starting: int, chain: int = 0, after: int = -1) -> int:
        """Activations held, once a forward has started, of what ends after a micro-batch of a chain."""
        held = 0
        for number, stages in self.claims[device]:
            first = after + (number <= chain)
            for stage in stages:
                count = self._begun(stage, starting) - max(self.done[self.backward[stage]], first)
                held += max(0, count)
        return held


def room_bound_s(
    problem: Problem, lanes: Sequence[Lane], heads_s: list[list[float]], tails_s: list[list[float]]
) -> float:
    """Seconds below which no order can end because of what the devices may hold.

    A stage holds a micro-batch at least for the seconds from its forward to its backward. All of these seconds have to
    fit under the capacity, between the first forward and the last backward of the device.
    """
    forwards = {lane.stage: lane for lane in lanes if lane.kind == FORWARD}
    longest = 0.0
    for device in range(problem.num_devices if problem.capacity else 0):
        held_s, first_s, last_s = 0.0, [], []
        for lane, before, after in zip(lanes, heads_s, tails_s, strict=True):
            if lane.device != device or not before:
                continue
            if lane.kind == FORWARD:
                first_s.append(before[0])
            else:
                forward = forwards[lane.stage]
                around_s = forward.duration_s + forward.tail_s - lane.tail_s
                held_s += around_s * len(before)
                last_s.append(after[-1])
        if problem.capacity and held_s:
            longest = max(longest, min(first_s) + held_s / problem.capacity + min(last_s))
    return longest


def fits(problem: Problem, rows: Sequence[Sequence[StageAction]]) -> bool:
    """True if an order keeps within the caps."""
    if problem.capacity and max(peak_held(rows)) > problem.capacity:
        return False
    for stage, limit in enumerate(problem.in_flight or ()):
        kinds = [action.kind for action in rows[problem.positions[stage]] if action.stage == stage]
        if max(accumulate(1 if kind == FORWARD else -1 for kind in kinds), default=0) > limit:
            return False
    return True


def peak_held(rows: Sequence[Sequence[StageAction]]) -> list[int]:
    """Return the most activations of stages that each device holds at once in an order."""
    steps = ((1 if action.kind == FORWARD else -1 for action in row) for row in rows)
    return [max(accumulate(of_row), default=0) for of_row in steps]


def most_in_flight(rows: Rows) -> list[int]:
    """Return for each stage the micro-batches that it holds when its position is fullest."""
    counts: Counter[int] = Counter()
    for row in rows:
        changes = [_ACTIVATIONS.get(action.kind, 0) for action in row]
        held = list(accumulate(changes))
        full = held.index(max(held))
        for action, change in zip(row[: full + 1], changes, strict=False):
            counts[action.stage] += change
    return [counts[stage] for stage in range(max(counts) + 1)]


_ACTIVATIONS: Final = {FORWARD: 1, BACKWARD: -1, BACKWARD_WEIGHT: -1}
"""The activations that a pass adds to those its position holds."""
