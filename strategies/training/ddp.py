"""Data parallelism: every GPU trains the whole backbone on its share of the batch."""

from dataclasses import dataclass
from typing import ClassVar

from strategies.orders.named import one_forward_one_backward_order
from strategies.pipelining import data_parallel as fields
from strategies.pipelining.builder import Recipe
from strategies.pipelining.data_parallel import (
    DataParallel,
    replicated_least_bytes,
    replicated_least_s,
    replicated_plan,
    whole_backbones,
)
from strategies.plans.actions import Rows
from strategies.plans.plan import Plan
from strategies.scenario import Scenario


@dataclass(frozen=True, slots=True)
class DDP(DataParallel):
    """Gradients are all-reduced in buckets during the last backward (Li et al., PyTorch Distributed, 2020).

    With ``overlap = none`` they are reduced after it, as DeepSpeed's baseline does (DiffusionPipe, section 6).
    """

    name: ClassVar[str] = "ddp"
    summary: ClassVar[str] = "data parallelism: each GPU trains the whole backbone"
    baseline: ClassVar[bool] = True

    overlap: str = fields.overlap()
    micro_batches: int = fields.micro_batches()
    backbones: str = fields.backbones()

    def order(self) -> Rows:
        """The forwards and backwards of the accumulated micro-batches."""
        return one_forward_one_backward_order(1, self.micro_batches)

    def plan(self, scenario: Scenario) -> Plan:
        """The plan of one iteration."""
        recipe = Recipe(buckets=self.overlap == "buckets")
        return replicated_plan(whole_backbones(self, scenario), recipe)

    def least_memory_bytes(self, scenario: Scenario) -> float:
        """Bytes that each device cannot do without."""
        return replicated_least_bytes(whole_backbones(self, scenario))

    def bound(self, scenario: Scenario) -> float:
        """Seconds that no iteration can undercut: for each backbone all compute, or all reductions."""
        return replicated_least_s(whole_backbones(self, scenario), self.overlap)
