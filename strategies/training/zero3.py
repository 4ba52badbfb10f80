"""ZeRO-3: data parallelism whose weights, too, are divided among the GPUs and gathered whenever they are used."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar, Final

from profiles.checks import sum_in_order
from strategies.pipelining import data_parallel as fields
from strategies.pipelining.builder import PipelineBuilder, Recipe
from strategies.pipelining.cutting import cut_units
from strategies.pipelining.data_parallel import (
    DataParallel,
    backbones_of,
    before_s,
    beside_share,
    collect,
    collective_s,
    copied_s,
    layout_of,
    packed_s,
    passes_s,
    replicated_plan,
    scatter,
    shard_bytes,
    shard_step_s,
    sharded,
    step_on_shard,
    with_shards,
)
from strategies.pipelining.footprint import BACKBONE, gathered_bytes, saved_bytes, trained_parameters
from strategies.pipelining.frozen import Draft
from strategies.pipelining.layout import Layout
from strategies.pipelining.pipeline import Pipeline
from strategies.pipelining.reduction import GATHER, SCATTER
from strategies.plans.actions import BACKWARD, OPTIMIZER, FrozenAction, StageAction
from strategies.plans.plan import Plan, Stage
from strategies.scenario import Scenario

SHARDED: Final = ("weights", "gradients", "optimizer", "moving average", BACKBONE)
UNIT_PARAMETERS: Final = 5 * 10**7
"""Blocks are gathered together until they have at least so many parameters.

Source: DeepSpeed, default ``stage3_prefetch_bucket_size``.
"""
AHEAD: Final = 1
"""Units that are gathered while another one is used.

Source: PyTorch FSDP, ``limit_all_gathers``: at most two units are in flight.
"""


@dataclass(frozen=True, slots=True)
class Zero3(DataParallel):
    """Units of blocks are gathered before their forward and again before their backward, and freed after each.

    While one unit is used the next is gathered; one that was just freed, though, is gathered only then. After the
    backward of a unit its gradients are scattered. With ``overlap = none`` nothing is computed while anything is
    gathered or scattered. A unit is a stage of the plan. DeepSpeed frees less where it has room: parameters that it
    needs again soon (``stage3_max_reuse_distance``). What was gathered is copied, part by part, into whole weights, and
    gradients into the contiguous buffer that is scattered; this on a stream beside, of the same memory (``stage3.py``).

    Source: Rajbhandari et al., ZeRO, 2020, sections 5 and 7; Zhao et al., PyTorch FSDP, 2023, section 3.3; DeepSpeed,
    ``runtime/zero/partition_parameters.py``, ``AllGatherCoalescedHandle`` (``torch.cat``).
    """

    name: ClassVar[str] = "zero3"
    summary: ClassVar[str] = (
        "data parallelism: weights, gradients and optimizer states are divided among the GPUs"
    )

    overlap: str = fields.overlap()
    micro_batches: int = fields.micro_batches()
    backbones: str = fields.backbones()

    def plan(self, scenario: Scenario) -> Plan:
        """The plan of one iteration."""
        recipe = Recipe(buckets=self.overlap == "buckets", in_place=True)
        plan = replicated_plan(self._layout(scenario), recipe, _gather_and_scatter)
        return with_shards(plan, SHARDED)

    def _layout(self, scenario: Scenario) -> Layout:
        backbones = backbones_of(self, scenario)
        cuts = scenario.remember(
            "units", lambda: tuple(cut_units(scenario, i, UNIT_PARAMETERS) for i in backbones)
        )
        return layout_of(self, sharded(scenario), cuts)

    def least_memory_bytes(self, scenario: Scenario) -> float:
        """Bytes that each device cannot do without: the last unit's backward begins with all activations."""
        layout, recipe = self._layout(scenario), scenario.workload.recipe
        held = (
            sum_in_order(saved_bytes(layout, stage, in_place=True) for stage in units)
            + _weight_bytes(layout, units[-1])
            + _exchanged_bytes(layout, units[-1], recipe.gradient_bytes)
            for units in _units(layout)
        )
        return shard_bytes(layout, layout.stages, SHARDED) + max(held)

    def bound(self, scenario: Scenario) -> float:
        """Seconds that no iteration can undercut: for each backbone all compute, or all communication."""
        layout = self._layout(scenario)
        return sum_in_order(self._least_s(layout, units) for units in _units(layout))

    def _least_s(self, layout: Layout, units: Sequence[Stage]) -> float:
        work_s, passes = passes_s(layout, units), 3 if layout.scenario.workload.extra_forward else 2
        gathers_s = passes * _collectives_s(layout, GATHER, units)
        scatters_s = _collectives_s(layout, SCATTER, units)
        all_s = self.micro_batches * (gathers_s + scatters_s)
        work_s += self.micro_batches * (passes * _unpacked_s(layout, units) + _packed_s(layout, units))
        if self.overlap == "none":
            work_s += all_s
        else:
            # The first unit of a pass, and the last, whose backward follows its forward, are waited for.
            bare_s = gathers_s if len(units) == 1 else _collectives_s(layout, GATHER, [units[0], units[-1]])
            last_s = _collectives_s(layout, SCATTER, units[:1])
            waited_s = self.micro_batches * bare_s + last_s
            beside_s = beside_share(layout.scenario) * (all_s - waited_s)
            work_s = max(work_s + waited_s + beside_s, before_s(layout, units) + all_s)
        return work_s + sum_in_order(shard_step_s(layout, unit) for unit in units)


