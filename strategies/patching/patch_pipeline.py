"""The patch pipeline: stages of layers, through which the image passes whole or patch by patch.

PipeFusion (Fang et al., 2024): in synchronous steps the whole image goes through one stage after another; then each
stage computes one patch after another, on keys and values that other patches left there in this step or the one
before. The last stage turns the prediction into latents and sends them to the first. Each stage is a team of
devices under sequence and tensor parallelism; with one stage this is those alone.
"""

from bisect import bisect_left, bisect_right
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from itertools import accumulate, combinations, pairwise
from math import ceil, inf
from typing import Final

from profiles.errors import InfeasibleError
from strategies.bounds.patch_rounds import Pass, least_seconds
from strategies.bounds.stopwatch import Stopwatch
from strategies.parameters import parameter
from strategies.patching.builder import SamplingBuilder
from strategies.patching.footprint import joined_bytes, keys_and_values_bytes, parameters, weights, working
from strategies.patching.grid import Grid, Team
from strategies.patching.layer_runs import Run, run_layers, run_seconds
from strategies.plans.actions import PatchAction
from strategies.plans.network import Network
from strategies.plans.plan import Buffer, Plan, Stage
from strategies.scenario import SamplingScenario

ROUNDING: Final = 1e-9
"""Share that a bound stays below what it adds up to: sums in another order differ in their last digits."""
RECEIVES: Final = ("before", "after")
"""When a device posts the receive of its next patch: before it computes the one it has, or after."""


