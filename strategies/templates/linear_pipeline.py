"""Linear pipelines: one stage per position, in some order."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import ClassVar, Self

from strategies import parameters as fields
from strategies.bounds.critical_path import order_bound
from strategies.bounds.pipelines import pipeline_bound
from strategies.orders.capacity import most_in_flight
from strategies.pipelining.data_parallel import sharded
from strategies.pipelining.layout import Layout
from strategies.pipelining.stages import Shape, shapes
from strategies.scenario import Scenario
from strategies.templates.ordered_pipeline import OrderedPipeline


@dataclass(frozen=True, slots=True)
class LinearPipeline(OrderedPipeline):
    """The only backbone, one stage per position; a strategy adds its name, its summary and its order.

    The bound, and what a device holds, are found by following the order. Where ``depth_first`` names the order, closed
    forms give them in less time: True for FIFO-1F1B, whose position s runs at most P - s micro-batches ahead; False for
    all forwards, then all backwards.
    """

    depth_first: ClassVar[bool | None] = None

    partition: str = fields.partition("blocks")
    p2p: str = fields.p2p()
    skip_route: str = fields.skip_route()

    def layout(self, scenario: Scenario) -> Layout:
        """The stages and where they lie.

        Raises:
            InfeasibleError: the backbone cannot be cut so.
        """
        shape = Shape.of(self)
        there = sharded(scenario) if shape.sharded else scenario
        return Layout.linear(there, shape, self.partition, self.skip_route)

    @classmethod
    def candidates(cls, scenario: Scenario) -> Iterator[Self]:
        """Every degree, group size and number of micro-batches that divides."""
        return (cls(shape.degree, shape.micro_batches, shape.group_size) for shape in shapes(scenario))

    def bound(self, scenario: Scenario) -> float:
        """Seconds that no iteration can undercut."""
        layout = self.layout(scenario)
        if self.depth_first is not None:
            return pipeline_bound(layout, depth_first=self.depth_first)
        return order_bound(layout, self.checked_order, self._order_key(), split=self.split)

    def least_memory_bytes(self, scenario: Scenario) -> float:
        """Bytes that the fullest device cannot do without."""
        return self.layout(scenario).least_memory_bytes(self.in_flight(), frozen_first=True)

    def in_flight(self) -> Sequence[int]:
        """For each position the micro-batches whose activations it holds at once when it is fullest."""
        degree, count = self.pipeline_degree, self.micro_batches
        if self.depth_first is None:
            return most_in_flight(self.checked_order())
        return [min(count, degree - s) if self.depth_first else count for s in range(degree)]
