"""Sharding: what ``zero2`` and ``zero3`` share: each of N GPUs keeps one part of N of what is trained.

The frozen components, and layers of a backbone that only pass gradients through, lie whole on every GPU: training
scripts prepare the trained model alone and leave the others out of the partitioning (diffusers,
``train_text_to_image.py`` and ``train_controlnet.py``). Groups of one GPU have nothing to share and communicate
nothing.

Source: Rajbhandari et al., ZeRO, 2020, section 5.
"""

from collections.abc import Collection
from dataclasses import replace
from typing import Final

from profiles.checks import sum_in_order
from strategies.pipelining.builder import PipelineBuilder
from strategies.pipelining.footprint import resident_buffers, trained_parameters
from strategies.pipelining.frozen import Draft
from strategies.pipelining.pipeline import Pipeline
from strategies.pipelining.reduction import GATHER, SCATTER, placed_step
from strategies.plans.plan import Buffer, Collective, Plan, Stage
from strategies.scenario import Scenario

__all__ = [
    "GATHER", "REDUCE", "SCATTER", "collect", "copied_s", "divided", "packed_s", "scatter",
    "shard_bytes", "shard_step_s", "sharded", "step_on_shard", "with_shards",
]  # fmt: skip
REDUCE: Final = "all_reduce"


def sharded(scenario: Scenario) -> Scenario:
    """A scenario in which no pass casts weights, whatever the stack.

    What is sharded is cast before it is gathered, once (FSDP's ``MixedPrecision``), or kept in half precision beside
    its master (DeepSpeed); what is replicated autocast casts in every forward pass.
    """
    if not scenario.stack.cast_weights:
        return scenario
    return scenario.remember(
        ("sharded", scenario.workload), scenario.without_casts
    )  # what is kept serves other workloads too


def divided(buffers: Collection[Buffer], names: Collection[str], num_gpus: int) -> tuple[Buffer, ...]:
    """Buffers of which those named are one GPU's part."""
    return tuple(Buffer(of.name, of.size_bytes / num_gpus) if of.name in names else of for of in buffers)


def with_shards(plan: Plan, names: Collection[str]) -> Plan:
    """A plan of one position in which each GPU keeps its part of the buffers named."""
    (buffers,) = plan.resident
    return replace(plan, resident=(divided(buffers, names, plan.placement.copies),))


def shard_bytes(pipeline: Pipeline, stages: Collection[Stage], names: Collection[str]) -> float:
    """The bytes that stay on each GPU."""
    buffers = resident_buffers(pipeline, tuple(stages))
    return sum_in_order(of.size_bytes for of in divided(buffers, names, pipeline.scenario.workload.num_gpus))


def shard_step_s(pipeline: Pipeline, stage: Stage) -> float:
    """Seconds of the optimizer step on one GPU's part of a stage."""
    workload = pipeline.scenario.workload
    part = trained_parameters(pipeline, stage) / workload.num_gpus
    return pipeline.scenario.step_s(part)


def copied_s(pipeline: Pipeline, stage: Stage, moved_bytes: float) -> float:
    """Seconds of a copy beside a stage's layers that reads and writes so many bytes in all; of none no launch."""
    costs = pipeline.scenario.costs.components[stage.component]
    return costs.copied_s(moved_bytes, 1) if moved_bytes else 0.0


def packed_s(pipeline: Pipeline, stage: Stage, parameters: int) -> float:
    """Seconds of copying gradients of a stage into the contiguous buffer that is scattered.

    They are read as the backward leaves them, in the weights' precision, and written in that of the sum.
    """
    recipe = pipeline.scenario.workload.recipe
    return copied_s(pipeline, stage, parameters * (recipe.weight_bytes + recipe.gradient_bytes))


def step_on_shard(builder: PipelineBuilder, stage: int) -> Draft:
    """The optimizer step of a stage, on one GPU's part of it."""
    draft = placed_step(builder, stage)
    draft.duration_s = shard_step_s(builder.layout, builder.stages[stage])
    return draft


def collect(
    builder: PipelineBuilder, operation: str, size_bytes: float, reads: tuple[int, ...], writes: int
) -> None:
    """Add a collective of all GPUs."""
    builder.collectives.append(Collective(operation, (0,), size_bytes, (0,), reads, (writes,)))


def scatter(
    builder: PipelineBuilder,
    draft: Draft,
    name: tuple[int, int],
    parameters: int,
    offset_s: float | None = None,
    *,
    resident: bool = False,
) -> int:
    """Sum gradients over all GPUs and leave each its part; return what says that it is done.

    Args:
        builder: the plan under construction.
        draft: the backward that computes them.
        name: the stage whose they are, and what tells them from others of it.
        parameters: how many they are.
        offset_s: seconds into the backward after which they are there; None: at its end.
        resident: whether they lie in a buffer that stays.
    """
    size = parameters * builder.scenario.workload.recipe.gradient_bytes
    ready = builder.tensor("gradients", *name, 0.0 if resident else size)
    if offset_s is None:
        draft.writes.append(ready)
    else:
        draft.early.append((offset_s, ready))
    done = builder.tensor("scattered", *name, 0.0)
    collect(builder, SCATTER, size, (ready,), done)
    return done
