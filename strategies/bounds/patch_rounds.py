"""Rounds: how long patches take at least that pass through a line of stages again and again.

A stage works on one patch after another; a patch enters the next stage when it has arrived there, and the first
stage again when what became of it has come back. Ports that messages share, and receives posted late, only delay.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import groupby
from operator import itemgetter
from typing import Final, NamedTuple

from strategies.bounds.stopwatch import Courses, Stopwatch
from strategies.patching.builder import GroupCollectives
from strategies.patching.grid import Team
from strategies.patching.layer_runs import run_layers
from strategies.patching.layout import GridLayout
from strategies.patching.patch_pipeline import PatchPipeline
from strategies.plans.actions import PatchAction
from strategies.plans.network import Route

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
    found = (ways(layout, displaced=whole < steps) for ways in (_alone, _together))
    ahead_s = layout.scenario.calls.ahead_s
    return (1 - ROUNDING) * max(
        least_seconds(way, patches, whole, steps - whole, ahead_s) for way, *patches in filter(None, found)
    )


def _alone(pipeline: PatchPipeline, *, displaced: bool) -> list[PatchRow]:
    """The ways of the whole image and of each patch, for the first device of each team, on ports of its own."""
    return _Ways(pipeline, Courses(pipeline.network, shared=False)).all(displaced=displaced)


def _together(pipeline: PatchPipeline, *, displaced: bool) -> list[PatchRow] | None:
    """The same for every device, where groups of a team share ports, and nothing slows compute down.

    None where the groups do not fare alike: how soon the first device is done is then no bound for the others.
    """
    if not _even_hops(pipeline):
        return None
    courses = pipeline.scenario.remember(
        ("courses", pipeline.grid.positions), lambda: Courses(pipeline.network)
    )
    ways = _Ways(pipeline, courses)
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


def settled_steps(pipeline: PatchPipeline) -> int:
    """Steps of a run after which each repeats the one before, on ports of their own; 0 where none does."""
    steps, warmup = pipeline.num_steps, pipeline.warmup_steps or 0
    way, *patches = _Ways(pipeline, Courses(pipeline.network, shared=False)).all(displaced=True)
    stages, at = _after_whole(way, warmup, pipeline.scenario.calls.ahead_s)
    periods_s = _rounds(patches, steps - warmup, stages, at)
    return next((step for step, period_s in enumerate(periods_s, warmup + 1) if period_s), 0)


def _after_whole(whole: PatchRow, rounds: int, ahead_s: float) -> tuple[list["_Stage"], float]:
    """The stages after rounds of the whole image, and when it is back."""
    stages, at = [_Stage(ahead_s) for _ in whole], 0.0
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
    for stage, (held_s, sent_s, host_s) in zip(stages, row, strict=True):
        start = stage.free_s if stage.free_s > at else at
        hosted = start - stage.ahead_s
        stage.host_s = hosted = (stage.host_s if stage.host_s > hosted else hosted) + host_s
        free, there = start + held_s, start + sent_s
        stage.free_s = hosted if hosted > free else free
        at = hosted if hosted > there else there
    return at


@dataclass
class _Ways:
    """The least seconds of patches, or of the whole image, on each stage and on the wire after it.

    Attributes:
        pipeline: the stages.
        courses: of its exchanges.
        even: whether every group of a team exchanges as its first does.
    """

    pipeline: PatchPipeline
    courses: Courses
    even: bool = True

    def all(self, *, displaced: bool) -> list[PatchRow]:
        """The way of the whole image and, in displaced steps, of each patch: the first, and larger ones, differ."""
        patches, known = self.pipeline.patches, dict[tuple[float, bool], PatchRow]()
        found = [self._way(None)]
        for patch, rows in enumerate(patches if displaced else ()):
            if (rows, patch == 0) not in known:
                known[rows, patch == 0] = self._way(patch)
            found.append(known[rows, patch == 0])
        return found

    def _way(self, patch: int | None) -> PatchRow:
        return [self._pass(stage, patch) for stage in range(self.pipeline.grid.pipeline)]

    def _pass(self, stage: int, patch: int | None) -> PatchPass:
        pipeline = self.pipeline
        team, last = pipeline.grid.team(0, stage), pipeline.grid.pipeline - 1
        watch, action = self._watch(team), PatchAction(stage, patch or 0, 0)
        for work in pipeline.works(stage, patch):
            run_layers(watch, team, work, action)
        if stage == last:
            for size_bytes, groups in _gathers(pipeline, team, patch):
                watch.exchange(GroupCollectives("all_gather", groups, (size_bytes,)), action)
        self.even = self.even and watch.even
        target = 0 if stage == last else stage + 1
        size_bytes = pipeline.latents_bytes(patch) if stage == last else pipeline.hidden_bytes(stage, patch)
        sent_s = watch.free_s
        if target != stage:
            route = _routes(pipeline, stage, target)[0]
            sent_s += size_bytes * route.wire_s_per_byte + route.delay_s
        return PatchPass(watch.free_s, sent_s, watch.host_s)

    def _watch(self, team: Team) -> Stopwatch:
        return Stopwatch(self.courses, team.devices, self.pipeline.scenario.calls)


def _gathers(
    pipeline: PatchPipeline, team: Team, patch: int | None
) -> Iterator[tuple[float, tuple[tuple[int, ...], ...]]]:
    """Bytes and groups of the gathers of a noise prediction in which the devices of a team take part."""
    own = (found for found in pipeline.gathers(patch) if not set(team.devices).isdisjoint(found[0]))
    for size_bytes, gathers in groupby(own, key=itemgetter(1)):
        yield size_bytes, tuple(group for group, _ in gathers)


def _routes(pipeline: PatchPipeline, stage: int, target: int) -> list[Route]:
    """The routes of the devices of a stage to their likes in another."""
    teams = (pipeline.grid.team(0, number).devices for number in (stage, target))
    return [pipeline.network.route(*pair) for pair in zip(*teams, strict=True)]


def _even_hops(pipeline: PatchPipeline) -> bool:
    """Whether messages from each stage to the next, and back, take all its devices as long."""
    degree = pipeline.grid.pipeline
    hops = ((stage, (stage + 1) % degree) for stage in range(degree if degree > 1 else 0))
    return all(
        len({(route.wire_s_per_byte, route.delay_s) for route in _routes(pipeline, *hop)}) == 1
        for hop in hops
    )
