"""Critical path: least seconds that the stages of a layout take in a given order.

Every pass starts as soon as its device is free and its input is there, on links that nobody shares. Then gradients
are summed.
"""

from collections import deque
from collections.abc import Callable, Hashable, Iterator, Sequence
from dataclasses import dataclass
from typing import Final

from strategies.bounds.gradient_sums import sums_end_s
from strategies.bounds.pipelines import frozen_s, port_bound, staged_bound
from strategies.orders.problem import Problem
from strategies.pipelining.builder import with_extra_forwards
from strategies.pipelining.layout import Layout
from strategies.plans.actions import BACKWARD, BACKWARD_INPUT, BACKWARD_WEIGHT, EXTRA_FORWARD, FORWARD, Rows

MAX_PASSES: Final = 1600
"""An order of more passes than this is not followed for its bound: that would take longer than it spares."""


@dataclass(frozen=True, slots=True)
class _Queue:
    """The micro-batches before one pass of a stage, which they take one after the other.

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
    layout: Layout,
    order: Callable[[], Rows],
    name: Hashable,
    *,
    frozen_first: bool = True,
    split: bool = False,
) -> float:
    """Seconds that no iteration can undercut; the order is followed if it is short.

    Args:
        layout: the stages.
        order: makes the order of each position, without optimizer steps.
        name: tells the order from others of the layout.
        frozen_first: the frozen work runs before the pipeline; else, cross-iteration, wherever there is room.
        split: backwards come in two parts.
    """

    def bound() -> float:
        passes = sum(len(layout.micro_batches(seat.cut)) for seat in layout.seats) * (3 if split else 2)
        if passes > MAX_PASSES:
            return staged_bound(layout, frozen_first=frozen_first, split=split)
        return ordered_bound(layout, order, name, frozen_first=frozen_first, split=split)

    return layout.remember(("bound", name, frozen_first), bound)


def ordered_bound(
    layout: Layout,
    order: Callable[[], Rows],
    name: Hashable,
    *,
    frozen_first: bool = True,
    split: bool = False,
) -> float:
    """Seconds that no iteration in a named order can undercut.

    Args: as of ``order_bound``.
    """
    paths = _Paths.of(layout, frozen_first=frozen_first, split=split)
    # group sizes on links alike have one answer
    key = ("paths", name, layout.shape.degree, layout.shape.micro_batches, layout.cuts, paths.links)
    free_s, complete_s = layout.scenario.remember(key, lambda: paths.ends_s(order()))
    return reduced_bound(layout, free_s, complete_s, frozen_first=frozen_first)


def reduced_bound(
    layout: Layout, free_s: Sequence[float], complete_s: Sequence[float], *, frozen_first: bool = True
) -> float:
    """Seconds before which no device has summed its gradients and stepped.

    Args:
        layout: the stages.
        free_s: when each position has done its last pass at the earliest.
        complete_s: when each stage has done its last backward at the earliest.
        frozen_first: as of ``order_bound``.
    """
    return max(
        sums_end_s(layout, free_s, complete_s),
        port_bound(layout, frozen_first=frozen_first),
    )


@dataclass(frozen=True, slots=True)
class _Paths:
    """The times of a layout's passes, and of what they wait for.

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
    def of(cls, layout: Layout, *, frozen_first: bool, split: bool) -> "_Paths":
        problem, positions = layout.problem(), range(layout.shape.degree)
        fed_back_s = [
            layout.feedback_s(
                cut.component, problem.positions[chain.stages[-1]], problem.positions[chain.stages[0]]
            )
            for cut, chain in zip(layout.cuts, problem.chains, strict=True)
        ]
        return cls(
            layout=layout,
            problem=problem,
            waits_s=tuple(layout.weight_part_s(s) for s in layout.stages) if split else (),
            starts_s=tuple(frozen_s(layout, p) if frozen_first else 0.0 for p in positions),
            fed_back_s=tuple(fed_back_s) if layout.scenario.workload.extra_forward else (),
        )

    @property
    def links(self) -> tuple[tuple[float, ...], ...]:
        """The times that depend on more than stages and order."""
        return self.problem.forward_lag_s, self.problem.backward_lag_s, self.starts_s, self.fed_back_s

    def ends_s(self, rows: Rows) -> tuple[list[float], list[float]]:
        """Earliest seconds at which each position has done its last pass, and each stage its last backward."""
        if self.fed_back_s:
            rows = with_extra_forwards(self.layout, rows)
        queues = self._queues()
        free_s, complete_s = list(self.starts_s), [0.0] * len(self.layout.stages)
        walks = [
            _walk([(queues[a.stage, a.kind], a.stage) for a in row], free_s, position, complete_s)
            for position, row in enumerate(rows)
        ]
        while sum(map(next, walks)):
            pass
        return free_s, complete_s

    def _queues(self) -> dict[tuple[int, str], _Queue]:
        """The queue before each (stage, kind of pass)."""
        queues: dict[tuple[int, str], _Queue] = {}
        for cut, chain in enumerate(self.problem.chains):
            there = [0.0] * len(chain.micro_batches)
            following: deque[float] = deque()
            for stage, kind, duration_s, lag_s in reversed(self._passes(cut)):
                queues[stage, kind] = _Queue(deque(), duration_s, following, lag_s)
                following = queues[stage, kind].ready
            following.extend(there)
            if self.waits_s:
                for stage in chain.stages:
                    queues[stage, BACKWARD_WEIGHT] = _Queue(deque(there), self.waits_s[stage], deque(), 0.0)
        return queues

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
    row: Sequence[tuple[_Queue, int]], free_s: list[float], position: int, complete_s: list[float]
) -> Iterator[bool]:
    """Walk a row as far as its inputs are there, again and again; each time, true if that was any further."""
    now, moved = free_s[position], False
    for queue, stage in row:
        while not queue.ready:
            yield moved
            moved = False
        start = queue.ready.popleft()
        now = (start if start > now else now) + queue.duration_s
        queue.following.append(now + queue.lag_s)
        complete_s[stage] = free_s[position] = now
        moved = True
    yield moved
    while True:
        yield False
