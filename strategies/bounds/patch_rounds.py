"""Rounds: how long patches take at least that pass through a line of stages again and again.

A stage works on one patch after another; a patch enters the next stage when it has arrived there, and the first
stage again when what became of it has come back. Ports that messages share, and receives posted late, only delay.
"""

from collections import Counter
from collections.abc import Callable, Hashable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from itertools import groupby
from math import inf
from operator import itemgetter
from typing import Final, NamedTuple, TypeVar

from profiles.checks import sum_in_order
from strategies.bounds.patch_steps import least_patch_steps_s
from strategies.bounds.stopwatch import Courses, Stopwatch
from strategies.patching.builder import GroupCollectives
from strategies.patching.grid import Team
from strategies.patching.layer_runs import RunWork, run_layers
from strategies.patching.layout import GridLayout
from strategies.patching.patch_parallel import Patches
from strategies.patching.patch_pipeline import PatchPipeline
from strategies.plans.actions import PatchAction
from strategies.plans.network import Route

T = TypeVar("T")

BELOW_SUM: Final = 1e-9
"""Share that a bound stays below what it adds up to: sums in another order differ in their last digits."""

LONG_ROUNDS: Final = 100
"""More rounds than this need not be followed to the end, once they repeat one another."""
SAME: Final = 1e-12
"""Share of the time by which the ends of rounds that repeat one another may differ."""


class PatchPass(NamedTuple):
    """One patch on one stage: seconds until the stage is free again, and until the next stage has its output.

    ``host_s`` are those of the stage's host, which may run ahead. ``late_s`` are those by which a stage that waits for
    a patch is free later than if all its devices had it as soon as the first.
    """

    held_s: float
    sent_s: float
    host_s: float = 0.0
    late_s: float = 0.0


PatchRow = Sequence[PatchPass]
"""The way of one patch, or of the whole image, through all stages, and back to the first."""


def least_run_seconds(layout: GridLayout) -> float:
    """Seconds below which no run of a layout can take: rounds of a pipeline, steps of patches, or the longest stage."""
    steps = layout.num_steps
    if isinstance(layout, Patches):
        return (1 - BELOW_SUM) * least_patch_steps_s(layout)
    if not isinstance(layout, PatchPipeline):
        return steps * max(layout.stage_s(stage) for stage in range(layout.grid.pipeline))
    whole = steps if layout.warmup_steps is None else layout.warmup_steps
    ahead_s, found = layout.scenario.calls.ahead_s, [_together(layout, displaced=whole < steps)]
    if (
        found[0] is None or layout.grid.ring > 1
    ):  # else all that is exchanged is waited for, and slows down nothing
        found.append(_alone(layout, displaced=whole < steps))
    return (1 - BELOW_SUM) * max(
        least_seconds(way, patches, whole, steps - whole, ahead_s) for way, *patches in filter(None, found)
    )


def roughly_least_seconds(layout: GridLayout) -> float:
    """As ``least_run_seconds``, and no more: of the stage with most to do alone, once patches pass."""
    if not isinstance(layout, PatchPipeline):
        return least_run_seconds(layout)
    ways, steps = _Ways.of(layout, shared=False), layout.num_steps
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
    return _Ways.of(pipeline, shared=False).all(displaced=displaced)


def _together(pipeline: PatchPipeline, *, displaced: bool) -> list[PatchRow] | None:
    """The same for every device, where groups of a team share ports, and nothing slows compute down.

    None where the groups do not fare alike: how soon the first device is done is then no bound for the others.
    """
    if not _even_hops(pipeline):
        return None
    ways = _Ways.of(pipeline, shared=True)
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
    way, *patches = _alone(pipeline, displaced=True)
    stages, at = _after_whole(way, warmup, pipeline.scenario.calls.ahead_s)
    periods_s = _rounds(patches, steps - warmup, stages, at)
    return next((step for step, period_s in enumerate(periods_s, warmup + 1) if period_s), 0)


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


class _Times(NamedTuple):
    """Least seconds of a pass, and of the host; whether every group of the team exchanges as its first does."""

    free_s: float
    host_s: float
    even: bool


