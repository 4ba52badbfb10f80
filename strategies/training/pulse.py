"""PULSE: layers that a skip connects share a device, on a synthesised wave schedule."""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import ClassVar, Self

import numpy as np

from profiles.errors import InfeasibleError
from strategies import parameters as fields
from strategies.bounds.critical_path import most_in_flight
from strategies.bounds.pipelines import staged_bound, staged_least_memory
from strategies.orders.list_scheduling import Ordering, evaluate, list_schedule
from strategies.orders.problem import wave_positions
from strategies.parameters import parameter
from strategies.partitions.chain import block_partition
from strategies.partitions.symmetric import SymmetricPartition, symmetric_partition
from strategies.pipelining.candidates import shapes
from strategies.pipelining.layout import Layout, problem_of, staged_plan
from strategies.pipelining.stages import Cut, FloatArray, Shape, layer_times
from strategies.plans.network import network_of
from strategies.plans.plan import Plan
from strategies.scenario import Scenario
from strategies.training.wave import wave_order


@dataclass(frozen=True, slots=True)
class Pulse:
    """Stages q and 2WP - 1 - q lie on one device, so that a skip between them moves nothing.

    Skips that no symmetric cut keeps on one device go straight to the device that reads them. The order is list
    scheduling of the stages' real times and messages, or the wave's own. Source: PULSE, sections IV and V.
    """

    name: ClassVar[str] = "pulse"
    task: ClassVar[str] = "train"
    summary: ClassVar[str] = "skip-aware symmetric partition, skips local, synthesised wave schedule"

    pipeline_degree: int = fields.pipeline_degree()
    micro_batches: int = fields.micro_batches()
    group_size: int | None = fields.group_size()
    partition: str = parameter(
        "symmetric", "how the backbone is cut: skip-aware, or equal blocks", choices=("symmetric", "blocks")
    )
    p2p: str = fields.p2p()
    skip_route: str = parameter(
        "local", "how skips travel: not at all, or with the hidden state", choices=("local", "relay")
    )
    waves: int = parameter(1, "times that the stages go down and up again over the positions")
    in_flight: int = parameter(
        2,
        "most micro-batches between a stage's forward and its backward, in multiples of the pipeline degree",
    )

    def plan(self, scenario: Scenario) -> Plan:
        """The plan of one iteration."""
        return staged_plan(
            scenario, self.layout(scenario), self.ordering(scenario).rows, blocking=self.p2p == "blocking"
        )

    def ordering(self, scenario: Scenario) -> Ordering:
        """The synthesised order of this point."""
        return scenario.remember(("pulse order", self), lambda: self._ordering(scenario))

    def _ordering(self, scenario: Scenario) -> Ordering:
        """List scheduling's order or, where no more micro-batches than positions run, the wave's if better.

        Between positions that wait for their messages the wave's own order is kept: it brings sender and receiver
        together at the same time, list scheduling of messages that nobody waits for does not.
        """
        layout = self.layout(scenario)
        ahead = self.in_flight * self.pipeline_degree
        problem = problem_of(scenario, layout, in_flight=(ahead,) * len(layout.stages))
        if self.micro_batches > self.pipeline_degree:
            # group sizes on links alike have one answer
            return scenario.remember(("list schedule", problem), lambda: list_schedule(problem))
        wave = evaluate(problem, wave_order(self.pipeline_degree, self.micro_batches, self.waves))
        if self.p2p == "blocking":
            return wave
        return min(wave, list_schedule(problem), key=lambda ordering: ordering.makespan_s)

    def layout(self, scenario: Scenario) -> Layout:
        """The stages and where they lie.

        Raises:
            InfeasibleError: there are fewer blocks or layers than stages.
        """
        return scenario.remember(("pulse layout", self), lambda: self._layout(scenario))

    def _layout(self, scenario: Scenario) -> Layout:
        positions = wave_positions(self.pipeline_degree, self.waves)
        cut = Cut(scenario.backbone, self._boundaries(scenario, len(positions)), positions)
        return Layout.of(scenario, self._shape(), [cut], self.skip_route)

    def _shape(self) -> Shape:
        return Shape(self.pipeline_degree, self.micro_batches, self.group_size or self.pipeline_degree)

    def _boundaries(self, scenario: Scenario, num_stages: int) -> tuple[int, ...]:
        layers = scenario.model.components[scenario.backbone].layers
        blocks = [layer.block for layer in layers]
        pieces, there = (
            ("layers", len(layers)) if self.partition == "symmetric" else ("blocks", len(set(blocks)))
        )
        if num_stages > there:
            raise InfeasibleError(
                f"2 * waves({self.waves}) * pipeline_degree({self.pipeline_degree}) = {num_stages} stages exceed the"
                f" {there} {pieces} of the backbone",
                f"more stages than {pieces}",
            )
        if self.partition == "blocks":
            return block_partition(blocks, num_stages)
        return self.skip_aware(scenario).boundaries

    def skip_aware(self, scenario: Scenario) -> SymmetricPartition:
        """The skip-aware partition: where it cuts, which skips it keeps local and which it sends."""
        component, shape = scenario.model.components[scenario.backbone], self._shape()
        batch, num_stages = shape.local_batch(scenario), 2 * self.waves * self.pipeline_degree
        waiting = self.p2p == "blocking"

        def solve() -> SymmetricPartition:
            forward_s, backward_s = layer_times(scenario, scenario.backbone, batch)
            cut_s = self._message_s(scenario, batch) if waiting else np.zeros(len(forward_s) - 1)
            skips = [(skip.source, skip.target) for skip in component.skips]
            sizes = [component.layers[source].output_bytes for source, _ in skips]
            return symmetric_partition(forward_s + backward_s, cut_s, skips, num_stages, sizes)

        links = (shape.placement(scenario),) if waiting else ()
        return scenario.remember(("symmetric", num_stages, batch, links), solve)

    def _message_s(self, scenario: Scenario, batch: int) -> FloatArray:
        """Seconds of both messages over each cut between the slowest neighbours, for which devices wait."""
        component, shape = scenario.model.components[scenario.backbone], self._shape()
        network = network_of(scenario, shape.placement(scenario))
        routes = [network.route(p, p + 1) for p in range(shape.degree - 1)]
        wire_s = max((route.wire_s_per_byte for route in routes), default=0.0)
        delay_s = max((route.delay_s for route in routes), default=0.0)
        sizes = np.array([layer.output_bytes for layer in component.layers[:-1]]) * batch
        return (2 * sizes + component.carried_bytes * batch) * wire_s + 2 * delay_s

    def remarks(self, scenario: Scenario) -> list[str]:
        """Remarks on this point: skips that are sent after all."""
        if self.partition != "symmetric" or self.skip_route != "local":
            return []
        sent = self.skip_aware(scenario).sent_skips
        if not sent:
            return []
        names = ", ".join(f"{source}->{target}" for source, target in sent)
        return [f"no symmetric cut keeps every skip on one device: sent are those from layer {names}"]

    @classmethod
    def candidates(cls, scenario: Scenario) -> Iterator[Self]:
        """Every degree, group size and number of micro-batches that divides; long orders also held short."""
        for shape in shapes(scenario, 2):
            for in_flight in (2, 1) if shape.micro_batches > shape.degree else (2,):
                yield cls(shape.degree, shape.micro_batches, shape.group_size, in_flight=in_flight)

    def bound(self, scenario: Scenario) -> float:
        """Seconds that no iteration can undercut."""
        key = ("pulse bound", self, scenario.workload.extra_forward)
        return scenario.remember(key, lambda: staged_bound(scenario, self.layout(scenario)))

    def least_memory_bytes(self, scenario: Scenario) -> float:
        """Bytes that the fullest device cannot do without, whatever the order."""
        layout = self.layout(scenario)
        return staged_least_memory(scenario, layout, [1] * len(layout.stages))

    def held_bytes(self, scenario: Scenario) -> float:
        """Bytes that the fullest device holds at least; the order is made where only it can tell."""
        layout, there = self.layout(scenario), scenario.cluster.device.memory_bytes
        stages, most = len(layout.stages), min(self.micro_batches, self.in_flight * self.pipeline_degree)
        if there is None or staged_least_memory(scenario, layout, [most] * stages) <= there:
            return self.least_memory_bytes(scenario)
        return staged_least_memory(scenario, layout, most_in_flight(self.ordering(scenario).rows))
