"""Alike groups: a run of which one guidance group is written, where the others do the same at the same time.

Guidance groups have the same stages and patches, one for each noise prediction, and meet only to gather it. Where
nothing else that one holds delays another, whatever happens in one happens in all.
"""

from dataclasses import replace

from strategies.patching.patch_pipeline import PatchPipeline
from strategies.strategy import Phase


def folded(pipeline: PatchPipeline) -> PatchPipeline:
    """The pipeline of one guidance group that stands for all; the same pipeline where they are not alike."""
    return replace(pipeline, grid=replace(pipeline.grid, folded=True)) if _are_alike(pipeline) else pipeline


def _are_alike(pipeline: PatchPipeline) -> bool:
    """Whether guidance groups share no port: each has nodes of its own, or all are in one whose cards share none.

    Nor may a group's own exchanges share one: which goes first of two at once would then depend on the other group.
    """
    grid, cluster = pipeline.grid, pipeline.scenario.cluster
    if grid.guidance == 1 or grid.data > 1:
        return False
    each, pcie, team = (
        cluster.devices_per_node,
        cluster.intra_node.kind == "pcie",
        grid.sequence * grid.tensor,
    )
    if team > (1 if pcie else each):
        return False
    apart = grid.positions // grid.guidance % each == 0
    return apart or (grid.positions <= each and not pcie)


def unfolded(phase: Phase) -> Phase:
    """A phase whose plan has the ops and buffers of all guidance groups for which one stands.

    It says what lies where, and is none to be carried out: the ops of all read and write what those of one do.
    """
    plan, groups = phase.plan, phase.stands_for
    if groups == 1:
        return phase
    size = groups * plan.num_devices
    placement = replace(plan.placement, group_size=size, num_positions=size)
    plan = replace(plan, ops=plan.ops * groups, resident=plan.resident * groups, placement=placement)
    return phase._replace(plan=plan, stands_for=1)
