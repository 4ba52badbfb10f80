"""Rounds: how long patches take at least that pass through a line of stages again and again.

A stage works on one patch after another; a patch enters the next stage when it has arrived there, and the first
stage again when what became of it has come back. Ports that messages share, and receives posted late, only delay.
"""

from collections.abc import Sequence
from typing import Final, NamedTuple

from profiles.checks import sum_in_order
from strategies.bounds.stopwatch import Stopwatch
from strategies.patching.layer_runs import run_layers
from strategies.patching.layout import GridLayout
from strategies.patching.patch_pipeline import PatchPipeline
from strategies.plans.actions import PatchAction

ROUNDING: Final = 1e-9
"""Share that a bound stays below what it adds up to: sums in another order differ in their last digits."""

LONG_ROUNDS: Final = 100
"""More rounds than this need not be followed to the end, once they repeat one another."""
SAME: Final = 1e-12
"""Share of the time by which the ends of rounds that repeat one another may differ."""


class PatchPass(NamedTuple):
    """One patch on one stage: seconds until the stage is free again, and until the next stage has its output.

    ``host_s`` are those of the stage's host, which may run ahead.
    """

    held_s: float
    sent_s: float
    host_s: float = 0.0


PatchRow = Sequence[PatchPass]
"""The way of one patch, or of the whole image, through all stages, and back to the first."""


def least_run_seconds(layout: GridLayout) -> float:
    """Seconds below which no run of a layout can take: rounds of a pipeline, else the compute of the longest stage."""
    steps = layout.num_steps
    if not isinstance(layout, PatchPipeline):
        return steps * max(layout.stage_s(stage) for stage in range(layout.grid.pipeline))
    whole = steps if layout.warmup_steps is None else layout.warmup_steps
    patches = _ways(layout) if whole < steps else []
    way, ahead_s = _way(layout, None), layout.scenario.calls.ahead_s
    return (1 - ROUNDING) * least_seconds(way, patches, whole, steps - whole, ahead_s)


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
    stages, at = [_Stage(ahead_s) for _ in whole], 0.0
    for _ in range(whole_rounds):
        at = _go_round(whole, stages, at)
    there = [at] * len(patches)
    left, period_s, state = rounds, 0.0, _state(stages, there)
    while left:
        for number, row in enumerate(patches):
            there[number] = _go_round(row, stages, there[number])
        left, before, state = left - 1, state, _state(stages, there)
        if rounds > LONG_ROUNDS and (found := _period_s(before, state)):
            period_s = found
            break
    return max(stage.free_s for stage in stages) + left * period_s


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
    """Send a patch round; return when it is back, and note when each stage is free: no sooner than its host."""
    for stage, (held_s, sent_s, host_s) in zip(stages, row, strict=True):
        start = max(stage.free_s, at)
        stage.host_s = max(stage.host_s, start - stage.ahead_s) + host_s
        stage.free_s = max(start + held_s, stage.host_s)
        at = max(start + sent_s, stage.host_s)
    return at


def _ways(pipeline: PatchPipeline) -> list[PatchRow]:
    """The way of each patch; only the first, and those with more rows than others, differ."""
    known: dict[tuple[float, bool], PatchRow] = {}
    for patch, rows in enumerate(pipeline.patches):
        if (rows, patch == 0) not in known:
            known[rows, patch == 0] = _way(pipeline, patch)
    return [known[rows, patch == 0] for patch, rows in enumerate(pipeline.patches)]


def _way(pipeline: PatchPipeline, patch: int | None) -> PatchRow:
    """The least seconds of a patch, or of the whole image, on each stage and on the wire after it."""
    return [_pass(pipeline, stage, patch) for stage in range(pipeline.grid.pipeline)]


def _pass(pipeline: PatchPipeline, stage: int, patch: int | None) -> PatchPass:
    team, last = pipeline.grid.team(0, stage), pipeline.grid.pipeline - 1
    watch = Stopwatch(pipeline.network, team.devices[0], pipeline.scenario.calls)
    for work in pipeline.works(stage, patch):
        run_layers(watch, team, work, PatchAction(stage, patch or 0, 0))
    if stage < last:
        wire_s, delay_s = _travel(pipeline, (stage, stage + 1), pipeline.hidden_bytes(stage, patch))
        return PatchPass(watch.free_s, watch.free_s + wire_s + delay_s, watch.host_s)
    for group, size in pipeline.gathers(patch):
        watch.collective("all_gather", group, size)
    back = _travel(pipeline, (last, 0), pipeline.latents_bytes(patch)) if last else ()
    return PatchPass(watch.free_s, watch.free_s + sum_in_order(back), watch.host_s)


def _travel(pipeline: PatchPipeline, stages: tuple[int, int], size_bytes: float) -> tuple[float, float]:
    """The seconds of a message on the wire, and its delay, between the first devices of two stages."""
    source, target = (pipeline.grid.team(0, stage).devices[0] for stage in stages)
    route = pipeline.network.route(source, target)
    return size_bytes * route.wire_s_per_byte, route.delay_s
