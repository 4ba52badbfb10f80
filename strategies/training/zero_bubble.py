"""Zero bubble: 1F1B whose gradients of weights wait until there is nothing else to do."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

from strategies import parameters as fields
from strategies.orders.named import zero_bubble_order
from strategies.pipelining.footprint import least_memory_bytes
from strategies.plans.actions import Rows
from strategies.scenario import Scenario
from strategies.templates.linear_pipeline import LinearPipeline


@dataclass(frozen=True, slots=True)
class ZeroBubble(LinearPipeline):
    """Source: Qi et al., Zero Bubble Pipeline Parallelism, 2023, ZB-H1."""

    name: ClassVar[str] = "zero-bubble"
    summary: ClassVar[str] = "1F1B on equal blocks, gradients of weights put off (ZB-H1)"
    order_fields: ClassVar[tuple[str, ...]] = ("pipeline_degree", "micro_batches")
    split: ClassVar[bool] = True

    optimizer: str = fields.optimizer()

    def order(self) -> Rows:
        """The forwards and both parts of the backwards of each position."""
        return zero_bubble_order(self.pipeline_degree, self.micro_batches)

    def in_flight(self) -> Sequence[int]:
        """For each position the micro-batches whose activations it holds at once when it is fullest."""
        return [min(self.micro_batches, self.pipeline_degree)] * self.pipeline_degree

    def least_memory_bytes(self, scenario: Scenario) -> float:
        """Bytes that the fullest device needs: recomputed activations stay until weights have gradients."""
        recomputed = [min(self.micro_batches, position + 1) for position in range(self.pipeline_degree)]
        layout = self.layout(scenario)
        return least_memory_bytes(layout, self.in_flight(), recomputed=recomputed, frozen_first=True)
