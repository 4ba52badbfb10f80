"""PULSE: layers that a skip connects share a device, on a synthesised wave schedule."""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Self

import numpy as np

from profiles.architectures.components import Component
from profiles.units import FloatArray
from strategies.orders.list_scheduling import list_schedule
from strategies.orders.problem import Ordering, Problem, evaluate, wave_positions
from strategies.orders.wave import wave_order
from strategies.parameters import parameter
from strategies.partitions.symmetric import sent_skips, symmetric_partition
from strategies.pipelining.cutting import cut_chain, lay_out, refuse_too_many
from strategies.pipelining.footprint import least_memory_bytes
from strategies.pipelining.layout import Layout
from strategies.pipelining.stages import Cut, shapes
from strategies.plans.actions import Rows
from strategies.scenario import Scenario
from strategies.templates.ordered_pipeline import StagedPipeline


@dataclass(frozen=True, slots=True)
class Pulse(StagedPipeline):
    """Stages q and 2WP - 1 - q lie on one device, so that a skip between them moves nothing.

    Skips that no symmetric cut keeps on one device go straight to the device that reads them. The order is list
    scheduling of the stages' real times and messages, or the wave's own. Source: PULSE, sections IV and V.
    """

    name = "pulse"
    summary = "skip-aware symmetric partition, skips local, synthesised wave schedule"

    partition: str = parameter(
        "symmetric", "how the backbone is cut: skip-aware, or equal blocks", choices=("symmetric", "blocks")
    )
    skip_route: str = parameter(
        "local", "how skips travel: not at all, or with the hidden state", choices=("local", "relay")
    )
    waves: int = parameter(1, "times that the stages go down and up again over the positions")
    in_flight: int = parameter(
        2,
        "most micro-batches between a stage's forward and its backward, in multiples of the pipeline degree",
    )

    def _rows(self, layout: Layout) -> Rows:
        return self.ordering(layout.scenario).rows

    def ordering(self, scenario: Scenario) -> Ordering:
        """List scheduling's order or, where no more micro-batches than positions run, the wave's if better.

        Between positions that wait for their messages the wave's own order brings sender and receiver together.
        """
        layout = self.layout(scenario)
        problem = self._problem(layout)
        if self.micro_batches > self.pipeline_degree:
            return list_schedule(problem)
        wave = evaluate(problem, wave_order(self.pipeline_degree, self.micro_batches, self.waves))
        if self.p2p == "blocking":
            return wave
        return min(wave, list_schedule(problem), key=lambda ordering: ordering.makespan_s)

    def _problem(self, layout: Layout) -> Problem:
        """The problem of ordering the passes."""
        ahead = self.in_flight * self.pipeline_degree
        return layout.problem(in_flight=(ahead,) * len(layout.stages))

    def positions(self) -> tuple[int, ...]:
        """The position of each stage."""
        return wave_positions(self.pipeline_degree, self.waves)

    def layout(self, scenario: Scenario) -> Layout:
        """The stages and where they lie."""
        positions = self.positions()

        def cut(layout: Layout) -> tuple[Cut, ...]:
            backbone = scenario.backbone_index
            if self.partition == "blocks":
                return (cut_chain(layout, backbone, positions, "blocks"),)
            refuse_too_many(layout, len(positions), len(scenario.model.components[backbone].layers), "layers")
            return (Cut(backbone, self._skip_aware(layout), positions),)

        key = (type(self), self.partition, self.waves, self.p2p)
        return lay_out(scenario, self.shape, key, self.skip_route, cut, distant_skips=True)

    def _skip_aware(self, layout: Layout) -> tuple[int, ...]:
        scenario, num_stages = layout.scenario, 2 * self.waves * self.pipeline_degree
        component, waiting = scenario.model.components[scenario.backbone_index], self.p2p == "blocking"

        def solve() -> tuple[int, ...]:
            forward_s, backward_s = layout.layer_times(scenario.backbone_index)
            cut_s, skips = _message_s(layout) if waiting else np.zeros(len(forward_s) - 1), _skips(component)
            sizes = [component.layers[source].output_bytes for source, _ in skips]
            return symmetric_partition(forward_s + backward_s, cut_s, skips, num_stages, sizes)

        links = (layout.placement,) if waiting else ()
        return scenario.remember(("symmetric", num_stages, layout.local_batch, links), solve)

    def remarks(self, scenario: Scenario) -> list[str]:
        """Remarks on this point: skips that are sent after all."""
        if self.partition != "symmetric" or self.skip_route != "local":
            return []
        (cut,) = self.layout(scenario).cuts
        sent = sent_skips(_skips(scenario.model.components[cut.component]), cut.boundaries)
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

    def least_memory_bytes(self, scenario: Scenario) -> float:
        """Bytes that the fullest device cannot do without."""
        layout = self.layout(scenario)
        return least_memory_bytes(layout, [1] * len(layout.stages))


def _skips(component: Component) -> list[tuple[int, int]]:
    """The source and the target of each skip."""
    return [(skip.source, skip.target) for skip in component.skips]


def _message_s(layout: Layout) -> FloatArray:
    """Seconds of both messages over each cut between the slowest neighbours, for which devices wait."""
    component = layout.scenario.model.components[layout.scenario.backbone_index]
    wire_s, delay_s = layout.slowest_hop
    sizes = np.array([layer.output_bytes for layer in component.layers[:-1]]) * layout.local_batch
    return (2 * sizes + component.carried_bytes * layout.local_batch) * wire_s + 2 * delay_s
