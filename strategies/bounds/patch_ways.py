"""Ways of patches: how long one takes at least on each stage of a pipeline, and on the wire after it."""

from collections import Counter
from collections.abc import Callable, Hashable, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from itertools import groupby
from operator import itemgetter
from typing import NamedTuple, TypeVar

from strategies.bounds.stopwatch import Courses, Stopwatch
from strategies.patching.builder import GroupCollectives
from strategies.patching.grid import Team
from strategies.patching.layer_runs import RunWork, run_layers
from strategies.patching.patch_pipeline import PatchPipeline
from strategies.plans.actions import PatchAction
from strategies.plans.network import Route

T = TypeVar("T")


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


class _Times(NamedTuple):
    """Least seconds of a pass, and of the host; whether every group of the team exchanges as its first does."""

    free_s: float
    host_s: float
    even: bool


@dataclass
class Ways:
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
    def of(cls, pipeline: PatchPipeline, *, shared: bool) -> "Ways":
        """The ways of a pipeline: on ports that groups share, or of the first group of each exchange alone."""
        grid, remember = pipeline.grid, pipeline.scenario.remember
        asked = grid.positions, shared
        courses = remember(("courses", *asked), lambda: Courses(pipeline.network, shared=shared))
        known: dict[Hashable, _Times] = remember(("passes", *asked, grid.team(0, 0).degrees), dict)
        return cls(pipeline, courses, known)

    def all(self, *, displaced: bool) -> list[PatchRow]:
        """The way of the whole image and, in displaced steps, of each patch."""
        return [self.way(None), *(of_patches(self.pipeline, self.way) if displaced else ())]

    def way(self, patch: int | None) -> PatchRow:
        """The way of a patch, or of the whole image."""
        return [self.stage_pass(stage, patch) for stage in range(self.pipeline.grid.pipeline)]

    def patches_s(self, stage: int) -> list[float]:
        """Seconds for which each patch holds a stage."""
        return of_patches(self.pipeline, lambda patch: self.stage_pass(stage, patch).held_s)

    def stage_pass(self, stage: int, patch: int | None) -> PatchPass:
        """A patch, or the whole image, on one stage."""
        works = self.pipeline.works(stage, patch)
        free_s, host_s, even = self._times(works, stage, patch)
        self.even = self.even and even
        if self.pipeline.grid.pipeline == 1:
            return PatchPass(free_s, free_s, host_s)
        size_bytes, (route, *_) = sent_on(self.pipeline, stage, patch)
        sent_s = free_s + size_bytes * route.wire_s_per_byte + route.delay_s
        return PatchPass(free_s, sent_s, host_s, self._late_s(works, stage, patch, free_s))

    def _late_s(self, works: Sequence[RunWork], stage: int, patch: int | None, free_s: float) -> float:
        """Seconds by which a stage is free later as messages to its devices share ports: the last of them comes late.

        Who gets it is not known, so this counts only where all devices have exchanged with whoever is late. Ports that
        its groups share are left out then: some of them may be through before.
        """
        if not self.courses.shared:
            return 0.0
        size_bytes, routes = sent_on(self.pipeline, (stage or self.pipeline.grid.pipeline) - 1, patch)
        shared = Counter(port for route in routes for port in route.ports)
        behind_s = max([size_bytes * hold * (count - 1) for (_, hold), count in shared.items()], default=0.0)
        return max(0.0, self._times(works, stage, patch, behind_s).free_s - free_s) if behind_s else 0.0

    def _times(
        self, works: Sequence[RunWork], stage: int, patch: int | None, behind_s: float = 0.0
    ) -> _Times:
        """The times of a pass, one of whose devices begins behind the others; found once for those alike."""
        pipeline, team = self.pipeline, self.pipeline.grid.team(0, stage)
        gathers = gathers_of(pipeline, team, stage, patch)
        team = team if gathers else moved(team, pipeline)
        run, action = works[0].run, PatchAction(stage, patch or 0, 0)
        kind = run.batch, run.tokens, run.cached, team.devices[0], gathers, behind_s
        alike = [(what, list(own)) for what, own in groupby(works, key=lambda work: work[1:])]
        key = kind, tuple([(what, len(own)) for what, own in alike])
        if (known := self.known.get(key)) is None:
            watch = Stopwatch(self.courses, team.devices, pipeline.scenario.calls, behind_s)
            for _, (work, *others) in alike:
                watch.repeat(1 + len(others), partial(run_layers, watch, team, work, action))
            for gather in gathers:
                watch.exchange(gather, action)
            known = self.known[key] = _Times(watch.free_s, watch.host_s, watch.even)
        return known


def moved(team: Team, pipeline: PatchPipeline) -> Team:
    """The team that lies in the first nodes of the cluster as a team lies in its own; all takes it as long."""
    first, each = team.devices[0], pipeline.scenario.cluster.devices_per_node
    return replace(team, devices=tuple(device - first + first % each for device in team.devices))


def gathers_of(
    pipeline: PatchPipeline, team: Team, stage: int, patch: int | None
) -> tuple[GroupCollectives, ...]:
    """The gathers of a noise prediction in which the devices of a stage's team take part: of the last alone."""
    if stage < pipeline.grid.pipeline - 1:
        return ()
    own = (found for found in pipeline.gathers(patch) if not set(team.devices).isdisjoint(found[0]))
    return tuple(
        GroupCollectives("all_gather", tuple(group for group, *_ in gathers), (size_bytes,))
        for size_bytes, gathers in groupby(own, key=itemgetter(1))
    )


def of_patches(pipeline: PatchPipeline, ask: Callable[[int], T]) -> list[T]:
    """What is asked of each patch: the first, and larger ones, differ."""
    known: dict[tuple[float, bool], T] = {}
    for patch, rows in enumerate(pipeline.patches):
        if (rows, patch == 0) not in known:
            known[rows, patch == 0] = ask(patch)
    return [known[rows, patch == 0] for patch, rows in enumerate(pipeline.patches)]


def sent_on(pipeline: PatchPipeline, stage: int, patch: int | None) -> tuple[float, list[Route]]:
    """Bytes that each device of a stage sends on, or back to the first, and their routes."""
    if stage == pipeline.grid.pipeline - 1:
        return pipeline.latents_bytes(patch), _routes(pipeline, stage, 0)
    return pipeline.hidden_bytes(stage, patch), _routes(pipeline, stage, stage + 1)


def _routes(pipeline: PatchPipeline, stage: int, target: int) -> list[Route]:
    """The routes of the devices of a stage to their likes in another."""
    teams, network = (pipeline.grid.team(0, number).devices for number in (stage, target)), pipeline.network
    return [network.route(*pair) for pair in zip(*teams, strict=True)]


def even_hops(pipeline: PatchPipeline) -> bool:
    """Whether messages from each stage to the next, and back, take all its devices as long."""
    degree = pipeline.grid.pipeline
    hops = ((stage, (stage + 1) % degree) for stage in range(degree if degree > 1 else 0))
    return all(
        len({(route.wire_s_per_byte, route.delay_s) for route in _routes(pipeline, *hop)}) == 1
        for hop in hops
    )
