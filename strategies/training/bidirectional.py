"""Bidirectional: two pipelines against one another on the same devices."""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Self

from profiles.errors import InfeasibleError
from strategies.bounds.pipelines import two_way_least_memory, uncut_bound
from strategies.orders.named import chimera_order
from strategies.pipelining.layout import Layout
from strategies.pipelining.stages import shapes
from strategies.pipelining.two_way import two_way_layout, two_way_rows
from strategies.plans.actions import Rows
from strategies.scenario import Scenario
from strategies.templates.ordered_pipeline import OrderedPipeline


@dataclass(frozen=True, slots=True)
class Bidirectional(OrderedPipeline):
    """One backbone in two directions, in Chimera's order, or two backbones, one in each direction.

    Source: Li and Hoefler, Chimera, 2021; DiffusionPipe, sections 2.2 and 4.2.
    """

    name = "bidirectional"
    summary = "two directions on the same devices: one backbone (Chimera), or two"

    def order(self) -> Rows:
        """The forwards and backwards of each position for one backbone."""
        return chimera_order(self.pipeline_degree, self.micro_batches)

    def checked_order(self) -> Rows:
        """The order, which the layout of both directions checks."""
        return self.order()

    def layout(self, scenario: Scenario) -> Layout:
        """The stages of both directions."""
        return two_way_layout(scenario, self.shape, self.partition, self.skip_route)

    def _rows(self, layout: Layout) -> Rows:
        return two_way_rows(layout)

    @classmethod
    def candidates(cls, scenario: Scenario) -> Iterator[Self]:
        """Every degree, group size and number of micro-batches that divides; for one backbone even ones."""
        backbones = scenario.model.backbones or [scenario.backbone_index]
        divided = list(shapes(scenario, backbones=backbones))
        if len(backbones) == 1:
            divided = [shape for shape in divided if not (shape.degree % 2 or shape.micro_batches % 2)]
        if not divided:
            raise InfeasibleError(
                "one backbone in two directions takes an even number of positions and of micro-batches, and none"
                f" divides `gpus({scenario.workload.num_gpus})` and `batch_size({scenario.workload.batch_size})`",
                "no even number of positions and of micro-batches",
            )
        return (cls(shape.degree, shape.micro_batches, shape.group_size) for shape in divided)

    def _uncut_s(self, layout: Layout) -> float:
        return uncut_bound(layout, self.pipeline_degree, chains=2)

    def least_memory_bytes(self, scenario: Scenario) -> float:
        """Bytes that the fullest device cannot do without."""
        return two_way_least_memory(self.layout(scenario))