def _units(layout: Layout) -> list[list[Stage]]:
    """The units of each backbone."""
    return [[layout.stages[s] for s in layout.chain(cut)] for cut in range(len(layout.cuts))]


def _collectives_s(layout: Layout, operation: str, units: Sequence[Stage]) -> float:
    """The seconds of gathering, or scattering, each of some units once."""
    if not any(trained_parameters(layout, unit) for unit in units):
        return 0.0
    each_bytes = layout.scenario.workload.recipe.gradient_bytes
    size = sum_in_order(
        gathered_bytes(layout, unit) if operation == GATHER else trained_parameters(layout, unit) * each_bytes
        for unit in units
    )
    return collective_s(layout, operation, size, len(units))


def _unpacked_s(layout: Layout, units: Sequence[Stage]) -> float:
    """Seconds of copying the gathered weights of each of some units of a backbone once: read and written."""
    if not any(trained_parameters(layout, unit) for unit in units):
        return 0.0
    return sum_in_order(copied_s(layout, unit, 2 * _weight_bytes(layout, unit)) for unit in units)


def _packed_s(layout: Layout, units: Sequence[Stage]) -> float:
    """Seconds of copying the gradients of each of some units once; one GPU scatters nothing."""
    if layout.scenario.workload.num_gpus == 1:
        return 0.0
    return sum_in_order(packed_s(layout, unit, trained_parameters(layout, unit)) for unit in units)


def _weight_bytes(pipeline: Pipeline, unit: Stage) -> float:
    """The bytes of the weights of a unit that are gathered; one GPU gathers nothing."""
    return 0.0 if pipeline.scenario.workload.num_gpus == 1 else gathered_bytes(pipeline, unit)


def _exchanged_bytes(pipeline: Pipeline, unit: Stage, parameter_bytes: float) -> float:
    """The bytes of what a unit exchanges, when it lies whole on a GPU; one GPU exchanges nothing."""
    alone = pipeline.scenario.workload.num_gpus == 1
    return 0.0 if alone else trained_parameters(pipeline, unit) * parameter_bytes


def _gather_and_scatter(builder: PipelineBuilder) -> None:
    """Add what the GPUs exchange, and the optimizer steps."""
    (row,) = builder.rows
    passes: list[list[int]] = [[] for _ in builder.cuts]
    for index, draft in enumerate(row):
        stage, kind, _ = draft.action
        if kind == OPTIMIZER:
            step_on_shard(builder, stage)
        elif isinstance(draft.action, StageAction):
            passes[builder.seats[stage].cut].append(index)
    for own in passes if builder.placement.copies > 1 else ():
        if any(trained_parameters(builder.layout, builder.stages[row[index].action[0]]) for index in own):
            _exchange(builder, own)


def _exchange(builder: PipelineBuilder, passes: Sequence[int]) -> None:
    """Add the collectives of one backbone, in the order in which they can start.

    Args:
        builder: the plan under construction.
        passes: where in the row the passes of the backbone stand, one after the other.
    """
    (row,) = builder.rows
    due: dict[int, list[int]] = {}
    for index in passes:
        due.setdefault(_gathered_after(builder, passes[0], index), []).append(index)
    for index in range(passes[0] - 1, passes[-1] + 1):
        for user in due.get(index, ()):
            _gather(builder, user, index)
        if index >= passes[0] and row[index].action[1] == BACKWARD:
            _scatter(builder, index, row[passes[-1] + 1])


def _gathered_after(builder: PipelineBuilder, first: int, index: int) -> int:
    """After which op of the row the weights of a pass may be gathered; -1: none.

    The first gathers of the backbone wait for what runs before it, and those of a micro-batch for its frozen work, as
    FSDP's first unit does. A unit that two passes use one after the other is freed in between.
    """
    (row,) = builder.rows
    before = row[index - 1].action if index > first else None
    waits = before is not None and (isinstance(before, FrozenAction) or before[0] == row[index].action[0])
    ahead = AHEAD if builder.recipe.buckets and not waits else 0
    return max(first, index - ahead) - 1


def _gather(builder: PipelineBuilder, index: int, after: int) -> None:
    """Gather the weights of a pass once an op of the row has ended."""
    (row,) = builder.rows
    stage = row[index].action[0]
    size = _weight_bytes(builder.layout, builder.stages[stage])
    gathered = builder.tensor("gathered", stage, index, size)
    row[index].reads.append(gathered)
    row[index].duration_s += copied_s(builder.layout, builder.stages[stage], 2 * size)
    room: tuple[int, ...] = ()
    if after >= 0:
        room = (builder.tensor("room", stage, index, 0.0),)
        row[after].writes += room
    collect(builder, GATHER, size, room, gathered)


def _scatter(builder: PipelineBuilder, index: int, step: Draft) -> None:
    """Scatter the gradients of a backward; the backbone's first step waits for those of the last micro-batch."""
    (row,) = builder.rows
    stage, _, number = row[index].action
    trained = trained_parameters(builder.layout, builder.stages[stage])
    row[index].duration_s += packed_s(builder.layout, builder.stages[stage], trained)
    done = scatter(builder, row[index], (stage, number), trained)
    if not builder.recipe.buckets:
        row[index + 1].reads.append(done)
    elif number == builder.shape.micro_batches - 1:
        step.reads.append(done)
