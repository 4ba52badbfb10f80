"""Data parallelism: every GPU trains the whole backbone on its share of the batch."""

from dataclasses import dataclass
from typing import ClassVar

from strategies.orders.named import one_forward_one_backward_order
from strategies.pipelining.data_parallel import BucketedDataParallel
from strategies.pipelining.layout import Layout
from strategies.pipelining.mesh import Mesh
from strategies.pipelining.units import Exchange
from strategies.plans.actions import Rows
from strategies.scenario import Scenario


@dataclass(frozen=True, slots=True)
class DDP(BucketedDataParallel):
    """Gradients are all-reduced in buckets during the last backward (Li et al., PyTorch Distributed, 2020).

    With ``overlap = none`` they are reduced after it, as DeepSpeed's baseline does (DiffusionPipe, section 6).
    """

    name: ClassVar[str] = "ddp"
    summary: ClassVar[str] = "data parallelism: each GPU trains the whole backbone"
    baseline: ClassVar[bool] = True

    def order(self) -> Rows:
        """The forwards and backwards of the accumulated micro-batches."""
        return one_forward_one_backward_order(1, self.micro_batches)

    def layout(self, scenario: Scenario) -> Layout:
        """Every backbone on each GPU."""
        return self.units(scenario, Mesh(scenario.workload.num_gpus, 1))

    def way(self, layout: Layout) -> Exchange:
        """Gradients are summed once."""
        return Exchange(overlap=self.overlap == "buckets", every=self.micro_batches)
