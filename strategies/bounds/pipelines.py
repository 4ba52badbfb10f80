"""Bounds of pipelines: seconds that no order of their stages can undercut."""

from collections.abc import Iterable
from typing import NamedTuple

import numpy as np

from profiles.units import FloatArray
from strategies.pipelining.layout import Layout
from strategies.plans.actions import BACKWARD_INPUT


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
    return sum(float(scenario.costs.components[i].forward_s(local).sum()) for i in scenario.frozen)


def least_frozen_s(layout: Layout) -> float:
    """The frozen seconds per device if every layer ran at the local batch that suits it best."""
    scenario, samples, each = layout.scenario, layout.group_batch, layout.shape.group_size

    def make() -> float:
        components = [scenario.costs.components[index] for index in scenario.frozen]
        total = sum(sum(costs.least_forward_s_per_sample(samples)) for costs in components)
        return total * samples / each

    return scenario.remember(("least frozen", samples, each), make)


def uncut_bound(
    layout: Layout, stages: int, *, chains: int = 1, frozen_first: bool = True, split: bool = False
) -> float:
    """Seconds below which no cut of the backbones into so many stages can take.

    The positions share all work. And a chain of V stages that take w_1 to w_V seconds for each of M micro-batches, of
    which a share s cannot wait, does not end before s (w_1 + ... + w_(j-1)) + M w_j; with w_1 + ... + w_V = W the
    longest of these is at least s W / (1 - (1 - s/M)^V).

    Args:
        layout: without cuts.
        stages: of each chain.
        chains: among which the micro-batches are divided.
        frozen_first: as of ``staged_bound``.
        split: likewise.
    """
    scenario, count, degree = layout.scenario, layout.shape.micro_batches, layout.shape.degree
    backbones, batch, frozen_s = scenario.model.backbones, layout.local_batch, least_frozen_s(layout)

    def make() -> tuple[float, float]:
        each_s = [forward_s + back_s for forward_s, back_s in map(layout.layer_times, backbones)]
        waits_s = [scenario.costs.components[one].weight_s(batch) for one in backbones]
        shares = (part[of > 0] / of[of > 0] for part, of in zip(waits_s, each_s, strict=True))
        return sum(float(of.sum()) for of in each_s), 1 - max(float(of.max(initial=0)) for of in shares)

    work_s, share = scenario.remember(("work", batch), make)
    evenly_s = frozen_s + work_s * count / degree
    share = share if split else 1.0
    chain_s = (
        share * work_s / (1 - (1 - share * chains / count) ** stages)
        if share and len(backbones) == 1
        else 0.0
    )
    return max(evenly_s, chain_s + frozen_s * frozen_first)


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
    limits: list[_Limit] = []
    for cut in range(len(layout.cuts)):
        passes = layout.passes(cut, extra=layout.scenario.workload.extra_forward, split=split)
        count = len(layout.micro_batches(cut))
        ready_s, after_s = 0.0, sum(one.duration_s + one.lag_s for one in passes)
        for number, kind, pass_s, lag_s in passes:
            position, after_s = layout.stages[number].position, after_s - (pass_s + lag_s)
            limits.append(_Limit(position, ready_s, count * pass_s, max(0.0, after_s) + lag_s))
            if kind == BACKWARD_INPUT:
                waiting_s = layout.weight_part_s(layout.stages[number])
                limits.append(_Limit(position, ready_s + pass_s, count * waiting_s, 0.0))
            ready_s += pass_s + lag_s
    steps = _steps_s(layout)
    last_s = min(steps[seat.first] for seat in layout.seats)
    each_s = np.array([min((steps[s] for s in hosted), default=0.0) for hosted in layout.hosted])
    least_s = _least_s(limits, each_s, last_s, split=split)
    starts = {layout.stages[seat.first].position for seat in layout.seats}
    before_s = min(frozen_s(layout, p) for p in starts) if frozen_first else 0.0
    return before_s + least_s


def _steps_s(layout: Layout) -> list[float]:
    """For each stage the seconds from its last backward to the end of its optimizer step, on free ports."""
    seconds = [0.0] * len(layout.stages)
    for twins in layout.twins:
        positions = tuple(sorted(layout.stages[number].position for number in twins))
        for number in twins:
            update = layout.update(number, positions)
            seconds[number] = update.reduce_s + update.step_s + update.gathered_s
    return seconds


class _Limit(NamedTuple):
    """One pass of a stage by all its micro-batches: its position, the seconds before it, of its work, and after it."""

    position: int
    head_s: float
    work_s: float
    tail_s: float


def _least_s(limits: Iterable[_Limit], step_s: FloatArray, last_step_s: float, *, split: bool) -> float:
    """The longest waiting before, work between and waiting after over all pairs of limits of a position.

    After a part of a backward that may wait comes nothing but the optimizer step of its own device.
    """
    head_s, work_s, tail_s = _table(limits, len(step_s))
    early, later = tail_s[:, None] >= tail_s, head_s[:, None] >= head_s
    works_s = np.where(early[:, :, None] & later[:, None], work_s[:, None, None], 0.0)
    done_s = head_s + works_s.cumsum(axis=0)[-1]  # in the order of the limits
    latest_s = np.where(early.swapaxes(0, 1), done_s, 0.0).max(axis=1)
    after_s = np.maximum(tail_s + last_step_s, step_s)
    if split:
        after_s = np.where(tail_s, after_s, step_s)
    return float((latest_s + after_s).max())


def _table(limits: Iterable[_Limit], degree: int) -> FloatArray:
    """Seconds before, of work and after, of the limits of each position, shape (3, limits of a position, positions).

    Positions of fewer limits have some that take no time and come before all.
    """
    rows: list[list[tuple[float, ...]]] = [[] for _ in range(degree)]
    for position, *seconds in limits:
        rows[position].append(tuple(seconds))
    most = max(map(len, rows))
    return np.array([row + [(0.0, 0.0, 0.0)] * (most - len(row)) for row in rows]).transpose(2, 1, 0)
