"""Linear pipelines: one stage per position, in some order."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import ClassVar, Self

from strategies.bounds.pipelines import pipeline_bound
from strategies.pipelining.stages import shapes
from strategies.scenario import Scenario
from strategies.templates.ordered_pipeline import OrderedPipeline


@dataclass(frozen=True, slots=True)
class LinearPipeline(OrderedPipeline):
    """The only backbone, one stage per position; a strategy adds its name, its summary and its order.

    The bound, and the activations of a device, follow from the order. Where ``depth_first`` names the order, closed
    forms give them in less time: True for FIFO-1F1B, whose position s runs at most P - s micro-batches ahead; False for
    all forwards, then all backwards.
    """

    depth_first: ClassVar[bool | None] = None

    @classmethod
    def candidates(cls, scenario: Scenario) -> Iterator[Self]:
        """Every degree, group size and number of micro-batches that divides."""
        return (cls(shape.degree, shape.micro_batches, shape.group_size) for shape in shapes(scenario))

    def bound(self, scenario: Scenario) -> float:
        """Seconds that no iteration can undercut."""
        if self.depth_first is not None:
            return pipeline_bound(self.layout(scenario), depth_first=self.depth_first)
        return OrderedPipeline.bound(self, scenario)

    def order_bound(self, scenario: Scenario) -> float:
        """Seconds that no iteration can undercut in this order."""
        return (
            OrderedPipeline.order_bound(self, scenario) if self.depth_first is None else self.bound(scenario)
        )

    def in_flight(self) -> Sequence[int]:
        """For each position the micro-batches whose activations it holds at once when it is fullest."""
        degree, count = self.pipeline_degree, self.micro_batches
        if self.depth_first is None:
            return OrderedPipeline.in_flight(self)
        return [min(count, degree - s) if self.depth_first else count for s in range(degree)]
