"""Patch parallelism: every device computes its own rows of the image through all layers.

DistriFusion (Li et al., 2024) lets a device attend to the others' rows of the step before, gathered while it
computes; synchronous steps gather before each layer that needs other rows, and independent patches never do. At the
end of each step the noise prediction is gathered from all devices, and with it all that was still on its way.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Final

from profiles.components import Exchange
from profiles.costs import HALF_BYTES
from profiles.errors import InfeasibleError
from profiles.sampling_costs import Share
from strategies.parameters import check_choice
from strategies.patching.builder import SamplingBuilder
from strategies.patching.footprint import joined_bytes, keys_and_values_bytes, parameters, weights, working
from strategies.patching.grid import Grid, check_exchanges, check_workload
from strategies.plans.actions import PatchAction
from strategies.plans.plan import Buffer, Plan, Stage
from strategies.scenario import SamplingScenario

ALONE: Final = "alone"
SYNCHRONOUS: Final = "synchronous"
DISPLACED: Final = "displaced"
KINDS: Final = (ALONE, SYNCHRONOUS, DISPLACED)
"""What the steps of patches can be."""
GATHERED: Final = ("key_value", "halo", "statistics")
"""Kinds of exchange in which patches need one another."""


@dataclass(frozen=True, slots=True)
class Patches:
    """A division of the image's rows over devices.

    Attributes:
        scenario: model, cluster and workload.
        grid: its devices; those of a guidance group stand in a ring.
        gather_layers: exchanges whose gathers are launched together, in displaced steps.
    """

    scenario: SamplingScenario
    grid: Grid
    gather_layers: int = 60

    @classmethod
    def of(cls, scenario: SamplingScenario, gather_layers: int = 60) -> "Patches":
        """The division over all GPUs, or over each half of them where guidance runs in parallel.

        Raises:
            InfeasibleError: the rows, or the GPUs, cannot be divided so.
        """
        guidance, gpus = scenario.guidance_groups, scenario.workload.num_gpus
        if gpus % guidance:
            raise InfeasibleError(
                f"gpus({gpus}) is no multiple of guidance_degree({guidance})", "guidance cannot be divided so"
            )
        grid = Grid(guidance=guidance, ring=gpus // guidance)
        check_workload(scenario, grid)
        check_rows(scenario, gpus // guidance)
        if gpus > guidance:
            check_exchanges(scenario, "key_value")
        return cls(scenario, grid, gather_layers)

    @property
    def count(self) -> int:
        """Patches of an image."""
        return self.grid.ring

    @property
    def batch(self) -> int:
        """Samples of one pass."""
        return self.grid.batch(self.scenario)

    def share(self, kind: str) -> Share:
        """The share of a layer that one device computes."""
        check_choice("kind of step", kind, KINDS)
        extent = self.scenario.extent
        return (extent.alone_share if kind == ALONE else extent.patch_share)(1 / self.count)

    def plan(self, kinds: Sequence[str], first_step: int = 0, *, follows_displaced: bool = False) -> Plan:
        """The plan of successive steps of some kinds.

        Args:
            kinds: of the steps.
            first_step: number of the first.
            follows_displaced: whether the step before them gathered what the first one reads.
        """
        builder = SamplingBuilder(self.grid.placement(self.scenario))
        if first_step:
            self._give_output(builder)
        gathered = self._given(builder) if follows_displaced else []
        for step, kind in enumerate(kinds, first_step):
            gathered = self._step(builder, step, kind, gathered)
        for guided, results in enumerate(gathered):
            for device in self.grid.team(guided, 0).devices:
                for result in results:
                    builder.keep(device, result)
        return builder.build(self._stages(kinds[-1]), self._resident(kinds))

    def _given(self, builder: SamplingBuilder) -> list[list[int]]:
        """The tensors that the step before has gathered."""
        gathered = []
        for guided in range(self.grid.guidance):
            sizes = [sent for _, sent in self._pieces(DISPLACED) if sent]
            results = [builder.tensor("all_gather", 0, number, size) for number, size in enumerate(sizes)]
            for device in self.grid.team(guided, 0).devices:
                for result in results:
                    builder.give(device, result)
            gathered.append(results)
        return gathered

    def _step(
        self, builder: SamplingBuilder, step: int, kind: str, gathered: list[list[int]]
    ) -> list[list[int]]:
        """Append a step; return for each guidance group what it gathers for the next one."""
        pieces = list(self._pieces(kind))
        fresh = []
        for guided in range(self.grid.guidance):
            devices = self.grid.team(guided, 0).devices
            stale = iter(gathered[guided] if gathered else ())
            results = []
            for seconds, sent in pieces:
                if kind == DISPLACED and (tensor := next(stale, None)) is not None:
                    for device in devices:
                        builder.expect(device, tensor)
                if kind == SYNCHRONOUS and sent:
                    self._gather(builder, devices, sent, wait=True)
                for patch, device in enumerate(devices):
                    builder.compute(device, PatchAction(0, patch, step), seconds)
                if kind == DISPLACED and sent:
                    results.append(self._gather(builder, devices, sent, wait=False))
            fresh.append(results)
        self._gather_output(builder)
        return fresh

    def _gather(
        self, builder: SamplingBuilder, devices: Sequence[int], size_bytes: float, *, wait: bool
    ) -> int:
        return builder.collective("all_gather", devices, size_bytes, held_bytes=size_bytes, wait=wait)

    def _output_bytes(self) -> float:
        """The bytes of all noise predictions of a step."""
        workload = self.scenario.workload
        return self.scenario.output_bytes * workload.batch_size * workload.predictions

    def _gather_output(self, builder: SamplingBuilder) -> None:
        size = self._output_bytes()
        builder.collective("all_gather", range(self.grid.positions), size, held_bytes=size)

    def _give_output(self, builder: SamplingBuilder) -> None:
        """Let the predictions of the step before lie on every device, until its first op has used them."""
        output = builder.tensor("all_gather", 0, 0, self._output_bytes())
        for device in range(self.grid.positions):
            builder.give(device, output)
            builder.expect(device, output)

    def bound(self, kind: str) -> float:
        """The seconds that each device computes in a step of some kind."""
        scenario = self.scenario
        share = self.share(kind)
        return float(scenario.costs.forward_s(scenario.backbone_index, self.batch, share).sum())

    def least_memory_bytes(self, kind: str) -> float:
        """Bytes that stay on each device in steps of some kind."""
        return float(sum(buffer.size_bytes for buffer in self._resident([kind])[0]))

    def _pieces(self, kind: str) -> Iterator[tuple[float, float]]:
        """Seconds of compute, and the bytes gathered before it (synchronous) or after it (displaced)."""
        if kind == SYNCHRONOUS:
            yield from self._between_exchanges()
            return
        if kind == ALONE:
            yield self.bound(ALONE), 0.0
            return
        check_choice("kind of step", kind, KINDS)
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
        scenario, share = self.scenario, self.share(DISPLACED)
        layers_s = scenario.costs.forward_s(scenario.backbone_index, self.batch, share)
        of: dict[int, list[Exchange]] = {}
        for exchange in scenario.backbone.exchanges:
            if exchange.kind in GATHERED and self.count > 1:
                of.setdefault(exchange.layer, []).append(exchange)
        for layer, seconds in enumerate(layers_s):
            exchanges = of.get(layer, [])
            if not exchanges:
                yield float(seconds), 0.0
            for exchange in exchanges:
                yield float(seconds) / len(exchanges), self.gathered_bytes(exchange)

    def gathered_bytes(self, exchange: Exchange) -> float:
        """The bytes that all devices of a guidance group gather at one exchange."""
        extent = self.scenario.extent
        growth = {
            "key_value": extent.pixels,
            "halo": extent.width * self.count,
            "statistics": float(self.count),
        }
        return HALF_BYTES * self.batch * exchange.elements * growth[exchange.kind]

    def _stages(self, kind: str) -> list[Stage]:
        """The one stage, which every device holds, with its seconds in steps of some kind."""
        scenario = self.scenario
        layers = len(scenario.backbone.layers)
        of = parameters(scenario, 0, layers)
        return [Stage(scenario.backbone_index, 0, layers - 1, 0, self.bound(kind), 0.0, of)]

    def _resident(self, kinds: Sequence[str]) -> list[tuple[Buffer, ...]]:
        """Bytes that stay on each device; with displaced steps also keys and values of all layers.

        Gathers under way hold as much again: an all-gather into a list of tensors writes one flat tensor first, which
        is copied when it is waited for (torch.distributed; PipeFusion v1, Fig. 7, shows both).
        """
        scenario, layers = self.scenario, len(self.scenario.backbone.layers)
        buffers = [
            *weights(scenario, parameters(scenario, 0, layers), self.grid.positions),
            working(scenario, 0, layers, self.batch * self.share(DISPLACED).linear),
        ]
        if self.count > 1 and set(kinds) != {ALONE}:
            buffers.append(Buffer("joined keys and values", self.batch * joined_bytes(scenario)))
        if DISPLACED in kinds:
            size = self.batch * keys_and_values_bytes(scenario, 0, layers)
            buffers.append(Buffer("keys and values", size))
        return [tuple(buffers)] * self.grid.positions


def check_rows(scenario: SamplingScenario, count: int) -> None:
    """Refuse more patches than rows, and for a U-Net patches that do not divide the rows of its deepest level.

    Raises:
        InfeasibleError: the rows cannot be divided so.
    """
    rows = scenario.rows
    if count > rows:
        raise InfeasibleError(
            f"patches({count}) exceed rows({rows}) of {scenario.backbone.name} at {scenario.workload.resolution}",
            "more patches than rows",
        )
    backbone = scenario.backbone
    if count > 1 and any(exchange.kind == "halo" for exchange in backbone.exchanges):
        levels = sum(layer.name.endswith("downsample") for layer in backbone.layers)
        if rows % (count * 2**levels):
            raise InfeasibleError(
                f"rows({rows}) / 2^levels({levels}) of {backbone.name} is no multiple of patches({count})",
                "patches do not divide the rows",
            )
