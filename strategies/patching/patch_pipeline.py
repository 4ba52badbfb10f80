"""The patch pipeline: stages of layers, through which the image passes whole or patch by patch.

PipeFusion (Fang et al., 2024): in synchronous steps the whole image goes through one stage after another; then each
stage computes one patch after another, on keys and values that other patches left there in this step or the one
before. The last stage turns the prediction into latents and sends them to the first. Each stage is a team of
devices under sequence and tensor parallelism; with one stage this is those alone.
"""

from bisect import bisect_right
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from itertools import accumulate
from math import ceil

import numpy as np

from profiles.architectures.shares import Share
from profiles.errors import InfeasibleError
from strategies.partitions.chain import by_stage, least_maximum, stage_table
from strategies.patching.builder import SamplingBuilder
from strategies.patching.footprint import joined_keys_and_values, keys_and_values
from strategies.patching.grid import Grid
from strategies.patching.layer_runs import LayerRun, LayerRunner, RunWork, run_seconds, run_work
from strategies.patching.layout import GridLayout
from strategies.plans.actions import PatchAction
from strategies.plans.placement import Subgroup
from strategies.plans.plan import Buffer, Plan
from strategies.sampling_scenario import SamplingScenario


@dataclass(frozen=True, eq=False)
class PatchPipeline(GridLayout):
    """Stages on the teams of a grid, and the patches that pass through them.

    With ``warmup_steps`` the steps after them are displaced; without, all are synchronous.

    Attributes:
        patches: share of the image's rows in each patch.
        receive: when the next patch is asked for, one of ``RECEIVES``.
        kept: the keys and values of all layers and tokens stay on every device, from step to step.
    """

    patches: tuple[float, ...] = (1.0,)
    receive: str = "before"
    kept: bool = False

    @classmethod
    def of(
        cls,
        scenario: SamplingScenario,
        grid: Grid,
        *,
        warmup_steps: int | None = None,
        layers: Sequence[int] | None = None,
        patches: int = 1,
        receive: str = "before",
        kept: bool = False,
    ) -> "PatchPipeline":
        """A pipeline of so many patches; by default each stage has the layers that ``stage_layers`` gives it.

        Raises:
            InfeasibleError: the layers, the rows or the steps cannot be divided so.
        """
        boundaries = _boundaries(scenario, grid, layers)
        rows = patch_rows(scenario, grid, patches)
        return cls(scenario, grid, boundaries, warmup_steps, rows, receive, kept)

    def plan(self, steps: Sequence[int]) -> Plan:
        """The plan of successive steps."""
        writer = _Writer(self)
        for step in steps:
            patches = range(len(self.patches)) if self.is_displaced(step) else (None,) * self.passes
            for patch in patches:
                writer.write_pass(step, patch, sends_back=step != steps[-1])
        return writer.builder.build(self.stages(), self.resident(steps))

    @cached_property
    def folded(self) -> "PatchPipeline":
        """The pipeline of one guidance group, or of one node of each team, that stands for all; else the same."""
        grid = self.grid.folded_on(self.scenario.cluster)
        return self if grid == self.grid else replace(self, grid=grid)

    def is_displaced(self, step: int) -> bool:
        """Whether the stages work on different patches in a step."""
        return self.warmup_steps is not None and step >= self.warmup_steps

    @property
    def count(self) -> int:
        """Patches of an image."""
        return len(self.patches)

    @property
    def steps_overlap(self) -> bool:
        """Whether patches are displaced: then the first stage goes on while the last is still busy."""
        return self.warmup_steps is not None

    def run(self, stage: int, patch: int | None) -> LayerRun:
        """The work of a stage on one patch, or on the whole image."""
        first, end = self.boundaries[stage], self.boundaries[stage + 1]
        conditioned = 0 < first < end
        if patch is None:
            return LayerRun(first, end, self.batch, conditioned=conditioned)
        rows = self.patches[patch]
        tokens = self.scenario.extent.tokens_share(rows)
        return LayerRun(first, end, self.batch, Share(rows), tokens, cached=True, conditioned=conditioned)

    def works(self, stage: int, patch: int | None) -> list[RunWork]:
        """Return the work of a stage on a patch, or on the whole image: of each layer, or in a pipeline of all."""
        grid, run = self.grid, self.run(stage, patch)
        whole, layers = grid.pipeline > 1 or grid.size == 1, range(run.first, run.end)
        runs = [run] if whole else [replace(run, first=i, end=i + 1) for i in layers]
        key = ("works", grid.degrees, whole, run)
        return self.scenario.remember(key, lambda: [run_work(self.scenario, grid, each) for each in runs])

    def stage_s(self, stage: int) -> float:
        """Seconds that each device of a stage computes in a step of patches, or its host dispatches."""
        patches = range(len(self.patches)) if self.is_displaced(self.num_steps - 1) else [None]
        seconds = [run_seconds(self.scenario, self.grid, self.run(stage, patch)) for patch in patches]
        return self.passes * sum(max(gpu_s, host_s) for gpu_s, _, host_s in seconds)

    def pass_samples(self, steps: Sequence[int]) -> float:
        """Samples of the largest pass of some steps, times the share of the tokens that one device holds."""
        rows = self.scenario.extent.tokens_share(max(self.patches))
        return self.batch * (rows if self.is_displaced(steps[0]) else 1.0) / self.grid.sequence

    def passing_on(self, stage: int, steps: Sequence[int]) -> tuple[Buffer, ...]:
        """Keys and values: where they are kept all, and one layer's in one piece; else what other patches read."""
        first, end, grid = self.boundaries[stage], self.boundaries[stage + 1], self.grid
        whole = keys_and_values(self.scenario, first, end, self.batch)
        if self.kept:
            return whole, joined_keys_and_values(self.scenario, self.batch)
        if not self.is_displaced(steps[-1]) or len(self.patches) * grid.pipeline == 1:
            return ()
        return (Buffer(whole.name, grid.head_bytes(whole.size_bytes, 1)),)

    def rows(self, patch: int | None) -> float:
        """The share of the image's rows in a patch; all of them in the whole image."""
        return 1.0 if patch is None else self.patches[patch]

    def hidden_bytes(self, stage: int, patch: int | None) -> float:
        """Bytes of the hidden state on each device after a stage; the text's goes with the first patch."""
        image, size = self.scenario.extent.image, self.scenario.hidden_bytes(self.boundaries[stage + 1] - 1)
        share = 1.0 if patch is None else image * self.patches[patch] + (0.0 if patch else 1 - image)
        return self.grid.token_bytes(size, self.batch, share)

    def skip_bytes(self, stage: int, patch: int | None) -> dict[int, float]:
        """For each later stage that reads skips of a stage, their bytes on each device."""
        rows, read = self.rows(patch), self._skips.get(stage, {})
        return {target: self.grid.token_bytes(size, self.batch, rows) for target, size in read.items()}

    def latents_bytes(self, patch: int | None) -> float:
        """Bytes of the latents that each device of the last stage sends back to its like in the first."""
        images = self.grid.images(self.scenario)
        return self.grid.token_bytes(self.scenario.latent_bytes, images, self.rows(patch))

    def gathers(self, patch: int | None) -> list[tuple[tuple[int, ...], float, Subgroup | None]]:
        """Gathers of the noise prediction of a patch: inside each team, then between them.

        Their devices, their bytes, and which of the GPUs take part that those stand for.
        """
        predicted = self.scenario.output_bytes * self.batch * self.rows(patch)
        grid, sequence, guidance = self.grid, self.grid.sequence, self.grid.guidance
        teams = [grid.team(guided, grid.pipeline - 1) for guided in range(grid.groups)]
        inside = [group for team in teams for group in grid.groups_of("sequence", team)]
        shared = grid.subgroup("sequence")
        folded = Subgroup(guidance, 1) if len(teams) < guidance else None
        return [(group, predicted, shared) for group in inside if sequence > 1] + [
            (group, predicted * guidance, folded) for group in zip(*teams, strict=True) if guidance > 1
        ]

    @cached_property
    def _skips(self) -> dict[int, dict[int, float]]:
        """For each stage the bytes of the skips that each later stage reads, of one sample's whole image."""
        sizes: dict[int, dict[int, float]] = {}
        for skip in self.scenario.backbone.skips:
            source, target = (
                bisect_right(self.boundaries, layer) - 1 for layer in (skip.source, skip.target)
            )
            if source != target:
                to = sizes.setdefault(source, {})
                to[target] = to.get(target, 0.0) + self.scenario.hidden_bytes(skip.source)
        return sizes