@dataclass(frozen=True, eq=False)
class Pipeline:
    """Stages on the teams of a grid.

    Attributes:
        scenario: model, cluster and workload.
        grid: the devices.
        boundaries: first layers of all stages, and the number of layers.
        patches: share of the image's rows in each patch.
        receive: one of ``RECEIVES``.
        kept: the keys and values of all layers and tokens stay on every device, from step to step.
    """

    scenario: SamplingScenario
    grid: Grid
    boundaries: tuple[int, ...]
    patches: tuple[float, ...] = (1.0,)
    receive: str = parameter("before", "when the next patch is asked for", choices=RECEIVES)
    kept: bool = False

    @classmethod
    def of(
        cls,
        scenario: SamplingScenario,
        grid: Grid,
        *,
        layers: Sequence[int] | None = None,
        patches: int = 1,
        receive: str = "before",
        kept: bool = False,
    ) -> "Pipeline":
        """A pipeline.

        Args:
            scenario: model, cluster and workload.
            grid: the devices.
            layers: layers of each stage; by default as many as ``stage_layers`` gives them.
            patches: patches of the image in displaced steps.
            receive: one of ``RECEIVES``.
            kept: the keys and values of all layers and tokens stay on every device.

        Raises:
            InfeasibleError: the layers, or the rows, cannot be divided so.
        """
        total = len(scenario.backbone.layers)
        given = stage_layers(total, grid.pipeline) if layers is None else tuple(layers)
        if len(given) != grid.pipeline or sum(given) != total:
            raise InfeasibleError(
                f"layers({','.join(map(str, given))}) are {len(given)} stages of {sum(given)} layers, not"
                f" pipeline_degree({grid.pipeline}) of {total}",
                "the layers do not fit the stages",
            )
        if not given[0]:
            raise InfeasibleError(
                f"layers({','.join(map(str, given))}) begin with a stage of none, so nothing makes its output",
                "the layers do not fit the stages",
            )
        boundaries = tuple(accumulate(given, initial=0))
        return cls(scenario, grid, boundaries, patch_rows(scenario, grid, patches), receive, kept)

    def plan(self, steps: Sequence[int], warmup_steps: int | None = None) -> Plan:
        """The plan of successive steps; those from ``warmup_steps`` on are displaced, if it is given."""
        writer = _Writer(self, last_step=self.scenario.workload.steps - 1)
        for step in steps:
            if warmup_steps is None or step < warmup_steps:
                writer.synchronous_step(step)
            else:
                writer.displaced_step(step)
        return writer.builder.build(self._stages(), self._resident(steps, warmup_steps))

    @cached_property
    def batch(self) -> int:
        """Samples of one pass."""
        return self.grid.batch(self.scenario)

    def run(self, stage: int, patch: int | None) -> Run:
        """The work of a stage on one patch, or on the whole image."""
        first, end = self.boundaries[stage], self.boundaries[stage + 1]
        if patch is None:
            return Run(first, end, self.batch)
        share = self.scenario.extent.patch_share(self.patches[patch])
        return Run(first, end, self.batch, share, share.linear, cached=True)

    def seconds(self, stage: int, patch: int | None) -> float:
        """The seconds a stage computes on one patch, or on the whole image."""
        return run_seconds(self.scenario, self.grid.team(0, stage), self.run(stage, patch))[0]

    def bound(self, warmup_steps: int | None = None) -> float:
        """Seconds below which no run can take."""
        steps = self.scenario.workload.steps
        whole = steps if warmup_steps is None else min(warmup_steps, steps)
        rows = self._ways() if whole < steps else []
        return (1 - ROUNDING) * least_seconds(self._way(None), rows, whole, steps - whole)

    def _ways(self) -> list[list[Pass]]:
        """The way of each patch; only the first, and those with more rows than others, differ."""
        known: dict[tuple[float, bool], list[Pass]] = {}
        for patch, rows in enumerate(self.patches):
            if (rows, patch == 0) not in known:
                known[rows, patch == 0] = self._way(patch)
        return [known[rows, patch == 0] for patch, rows in enumerate(self.patches)]

    def _way(self, patch: int | None) -> list[Pass]:
        """The least seconds of a patch, or of the whole image, on each stage and on the wire after it."""
        last = self.grid.pipeline - 1
        return [self._pass(stage, patch, last=stage == last) for stage in range(last + 1)]

    def _pass(self, stage: int, patch: int | None, *, last: bool) -> Pass:
        team, scenario = self.grid.team(0, stage), self.scenario
        placement = self.grid.placement(scenario)
        network = scenario.remember(("bound network", self.grid), lambda: Network(placement))
        watch = Stopwatch(network, team.devices[0])
        run_layers(watch, scenario, team, self.run(stage, patch), PatchAction(stage, patch or 0, 0))
        if not last:
            size = self.hidden_bytes(stage, patch) / self.grid.sequence
            route = network.route(team.devices[0], self.grid.team(0, stage + 1).devices[0])
            return Pass(watch.free_s, watch.free_s + size * route.wire_s_per_byte + route.delay_s)
        for group, size in self.gathers(patch):
            watch.collective("all_gather", group, size)
        if self.grid.pipeline == 1:
            return Pass(watch.free_s, watch.free_s)
        route = network.route(team.devices[0], self.grid.team(0, 0).devices[0])
        travel_s = self.latents_bytes(patch) * route.wire_s_per_byte + route.delay_s
        return Pass(watch.free_s, watch.free_s + travel_s)

    def hidden_bytes(self, stage: int, patch: int | None) -> float:
        """The bytes of a patch's hidden state after a stage; the text's goes with the first patch."""
        extent, boundary = self.scenario.extent, self.boundaries[stage + 1]
        share = 1.0
        if patch is not None:
            share = extent.image * self.patches[patch] + (0.0 if patch else 1 - extent.image)
        return self.scenario.hidden_bytes(boundary - 1) * self.batch * share

    def gathers(self, patch: int | None) -> list[tuple[tuple[int, ...], float]]:
        """Who gathers the noise prediction of a patch, and its bytes: inside each team, then between them."""
        share = 1.0 if patch is None else self.patches[patch]
        predicted = self.scenario.output_bytes * self.batch * share
        teams = [self.grid.team(guided, self.grid.pipeline - 1) for guided in range(self.grid.guidance)]
        inside = [group for team in teams for group in team.sequence_groups()]
        between = list(zip(*(team.devices for team in teams), strict=True))
        return [(group, predicted) for group in inside if self.grid.sequence > 1] + [
            (group, predicted * self.grid.guidance) for group in between if self.grid.guidance > 1
        ]

    def latents_bytes(self, patch: int | None) -> float:
        """The bytes of the latents that each device of the last stage sends back to its like in the first."""
        share = 1.0 if patch is None else self.patches[patch]
        images = self.scenario.workload.batch_size // self.grid.data
        return self.scenario.latent_bytes * images * share / self.grid.sequence

    def _stages(self) -> list[Stage]:
        return [
            Stage(
                component=self.scenario.backbone_index,
                first_layer=first,
                last_layer=end - 1,
                position=self.grid.team(0, stage).devices[0],
                forward_s=sum(self.seconds(stage, patch) for patch in range(len(self.patches))),
                backward_s=0.0,
                parameters=parameters(self.scenario, first, end) // self.grid.tensor,
            )
            for stage, (first, end) in enumerate(pairwise(self.boundaries))
        ]

    def least_memory_bytes(self, warmup_steps: int | None = None) -> float:
        """Bytes that stay on the fullest device."""
        resident = self._resident(range(self.scenario.workload.steps), warmup_steps)
        return max(float(sum(buffer.size_bytes for buffer in buffers)) for buffers in resident)

    def _resident(self, steps: Sequence[int], warmup_steps: int | None) -> list[tuple[Buffer, ...]]:
        """Bytes that stay on each device; with displaced steps also the keys and values of its layers."""
        scenario, grid = self.scenario, self.grid
        displaced = warmup_steps is not None and steps[-1] >= warmup_steps
        whole_image = warmup_steps is None or steps[0] < warmup_steps
        rows = 1.0 if whole_image else scenario.extent.patch_share(max(self.patches)).linear
        resident: list[tuple[Buffer, ...]] = []
        for _, stage, team in grid.teams():
            first, end = self.boundaries[stage], self.boundaries[stage + 1]
            batch = self.batch * rows / grid.sequence
            buffers = [
                *weights(scenario, parameters(scenario, first, end) / grid.tensor, grid.positions),
                working(scenario, first, end, batch, grid.tensor),
            ]
            size = self.batch * keys_and_values_bytes(scenario, first, end)
            if self.kept:
                buffers.append(Buffer("keys and values", size))
                buffers.append(Buffer("joined keys and values", self.batch * joined_bytes(scenario)))
            elif displaced and len(self.patches) * grid.pipeline > 1:
                buffers.append(Buffer("keys and values", size / (grid.sequence * grid.tensor)))
            resident += [tuple(buffers)] * len(team.devices)
        return resident


