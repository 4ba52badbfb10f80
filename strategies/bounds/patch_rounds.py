"""Rounds: how long patches take at least that pass through a line of stages again and again.

A stage works on one patch after another; a patch enters the next stage when it has arrived there, and the first
stage again when what became of it has come back. Ports that messages share, and receives posted late, only delay.
"""

from collections.abc import Iterator, Sequence
from math import inf
from typing import Final

from profiles.checks import sum_in_order
from strategies.bounds.patch_steps import least_patch_steps_s
from strategies.bounds.patch_ways import PatchRow, Ways, even_hops
from strategies.bounds.uneven_ways import UnevenWays
from strategies.patching.layout import GridLayout
from strategies.patching.patch_parallel import Patches
from strategies.patching.patch_pipeline import PatchPipeline

BELOW_SUM: Final = 1e-9
"""Share that a bound stays below what it adds up to: sums in another order differ in their last digits."""

LONG_ROUNDS: Final = 100
"""More rounds than this need not be followed to the end, once they repeat one another."""
SAME: Final = 1e-12
"""Share of the time by which the ends of rounds that repeat one another may differ."""


def least_run_seconds(layout: GridLayout) -> float:
    """Seconds below which no run of a layout can take: rounds of a pipeline, steps of patches, or the longest stage."""
    steps = layout.num_steps
    if isinstance(layout, Patches):
        return (1 - BELOW_SUM) * least_patch_steps_s(layout)
    if not isinstance(layout, PatchPipeline):
        return steps * max(layout.stage_s(stage) for stage in range(layout.grid.pipeline))
    whole = steps if layout.warmup_steps is None else layout.warmup_steps
    ahead_s, displaced = layout.scenario.calls.ahead_s, whole < steps
    together, found = _together(layout, displaced=displaced), list[tuple[list[PatchRow], float]]()
    if together is not None:
        found.append((together, ahead_s))
    else:
        uneven = UnevenWays(layout)
        found.append((uneven.all(displaced=displaced), ahead_s + uneven.apart_s))
    if together is None or layout.grid.ring > 1:
        # else all that is exchanged is waited for, and slows down nothing
        found.append((_alone(layout, displaced=displaced), ahead_s))
    return (1 - BELOW_SUM) * max(
        least_seconds(way, patches, whole, steps - whole, lead_s) for (way, *patches), lead_s in found
    )


def roughly_least_seconds(layout: GridLayout) -> float:
    """As ``least_run_seconds``, and no more: of the stage with most to do alone, once patches pass."""
    if not isinstance(layout, PatchPipeline):
        return least_run_seconds(layout)
    ways, steps = Ways.of(layout, shared=False), layout.num_steps
    whole = steps if layout.warmup_steps is None else layout.warmup_steps
    way = ways.way(None)
    seconds = whole * sum_in_order(each.sent_s for each in way)
    if whole == steps:
        return (1 - BELOW_SUM) * (seconds - way[-1].sent_s + way[-1].held_s)
    longest = max(range(len(way)), key=lambda stage: way[stage].held_s)
    seconds += (steps - whole) * sum_in_order(ways.patches_s(longest))
    return (1 - BELOW_SUM) * seconds


def _alone(pipeline: PatchPipeline, *, displaced: bool) -> list[PatchRow]:
    """The ways of the whole image and of each patch, for the first device of each team, on ports of its own."""
    return Ways.of(pipeline, shared=False).all(displaced=displaced)


def _together(pipeline: PatchPipeline, *, displaced: bool) -> list[PatchRow] | None:
    """The same for every device, where groups of a team share ports, and nothing slows compute down.

    None where the groups do not fare alike: how soon the first device is done is then no bound for the others.
    """
    if not even_hops(pipeline):
        return None
    ways = Ways.of(pipeline, shared=True)
    found = ways.all(displaced=displaced)
    return found if ways.even else None


def least_seconds(
    whole: PatchRow, patches: Sequence[PatchRow], whole_rounds: int, rounds: int, ahead_s: float = 0.0
) -> float:
    """Seconds below which no run can take.

    Args:
        whole: the way of the whole image.
        patches: the way of each patch.
        whole_rounds: rounds of the whole image.
        rounds: rounds of the patches after them.
        ahead_s: seconds of dispatching that a stage's host may be ahead of it.
    """
    stages, at = _after_whole(whole, whole_rounds, ahead_s)
    left = rounds
    for period_s in _rounds(patches, rounds, stages, at):
        left -= 1
        if rounds > LONG_ROUNDS and period_s:
            return max(stage.free_s for stage in stages) + left * period_s
    return max(stage.free_s for stage in stages)


def _after_whole(whole: PatchRow, rounds: int, ahead_s: float) -> tuple[list["_Stage"], float]:
    """The stages after rounds of the whole image, and when it is back; nobody sends the first what it begins with."""
    stages, at = [_Stage(ahead_s) for _ in whole], -inf
    for _ in range(rounds):
        at = _go_round(whole, stages, at)
    return stages, at


def _rounds(
    patches: Sequence[PatchRow], rounds: int, stages: Sequence["_Stage"], at: float
) -> Iterator[float]:
    """For each round of the patches the seconds that every further one takes; 0 while they do not repeat."""
    there = [at] * len(patches)
    state = _state(stages, there)
    for _ in range(rounds):
        for number, row in enumerate(patches):
            there[number] = _go_round(row, stages, there[number])
        before, state = state, _state(stages, there)
        yield _period_s(before, state)


def _state(stages: Sequence["_Stage"], there: Sequence[float]) -> tuple[list[float], list[float]]:
    """When patches are back and stages free, and when their hosts have dispatched all."""
    return [*there, *(stage.free_s for stage in stages)], [stage.host_s for stage in stages]


def _period_s(before: tuple[list[float], list[float]], now: tuple[list[float], list[float]]) -> float:
    """Seconds that every further round takes, once one has put off all by as much and no host falls behind; else 0."""
    lags, hosts = ([b - a for a, b in zip(*pair, strict=True)] for pair in zip(before, now, strict=True))
    least, most = min(lags), max(lags)
    late = SAME * max(now[0])
    return least if most - least <= late and max(hosts) <= least + late else 0.0


class _Stage:
    """A stage that takes one patch after another.

    Attributes:
        ahead_s: seconds of dispatching that its host may be ahead.
        free_s: when it can take the next.
        host_s: when its host has dispatched the last.
    """

    __slots__ = ("ahead_s", "free_s", "host_s")

    def __init__(self, ahead_s: float) -> None:
        self.ahead_s, self.free_s, self.host_s = ahead_s, 0.0, 0.0


def _go_round(row: PatchRow, stages: Sequence[_Stage], at: float) -> float:
    """Seconds until a patch that sets out at ``at`` is back; stages note when they are free, after their hosts.

    What is compared here is compared for each patch and stage of all rounds, so that no function is called for it.
    """
    for stage, (held_s, sent_s, host_s, late_s) in zip(stages, row, strict=True):
        start, late = stage.free_s if stage.free_s > at else at, at + late_s
        hosted = start - stage.ahead_s
        stage.host_s = hosted = (stage.host_s if stage.host_s > hosted else hosted) + host_s
        start = late if late > start else start
        free, there = start + held_s, start + sent_s
        stage.free_s = hosted if hosted > free else free
        at = hosted if hosted > there else there
    return at
