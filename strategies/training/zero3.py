"""ZeRO-3: data parallelism whose weights, too, are divided among the GPUs and gathered whenever they are used."""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from typing import ClassVar, Final

from profiles.checks import sum_in_order
from strategies.pipelining import data_parallel as fields
from strategies.pipelining.builder import Recipe
from strategies.pipelining.cutting import cut_units
from strategies.pipelining.data_parallel import (
    DataParallel,
    backbones_of,
    before_s,
    beside_share,
    collective_s,
    layout_of,
    passes_s,
    replicated_plan,
    shard_bytes,
    sharded,
    with_shards,
)
from strategies.pipelining.footprint import BACKBONE, saved_bytes
from strategies.pipelining.mesh import Mesh, MeshLayout, mesh_layout
from strategies.pipelining.reduction import GATHER, SCATTER
from strategies.pipelining.units import exchange, packed_s, step_s, unpacked_s
from strategies.plans.plan import Plan
from strategies.scenario import Scenario

SHARDED: Final = ("weights", "gradients", "optimizer", "moving average", BACKBONE)
UNIT_PARAMETERS: Final = 5 * 10**7
"""Blocks are gathered together until they have at least so many parameters.

Source: DeepSpeed, default ``stage3_prefetch_bucket_size``.
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
        plan = replicated_plan(self._layout(scenario), recipe, partial(exchange, sweeps=False))
        return with_shards(plan, SHARDED)

    def _layout(self, scenario: Scenario) -> MeshLayout:
        backbones = backbones_of(self, scenario)
        cuts = scenario.remember(
            "units", lambda: tuple(cut_units(scenario, i, UNIT_PARAMETERS) for i in backbones)
        )
        return mesh_layout(layout_of(self, sharded(scenario), cuts), Mesh(1, scenario.workload.num_gpus))

    def least_memory_bytes(self, scenario: Scenario) -> float:
        """Bytes that each device cannot do without: the last unit's backward begins with all activations."""
        layout, alone = self._layout(scenario), scenario.workload.num_gpus == 1
        held = []
        for units in map(layout.chain, range(len(layout.cuts))):
            saved = sum_in_order(saved_bytes(layout, layout.stages[unit], in_place=True) for unit in units)
            gradients = layout.parameters(units[-1]) * scenario.workload.recipe.gradient_bytes
            held.append(saved + (0.0 if alone else layout.weight_bytes(units[-1]) + gradients))
        return shard_bytes(layout, layout.stages, SHARDED) + max(held)

    def bound(self, scenario: Scenario) -> float:
        """Seconds that no iteration can undercut: for each backbone all compute, or all communication."""
        layout = self._layout(scenario)
        return sum_in_order(self._least_s(layout, layout.chain(cut)) for cut in range(len(layout.cuts)))

    def _least_s(self, layout: MeshLayout, units: range) -> float:
        stages = [layout.stages[unit] for unit in units]
        passes = 3 if layout.scenario.workload.extra_forward else 2
        work_s = passes_s(layout, stages)
        gathers_s = passes * _collectives_s(layout, GATHER, units)
        all_s = self.micro_batches * (gathers_s + _collectives_s(layout, SCATTER, units))
        if layout.mesh.parts > 1 and any(map(layout.parameters, units)):
            copies_s = (passes * unpacked_s(layout, unit) + packed_s(layout, unit) for unit in units)
            work_s += self.micro_batches * sum_in_order(copies_s)
        if self.overlap == "none":
            work_s += all_s
        else:
            # The first unit of a pass, and the last, whose backward follows its forward, are waited for.
            ends = [units[0], units[-1]]
            bare_s = gathers_s if len(units) == 1 else _collectives_s(layout, GATHER, ends)
            waited_s = self.micro_batches * bare_s + _collectives_s(layout, SCATTER, units[:1])
            beside_s = beside_share(layout.scenario) * (all_s - waited_s)
            work_s = max(work_s + waited_s + beside_s, before_s(layout, stages) + all_s)
        return work_s + sum_in_order(step_s(layout, unit) for unit in units)


def _collectives_s(layout: MeshLayout, operation: str, units: Sequence[int]) -> float:
    """Seconds of gathering, or scattering, each of some units once."""
    if not any(map(layout.parameters, units)):
        return 0.0
    each_bytes = layout.scenario.workload.recipe.gradient_bytes
    sizes = (
        layout.weight_bytes(unit) if operation == GATHER else layout.parameters(unit) * each_bytes
        for unit in units
    )
    return collective_s(layout, operation, sum_in_order(sizes), len(units))
