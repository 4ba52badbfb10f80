"""ZeRO-2: data parallelism whose gradients and optimizer states are divided among the GPUs."""

from dataclasses import dataclass
from typing import ClassVar

from strategies import parameters
from strategies.orders.named import one_forward_one_backward_order
from strategies.pipelining.data_parallel import BucketedDataParallel
from strategies.pipelining.layout import Layout
from strategies.pipelining.mesh import Mesh
from strategies.pipelining.units import Exchange
from strategies.plans.actions import Rows
from strategies.scenario import Scenario


@dataclass(frozen=True, slots=True)
class Zero2(BucketedDataParallel):
    """Each backward scatters its gradients in buckets; after its step each GPU gathers the weights of the others.

    With ``overlap = none`` nothing is computed while gradients are scattered. They are scattered after every
    micro-batch, since no GPU keeps them all (DeepSpeed; FSDP's ``SHARD_GRAD_OP`` without ``no_sync``). A GPU that does
    keep them scatters the sum of ``scatter_every`` micro-batches at once. What is scattered is copied into a contiguous
    buffer first (DeepSpeed, ``contiguous_gradients``). PULSE counts the bytes of the scattering alone
    (section VII-A); here those of the gathers are among the bytes of the collectives.

    Source: Rajbhandari et al., ZeRO, 2020, sections 5 and 7.
    """

    name: ClassVar[str] = "zero2"
    summary: ClassVar[str] = "data parallelism: gradients and optimizer states are divided among the GPUs"

    scatter_every: int = parameters.parameter(
        1, "micro-batches whose gradients are added up, whole, before they are scattered"
    )

    def order(self) -> Rows:
        """The forwards and backwards of the accumulated micro-batches."""
        return one_forward_one_backward_order(1, self.micro_batches)

    def layout(self, scenario: Scenario) -> Layout:
        """Every backbone on each GPU, which keeps gradients whole where it adds them up."""
        gradients = ("gradients",) if self._every == 1 else ()
        divided = (*gradients, "optimizer", "moving average")
        return self.units(scenario, Mesh(1, scenario.workload.num_gpus), divided)

    @property
    def _every(self) -> int:
        return min(self.scatter_every, self.micro_batches)

    def way(self, layout: Layout) -> Exchange:
        """Gradients are scattered, weights gathered after the step."""
        return Exchange(overlap=self.overlap == "buckets", every=self._every)