class _Writer:
    """Writes the steps of a pipeline.

    Attributes:
        mail: tensors sent to a device for its pass of a patch; None: for the whole image, or whichever comes first.
        ends: for each device the last op of each pass so far.
    """

    def __init__(self, pipeline: PatchPipeline) -> None:
        self.pipeline, self.grid = pipeline, pipeline.grid
        self.builder = SamplingBuilder(pipeline.placement, pipeline.scenario.calls)
        self.mail: dict[tuple[int, int | None], list[int]] = {}
        self.ends: list[list[int]] = [[] for _ in range(self.grid.positions)]

    def write_pass(self, step: int, patch: int | None, *, sends_back: bool) -> None:
        """Append the passes of one patch through all stages of all guidance groups, and the sending of its result."""
        for guided, stage, team in self.grid.teams():
            self._receive(team, patch)
            action = PatchAction(stage, patch or 0, step)
            for work in self.pipeline.works(stage, patch):
                LayerRunner(self.builder, self.grid, team, work, action).append()
            for device in team:
                self.ends[device].append(self.builder.last(device))
            if stage < self.grid.pipeline - 1:
                self._send(
                    "hidden", guided, (stage, stage + 1), patch, self.pipeline.hidden_bytes(stage, patch)
                )
            for target, size in self.pipeline.skip_bytes(stage, patch).items():
                self._send("skip", guided, (stage, target), patch, size)
        self._finish(patch, sends_back=sends_back)

    def _receive(self, team: Sequence[int], patch: int | None) -> None:
        """Let each device of a team wait for its mail; where receives are posted late it travels late."""
        back = 1 if self.pipeline.receive == "after" else 2
        for device in team:
            ends = self.ends[device]
            for key in ((device, patch), (device, None)):
                for tensor in self.mail.pop(key, ()):
                    self.builder.receive(device, tensor)
                    if len(ends) >= back:
                        self.builder.posted_after[tensor, device] = ends[-back]

    def _send(
        self, role: str, guided: int, stages: tuple[int, int], patch: int | None, size_bytes: float
    ) -> None:
        """Send each member of a stage's team a tensor from its like in another's."""
        source, target = (self.grid.team(guided, stage) for stage in stages)
        for sender, receiver in zip(source, target, strict=True):
            tensor = self.builder.tensor(role, stages[0], patch or 0, size_bytes)
            self.builder.send(sender, tensor)
            self.mail.setdefault((receiver, patch), []).append(tensor)

    def _finish(self, patch: int | None, *, sends_back: bool) -> None:
        """Solve and gather the noise prediction, and send the latents that follow from it to the first stage."""
        last = self.grid.pipeline - 1
        for guided in range(self.grid.groups):
            for device in self.grid.team(guided, last):
                self.builder.call(device, self.pipeline.solver_s)
        for group, size, subgroup in self.pipeline.gathers(patch):
            self.builder.collective(
                "all_gather", group, size, stage=last, number=patch or 0, subgroup=subgroup
            )
        if last and sends_back:
            for guided in range(self.grid.groups):
                self._send("latents", guided, (last, 0), patch, self.pipeline.latents_bytes(patch))


