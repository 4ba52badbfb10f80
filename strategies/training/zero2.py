"""ZeRO-2: data parallelism whose gradients and optimizer states are divided among the GPUs."""

from collections.abc import Iterator
from dataclasses import dataclass
from functools import partial
from itertools import pairwise
from typing import ClassVar, Final

from profiles.checks import sum_in_order
from strategies import parameters
from strategies.orders.named import one_forward_one_backward_order
from strategies.pipelining import data_parallel as fields
from strategies.pipelining.builder import PipelineBuilder, Recipe
from strategies.pipelining.data_parallel import (
    Buckets,
    DataParallel,
    buckets,
    collective_s,
    packed_s,
    reduced_s,
    replicated_plan,
    shard_bytes,
    sharded,
    whole_backbones,
    with_shards,
)
from strategies.pipelining.footprint import saved_bytes, trained_parameters
from strategies.pipelining.frozen import Draft
from strategies.pipelining.layout import Layout
from strategies.pipelining.reduction import GATHER, SCATTER, gather, placed_step
from strategies.plans.actions import BACKWARD, Rows
from strategies.plans.plan import Collective, Plan, Stage
from strategies.scenario import Scenario

SHARDED: Final = ("gradients", "optimizer", "moving average")


@dataclass(frozen=True, slots=True)
class Zero2(DataParallel):
    """Each backward scatters its gradients in buckets; after its step each GPU gathers the weights of the others.

    With ``overlap = none`` nothing is computed while gradients are scattered. They are scattered after every
    micro-batch, since no GPU keeps them all (DeepSpeed; FSDP's ``SHARD_GRAD_OP`` without ``no_sync``). A GPU that does
    keep them scatters the sum of ``scatter_every`` micro-batches at once. What is scattered is copied into a contiguous
    buffer first (DeepSpeed, ``contiguous_gradients``). PULSE counts what the scattering sends alone
    (section VII-A); here what the gathers send is among the bytes of the collectives.

    Source: Rajbhandari et al., ZeRO, 2020, sections 5 and 7.
    """

    name: ClassVar[str] = "zero2"
    summary: ClassVar[str] = "data parallelism: gradients and optimizer states are divided among the GPUs"

    overlap: str = fields.overlap()
    micro_batches: int = fields.micro_batches()
    backbones: str = fields.backbones()
    scatter_every: int = parameters.parameter(
        1, "micro-batches whose gradients are added up, whole, before they are scattered"
    )

    @property
    def _keeps(self) -> bool:
        """Whether each GPU keeps whole gradients over micro-batches."""
        return min(self.scatter_every, self.micro_batches) > 1

    @property
    def _sharded(self) -> tuple[str, ...]:
        """The buffers that are divided."""
        return tuple(name for name in SHARDED if not (self._keeps and name == "gradients"))

    def order(self) -> Rows:
        """The forwards and backwards of the accumulated micro-batches."""
        return one_forward_one_backward_order(1, self.micro_batches)

    def plan(self, scenario: Scenario) -> Plan:
        """The plan of one iteration."""
        recipe = Recipe(buckets=self.overlap == "buckets")
        plan = replicated_plan(whole_backbones(self, sharded(scenario)), recipe, self._scatter_step_gather)
        return with_shards(plan, self._sharded)

    def least_memory_bytes(self, scenario: Scenario) -> float:
        """Bytes that each device cannot do without: a bucket is there before all activations are gone."""
        layout, gradient_bytes = (
            whole_backbones(self, sharded(scenario)),
            scenario.workload.recipe.gradient_bytes,
        )
        held = []
        for stage in layout.stages:
            largest = max((parameters for _, parameters in buckets(layout, stage, self.overlap)), default=0)
            bucket_bytes = 0 if self._keeps else largest * gradient_bytes
            held.append(saved_bytes(layout, stage) + bucket_bytes)
        return shard_bytes(layout, layout.stages, self._sharded) + max(held)

    def bound(self, scenario: Scenario) -> float:
        """Seconds that no iteration can undercut: for each backbone all compute, or all communication."""
        layout = whole_backbones(self, sharded(scenario))
        return sum_in_order(self._least_s(layout, stage) for stage in layout.stages)

    def _least_s(self, layout: Layout, stage: Stage) -> float:
        pack = partial(packed_s, layout, stage)
        reduced = reduced_s(layout, stage, self.overlap, SCATTER, self.scatter_every, copied_s=pack)
        least_s = reduced + _step_s(layout, stage)
        if not buckets(layout, stage, self.overlap):
            return least_s
        weight_bytes = trained_parameters(layout, stage) * layout.scenario.workload.recipe.weight_bytes
        return least_s + collective_s(layout, GATHER, weight_bytes)

    def _scatter_step_gather(self, builder: PipelineBuilder) -> None:
        """Add what the GPUs exchange, and the optimizer steps.

        A backward begins when at most one bucket of the one before is still to be scattered, as with the two buffers
        of DeepSpeed's ``overlap_comm``: else the gradients of all micro-batches would pile up on slow links.
        """
        (row,) = builder.rows
        split = self.overlap == "buckets"
        for number, stage in enumerate(builder.stages):
            step, pieces = placed_step(builder, number), buckets(builder.layout, stage, self.overlap)
            step.duration_s = _step_s(builder.layout, stage)
            done: list[int] = []
            for index, draft in enumerate(row):
                if draft.action[:2] != (number, BACKWARD):
                    continue
                draft.reads += done[-2:-1]
                if not self._scatters(draft.action[2]):
                    continue
                done += self._scatter(builder, draft, pieces, len(done))
                if not split:
                    row[index + 1].reads += done[-1:]
            if split:
                step.reads += done[-len(pieces) :]
            if pieces:
                gathered = gather(builder, number, step)
                following = next((after for before, after in pairwise(row) if before is step), None)
                if following is not None:
                    following.reads.append(gathered)

    def _scatter(self, builder: PipelineBuilder, draft: Draft, pieces: Buckets, first: int) -> Iterator[int]:
        """Sum the gradients of a backward over all GPUs and leave each its part; yield what says that it is done."""
        number, gradient_bytes = draft.action[0], builder.scenario.workload.recipe.gradient_bytes
        stage, ready_s = builder.stages[number], 0.0
        for index, (offset_s, count) in enumerate(pieces, first):
            ready_s += packed_s(builder.layout, stage, count)
            size = count * gradient_bytes
            ready = builder.tensor("gradients", number, index, 0.0 if self._keeps else size)
            if self.overlap == "buckets":
                draft.early.append((offset_s + ready_s, ready))
            else:
                draft.writes.append(ready)
            scattered = builder.tensor("scattered", number, index, 0.0)
            builder.collectives.append(Collective(SCATTER, (0,), size, (0,), (ready,), (scattered,)))
            yield scattered
        draft.duration_s += ready_s

    def _scatters(self, micro_batch: int) -> bool:
        """Whether gradients are scattered after the backward of a micro-batch."""
        count = micro_batch + 1
        return count % self.scatter_every == 0 or count == self.micro_batches


def _step_s(layout: Layout, stage: Stage) -> float:
    """Seconds of the optimizer step on one GPU's part of a stage."""
    return layout.scenario.step_s(trained_parameters(layout, stage) / layout.scenario.workload.num_gpus)