class _Writer:
    """Writes the steps of a pipeline.

    Attributes:
        mail: what was sent to a device for its pass of a patch; None: for the whole image, or whichever comes first.
        ends: for each device the last op of each pass so far.
    """

    def __init__(self, pipeline: Pipeline, last_step: int) -> None:
        self.pipeline, self.grid, self.scenario = pipeline, pipeline.grid, pipeline.scenario
        self.builder = SamplingBuilder(self.grid.placement(self.scenario))
        self.last_step = last_step
        self.mail: dict[tuple[int, int | None], list[int]] = {}
        self.ends: list[list[int]] = [[] for _ in range(self.grid.positions)]
        self.skips = _skips_between(pipeline)

    def synchronous_step(self, step: int) -> None:
        """Append a step in which the whole image goes through one stage after another."""
        self._pass(step, None)

    def displaced_step(self, step: int) -> None:
        """Append a step in which the stages work on different patches."""
        for patch in range(len(self.pipeline.patches)):
            self._pass(step, patch)

    def _pass(self, step: int, patch: int | None) -> None:
        """Append the way of one patch through all stages of all guidance groups, and what becomes of it."""
        for guided, stage, team in self.grid.teams():
            self._receive(team, patch)
            self._compute(team, stage, patch, step)
            self._send_hidden(guided, stage, patch)
            self._send_skips(guided, stage, patch)
        self._finish(step, patch)

    def _receive(self, team: Team, patch: int | None) -> None:
        """Let each device of a team wait for its mail; where receives are posted late it travels late."""
        back = 1 if self.pipeline.receive == "after" else 2
        for device in team.devices:
            ends = self.ends[device]
            for key in {(device, patch), (device, None)}:
                for tensor in self.mail.pop(key, ()):
                    self.builder.expect(device, tensor)
                    if len(ends) >= back:
                        self.builder.post_after(device, tensor, ends[-back])

    def _compute(self, team: Team, stage: int, patch: int | None, step: int) -> None:
        """Append a team's pass: layer by layer, or, in a pipeline, all layers of the stage together."""
        run = self.pipeline.run(stage, patch)
        action = PatchAction(stage, patch or 0, step)
        together = self.grid.pipeline > 1 or len(team.devices) == 1
        runs = [run] if together else [replace(run, first=i, end=i + 1) for i in range(run.first, run.end)]
        for part in runs:
            run_layers(self.builder, self.scenario, team, part, action)
        for device in team.devices:
            self.ends[device].append(self.builder.last(device))

    def _send_hidden(self, guided: int, stage: int, patch: int | None) -> None:
        """Send the hidden state to the next stage; the text's goes with the first patch."""
        if stage == self.grid.pipeline - 1:
            return
        size = self.pipeline.hidden_bytes(stage, patch) / self.grid.sequence
        self._send("hidden", guided, (stage, stage + 1), patch, size)

    def _send_skips(self, guided: int, stage: int, patch: int | None) -> None:
        """Send the skips that end in later stages straight there."""
        share = 1.0 if patch is None else self.pipeline.patches[patch]
        for target, size_bytes in self.skips.get(stage, {}).items():
            size = size_bytes * self.pipeline.batch * share / self.grid.sequence
            self._send("skip", guided, (stage, target), patch, size)

    def _send(
        self, role: str, guided: int, stages: tuple[int, int], patch: int | None, size_bytes: float
    ) -> None:
        """Send each member of a stage's team a tensor from its like in another's."""
        source, target = (self.grid.team(guided, stage) for stage in stages)
        for sender, receiver in zip(source.devices, target.devices, strict=True):
            tensor = self.builder.tensor(role, stages[0], patch or 0, size_bytes)
            self.builder.send(sender, tensor)
            self.mail.setdefault((receiver, patch), []).append(tensor)

    def _finish(self, step: int, patch: int | None) -> None:
        """Gather the noise prediction, and send the latents that follow from it back to the first stage."""
        last = self.grid.pipeline - 1
        for group, size in self.pipeline.gathers(patch):
            self.builder.collective("all_gather", group, size, stage=last, number=patch or 0)
        if last and step < self.last_step:
            for guided in range(self.grid.guidance):
                self._send("latents", guided, (last, 0), patch, self.pipeline.latents_bytes(patch))


