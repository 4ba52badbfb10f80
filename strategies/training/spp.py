"""SPP: FIFO-1F1B on the optimal partition."""

from dataclasses import dataclass
from typing import ClassVar

from strategies import parameters as fields
from strategies.orders.named import one_forward_one_backward_order
from strategies.plans.actions import Rows
from strategies.templates.linear_pipeline import LinearPipeline


@dataclass(frozen=True, slots=True)
class SPP(LinearPipeline):
    """Source: Luo et al., SPP, 2022, with the objective of DiffusionPipe, Eq. 2."""

    name: ClassVar[str] = "spp"
    summary: ClassVar[str] = "FIFO-1F1B on the optimal partition"
    order_fields: ClassVar[tuple[str, ...]] = ("pipeline_degree", "micro_batches")
    depth_first: ClassVar[bool | None] = True

    partition: str = fields.partition("optimal")

    def order(self) -> Rows:
        """The forwards and backwards of each position."""
        return one_forward_one_backward_order(self.pipeline_degree, self.micro_batches)
