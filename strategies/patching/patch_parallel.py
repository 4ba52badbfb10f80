"""Patch parallelism: every device computes its own rows of the image through all layers.

DistriFusion (Li et al., 2024) lets a device attend to the others' rows of the step before, gathered while it
computes; synchronous steps gather before each layer that needs other rows, and independent patches never do. At the
end of each step the noise prediction is gathered from all devices, and with it all that was still on its way.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from enum import Enum
from functools import cached_property
from typing import Final

from profiles.architectures.components import Exchange
from profiles.architectures.shares import HALF_BYTES, Share
from profiles.errors import InfeasibleError
from profiles.units import FloatArray
from strategies.patching.builder import SamplingBuilder
from strategies.patching.footprint import joined_keys_and_values, keys_and_values, waits_s
from strategies.patching.grid import Grid, check_exchanges, check_workload
from strategies.patching.layout import GridLayout
from strategies.plans.actions import PatchAction
from strategies.plans.plan import Buffer, Plan
from strategies.sampling_scenario import SamplingScenario

COPIED: Final = 4.0
"""Bytes that a device moves over those gathered: an all-gather into a list of tensors fills one flat tensor, which is
read and written once more (torch.distributed), and the tensors of the list are read and joined to one (torch.cat)."""


class Kind(Enum):
    """Knowledge that a patch has of the others in a step."""

    ALONE = "nothing"
    SYNCHRONOUS = "fresh rows"
    DISPLACED = "rows of the step before"


@dataclass(frozen=True, eq=False)
class Patches(GridLayout):
    """A division of the image's rows over the devices of a guidance group, which stand in a ring.

    Attributes:
        kind: of the steps after the warm-up, whose steps are synchronous.
        gather_layers: exchanges whose gathers are launched together, in displaced steps.
    """

    kind: Kind = Kind.SYNCHRONOUS
    gather_layers: int = 60

    @classmethod
    def of(
        cls,
        scenario: SamplingScenario,
        kind: Kind = Kind.SYNCHRONOUS,
        *,
        warmup_steps: int | None = None,
        gather_layers: int = 60,
    ) -> "Patches":
        """The division over all GPUs, or over each half of them where guidance runs in parallel.

        Raises:
            InfeasibleError: the rows, the GPUs or the steps cannot be divided so.
        """
        guidance, gpus = scenario.guidance_groups, scenario.workload.num_gpus
        if gpus % guidance:
            raise InfeasibleError(
                f"`gpus({gpus})` is no multiple of `guidance_degree({guidance})`",
                "guidance cannot be divided so",
            )
        grid = Grid(guidance=guidance, ring=gpus // guidance)
        check_workload(scenario, grid)
        if grid.ring > 1:
            check_exchanges(scenario, "key_value")
        _check_rows(scenario, grid.ring)
        return cls(scenario, grid, (0, len(scenario.backbone.layers)), warmup_steps, kind, gather_layers)

    @property
    def count(self) -> int:
        """Patches of an image."""
        return self.grid.ring

    @property
    def approximation(self) -> str:
        """Why an image is not the one that a single GPU draws, in words; empty where it is."""
        if self.kind is Kind.ALONE and self.count > 1:
            return "no patch sees the others, so that seams show"
        return super().approximation

    def kind_of(self, step: int) -> Kind:
        """The kind of a step."""
        return Kind.SYNCHRONOUS if step < (self.warmup_steps or 0) else self.kind

    def plan(self, steps: Sequence[int]) -> Plan:
        """The plan of successive steps."""
        builder, first = SamplingBuilder(self.placement, self.scenario.calls), steps[0]
        if first:  # the predictions of the step before lie on every device, until its first op has used them
            output = builder.tensor("all_gather", 0, 0, self.output_bytes)
            for device in range(self.grid.positions):
                builder.given.append((output, device))
                builder.expect(device, output)
        follows_displaced = first > 0 and self.kind_of(first - 1) is Kind.DISPLACED
        gathered = self._given(builder) if follows_displaced else []
        for step in (step for step in steps for _ in range(self.passes)):
            gathered = self._pass(builder, step, gathered)
        for guided, results in enumerate(gathered):
            for device in self.grid.team(guided, 0):
                builder.kept += [(result, device) for result in results]
        return builder.build(self.stages(), self.resident(steps))

    def stage_s(self, stage: int = 0) -> float:
        """Seconds that each device computes in a step after the warm-up, or its host dispatches."""
        return self.passes * max(float(self._layers_s(self.kind).sum()), self.host_s)

    @cached_property
    def host_s(self) -> float:
        """Seconds in which the host dispatches a pass, however the rows are divided."""
        return float(self.scenario.backbone_costs.host_s.sum())

    def pass_samples(self, steps: Sequence[int]) -> float:
        """Samples of one pass, times the share of the tokens that one device holds."""
        return self.batch * self.scenario.extent.tokens_share(1 / self.count)

    def passing_on(self, stage: int, steps: Sequence[int]) -> tuple[Buffer, ...]:
        """Keys and values: of one layer in one piece, and with displaced steps of all layers.

        Gathers under way hold as much again: an all-gather into a list of tensors writes one flat tensor first, which
        is copied when it is waited for (torch.distributed; PipeFusion v1, Fig. 7, shows both).
        """
        kinds = {self.kind_of(step) for step in steps}
        buffers = []
        if self.count > 1 and kinds != {Kind.ALONE}:
            buffers.append(joined_keys_and_values(self.scenario, self.batch))
        if Kind.DISPLACED in kinds:
            buffers.append(keys_and_values(self.scenario, 0, self.boundaries[-1], self.batch))
        return tuple(buffers)

    def _layers_s(self, kind: Kind) -> FloatArray:
        """The seconds of each layer on one GPU, shape (layers,)."""
        rows = 1 / self.count
        share = Share(rows, rows if kind is Kind.ALONE else 1.0)
        seconds = self.scenario.backbone_costs.gpu_s(self.batch, share)
        return seconds + waits_s(self.scenario, seconds)

    def _given(self, builder: SamplingBuilder) -> list[list[int]]:
        """The tensors that the step before has gathered."""
        gathered, sizes = [], [sent for _, sent in self.pieces(Kind.DISPLACED) if sent]
        for guided in range(self.grid.guidance):
            results = [builder.tensor("all_gather", 0, number, size) for number, size in enumerate(sizes)]
            for device in self.grid.team(guided, 0):
                builder.given += [(result, device) for result in results]
            gathered.append(results)
        return gathered

    def _pass(self, builder: SamplingBuilder, step: int, gathered: list[list[int]]) -> list[list[int]]:
        """The tensors that each guidance group gathers for the next step, after a pass of a step is appended."""
        kind = self.kind_of(step)
        pieces = list(self.pieces(kind))
        dispatching = self.host_s / sum(seconds for seconds, _ in pieces)
        fresh = []
        for guided in range(self.grid.guidance):
            devices = self.grid.team(guided, 0)
            stale = iter(gathered[guided] if gathered else ())
            results = []
            for seconds, sent in pieces:
                if kind is Kind.DISPLACED and (tensor := next(stale, None)) is not None:
                    for device in devices:
                        builder.expect(device, tensor)
                if kind is Kind.SYNCHRONOUS and sent:
                    builder.collective("all_gather", devices, sent, held_bytes=sent)
                for patch, device in enumerate(devices):
                    builder.compute(device, PatchAction(0, patch, step), seconds, seconds * dispatching)
                if kind is Kind.DISPLACED and sent:
                    results += [builder.collective("all_gather", devices, sent, held_bytes=sent, wait=False)]
            fresh.append(results)
        for device in range(self.grid.positions):
            builder.call(device, self.solver_s)
        size = self.output_bytes
        builder.collective("all_gather", range(self.grid.positions), size, held_bytes=size)
        return fresh

    @property
    def output_bytes(self) -> float:
        """Bytes of all noise predictions of a pass."""
        workload = self.scenario.workload
        return self.scenario.output_bytes * workload.batch_size * workload.predictions / self.passes

    def pieces(self, kind: Kind) -> Iterator[tuple[float, float]]:
        """Seconds of compute, and the bytes gathered before it (synchronous) or after it (displaced)."""
        if kind is Kind.SYNCHRONOUS:
            yield from self._between_exchanges()
            return
        if kind is Kind.ALONE:
            yield float(self._layers_s(kind).sum()), 0.0
            return
        seconds, queued, size = 0.0, 0, 0.0
        for piece_s, sent in self._between_exchanges():
            seconds += piece_s
            queued, size = queued + bool(sent), size + sent
            if queued == self.gather_layers:
                yield seconds, size
                seconds, queued, size = 0.0, 0, 0.0
        yield seconds, size

    def _between_exchanges(self) -> Iterator[tuple[float, float]]:
        """Seconds of compute and the bytes that it needs of all patches; a layer's work is spread evenly."""
        extent, by_layer = self.scenario.extent, dict[int, list[Exchange]]()
        growth = {"key_value": extent.pixels, "halo": extent.width * self.count, "statistics": self.count}
        for exchange in self.scenario.backbone.exchanges:
            if exchange.kind in growth and self.count > 1:
                by_layer.setdefault(exchange.layer, []).append(exchange)
        for layer, seconds in enumerate(self._layers_s(Kind.SYNCHRONOUS)):
            exchanges = by_layer.get(layer, [])
            if not exchanges:
                yield float(seconds), 0.0
            for exchange in exchanges:
                size = HALF_BYTES * self.batch * exchange.elements * growth[exchange.kind]
                joined_s = self.scenario.backbone_costs.copied_s(COPIED * size, self.count + 1)
                yield float(seconds) / len(exchanges) + joined_s, size


def _check_rows(scenario: SamplingScenario, count: int) -> None:
    """Refuse more patches than rows, and for a U-Net patches that do not divide the rows of its deepest level."""
    rows, backbone = scenario.rows, scenario.backbone
    if count > rows:
        raise InfeasibleError(
            f"`patches({count})` exceed rows({rows}) of {backbone.name} at {scenario.workload.resolution}",
            "more patches than rows",
        )
    if count > 1 and any(exchange.kind == "halo" for exchange in backbone.exchanges):
        levels = sum(layer.name.endswith("downsample") for layer in backbone.layers)
        if rows % (count * 2**levels):
            raise InfeasibleError(
                f"rows({rows}) / 2^levels({levels}) of {backbone.name} is no multiple of `patches({count})`",
                "patches do not divide the rows",
            )
