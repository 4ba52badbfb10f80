"""Critical path: how long the stages of a layout take at least in a named order.

Every pass starts as soon as its device is free and its input is there, on links that nobody shares. Then gradients
are summed.
"""

from collections import Counter, deque
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from itertools import accumulate
from typing import Final

from strategies.bounds.gradient_sums import sums_end_s
from strategies.bounds.pipelines import frozen_s, port_bound, staged_bound
from strategies.orders.problem import Problem
from strategies.pipelining.builder import with_extra_forwards
from strategies.pipelining.layout import Layout, feedback_s, problem_of
from strategies.pipelining.stages import weight_part_s
from strategies.plans.actions import BACKWARD, BACKWARD_INPUT, BACKWARD_WEIGHT, EXTRA_FORWARD, FORWARD, Rows
from strategies.scenario import Scenario

MAX_PASSES: Final = 1600
"""An order of more passes than this is not followed for its bound: that would take longer than it spares."""


@dataclass(frozen=True, slots=True)
class Lane:
    """One pass of a stage, which micro-batches take one after the other.

    Attributes:
        ready: when the input of each micro-batch is there that has not started yet, in seconds.
        duration_s: of one micro-batch.
        following: the inputs of the pass after this one.
        lag_s: from the end of this pass to the start of that one.
    """

    ready: deque[float]
    duration_s: float
    following: deque[float]
    lag_s: float


def order_bound(
    scenario: Scenario,
    layout: Layout,
    order: Callable[[], Rows],
    name: str,
    *,
    frozen_first: bool = True,
    split: bool = False,
) -> float:
    """Seconds that no iteration can undercut; the order is followed if it is short.

    Args:
        scenario: what is asked about.
        layout: the stages.
        order: makes the order of each position, without optimizer steps.
        name: what distinguishes the order from others of the layout.
        frozen_first: the frozen work runs before the pipeline; else, cross-iteration, wherever there is room.
        split: backwards come in two parts.
    """

    def bound() -> float:
        passes = sum(len(layout.micro_batches(seat.cut)) for seat in layout.seats) * (3 if split else 2)
        if passes > MAX_PASSES:
            return staged_bound(scenario, layout, frozen_first=frozen_first, split=split)
        return ordered_bound(scenario, layout, order, name, frozen_first=frozen_first, split=split)

    how = (layout.skip_route, frozen_first, scenario.workload.extra_forward)
    return scenario.remember(("bound", name, layout.shape, layout.cuts, *how), bound)


def ordered_bound(
    scenario: Scenario,
    layout: Layout,
    order: Callable[[], Rows],
    name: str,
    *,
    frozen_first: bool = True,
    split: bool = False,
) -> float:
    """Seconds that no iteration in a named order can undercut.

    Args: as of ``order_bound``.
    """
    paths = _Paths.of(scenario, layout, frozen_first=frozen_first, split=split)
    # group sizes on links alike have one answer
    key = ("paths", name, layout.shape.degree, layout.shape.micro_batches, layout.cuts, paths.links)
    free_s, complete_s = scenario.remember(key, lambda: paths.ends_s(order()))
    return reduced_bound(scenario, layout, free_s, complete_s, frozen_first=frozen_first)


def reduced_bound(
    scenario: Scenario,
    layout: Layout,
    free_s: Sequence[float],
    complete_s: Sequence[float],
    *,
    frozen_first: bool = True,
) -> float:
    """Seconds before which no device has summed its gradients and stepped.

    Args:
        scenario: what is asked about.
        layout: the stages.
        free_s: when each position has done its last pass at the earliest.
        complete_s: when each stage has done its last backward at the earliest.
        frozen_first: as of ``order_bound``.
    """
    return max(
        sums_end_s(scenario, layout.shape, layout.stages, free_s, complete_s),
        port_bound(scenario, layout, frozen_first=frozen_first),
    )


