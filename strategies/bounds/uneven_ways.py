"""Uneven ways: how long patches take at least on stages whose groups of devices do not fare alike."""

from collections.abc import Hashable

import numpy as np

from profiles.checks import sum_in_order
from profiles.costs.layers import FloatArray
from strategies.bounds.patch_ways import PatchPass, PatchRow, Ways, gathers_of, moved, of_patches, sent_on
from strategies.bounds.uneven_teams import Crossings, TeamClocks
from strategies.patching.builder import GroupCollectives
from strategies.patching.layer_runs import RunWork, run_layers
from strategies.patching.patch_pipeline import PatchPipeline
from strategies.plans.actions import PatchAction

_Piece = tuple[RunWork, tuple[GroupCollectives, ...]]
"""A run of layers, and the gathers that end it."""


class UnevenWays:
    """As ``Ways`` on ports that groups share, of teams whose groups do not fare alike.

    The devices of a stage are free at different times, as the profile says that a pass leaves. Where each is free no
    sooner than the profile after some time, it is so again after a pass, later by what that takes the one it puts off
    least beyond the profile.

    Attributes:
        apart_s: seconds between the first and the last of them.
    """

    def __init__(self, pipeline: PatchPipeline) -> None:
        self.pipeline, self._hosts = pipeline, Ways.of(pipeline, shared=False)
        remember, asked = pipeline.scenario.remember, pipeline.grid.positions
        self._crossings = remember(("crossings", asked), lambda: Crossings(pipeline.network))
        self._known: dict[Hashable, FloatArray] = {}
        stages, last = range(pipeline.grid.pipeline), len(pipeline.patches) - 1
        self._usual = last if pipeline.steps_overlap else None
        self._profiles = [self._profile(stage) for stage in stages]
        self.apart_s = -min(float(profile.min()) for profile in self._profiles)

    def all(self, *, displaced: bool) -> list[PatchRow]:
        """The way of the whole image and, in displaced steps, of each patch."""
        return [self._way(None), *(of_patches(self.pipeline, self._way) if displaced else ())]

    def _way(self, patch: int | None) -> PatchRow:
        return [self._pass(stage, patch) for stage in range(self.pipeline.grid.pipeline)]

    def _profile(self, stage: int) -> FloatArray:
        """When each device is free again once a pass is done, before the last of them: so it is after each."""
        pieces = self._pieces(stage, self._usual)
        profile: FloatArray = np.zeros(self.pipeline.grid.team(0, stage).size)
        for _ in range(2):
            free_s = self._free_s(stage, pieces[len(pieces) // 2], profile)
            profile = free_s - free_s.max()
        return profile

    def _pass(self, stage: int, patch: int | None) -> PatchPass:
        profile = self._profiles[stage]
        *others, last = [self._free_s(stage, piece, profile) for piece in self._pieces(stage, patch)]
        before_s = sum_in_order(float((free_s - profile).min()) for free_s in others)
        held_s = before_s + float((last - profile).min())
        host_s = self._hosts.stage_pass(stage, patch).host_s
        if self.pipeline.grid.pipeline == 1:
            return PatchPass(held_s, held_s, host_s)
        size_bytes, routes = sent_on(self.pipeline, stage, patch)
        wire_s = np.array([size_bytes * route.wire_s_per_byte + route.delay_s for route in routes])
        following = self._profiles[(stage + 1) % self.pipeline.grid.pipeline]
        return PatchPass(held_s, before_s + float((last + wire_s - following).min()), host_s)

    def _pieces(self, stage: int, patch: int | None) -> list[_Piece]:
        """What a stage does for a patch: its runs of layers, and with the last its gathers."""
        *others, last = self.pipeline.works(stage, patch)
        gathers = gathers_of(self.pipeline, self.pipeline.grid.team(0, stage), stage, patch)
        return [*((work, ()) for work in others), (last, gathers)]

    def _free_s(self, stage: int, piece: _Piece, begin_s: FloatArray) -> FloatArray:
        """When each device is free again after a piece that it begins no sooner than it is free; found once."""
        (work, gathers), team = piece, self.pipeline.grid.team(0, stage)
        team = team if gathers else moved(team, self.pipeline)
        key = (
            team.devices[0],
            work[1:],
            work.run.batch,
            work.run.tokens,
            work.run.cached,
            gathers,
            begin_s.tobytes(),
        )
        if (found := self._known.get(key)) is None:
            clocks, action = TeamClocks(self._crossings, team.devices, begin_s), PatchAction(stage, 0, 0)
            run_layers(clocks, team, work, action)
            for gather in gathers:
                clocks.exchange(gather, action)
            found = self._known[key] = clocks.free_s
        return found
