"""FIFO-1F1B: one forward, one backward, on stages of equal numbers of blocks."""

from dataclasses import dataclass
from typing import ClassVar

from strategies.orders.named import one_forward_one_backward_order
from strategies.plans.actions import Rows
from strategies.templates.linear_pipeline import LinearPipeline


@dataclass(frozen=True, slots=True)
class OneForwardOneBackward(LinearPipeline):
    """Source: Narayanan et al., PipeDream, 2019; DiffusionPipe, section 2.2."""

    name: ClassVar[str] = "1f1b"
    summary: ClassVar[str] = "FIFO-1F1B on equal blocks"
    depth_first: ClassVar[bool | None] = True

    def order(self) -> Rows:
        """The forwards and backwards of each position."""
        return one_forward_one_backward_order(self.pipeline_degree, self.micro_batches)
