"""Bounds of samplers: seconds that no run of a layout can undercut.

The evaluator follows the first device of each stage through its passes, on links that nobody shares.
"""

from collections import Counter
from collections.abc import Iterable, Sequence
from functools import cache
from itertools import accumulate
from math import inf
from typing import Final, NamedTuple

from profiles.checks import BELOW_SUM
from strategies.patching.builder import SamplingBuilder
from strategies.patching.layer_runs import LayerRunner, RunWork
from strategies.patching.layout import GridLayout
from strategies.patching.patch_parallel import Kind, Patches
from strategies.patching.patch_pipeline import PatchPipeline
from strategies.plans.actions import Action, PatchAction
from strategies.plans.placement import Subgroup
from strategies.plans.plan import Collective
from strategies.plans.wiring import Slots
from strategies.plans.worklist import Step, walk

PASS: Final = PatchAction(0, 0, 0)


class Pass(NamedTuple):
    """One pass of a patch, or of the whole image, on one stage.

    Attributes:
        alone_s: seconds on links that nobody shares.
    """

    alone_s: float
    host_s: float

    @classmethod
    def total(cls, passes: Iterable[tuple["Pass", int]]) -> "Pass":
        """Passes one after the other, each so many times."""
        rows = [(times * one.alone_s, times * one.host_s) for one, times in passes]
        return cls(*map(sum, zip(*rows, strict=True)))


class _FirstDevice(SamplingBuilder):
    """Writes the steps of the first device of a team, and of the exchanges in which it takes part."""

    def __init__(self, layout: GridLayout, device: int) -> None:
        super().__init__(layout.placement, layout.scenario.calls)
        self.network, self.device, self.host_s = layout.network, device, 0.0
        self._steps: list[list[Step]] = [[], []]
        self._last: Slots = ()
        self._waits: Slots = ()

    def _step(self, row: int, waits: Slots, duration_s: float) -> Slots:
        slot = len(self._steps[0]) + len(self._steps[1])
        self._steps[row].append((waits, duration_s, ((slot, 0.0),)))
        return (slot,)

    def compute(self, device: int, action: Action, duration_s: float, host_s: float = 0.0) -> None:
        """Append an op of the first device."""
        if device == self.device:
            self._last, self._waits = self._step(0, self._waits, duration_s), ()
            self.host_s += host_s

    def expect(self, device: int, tensor: int) -> None:
        """Let the next op of the first device wait for a result."""
        if device == self.device:
            self._waits += (tensor,)

    def collective(
        self,
        operation: str,
        devices: Sequence[int],
        size_bytes: float,
        *,
        calls: int = 1,
        wait: bool = True,
        dispatched_as: str = "",
        subgroup: Subgroup | None = None,
        **_: object,
    ) -> int:
        """Start a collective if the first device takes part."""
        if self.device not in devices:
            return -1
        members, group = tuple(devices), tuple(devices) if subgroup else None
        route = self.network.collective(
            Collective(operation, members, size_bytes, group, (), (), calls, subgroup)
        )
        if self._last and (len(devices) > 1 or subgroup):
            self.host_s += self.calls.collective_s(dispatched_as or operation, calls)
        (result,) = self._step(1, self._last, route.fixed_s + route.wire_s)
        if wait:
            self.expect(self.device, result)
        return result

    def measure(self) -> Pass:
        """The pass: seconds until the device is free again, and those of its host."""
        self.compute(self.device, PASS, 0.0)
        rows = self._steps
        starts = walk(rows, [inf] * sum(map(len, rows)), (0.0, 0.0))
        return Pass(starts[0][-1], self.host_s)


def least_run_seconds(layout: GridLayout) -> float:
    """Seconds below which no run of a layout can take."""
    if isinstance(layout, Patches):
        warmup, steps = layout.warmup_steps or 0, layout.num_steps
        parts = (Kind.SYNCHRONOUS, warmup), (layout.kind, steps - warmup)
        each_s = sum(times * _patch_pass_s(layout, kind) for kind, times in parts if times)
        return (1 - BELOW_SUM) * layout.passes * each_s  # of the first device, on ports of its own
    if isinstance(layout, PatchPipeline):
        return (1 - BELOW_SUM) * _Rounds(layout).least_s()
    return layout.num_steps * max(layout.stage_s(stage) for stage in range(layout.grid.pipeline))


def _patch_pass_s(patches: Patches, kind: Kind) -> float:
    """Seconds of a pass of a step of a kind."""
    devices, builder = patches.grid.team(0, 0), _FirstDevice(patches, 0)
    for seconds, sent in patches.pieces(kind):
        if sent and kind is Kind.SYNCHRONOUS:
            builder.collective("all_gather", devices, sent)
        builder.compute(0, PASS, seconds)
        if sent and kind is not Kind.SYNCHRONOUS:
            builder.collective("all_gather", devices, sent, wait=False)
    builder.collective("all_gather", range(patches.grid.positions), patches.output_bytes)
    return builder.measure().alone_s


