"""Bounds of pipelines: seconds that no order of their stages can undercut.

A port carries one message after the other. Where the positions of a pipeline lie in different nodes, each node's port
carries the messages of many hops, and of all replicas: no pipeline is faster than its busiest port.
"""

from collections.abc import Iterable, Iterator, Sequence
from itertools import pairwise
from typing import NamedTuple

import numpy as np

from profiles.checks import sum_in_order
from profiles.units import FloatArray
from strategies.bounds.gradient_sums import sums_end_s
from strategies.pipelining.layout import Layout

PortTraffic = tuple[int, int, float]
"""The position that sends, the one that receives, and bytes of all messages of one iteration."""


def frozen_s(layout: Layout, position: int = 0) -> float:
    """The seconds of all frozen work of a position, data-parallel over a whole group.

    Where the samples do not divide, the first positions get one more each.
    """
    scenario, degree = layout.scenario, layout.shape.degree
    _ = layout.placement  # refuses sizes that do not divide
    samples = (layout.group_batch + degree - 1 - position) // degree
    if not samples:
        return 0.0
    local = -(-samples // layout.replicas)
    return sum_in_order(float(scenario.costs.components[i].forward_s(local).sum()) for i in scenario.frozen)


def staged_bound(layout: Layout, *, frozen_first: bool = True, split: bool = False) -> float:
    """Seconds below which no order of a layout can take.

    The passes of a position that come late in their chain wait for all passes before them, and what follows the
    early ones must come after: for every such pair of limits, waiting before, the work between and waiting after
    add up.

    Args:
        layout: the stages.
        frozen_first: the frozen work runs before the pipeline; else, cross-iteration, wherever there is room.
        split: the gradients of weights may be computed later than those of inputs.
    """
    key = ("staged", frozen_first, split)
    return layout.remember(key, lambda: _staged_bound(layout, frozen_first=frozen_first, split=split))


def _staged_bound(layout: Layout, *, frozen_first: bool, split: bool) -> float:
    degree = layout.shape.degree
    limits: list[_Limit] = []
    complete_s: list[float] = []
    for cut in range(len(layout.cuts)):
        visits = _visits(layout, cut, split=split)
        of_chain = list(_limits(visits, len(layout.micro_batches(cut))))
        complete_s += _complete_s(visits[-len(layout.chain(cut)) :], _Table.of(of_chain, degree))
        limits += of_chain
    steps = steps_s(layout)
    last_s = min(steps[seat.first] for seat in layout.seats)
    each_s = np.array([min((steps[s] for s in hosted), default=0.0) for hosted in layout.hosted])
    least_s = _least_s(_Table.of(limits, degree), each_s, last_s, split=split)
    summed_s = sums_end_s(layout, [0.0] * degree, complete_s)
    before_s = _before_s(layout, frozen_first=frozen_first)
    return max(before_s + max(least_s, summed_s), port_bound(layout, frozen_first=frozen_first))


def _before_s(layout: Layout, *, frozen_first: bool) -> float:
    """Earliest seconds at which the first forward can start."""
    starts = {layout.stages[seat.first].position for seat in layout.seats}
    return min(frozen_s(layout, p) for p in starts) if frozen_first else 0.0


def port_bound(layout: Layout, *, frozen_first: bool = True) -> float:
    """Seconds below which no order takes because of its busiest port.

    It is held between the first forward of a chain and the last backward of one.

    Args: as of ``staged_bound``.
    """
    traffic: list[PortTraffic] = []
    for number in range(len(layout.cuts)):
        traffic += chain_traffic(layout, number)
    firsts = {seat.first for seat in layout.seats}
    around_s = min(layout.stages[first].forward_s for first in firsts) + min(
        layout.stages[first].backward_s for first in firsts
    )
    steps = steps_s(layout)
    before_s = _before_s(layout, frozen_first=frozen_first)
    held_s = busiest_port_s(layout, traffic)
    return before_s + around_s + held_s + min(steps[first] for first in firsts)


def steps_s(layout: Layout) -> list[float]:
    """For each stage the seconds from its last backward to the end of its optimizer step, on free ports."""
    seconds = [0.0] * len(layout.stages)
    for twins in layout.twins:
        positions = tuple(sorted(layout.stages[number].position for number in twins))
        for number in twins:
            update = layout.update(layout.trained_parameters[number], positions)
            seconds[number] = update.reduce_s + update.step_s + update.gathered_s
    return seconds


class _Visit(NamedTuple):
    """One pass of one micro-batch: its position, its seconds, those that may wait, and those to the next pass."""

    position: int
    pass_s: float
    waiting_s: float
    hop_s: float


class _Limit(NamedTuple):
    """One pass of a stage by all its micro-batches: its position, the seconds before it, of its work, and after it."""

    position: int
    head_s: float
    work_s: float
    tail_s: float


class _Table(NamedTuple):
    """The limits of all positions: seconds before, of work and after, each (limits of a position, positions).

    Positions of fewer limits have some that take no time and come before all.
    """

    head_s: FloatArray
    work_s: FloatArray
    tail_s: FloatArray

    @classmethod
    def of(cls, limits: Iterable[_Limit], degree: int) -> "_Table":
        """Limits by position."""
        rows: list[list[tuple[float, ...]]] = [[] for _ in range(degree)]
        for position, *seconds in limits:
            rows[position].append(tuple(seconds))
        most = max(map(len, rows))
        padded = [row + [(0.0, 0.0, 0.0)] * (most - len(row)) for row in rows]
        return cls(*np.array(padded).transpose(2, 1, 0))

    def done_s(self, tail_s: FloatArray) -> FloatArray:
        """Seconds until each position has done all passes that at least ``tail_s`` must follow.

        Args:
            tail_s: any number for each position, (numbers, positions), as what is returned.
        """
        early = self.tail_s[:, None] >= tail_s
        later = self.head_s[:, None] >= self.head_s
        works_s = np.where(early[:, :, None] & later[:, None], self.work_s[:, None, None], 0.0)
        done_s = self.head_s + works_s.cumsum(axis=0)[-1]  # in the order of the limits
        latest_s: FloatArray = np.where(early.swapaxes(0, 1), done_s, 0.0).max(axis=1)
        return latest_s


def _visits(layout: Layout, cut: int, *, split: bool) -> list[_Visit]:
    """The passes of a chain, extra forwards too, in the order in which a micro-batch takes them."""
    chain, stages, visits = layout.chain(cut), layout.stages, list[_Visit]()
    forwards = [
        _Visit(stages[s].position, stages[s].forward_s, 0.0, layout.hops[s][0].duration_s) for s in chain
    ]
    if layout.scenario.workload.extra_forward:
        ends = forwards[-1].position, forwards[0].position
        back_s = layout.feedback_s(layout.cuts[cut].component, *ends)
        visits += [*forwards[:-1], forwards[-1]._replace(hop_s=back_s)]
    visits += forwards
    for number in reversed(chain):
        stage = stages[number]
        waiting_s = layout.weight_part_s(stage) if split else 0.0
        back_s = 0.0 if number == chain.start else layout.hops[number - 1][1].duration_s
        visits.append(_Visit(stage.position, stage.backward_s - waiting_s, waiting_s, back_s))
    return visits


def _limits(visits: Sequence[_Visit], count: int) -> Iterator[_Limit]:
    """The limits of a chain: each pass for all of so many micro-batches, and what of it may wait."""
    ready_s, after_s = 0.0, sum_in_order(visit.pass_s + visit.hop_s for visit in visits)
    for position, pass_s, waiting_s, hop_s in visits:
        after_s -= pass_s + hop_s
        yield _Limit(position, ready_s, count * pass_s, max(0.0, after_s) + hop_s)
        if waiting_s:
            yield _Limit(position, ready_s + pass_s, count * waiting_s, 0.0)
        ready_s += pass_s + hop_s


def _least_s(limits: _Table, step_s: FloatArray, last_step_s: float, *, split: bool = False) -> float:
    """The longest waiting before, work between and waiting after over all pairs of limits of a position.

    After a part of a backward that may wait comes nothing but the optimizer step of its own device.
    """
    after_s = np.maximum(limits.tail_s + last_step_s, step_s)
    if split:
        after_s = np.where(limits.tail_s, after_s, step_s)
    return float((limits.done_s(limits.tail_s) + after_s).max())


def _complete_s(backwards: Sequence[_Visit], limits: _Table) -> list[float]:
    """For each stage of a chain the earliest seconds at which its last backward can have ended.

    By then its device has done all passes before it, of all micro-batches.
    """
    after_s, degree = 0.0, limits.tail_s.shape[1]
    tails_s: list[list[float]] = [[] for _ in range(degree)]
    places = []
    for position, pass_s, _, hop_s in reversed(backwards):
        places.append((len(tails_s[position]), position))
        tails_s[position].append((after_s + hop_s) * (1 - 1e-9))
        after_s += pass_s + hop_s
    most = max(map(len, tails_s))
    done_s = limits.done_s(np.array([row + [np.inf] * (most - len(row)) for row in tails_s]).T)
    return [float(done_s[place]) for place in places]


def chain_traffic(layout: Layout, cut: int) -> Iterator[PortTraffic]:
    """The messages between the stages of one chain; skips that stay local send none."""
    chain, count = layout.chain(cut), len(layout.micro_batches(cut))
    first, last = layout.stages[chain[0]], layout.stages[chain[-1]]
    component, extra = layout.component(first), layout.scenario.workload.extra_forward
    carried = component.carried_bytes * layout.local_batch
    for number, following in pairwise(chain):
        source, target = layout.stages[number].position, layout.stages[following].position
        size = layout.handovers_bytes[number]
        yield source, target, (2 if extra else 1) * count * (size + carried)
        yield target, source, count * size
    if extra:
        fed_back_bytes = component.layers[last.last_layer].output_bytes * layout.local_batch
        yield last.position, first.position, count * fed_back_bytes


def busiest_port_s(layout: Layout, traffic: Iterable[PortTraffic]) -> float:
    """Seconds for which the busiest port is held."""
    held_s: dict[int, float] = {}
    for source, target, size in traffic:
        if source != target:
            for port, s_per_byte in layout.network.route(source, target).ports:
                held_s[port] = held_s.get(port, 0.0) + size * s_per_byte
    return max(held_s.values(), default=0.0)
