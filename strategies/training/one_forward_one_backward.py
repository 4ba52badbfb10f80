"""FIFO-1F1B: one forward, one backward, on stages of equal numbers of blocks."""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import ClassVar, Self

from strategies import parameters as fields
from strategies.bounds.pipelines import frozen_s, least_memory, pipeline_bound
from strategies.orders.named import one_forward_one_backward_order
from strategies.pipelining.candidates import shapes
from strategies.pipelining.layout import shape_of, unfilled_plan
from strategies.plans.actions import Order
from strategies.plans.plan import Plan
from strategies.scenario import Scenario


@dataclass(frozen=True, slots=True)
class OneForwardOneBackward:
    """Source: Narayanan et al., PipeDream, 2019; DiffusionPipe, section 2.2."""

    name: ClassVar[str] = "1f1b"
    task: ClassVar[str] = "train"
    summary: ClassVar[str] = "FIFO-1F1B on equal blocks"

    pipeline_degree: int = fields.pipeline_degree()
    micro_batches: int = fields.micro_batches()
    group_size: int | None = fields.group_size()
    partition: str = fields.partition("blocks")
    p2p: str = fields.p2p()
    skip_route: str = fields.skip_route()

    def order(self) -> Order:
        """The forwards and backwards of each position."""
        return one_forward_one_backward_order(self.pipeline_degree, self.micro_batches)

    def plan(self, scenario: Scenario) -> Plan:
        """The plan of one iteration."""
        rows = one_forward_one_backward_order(self.pipeline_degree, self.micro_batches)
        return unfilled_plan(self, scenario, rows)

    @classmethod
    def candidates(cls, scenario: Scenario) -> Iterator[Self]:
        """Every degree, group size and number of micro-batches that divides."""
        return (cls(shape.degree, shape.micro_batches, shape.group_size) for shape in shapes(scenario))

    def bound(self, scenario: Scenario) -> float:
        """Seconds that no iteration can undercut."""
        return pipeline_bound(self, scenario, before_s=frozen_s(scenario, shape_of(self)))

    def least_memory_bytes(self, scenario: Scenario) -> float:
        """Bytes that the fullest device cannot do without."""
        return least_memory(self, scenario)