def stage_layers(num_layers: int, degree: int) -> tuple[int, ...]:
    """The layers of each stage: as many as fit evenly, rounded up; the last stages get the rest, or none."""
    size = ceil(num_layers / degree)
    return tuple(max(0, min(size, num_layers - stage * size)) for stage in range(degree))


def paced_stages(scenario: SamplingScenario, degree: int, patches: int) -> tuple[int, ...] | None:
    """The layers that pace the stages best on one of some patches; None where there are too few layers."""

    def make() -> tuple[int, ...] | None:
        share = scenario.extent.patch_share(1 / patches)
        seconds = scenario.costs.forward_s(scenario.backbone_index, scenario.workload.predictions, share)
        return paced_layers(seconds.tolist(), degree) if degree <= len(seconds) else None

    return scenario.remember(("paced", degree, patches), make)


def paced_layers(seconds: Sequence[float], degree: int) -> tuple[int, ...]:
    """The layers of each stage such that the longest stage is as short as can be, and no stage is empty.

    Args:
        seconds: of each layer; at least as many as stages.
        degree: stages.
    """
    assert degree <= len(seconds), f"{degree} stages of {len(seconds)} layers"
    sums = [0.0, *accumulate(seconds)]
    lengths = sorted({end - start for start, end in combinations(sums, 2)})
    fitting = bisect_left(lengths, True, key=lambda longest: _stages_within(seconds, longest) <= degree)
    longest, layers, taken = lengths[fitting], [], 0
    for left in range(degree - 1, -1, -1):
        count = 1
        while taken + count < len(seconds) - left and sums[taken + count + 1] - sums[taken] <= longest:
            count += 1
        layers.append(count)
        taken += count
    return tuple(layers)


def _stages_within(seconds: Sequence[float], longest: float) -> float:
    """The fewest stages no longer than that which hold all layers; infinite where one layer is longer."""
    if max(seconds) > longest:
        return inf
    stages, start = 1, 0.0
    for before, after in pairwise([0.0, *accumulate(seconds)]):
        if after - start > longest:
            stages, start = stages + 1, before
    return stages


def patch_rows(scenario: SamplingScenario, grid: Grid, patches: int) -> tuple[float, ...]:
    """The share of the rows in each patch, as even as whole rows allow.

    Raises:
        InfeasibleError: there are more patches, each divided over a team, than rows.
    """
    rows = scenario.rows
    if patches * grid.sequence > rows:
        factors = f"patches({patches})" + (f" * sequence({grid.sequence})" if grid.sequence > 1 else "")
        raise InfeasibleError(
            f"{factors} exceeds rows({rows}) of {scenario.backbone.name} at {scenario.workload.resolution}",
            "more patches than rows",
        )
    return tuple((rows // patches + (patch < rows % patches)) / rows for patch in range(patches))


def _skips_between(pipeline: Pipeline) -> dict[int, dict[int, float]]:
    """For each stage the bytes of the skips that each later stage reads, of one sample's whole image."""
    found: dict[int, dict[int, float]] = {}
    for skip in pipeline.scenario.backbone.skips:
        source, target = (
            bisect_right(pipeline.boundaries, layer) - 1 for layer in (skip.source, skip.target)
        )
        if source != target:
            to = found.setdefault(source, {})
            to[target] = to.get(target, 0.0) + pipeline.scenario.hidden_bytes(skip.source)
    return found
