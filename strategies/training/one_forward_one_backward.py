"""FIFO-1F1B: one forward, one backward, on stages of equal numbers of blocks."""

from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import ClassVar, Self

from strategies import parameters as fields
from strategies.orders.named import one_forward_one_backward_order
from strategies.pipelining.stages import shapes
from strategies.plans.actions import Rows
from strategies.scenario import Scenario
from strategies.templates.linear_pipeline import LinearPipeline


@dataclass(frozen=True, slots=True)
class OneForwardOneBackward(LinearPipeline):
    """Source: Narayanan et al., PipeDream, 2019; DiffusionPipe, section 2.2."""

    name: ClassVar[str] = "1f1b"
    summary: ClassVar[str] = "FIFO-1F1B on equal blocks"
    order_fields: ClassVar[tuple[str, ...]] = ("pipeline_degree", "micro_batches")
    depth_first: ClassVar[bool | None] = True

    optimizer: str = fields.optimizer()

    def order(self) -> Rows:
        """The forwards and backwards of each position."""
        return one_forward_one_backward_order(self.pipeline_degree, self.micro_batches)

    @classmethod
    def candidates(cls, scenario: Scenario) -> Iterator[Self]:
        """Every degree, group size and number of micro-batches that divides.

        Where stages have replicas, these also share the optimizer's states, in groups of one pipeline alone.
        """
        for shape in shapes(scenario):
            point = cls(shape.degree, shape.micro_batches, shape.group_size)
            yield point
            if scenario.workload.num_gpus > shape.degree == shape.group_size:
                yield replace(point, optimizer="sharded")
