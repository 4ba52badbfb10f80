"""Alike groups: a run of which one guidance group, or one node of each team, is written and stands for the others.

Guidance groups have the same stages and patches, one for each noise prediction, and meet only to gather it. Where
nothing else that one holds delays another, whatever happens in one happens in all.

So it is with the nodes of a team where each of its groups lies in one of them, or in all of them in the same places: a
group of the first kind has its like in each node, and one of the other kind holds the ports of all nodes at once.
"""

from collections.abc import Sequence
from dataclasses import replace

from strategies.patching.grid import Team
from strategies.patching.patch_pipeline import PatchPipeline
from strategies.strategy import Phase


def folded(pipeline: PatchPipeline) -> PatchPipeline:
    """The pipeline of one guidance group, or of one node of each team, that stands for all; else the same pipeline."""
    grid = replace(pipeline.grid, folded=_are_alike(pipeline), alike_nodes=_alike_nodes(pipeline))
    return pipeline if grid == pipeline.grid else replace(pipeline, grid=grid)


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


def _alike_nodes(pipeline: PatchPipeline) -> int:
    """Nodes of each team that do the same at the same time; 1 where they do not, or cards share switches."""
    team, cluster = pipeline.grid.team(0, 0), pipeline.scenario.cluster
    each = cluster.devices_per_node
    if pipeline.grid.data > 1 or cluster.intra_node.kind == "pcie" or team.size % each:
        return 1
    nodes = team.size // each
    return nodes if all(_lies_alike(group, each, nodes) for group in _groups(team)) else 1


def _groups(team: Team) -> list[tuple[int, ...]]:
    """All devices of a team that exchange with one another."""
    return [
        *team.tensor_groups(),
        *team.ulysses_groups(),
        *team.ring_groups(),
        *team.row_groups(),
        *team.column_groups(),
        *team.sequence_groups(),
    ]


def _lies_alike(group: Sequence[int], each: int, nodes: int) -> bool:
    """Whether a group lies in one node, or in all in the same places."""
    met = {device // each for device in group}
    return len(met) == 1 or len(group) == nodes * len({device % each for device in group})


def unfolded(phase: Phase) -> Phase:
    """The phase with a plan of all devices: those for which another stands have the ops and buffers of that one.

    The plan says what lies where and cannot be replayed: all these ops read and write the same tensors.
    """
    plan, standing_in = phase.plan, phase.standing_in
    if not standing_in:
        return phase
    size = len(standing_in)
    plan = replace(
        plan,
        ops=tuple(plan.ops[device] for device in standing_in),
        resident=tuple(plan.resident[device] for device in standing_in),
        placement=replace(plan.placement, group_size=size, num_positions=size),
        stages=tuple(replace(of, position=standing_in.index(of.position)) for of in plan.stages),
    )
    return phase._replace(plan=plan, standing_in=())