@dataclass(frozen=True, slots=True)
class _Paths:
    """What the passes of a layout take and wait for.

    Attributes:
        layout: the stages.
        problem: their times.
        waits_s: for each stage the part of a backward that can wait; none where backwards are whole.
        starts_s: when each position has done the frozen work that runs first.
        fed_back_s: for each chain from the end of its extra forward to its forward; none without.
    """

    layout: Layout
    problem: Problem
    waits_s: tuple[float, ...]
    starts_s: tuple[float, ...]
    fed_back_s: tuple[float, ...]

    @classmethod
    def of(cls, scenario: Scenario, layout: Layout, *, frozen_first: bool, split: bool) -> "_Paths":
        shape, problem = layout.shape, problem_of(scenario, layout)
        batch = shape.local_batch(scenario)
        ends = [
            (problem.positions[chain.stages[-1]], problem.positions[chain.stages[0]])
            for chain in problem.chains
        ]
        fed_back_s = [
            feedback_s(scenario, shape, cut.component, positions)
            for cut, positions in zip(layout.cuts, ends, strict=True)
        ]
        return cls(
            layout=layout,
            problem=problem,
            waits_s=tuple(weight_part_s(scenario, s, batch) for s in layout.stages) if split else (),
            starts_s=tuple(
                frozen_s(scenario, shape, position) if frozen_first else 0.0
                for position in range(shape.degree)
            ),
            fed_back_s=tuple(fed_back_s) if scenario.workload.extra_forward else (),
        )

    @property
    def links(self) -> tuple[tuple[float, ...], ...]:
        """What depends on more than stages and order."""
        return self.problem.forward_lag_s, self.problem.backward_lag_s, self.starts_s, self.fed_back_s

    def ends_s(self, rows: Rows) -> tuple[list[float], list[float]]:
        """Earliest seconds at which each position has done its last pass, and each stage its last backward."""
        if self.fed_back_s:
            rows = with_extra_forwards(rows, self.layout.cuts, self.layout.seats)
        lanes = self._lanes()
        free_s, complete_s = list(self.starts_s), [0.0] * len(self.layout.stages)
        walks = [
            _walk([(lanes[a.stage, a.kind], a.stage) for a in row], free_s, position, complete_s)
            for position, row in enumerate(rows)
        ]
        while sum(map(next, walks)):
            pass
        return free_s, complete_s

    def _lanes(self) -> dict[tuple[int, str], Lane]:
        """The lane of each (stage, kind of pass)."""
        lanes: dict[tuple[int, str], Lane] = {}
        for cut, chain in enumerate(self.problem.chains):
            there = [0.0] * len(chain.micro_batches)
            following: deque[float] = deque()
            for stage, kind, duration_s, lag_s in reversed(self._passes(cut)):
                lanes[stage, kind] = Lane(deque(), duration_s, following, lag_s)
                following = lanes[stage, kind].ready
            following.extend(there)
            if self.waits_s:
                for stage in chain.stages:
                    lanes[stage, BACKWARD_WEIGHT] = Lane(deque(there), self.waits_s[stage], deque(), 0.0)
        return lanes

    def _passes(self, cut: int) -> list[tuple[int, str, float, float]]:
        """Stage, kind, duration and lag of each pass in the order in which a micro-batch takes them."""
        problem, stages = self.problem, self.problem.chains[cut].stages
        kind = BACKWARD_INPUT if self.waits_s else BACKWARD
        waits_s = self.waits_s or (0.0,) * len(problem.positions)
        forwards = [(s, FORWARD, problem.forward_s[s], problem.forward_lag_s[s]) for s in stages]
        backwards = [
            (s, kind, problem.backward_s[s] - waits_s[s], problem.backward_lag_s[s]) for s in reversed(stages)
        ]
        if not self.fed_back_s:
            return forwards + backwards
        extras = [(s, EXTRA_FORWARD, duration_s, lag_s) for s, _, duration_s, lag_s in forwards]
        return [*extras[:-1], (*extras[-1][:3], self.fed_back_s[cut]), *forwards, *backwards]


def _walk(
    row: Sequence[tuple[Lane, int]], free_s: list[float], position: int, complete_s: list[float]
) -> Iterator[bool]:
    """Walk a row as far as its inputs are there, again and again; yield whether that was any further."""
    now, moved = free_s[position], False
    for lane, stage in row:
        while not lane.ready:
            yield moved
            moved = False
        start = lane.ready.popleft()
        now = (start if start > now else now) + lane.duration_s
        lane.following.append(now + lane.lag_s)
        complete_s[stage] = free_s[position] = now
        moved = True
    yield moved
    while True:
        yield False


def most_in_flight(rows: Rows) -> list[int]:
    """For each stage the micro-batches it holds when its position holds most of all its stages."""
    found: Counter[int] = Counter()
    for row in rows:
        changes = [_ACTIVATIONS.get(action.kind, 0) for action in row]
        held = list(accumulate(changes))
        full = held.index(max(held))
        for action, change in zip(row[: full + 1], changes, strict=False):
            found[action.stage] += change
    return [found[stage] for stage in range(max(found) + 1)]


_ACTIVATIONS: Final = {FORWARD: 1, BACKWARD: -1, BACKWARD_WEIGHT: -1}
"""What a pass makes of the activations a position holds."""