def _boundaries(scenario: SamplingScenario, grid: Grid, layers: Sequence[int] | None) -> tuple[int, ...]:
    """The first layers of all stages, and the number of layers."""
    total = len(scenario.backbone.layers)
    if grid.pipeline > total:
        raise InfeasibleError(
            f"`pipeline_degree({grid.pipeline})` exceeds the {total} layers of {scenario.backbone.name}",
            "more stages than layers",
        )
    counts = stage_layers(total, grid.pipeline) if layers is None else tuple(layers)
    if len(counts) != grid.pipeline or sum(counts) != total or not counts[0]:
        raise InfeasibleError(
            f"`layers({','.join(map(str, counts))})` are {len(counts)} stages of {sum(counts)} layers, not"
            f" `pipeline_degree({grid.pipeline})` of {total} of which the first has some",
            "the layers do not fit the stages",
        )
    return tuple(accumulate(counts, initial=0))


def patch_rows(scenario: SamplingScenario, grid: Grid, patches: int) -> tuple[float, ...]:
    """The share of the rows in each patch, as even as whole rows allow.

    Raises:
        InfeasibleError: there are more patches, each divided over a team, than rows; of the whole image, of all frames.
    """
    rows, lines = scenario.rows, scenario.lines
    most = rows if patches > 1 else lines
    if patches * grid.sequence > most:
        factors = f"`patches({patches})`" + (f" * sequence({grid.sequence})" if grid.sequence > 1 else "")
        there = f"rows({rows})" + (f" * frames({lines // rows})" if most > rows else "")
        raise InfeasibleError(
            f"{factors} exceeds {there} of {scenario.backbone.name} at {scenario.workload.resolution}",
            "more patches than rows",
        )
    return tuple((rows // patches + (patch < rows % patches)) / rows for patch in range(patches))


def stage_layers(num_layers: int, degree: int) -> tuple[int, ...]:
    """The layers of each stage: as many as fit evenly, rounded up; the last stages get the rest, or none."""
    size = ceil(num_layers / degree)
    return tuple(max(0, min(size, num_layers - stage * size)) for stage in range(degree))


def paced_stages(scenario: SamplingScenario, degree: int, patches: int) -> tuple[int, ...] | None:
    """The layers that pace the stages best on one of some patches; None where there are too few layers."""
    share, predictions = Share(1 / patches), scenario.workload.predictions
    seconds = scenario.costs.forward_s(scenario.backbone_index, predictions, share)
    return paced_layers(seconds.tolist(), degree) if degree <= len(seconds) else None


def paced_layers(seconds: Sequence[float], degree: int) -> tuple[int, ...]:
    """Return the layers of each stage such that the longest stage is as short as can be, and no stage is empty."""
    assert degree <= len(seconds), f"{degree} stages of {len(seconds)} layers"
    stage_s, layers, start = stage_table(np.array(seconds)), [], 0
    longest_s = least_maximum(by_stage(stage_s, degree))
    for later in range(degree - 1, -1, -1):
        end = min(int(np.flatnonzero(stage_s[start] <= longest_s)[-1]), len(seconds) - later)
        layers.append(end - start)
        start = end
    return tuple(layers)
