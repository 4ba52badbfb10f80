"""SPP: FIFO-1F1B on the optimal partition."""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import ClassVar, Self

from strategies import parameters as fields
from strategies.actions import Order
from strategies.linear import (
    frozen_s,
    least_memory,
    one_forward_one_backward_order,
    pipeline_bound,
    shape_of,
    shapes,
    unfilled_plan,
)
from strategies.plan import Plan
from strategies.scenario import Scenario


@dataclass(frozen=True, slots=True)
class SPP:
    """Source: Luo et al., SPP, 2022, with the objective of DiffusionPipe, Eq. 2."""

    name: ClassVar[str] = "spp"
    task: ClassVar[str] = "train"
    summary: ClassVar[str] = "FIFO-1F1B on the optimal partition"

    pipeline_degree: int = fields.pipeline_degree()
    micro_batches: int = fields.micro_batches()
    group_size: int | None = fields.group_size()
    partition: str = fields.partition("optimal")
    p2p: str = fields.p2p()
    skip_route: str = fields.skip_route()

    def order(self) -> Order:
        """Return the forwards and backwards of each position."""
        return one_forward_one_backward_order(self.pipeline_degree, self.micro_batches)

    def plan(self, scenario: Scenario) -> Plan:
        """Return the plan of one iteration."""
        rows = one_forward_one_backward_order(self.pipeline_degree, self.micro_batches)
        return unfilled_plan(self, scenario, rows)

    @classmethod
    def candidates(cls, scenario: Scenario) -> Iterator[Self]:
        """Yield every degree, group size and number of micro-batches that divides."""
        return (cls(shape.degree, shape.micro_batches, shape.group_size) for shape in shapes(scenario))

    def bound(self, scenario: Scenario) -> float:
        """Return seconds that no iteration can undercut."""
        return pipeline_bound(self, scenario, before_s=frozen_s(scenario, shape_of(self)))

    def least_memory_bytes(self, scenario: Scenario) -> float:
        """Return bytes that the fullest device cannot do without."""
        return least_memory(self, scenario)
