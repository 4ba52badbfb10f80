"""Linear pipelines: one stage per position, in some order."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Self

from strategies.orders.named import one_forward_one_backward_order
from strategies.pipelining.stages import shapes
from strategies.plans.actions import Rows
from strategies.scenario import Scenario
from strategies.templates.ordered_pipeline import OrderedPipeline


@dataclass(frozen=True, slots=True)
class LinearPipeline(OrderedPipeline):
    """The only backbone, one stage per position; a strategy adds its name, its summary and its order."""

    @classmethod
    def candidates(cls, scenario: Scenario) -> Iterator[Self]:
        """Every degree, group size and number of micro-batches that divides."""
        return (cls(shape.degree, shape.micro_batches, shape.group_size) for shape in shapes(scenario))


@dataclass(frozen=True, slots=True)
class DepthFirstPipeline(LinearPipeline):
    """A linear pipeline in FIFO-1F1B, whose position s runs at most P - s micro-batches ahead."""

    def order(self) -> Rows:
        """The forwards and backwards of each position."""
        return one_forward_one_backward_order(self.pipeline_degree, self.micro_batches)

    def in_flight(self) -> Sequence[int]:
        """For each position the micro-batches whose activations it holds when it is fullest."""
        return [min(self.micro_batches, self.pipeline_degree - s) for s in range(self.pipeline_degree)]
