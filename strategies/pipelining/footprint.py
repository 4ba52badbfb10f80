"""Footprint: the bytes that a stage keeps on its device, whatever the order of its micro-batches."""

from collections.abc import Sequence

from profiles.recipes import FROZEN_WEIGHT_BYTES
from strategies.pipelining.pipeline import Pipeline
from strategies.plans.plan import Buffer, Stage
from strategies.scenario import Scenario


def trained_parameters(pipeline: Pipeline, stage: Stage) -> int:
    """The parameters of a stage that have gradients."""
    return pipeline.component(stage).trained_parameters(stage.first_layer, stage.last_layer + 1)


def saved_bytes(pipeline: Pipeline, stage: Stage, *, in_place: bool = False) -> float:
    """Bytes one micro-batch keeps for its backward: its activations, or the input they are recomputed from.

    Args:
        pipeline: the pipeline.
        stage: the stage.
        in_place: all stages of the component lie on one device, where no skip is kept more than once.
    """
    scenario, component, batch = pipeline.scenario, pipeline.component(stage), pipeline.local_batch
    first, last = stage.first_layer, stage.last_layer
    if scenario.workload.checkpointing == "full":
        if in_place:
            return _recomputed_from_bytes(scenario, stage) * batch
        received = component.cut_bytes(first - 1) if first else _input_bytes(scenario, stage.component)
        return (received + component.carried_bytes) * batch
    saved = scenario.costs.components[stage.component].saved_bytes
    return float(saved[first : last + 1].sum()) * batch


def _recomputed_from_bytes(scenario: Scenario, stage: Stage) -> float:
    """Bytes per sample: a stage's input, what the first one carries, and the skips that leave it."""
    component = scenario.model.components[stage.component]
    layers, first, last = component.layers, stage.first_layer, stage.last_layer
    leaving = {skip.source for skip in component.skips if first <= skip.source < last < skip.target}
    if first:
        received = layers[first - 1].output_bytes
    else:
        received = _input_bytes(scenario, stage.component) + component.carried_bytes
    return received + sum(layers[source].output_bytes for source in leaving)


def _input_bytes(scenario: Scenario, component: int) -> float:
    components = scenario.model.components
    return sum(components[i].layers[-1].output_bytes for i in scenario.model.inputs_of(component))


def resident_buffers(pipeline: Pipeline, stages: Sequence[Stage]) -> tuple[Buffer, ...]:
    """The bytes that stay on a device: its stages' state, all frozen weights, recomputation space."""
    scenario, recipe = pipeline.scenario, pipeline.scenario.workload.recipe
    trained = sum(trained_parameters(pipeline, stage) for stage in stages)
    locked = sum(stage.parameters for stage in stages) - trained
    frozen = sum(scenario.model.components[i].parameters for i in scenario.frozen)
    buffers = [
        Buffer("weights", trained * recipe.weight_bytes),
        Buffer("gradients", trained * recipe.gradient_bytes),
        Buffer("optimizer", trained * recipe.optimizer_bytes),
        Buffer("frozen weights", (frozen + locked) * FROZEN_WEIGHT_BYTES),
    ]
    if recipe.ema_bytes:
        buffers.append(Buffer("moving average", trained * recipe.ema_bytes))
    if scenario.workload.checkpointing == "full":
        costs = scenario.costs.components
        largest_bytes = max(
            float(costs[stage.component].saved_bytes[stage.first_layer : stage.last_layer + 1].max())
            for stage in stages
        )
        buffers.append(Buffer("recomputed layer", largest_bytes * pipeline.local_batch))
    return tuple(buffers)