@dataclass
class _Ways:
    """The least seconds of patches, or of the whole image, on each stage and on the wire after it.

    Attributes:
        pipeline: the stages.
        courses: of its exchanges.
        known: passes, by what tells those of teams of the same degrees apart.
        even: whether every group of a team exchanges as its first does.
    """

    pipeline: PatchPipeline
    courses: Courses
    known: dict[Hashable, _Times] = field(default_factory=dict)
    even: bool = True

    @classmethod
    def of(cls, pipeline: PatchPipeline, *, shared: bool) -> "_Ways":
        """The ways of a pipeline: on ports that groups share, or of the first group of each exchange alone."""
        grid, remember = pipeline.grid, pipeline.scenario.remember
        asked = grid.positions, shared
        courses = remember(("courses", *asked), lambda: Courses(pipeline.network, shared=shared))
        known: dict[Hashable, _Times] = remember(("passes", *asked, grid.team(0, 0).degrees), dict)
        return cls(pipeline, courses, known)

    def all(self, *, displaced: bool) -> list[PatchRow]:
        """The way of the whole image and, in displaced steps, of each patch: the first, and larger ones, differ."""
        return [self.way(None), *(self._of_patches(self.way) if displaced else ())]

    def way(self, patch: int | None) -> PatchRow:
        """The way of a patch, or of the whole image."""
        return [self._pass(stage, patch) for stage in range(self.pipeline.grid.pipeline)]

    def patches_s(self, stage: int) -> list[float]:
        """Seconds for which each patch holds a stage."""
        return self._of_patches(lambda patch: self._pass(stage, patch).held_s)

    def _of_patches(self, ask: Callable[[int], T]) -> list[T]:
        """What is asked of each patch: the first, and larger ones, differ."""
        known: dict[tuple[float, bool], T] = {}
        for patch, rows in enumerate(self.pipeline.patches):
            if (rows, patch == 0) not in known:
                known[rows, patch == 0] = ask(patch)
        return [known[rows, patch == 0] for patch, rows in enumerate(self.pipeline.patches)]

    def _pass(self, stage: int, patch: int | None) -> PatchPass:
        works = self.pipeline.works(stage, patch)
        free_s, host_s, even = self._times(works, stage, patch)
        self.even = self.even and even
        if self.pipeline.grid.pipeline == 1:
            return PatchPass(free_s, free_s, host_s)
        size_bytes, (route, *_) = self._sent(stage, patch)
        sent_s = free_s + size_bytes * route.wire_s_per_byte + route.delay_s
        return PatchPass(free_s, sent_s, host_s, self._late_s(works, stage, patch, free_s))

    def _late_s(self, works: Sequence[RunWork], stage: int, patch: int | None, free_s: float) -> float:
        """Seconds by which a stage is free later as messages to its devices share ports: the last of them comes late.

        Who gets it is not known, so this counts only where all devices have exchanged with whoever is late. Ports that
        its groups share are left out then: some of them may be through before.
        """
        if not self.courses.shared:
            return 0.0
        size_bytes, routes = self._sent((stage or self.pipeline.grid.pipeline) - 1, patch)
        shared = Counter(port for route in routes for port in route.ports)
        behind_s = max([size_bytes * hold * (count - 1) for (_, hold), count in shared.items()], default=0.0)
        return max(0.0, self._times(works, stage, patch, behind_s).free_s - free_s) if behind_s else 0.0

    def _sent(self, stage: int, patch: int | None) -> tuple[float, list[Route]]:
        """Bytes that each device of a stage sends on, or back to the first, and their routes."""
        pipeline, last = self.pipeline, self.pipeline.grid.pipeline - 1
        if stage == last:
            return pipeline.latents_bytes(patch), _routes(pipeline, stage, 0)
        return pipeline.hidden_bytes(stage, patch), _routes(pipeline, stage, stage + 1)

    def _times(
        self, works: Sequence[RunWork], stage: int, patch: int | None, behind_s: float = 0.0
    ) -> _Times:
        """The times of a pass, one of whose devices begins behind the others; found once for those alike."""
        pipeline, team = self.pipeline, self.pipeline.grid.team(0, stage)
        last = stage == pipeline.grid.pipeline - 1
        gathers = tuple(_gathers(pipeline, team, patch)) if last else ()
        team = team if gathers else _moved(team, pipeline)
        run, action = works[0].run, PatchAction(stage, patch or 0, 0)
        kind = run.batch, run.tokens, run.cached, team.devices[0], gathers, behind_s
        key = kind, tuple([work[1:] for work in works])
        if (known := self.known.get(key)) is None:
            watch = Stopwatch(self.courses, team.devices, pipeline.scenario.calls, behind_s)
            for work in works:
                run_layers(watch, team, work, action)
            for size_bytes, groups in gathers:
                watch.exchange(GroupCollectives("all_gather", groups, (size_bytes,)), action)
            known = self.known[key] = _Times(watch.free_s, watch.host_s, watch.even)
        return known


def _moved(team: Team, pipeline: PatchPipeline) -> Team:
    """The team that lies in the first nodes of the cluster as a team lies in its own; all takes it as long."""
    first, each = team.devices[0], pipeline.scenario.cluster.devices_per_node
    return replace(team, devices=tuple(device - first + first % each for device in team.devices))


def _gathers(
    pipeline: PatchPipeline, team: Team, patch: int | None
) -> Iterator[tuple[float, tuple[tuple[int, ...], ...]]]:
    """Bytes and groups of the gathers of a noise prediction in which the devices of a team take part."""
    own = (found for found in pipeline.gathers(patch) if not set(team.devices).isdisjoint(found[0]))
    for size_bytes, gathers in groupby(own, key=itemgetter(1)):
        yield size_bytes, tuple(group for group, *_ in gathers)


def _routes(pipeline: PatchPipeline, stage: int, target: int) -> list[Route]:
    """The routes of the devices of a stage to their likes in another."""
    teams, network = (pipeline.grid.team(0, number).devices for number in (stage, target)), pipeline.network
    return [network.route(*pair) for pair in zip(*teams, strict=True)]


def _even_hops(pipeline: PatchPipeline) -> bool:
    """Whether messages from each stage to the next, and back, take all its devices as long."""
    degree = pipeline.grid.pipeline
    hops = ((stage, (stage + 1) % degree) for stage in range(degree if degree > 1 else 0))
    return all(
        len({(route.wire_s_per_byte, route.delay_s) for route in _routes(pipeline, *hop)}) == 1
        for hop in hops
    )
