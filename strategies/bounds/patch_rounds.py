"""Rounds: how long patches take at least that pass through a line of stages again and again.

A stage works on one patch after another; a patch enters the next stage when it has arrived there, and the first
stage again when what became of it has come back. Ports that messages share, and receives posted late, only delay.
"""

from collections.abc import Sequence
from typing import Final, NamedTuple

from strategies.bounds.stopwatch import Stopwatch
from strategies.patching.layer_runs import run_layers
from strategies.patching.layout import GridLayout
from strategies.patching.patch_pipeline import PatchPipeline
from strategies.plans.actions import PatchAction

ROUNDING: Final = 1e-9
"""Share that a bound stays below what it adds up to: sums in another order differ in their last digits."""


class Pass(NamedTuple):
    """One patch on one stage: seconds until the stage is free again, and until the next stage has its output."""

    held_s: float
    sent_s: float


Row = Sequence[Pass]
"""The way of one patch, or of the whole image, through all stages, and back to the first."""


def least_run_seconds(layout: GridLayout) -> float:
    """Seconds below which no run of a layout can take: rounds of a pipeline, else the compute of the longest stage."""
    steps = layout.num_steps
    if not isinstance(layout, PatchPipeline):
        return steps * max(layout.stage_s(stage) for stage in range(layout.grid.pipeline))
    whole = steps if layout.warmup_steps is None else layout.warmup_steps
    patches = _ways(layout) if whole < steps else []
    return (1 - ROUNDING) * least_seconds(_way(layout, None), patches, whole, steps - whole)


def least_seconds(whole: Row, patches: Sequence[Row], whole_rounds: int, rounds: int) -> float:
    """Seconds below which no run can take.

    Args:
        whole: the way of the whole image.
        patches: the way of each patch.
        whole_rounds: rounds of the whole image.
        rounds: rounds of the patches after them.
    """
    free, at = [0.0] * len(whole), 0.0
    for _ in range(whole_rounds):
        at = _go_round(whole, free, at)
    there = [at] * len(patches)
    for _ in range(rounds):
        for number, row in enumerate(patches):
            there[number] = _go_round(row, free, there[number])
    return max(free)


def _go_round(row: Row, free: list[float], at: float) -> float:
    """Send a patch round; return when it is back, and note when each stage is free."""
    for stage, (held_s, sent_s) in enumerate(row):
        start = free[stage] if free[stage] > at else at
        free[stage] = start + held_s
        at = start + sent_s
    return at


def _ways(pipeline: PatchPipeline) -> list[Row]:
    """The way of each patch; only the first, and those with more rows than others, differ."""
    known: dict[tuple[float, bool], Row] = {}
    for patch, rows in enumerate(pipeline.patches):
        if (rows, patch == 0) not in known:
            known[rows, patch == 0] = _way(pipeline, patch)
    return [known[rows, patch == 0] for patch, rows in enumerate(pipeline.patches)]


def _way(pipeline: PatchPipeline, patch: int | None) -> Row:
    """The least seconds of a patch, or of the whole image, on each stage and on the wire after it."""
    return [_pass(pipeline, stage, patch) for stage in range(pipeline.grid.pipeline)]


def _pass(pipeline: PatchPipeline, stage: int, patch: int | None) -> Pass:
    team, last = pipeline.grid.team(0, stage), pipeline.grid.pipeline - 1
    watch = Stopwatch(pipeline.network, team.devices[0])
    for run in pipeline.runs(stage, patch):
        run_layers(watch, pipeline.scenario, team, run, PatchAction(stage, patch or 0, 0))
    if stage < last:
        wire_s, delay_s = _travel(pipeline, (stage, stage + 1), pipeline.hidden_bytes(stage, patch))
        return Pass(watch.free_s, watch.free_s + wire_s + delay_s)
    for group, size in pipeline.gathers(patch):
        watch.collective("all_gather", group, size)
    back = _travel(pipeline, (last, 0), pipeline.latents_bytes(patch)) if last else ()
    return Pass(watch.free_s, watch.free_s + sum(back))


def _travel(pipeline: PatchPipeline, stages: tuple[int, int], size_bytes: float) -> tuple[float, float]:
    """The seconds of a message on the wire, and its delay, between the first devices of two stages."""
    source, target = (pipeline.grid.team(0, stage).devices[0] for stage in stages)
    route = pipeline.network.route(source, target)
    return size_bytes * route.wire_s_per_byte, route.delay_s