class _Rounds:
    """The rounds of a pipeline's whole image and of its patches."""

    def __init__(self, pipeline: PatchPipeline) -> None:
        self.pipeline, self.stages = pipeline, range(pipeline.grid.pipeline)
        self.stage_pass, self._hop_s = cache(self._stage_pass), cache(self._least_hop_s)
        # of patches of as many rows one stands for all, but the first, with which the text goes
        self.times = Counter(
            patch and pipeline.patches.index(rows, 1) for patch, rows in enumerate(pipeline.patches)
        )

    def least_s(self) -> float:
        """Seconds below which no run can take."""
        pipeline, steps = self.pipeline, self.pipeline.num_steps
        if not pipeline.steps_overlap:
            return steps * pipeline.passes * self._pass_s()
        whole = pipeline.warmup_steps or 0
        rounds, around_s = steps - whole, self._ways_s(None)[-1]
        if not rounds:
            return whole * around_s - self._hop_s(self.stages[-1], None)
        ways_s = {patch: self._ways_s(patch) for patch in self.times}
        back_s = max(self._hop_s(self.stages[-1], patch) for patch in self.times)
        longest_s = rounds * max(way_s[-1] for way_s in ways_s.values()) - back_s
        for stage in self.stages:
            busy = Pass.total(
                (self.stage_pass(stage, patch), times * rounds) for patch, times in self.times.items()
            )
            busy_s = max(busy.alone_s, busy.host_s - pipeline.scenario.calls.ahead_s)
            longest_s = max(longest_s, ways_s[0][stage] + busy_s)
        return whole * around_s + longest_s

    def _pass_s(self) -> float:
        """Seconds of a pass of the whole image after which all devices wait for one another."""
        hops_s = (self._hop_s(stage, None) for stage in self.stages[:-1])
        passes = [self.stage_pass(stage, None) for stage in self.stages]
        seconds = sum([*(one.alone_s for one in passes), *hops_s])
        return max(seconds, *(one.host_s for one in passes))

    def _ways_s(self, patch: int | None) -> list[float]:
        """Seconds from the first stage to each stage, and back to the first."""
        each_s = (self.stage_pass(stage, patch).alone_s + self._hop_s(stage, patch) for stage in self.stages)
        return [*accumulate(each_s, initial=0.0)]

    def _least_hop_s(self, stage: int, patch: int | None) -> float:
        """Least seconds from the end of a stage's pass to the start of it in the next, or in the first."""
        pipeline, last, following = self.pipeline, self.stages[-1], (stage + 1) % len(self.stages)
        if not last:
            return 0.0
        size = pipeline.hidden_bytes(stage, patch) if stage < last else pipeline.latents_bytes(patch)
        teams = (pipeline.grid.team(0, at) for at in (stage, following))
        routes = (pipeline.network.route(*pair) for pair in zip(*teams, strict=True))
        return min(size * route.wire_s_per_byte + route.delay_s for route in routes)

    def _stage_pass(self, stage: int, patch: int | None) -> Pass:
        """A pass of a stage, with the gathers of a noise prediction after the last."""
        return Pass.total([(self._layers(stage, patch), 1), (self._after(stage, patch), 1)])

    def _layers(self, stage: int, patch: int | None) -> Pass:
        """The layers of a stage; those that are alike are measured once."""
        grid, team = self.pipeline.grid, self.pipeline.grid.team(0, stage)
        works = self.pipeline.works(stage, patch)
        alike, counts = {work[1:]: work for work in works}, Counter(work[1:] for work in works)

        def measure(work: RunWork) -> Pass:
            builder = _FirstDevice(self.pipeline, team[0])
            LayerRunner(builder, grid, team, work, PASS).append()
            return builder.measure()

        return Pass.total((measure(alike[what]), times) for what, times in counts.items())

    def _after(self, stage: int, patch: int | None) -> Pass:
        """What follows the layers of a stage: a message to the next, or the solver and gathers of the last."""
        pipeline, device = self.pipeline, self.pipeline.grid.team(0, stage)[0]
        if stage < self.stages[-1]:
            return Pass(0.0, pipeline.scenario.calls.message_s)
        builder = _FirstDevice(pipeline, device)
        builder.compute(device, PASS, 0.0, pipeline.solver_s)
        for group, size, subgroup in pipeline.gathers(patch):
            builder.collective("all_gather", group, size, subgroup=subgroup)
        return builder.measure()
