"""Footprint: the bytes that a stage keeps on its device, whatever the order of its micro-batches."""

from collections.abc import Sequence

from profiles.models import Component
from profiles.recipes import FROZEN_WEIGHT_BYTES
from strategies.plans.plan import Buffer, Stage
from strategies.scenario import Scenario


def trained_parameters(component: Component, stage: Stage) -> int:
    """The parameters of a stage that have gradients."""
    return component.trained_parameters(stage.first_layer, stage.last_layer + 1)


def saved_bytes(scenario: Scenario, stage: Stage, batch: int, *, in_place: bool = False) -> float:
    """Bytes one micro-batch keeps for its backward: its activations, or the input they are recomputed from.

    Args:
        scenario: model and workload.
        stage: the stage.
        batch: samples of one micro-batch on one device.
        in_place: all stages of the component lie on one device, where no skip is kept more than once.
    """
    component = scenario.model.components[stage.component]
    first, last = stage.first_layer, stage.last_layer
    if scenario.workload.checkpointing == "full":
        if in_place:
            return _recomputed_from_bytes(scenario, stage) * batch
        received = component.cut_bytes(first - 1) if first else _input_bytes(scenario, stage.component)
        return (received + component.carried_bytes) * batch
    return sum(layer.saved_bytes for layer in component.layers[first : last + 1]) * batch


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


def resident_buffers(scenario: Scenario, stages: Sequence[Stage], batch: int) -> tuple[Buffer, ...]:
    """The bytes that stay on a device: its stages' state, all frozen weights, recomputation space."""
    recipe, model = scenario.workload.recipe, scenario.model
    trained = sum(trained_parameters(model.components[stage.component], stage) for stage in stages)
    locked = sum(stage.parameters for stage in stages) - trained
    frozen = sum(model.components[i].parameters for i in model.frozen)
    buffers = [
        Buffer("weights", trained * recipe.weight_bytes),
        Buffer("gradients", trained * recipe.gradient_bytes),
        Buffer("optimizer", trained * recipe.optimizer_bytes),
        Buffer("frozen weights", (frozen + locked) * FROZEN_WEIGHT_BYTES),
    ]
    if scenario.workload.checkpointing == "full":
        layers = [
            layer
            for stage in stages
            for layer in model.components[stage.component].layers[stage.first_layer : stage.last_layer + 1]
        ]
        buffers.append(Buffer("recomputed layer", max(layer.saved_bytes for layer in layers) * batch))
    return tuple(buffers)


def least_memory_bytes(
    scenario: Scenario, stages: Sequence[Stage], in_flight: Sequence[int], batch: int
) -> float:
    """Bytes that the fullest device cannot do without.

    Args:
        scenario: model and recipe.
        stages: one per position.
        in_flight: for each stage the micro-batches whose activations it holds at once.
        batch: samples of one micro-batch on one device.
    """
    return max(
        sum(buffer.size_bytes for buffer in resident_buffers(scenario, [stage], batch))
        + count * saved_bytes(scenario, stage, batch)
        for stage, count in zip(stages, in_flight, strict=True)
    )
