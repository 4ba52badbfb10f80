"""Reduction: after the last backward of a stage its gradients are summed over replicas, then it steps.

Stages that hold the same layers, as the two directions of a bidirectional pipeline do, sum their gradients too.

Where replicas share the optimizer's states, each gets its part of a stage's sums, steps on it, and once all sums are
done gathers the weights that the others stepped, once an iteration; weights and gradients stay whole on every GPU
(Megatron Core 0.16, optimizer/distrib_optimizer.py, without ``--overlap-param-gather``). FSDP2 in pipelines, as
torchtitan composes them, comes to the same but for the place of the gather (torch 2.13, pipelining/stage.py).
"""

from collections.abc import Sequence

from strategies.pipelining.builder import PipelineBuilder
from strategies.pipelining.mesh import GATHER, REDUCE, SCATTER
from strategies.plans.actions import BACKWARD, BACKWARD_WEIGHT, OPTIMIZER, StageAction
from strategies.plans.placement import Subgroup
from strategies.plans.plan import Collective, Draft


def reduce_and_step(builder: PipelineBuilder) -> None:
    """Add the gradient reductions of all stages, in the order in which they can start, and the optimizer steps."""
    twins = [stages for stages in builder.layout.twins if builder.layout.summed_parameters[stages[0]]]
    lasts = {stage: _last_backward(builder, stage) for stages in twins for stage in stages}
    follow = {s: lasts[s] - len(builder.rows[builder.stages[s].position]) for s in lasts}
    steps: list[tuple[int, Draft]] = []
    for stages in sorted(twins, key=lambda stages: max(follow[stage] for stage in stages)):
        reduced = _sum(builder, stages, lasts)
        for number in stages:
            step = placed_step(builder, number)
            step.reads += reduced
            steps.append((number, step))
    if builder.shape.sharded:  # a device's collectives run in order: no sum waits behind a gather
        builder.collectives += [gathered_weights(builder, number, step) for number, step in steps]


def _last_backward(builder: PipelineBuilder, stage: int) -> int:
    """The index in its row at which a stage's gradients are complete."""
    row, kinds = builder.rows[builder.stages[stage].position], (BACKWARD, BACKWARD_WEIGHT)
    return next(
        i for i in reversed(range(len(row))) if row[i].action[0] == stage and row[i].action[1] in kinds
    )


def placed_step(builder: PipelineBuilder, stage: int) -> Draft:
    """Return the optimizer step of a stage: where its row places it, else a new one at the end."""
    row, action = builder.rows[builder.stages[stage].position], StageAction(stage, OPTIMIZER)
    if stage in builder.stepping:
        index = next(i for i in reversed(range(len(row))) if row[i].action == action)  # most come last
        draft = row[index]
    else:
        builder.stepping.add(stage)
        row.append(draft := Draft(action, 0.0))
    draft.duration_s = builder.layout.step_s(builder.layout.parameters[stage])
    return draft


def gathered_weights(
    builder: PipelineBuilder, stage: int, step: Draft, subgroup: Subgroup | None = None
) -> Collective:
    """Return the gather of the weights of a stage after its step, for which the next iteration waits."""
    position = builder.stages[stage].position
    stepped, gathered = (builder.tensor(role, stage, 0, 0.0) for role in ("stepped", "gathered"))
    step.writes.append(stepped)
    builder.kept.append((gathered, position))
    size = builder.layout.trained_parameters[stage] * builder.scenario.workload.recipe.weight_bytes
    return Collective(GATHER, (position,), size, (position,), (stepped,), (gathered,), subgroup=subgroup)


def _sum(builder: PipelineBuilder, stages: Sequence[int], lasts: dict[int, int]) -> list[int]:
    """Sum the gradients of stages that hold the same layers over all that hold them; return the tensor of the sum."""
    if len(stages) * builder.placement.copies == 1:
        return []
    positions = tuple(sorted(builder.stages[stage].position for stage in stages))
    ready = [builder.tensor("gradients", stage, 0, 0.0) for stage in stages]
    for stage, tensor in zip(stages, ready, strict=True):
        builder.rows[builder.stages[stage].position][lasts[stage]].writes.append(tensor)
    size = builder.layout.summed_parameters[stages[0]] * builder.scenario.workload.recipe.gradient_bytes
    done = builder.tensor("reduced", stages[0], 0, 0.0)
    operation = SCATTER if builder.shape.sharded else REDUCE
    builder.collectives.append(Collective(operation, positions, size, positions, tuple(ready), (done,)))
    return [done]
