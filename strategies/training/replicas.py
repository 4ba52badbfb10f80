"""Data parallelism: DistributedDataParallel, ZeRO-2 and ZeRO-3, in which each GPU trains on its share of the batch."""

from dataclasses import dataclass
from typing import Final

from strategies.orders.named import one_forward_one_backward_order
from strategies.parameters import parameter
from strategies.pipelining.data_parallel import BucketedDataParallel, bucket_mb
from strategies.pipelining.footprint import TRAINED_STATE, WHOLE_GRADIENTS
from strategies.pipelining.layout import Layout
from strategies.pipelining.mesh import WAYS, Mesh
from strategies.pipelining.units import BUCKET_BYTES, BUCKET_ELEMENTS, Exchange
from strategies.plans.actions import Rows
from strategies.scenario import Scenario

UNIT_PARAMETERS: Final = 5 * 10**7
"""Blocks are gathered together until they have at least so many parameters.

Source: DeepSpeed, default ``stage3_prefetch_bucket_size``.
"""


@dataclass(frozen=True, slots=True)
class DDP(BucketedDataParallel):
    """Gradients are all-reduced in buckets during the last backward (Li et al., PyTorch Distributed, 2020).

    With ``overlap = none`` they are reduced after it, as DeepSpeed's baseline does (DiffusionPipe, section 6).
    """

    name = "ddp"
    summary = "data parallelism: each GPU trains the whole backbone"
    complexity = 0
    baseline = True

    bucket_MB: int | None = bucket_mb()  # noqa: N815  as bucket_cap_mb of PyTorch and apex

    def order(self) -> Rows:
        """The forwards and backwards of the accumulated micro-batches."""
        return one_forward_one_backward_order(1, self.micro_batches)

    def layout(self, scenario: Scenario) -> Layout:
        """Every backbone on each GPU."""
        return self.units(scenario, Mesh(scenario.workload.num_gpus, 1))

    def way(self, layout: Layout) -> Exchange:
        """Gradients are summed once."""
        size = self.bucket_MB * 2**20 if self.bucket_MB else BUCKET_BYTES
        return Exchange(overlap=self.overlap == "buckets", every=self.micro_batches, bucket_bytes=size)


@dataclass(frozen=True, slots=True)
class Zero2(BucketedDataParallel):
    """Each backward scatters its gradients in buckets; after its step each GPU gathers the weights of the others.

    With ``overlap = none`` nothing is computed while gradients are scattered. They are scattered after every
    micro-batch, since no GPU keeps their sum (DeepSpeed; FSDP's ``SHARD_GRAD_OP`` without ``no_sync``); as the backward
    writes them, in half precision, each keeps them whole (DeepSpeed). A GPU that does keep the sum scatters that of
    ``scatter_every`` micro-batches at once. What is scattered is copied into a contiguous buffer first (DeepSpeed,
    ``contiguous_gradients``). With a ``shard_size`` gradients are scattered, and weights gathered, among so many
    neighbours, and the parts summed over all groups of them, as by apex's ``DistributedFusedAdam`` with a
    ``redundant_process_group``; among one they would be ``ddp``'s. PULSE counts the bytes of the scattering alone
    (section VII-A); here those of the gathers are among the bytes of the collectives.

    Source: Rajbhandari et al., ZeRO, 2020, sections 5 and 7.
    """

    name = "zero2"
    summary = "data parallelism: gradients and optimizer states are divided among the GPUs"
    complexity = 1

    scatter_every: int = parameter(
        1, "micro-batches whose gradients are added up, whole, before they are scattered"
    )
    bucket_MB: int | None = bucket_mb()  # noqa: N815
    shard_size: int | None = parameter(
        None, "GPUs that share gradients and optimizer states (default: all)", minimum=2
    )

    order = DDP.order

    def layout(self, scenario: Scenario) -> Layout:
        """Every backbone on each GPU, which keeps gradients whole where it adds them up."""
        gradients = ("gradients", WHOLE_GRADIENTS) if self._every == 1 else ()
        divided = (*gradients, "optimizer", "moving average")
        mesh = Mesh.of(scenario.workload.num_gpus, self.shard_size, 1, 1, WAYS[0])
        layout = self.units(scenario, mesh, divided)
        if mesh.replicas > 1:
            for subgroup in (mesh.sharding, mesh.replication):
                layout.placement.group(0, subgroup=subgroup)
        return layout

    @property
    def _every(self) -> int:
        return min(self.scatter_every, self.micro_batches)

    def way(self, layout: Layout) -> Exchange:
        """Gradients are scattered, weights gathered after the step."""
        gradient_bytes = layout.scenario.workload.recipe.gradient_bytes
        size = self.bucket_elements(gradient_bytes) * gradient_bytes
        return Exchange(overlap=self.overlap == "buckets", every=self._every, bucket_bytes=size)

    def bucket_elements(self, gradient_bytes: float) -> int:
        """Gradients that are scattered at once."""
        return int(self.bucket_MB * 2**20 / gradient_bytes) if self.bucket_MB else BUCKET_ELEMENTS


@dataclass(frozen=True, slots=True)
class Zero3(BucketedDataParallel):
    """Units of blocks are gathered before their forward and again before their backward, and freed after each.

    While one unit is used the next is gathered; one that was just freed, though, is gathered only then. After the
    backward of a unit its gradients are scattered. With ``overlap = none`` nothing is computed while anything is
    gathered or scattered. A unit is a stage of the plan. DeepSpeed frees less where it has room: parameters that it
    needs again soon (``stage3_max_reuse_distance``). What was gathered is copied, part by part, into whole weights, and
    gradients into the contiguous buffer that is scattered; this on a stream beside, of the same memory (``stage3.py``).

    Source: Rajbhandari et al., ZeRO, 2020, sections 5 and 7; Zhao et al., PyTorch FSDP, 2023, section 3.3; DeepSpeed,
    ``runtime/zero/partition_parameters.py``, ``AllGatherCoalescedHandle`` (``torch.cat``).
    """

    name = "zero3"
    summary = "data parallelism: weights, gradients and optimizer states are divided among the GPUs"
    complexity = 1
    awaits = "all_gather"

    def layout(self, scenario: Scenario) -> Layout:
        """Blocks of every backbone, each in parts on all GPUs."""
        return self.units(scenario, Mesh(1, scenario.workload.num_gpus), TRAINED_STATE, UNIT_PARAMETERS)

    def way(self, layout: Layout) -> Exchange:
        """Weights are gathered one unit ahead."""
        return Exchange(overlap=self.overlap == "buckets", gathers=True)
