"""GPipe: all forwards, then all backwards, on stages of equal numbers of blocks."""

from dataclasses import dataclass
from typing import ClassVar

from strategies import parameters as fields
from strategies.orders.named import gpipe_order
from strategies.plans.actions import Rows
from strategies.templates.linear_pipeline import LinearPipeline


@dataclass(frozen=True, slots=True)
class GPipe(LinearPipeline):
    """Source: Huang et al., GPipe, 2019."""

    name: ClassVar[str] = "gpipe"
    summary: ClassVar[str] = "all forwards, then all backwards, on equal blocks"
    order_fields: ClassVar[tuple[str, ...]] = ("pipeline_degree", "micro_batches")
    depth_first: ClassVar[bool | None] = False

    optimizer: str = fields.optimizer()

    def order(self) -> Rows:
        """The forwards and backwards of each position."""
        return gpipe_order(self.pipeline_degree, self.micro_batches)
