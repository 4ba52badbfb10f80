"""Footprint: the bytes that a stage keeps on its device, whatever the order of its micro-batches.

Where blocks are checkpointed each keeps its input: the hidden state, skips that end in it, and what it reads of frozen
components. The layers of a block that lie in one stage are recomputed together; what they need from outside they keep.
"""

from collections.abc import Iterator, Sequence
from itertools import groupby
from typing import Final

import numpy as np

from profiles.architectures.components import Component
from profiles.checks import sum_in_order
from profiles.costs.layers import FloatArray
from profiles.errors import InfeasibleError
from profiles.software.recipes import FROZEN_WEIGHT_BYTES
from strategies.pipelining.pipeline import Pipeline
from strategies.plans.plan import Buffer, Stage
from strategies.scenario import Scenario

BACKBONE: Final = "backbone weights"
"""Buffer of a backbone's frozen weights, where adapters are trained beside them."""


def trained_parameters(pipeline: Pipeline, stage: Stage) -> int:
    """The parameters of a stage that have gradients."""
    return pipeline.component(stage).trained_parameters(stage.first_layer, stage.last_layer + 1)


def gathered_bytes(pipeline: Pipeline, stage: Stage) -> float:
    """Bytes of a stage's weights as GPUs that share them gather them: frozen ones too that have adapters.

    Raises:
        InfeasibleError: they are swapped, too.
    """
    trained, workload = trained_parameters(pipeline, stage), pipeline.scenario.workload
    if workload.swapped:
        raise InfeasibleError(
            f"`offload` is {workload.offload}, but the backbone's weights are shared among GPUs",
            "offloaded blocks are of whole backbones",
        )
    locked = stage.parameters - trained if workload.rank else 0
    return trained * workload.recipe.weight_bytes + locked * FROZEN_WEIGHT_BYTES


def saved_bytes(layout: Pipeline, stage: Stage, *, in_place: bool = False) -> float:
    """Bytes one micro-batch keeps for its backward: its activations, or what they are recomputed from.

    Args:
        layout: the pipeline.
        stage: the stage.
        in_place: all stages of the component lie on one device, which keeps each skip once.
    """
    return saved_sample_bytes(layout, stage, in_place=in_place) * layout.held_batch


def saved_sample_bytes(layout: Pipeline, stage: Stage, *, in_place: bool = False) -> float:
    """The same per sample of ``held_batch``."""
    if layout.keeps_skips_local and layout.component(stage).skips:  # it depends on where other stages lie
        return _saved_bytes(layout, stage, in_place=in_place)
    alike = ("saved", *_layers_of(stage), layout.share, in_place)
    return layout.scenario.remember(alike, lambda: _saved_bytes(layout, stage, in_place=in_place))


def _layers_of(stage: Stage) -> tuple[int, int, int]:
    """The component and layers of a stage."""
    return stage.component, stage.first_layer, stage.last_layer


def _saved_bytes(layout: Pipeline, stage: Stage, *, in_place: bool) -> float:
    """Bytes per sample that are kept for the backward of a stage."""
    checkpointing = layout.scenario.workload.checkpointing
    if checkpointing == "full":
        return _stage_input_bytes(layout, stage, in_place=in_place)
    if checkpointing == "none":
        return float(_activations(layout, stage).sum())
    kept = _blocks_input_bytes(layout, stage, in_place=in_place)
    if checkpointing == "selective":
        kept += float(_attended(layout, stage).sum())
    return kept


def recomputed_bytes(pipeline: Pipeline, stage: Stage) -> float:
    """Bytes that one micro-batch's activations take beyond what it kept, once its blocks have run again."""
    if pipeline.scenario.workload.checkpointing in ("none", "full"):
        return 0.0
    return sum_in_order(_recomputed(pipeline, stage)) * pipeline.held_batch


def _recomputed(pipeline: Pipeline, stage: Stage) -> tuple[float, ...]:
    """Bytes per sample that the activations of each block of a stage take beyond what it kept of them.

    The hidden state that a block kept is among what it saves, but where a skip is joined to it first: then what comes
    of that is.
    """
    alike = ("recomputed", *_layers_of(stage), pipeline.share)
    return pipeline.scenario.remember(alike, lambda: _recomputed_anew(pipeline, stage))


def _recomputed_anew(pipeline: Pipeline, stage: Stage) -> tuple[float, ...]:
    saved, component = _activations(pipeline, stage), pipeline.component(stage)
    if pipeline.scenario.workload.checkpointing == "selective":
        saved = saved - _attended(pipeline, stage)
    first, joined = stage.first_layer, {skip.target for skip in component.skips}
    found = []
    for of in blocks_of(component, stage):
        own = float(saved[of.start - first : of.stop - first].sum())
        alone = of.start and of.start not in joined
        found.append(max(0.0, own - (component.layers[of.start - 1].output_bytes if alone else 0.0)))
    return tuple(found)


def blocks_of(component: Component, stage: Stage) -> list[range]:
    """The layers of a stage, block by block; blocks without a backward are not among them."""
    layers = range(stage.first_layer, stage.last_layer + 1)
    runs = (list(run) for _, run in groupby(layers, lambda layer: component.layers[layer].block))
    passed = (run for run in runs if any(component.layers[layer].backward != "none" for layer in run))
    return [range(run[0], run[-1] + 1) for run in passed]


def _activations(pipeline: Pipeline, stage: Stage) -> FloatArray:
    """Bytes per sample that each layer of a stage saves for its backward."""
    costs = pipeline.scenario.costs.components[stage.component]
    return costs.saved_bytes[stage.first_layer : stage.last_layer + 1] + pipeline.undivided_bytes(stage)


def _attended(pipeline: Pipeline, stage: Stage) -> FloatArray:
    """Bytes per sample that attention leaves in each layer of a stage that has a backward."""
    costs, layers = pipeline.scenario.costs.components[stage.component], pipeline.component(stage).layers
    passed = np.array([layer.backward != "none" for layer in layers])
    return (passed * costs.attention_bytes)[stage.first_layer : stage.last_layer + 1]


def _blocks_input_bytes(layout: Pipeline, stage: Stage, *, in_place: bool) -> float:
    """Bytes per sample that the blocks of a stage get from outside; a tensor that several of them read counts once."""
    model, component = layout.scenario.model, layout.component(stage)
    blocks = blocks_of(component, stage)
    kept = {of.start - 1 for of in blocks if of.start} | set(_skips_kept(layout, stage, in_place=in_place))
    reads = (
        size
        for source in model.inputs_of(stage.component)
        for layer, size in model.reads_of(stage.component, source)
        if any(layer in of for of in blocks)
    )
    carried = 0.0 if in_place and stage.first_layer else component.carried_bytes
    return (
        sum_in_order(component.layers[layer].output_bytes for layer in kept) + sum_in_order(reads) + carried
    )


def _skips_kept(layout: Pipeline, stage: Stage, *, in_place: bool) -> Iterator[int]:
    """Sources of the skips whose tensors a stage keeps.

    Within a stage those that lead from one block to another; of those that come from elsewhere the copy received. On
    one device there is no copy: the tensor is kept where it was made, as long as that needs it, or by the next stage,
    whose input it is.
    """
    component, first, last = layout.component(stage), stage.first_layer, stage.last_layer
    for source, target in ((skip.source, skip.target) for skip in component.skips):
        starts, ends = first <= source <= last, first <= target <= last
        if starts and ends:
            if component.layers[source].block != component.layers[target].block:
                yield source
        elif in_place:
            if starts and source < last:
                yield source
        elif ends and not layout.keeps_beside(stage, source):
            yield source


def _stage_input_bytes(layout: Pipeline, stage: Stage, *, in_place: bool) -> float:
    """Bytes per sample of a stage's input; in place what the first one carries, and the skips that leave it."""
    scenario, component = layout.scenario, layout.component(stage)
    first, last, layers = stage.first_layer, stage.last_layer, component.layers
    if not in_place:
        received = component.cut_bytes(first - 1) if first else _input_bytes(scenario, stage.component)
        return received + component.carried_bytes
    leaving = {skip.source for skip in component.skips if first <= skip.source < last < skip.target}
    if first:
        received = layers[first - 1].output_bytes
    else:
        received = _input_bytes(scenario, stage.component) + component.carried_bytes
    return received + sum_in_order(layers[source].output_bytes for source in leaving)


def _input_bytes(scenario: Scenario, component: int) -> float:
    components = scenario.model.components
    return sum_in_order(components[i].layers[-1].output_bytes for i in scenario.model.inputs_of(component))


def _swapped_bytes(pipeline: Pipeline, stages: Sequence[Stage]) -> float:
    """Bytes of blocks that lie in the host's memory; of each backbone there is room for the one that comes up."""
    if not pipeline.scenario.workload.swapped:
        return 0.0
    swapped = (pipeline.swapped_bytes(component) for component in {stage.component for stage in stages})
    return sum_in_order(sum_in_order(sizes) - max(sizes) for sizes in swapped)


def resident_bytes(pipeline: Pipeline, stages: Sequence[Stage]) -> float:
    """All bytes that stay on a device."""
    own = ("resident", type(pipeline), *map(_layers_of, stages), pipeline.share, pipeline.shards)

    def make() -> tuple[float, float]:
        state = sum_in_order(buffer.size_bytes for buffer in _state_buffers(pipeline, stages))
        return state, _recomputed_sample_bytes(pipeline, stages)

    state, recomputed = pipeline.scenario.remember(own, make)
    return float(state + recomputed * pipeline.held_batch)


def _recomputed_sample_bytes(pipeline: Pipeline, stages: Sequence[Stage]) -> float:
    """Bytes per sample of ``held_batch`` of the largest piece of stages that is recomputed at once."""
    checkpointing = pipeline.scenario.workload.checkpointing
    if checkpointing == "none":
        return 0.0
    if checkpointing == "full":
        return max(float(_activations(pipeline, stage).max()) for stage in stages)
    return max(max(_recomputed(pipeline, stage), default=0.0) for stage in stages)


def resident_buffers(pipeline: Pipeline, stages: Sequence[Stage]) -> tuple[Buffer, ...]:
    """The bytes that stay on a device: its stages' state, all frozen weights, recomputation space."""
    checkpointing, state = pipeline.scenario.workload.checkpointing, _state_buffers(pipeline, stages)
    if checkpointing == "none":
        return tuple(state)
    piece = "layer" if checkpointing == "full" else "block"
    size = _recomputed_sample_bytes(pipeline, stages) * pipeline.held_batch
    return *state, Buffer(f"recomputed {piece}", size)


def _state_buffers(pipeline: Pipeline, stages: Sequence[Stage]) -> list[Buffer]:
    """The same without recomputation space."""
    scenario, recipe = pipeline.scenario, pipeline.scenario.workload.recipe
    trained = sum(trained_parameters(pipeline, stage) for stage in stages)
    locked = sum(stage.parameters for stage in stages) - trained
    frozen = sum(scenario.model.components[i].parameters for i in scenario.frozen)
    adapted = []
    if scenario.workload.rank:
        adapted = [Buffer(BACKBONE, locked * FROZEN_WEIGHT_BYTES - _swapped_bytes(pipeline, stages))]
    on_host = scenario.workload.offload == "optimizer"
    buffers = [
        Buffer("weights", trained * recipe.weight_bytes),
        Buffer("gradients", trained * recipe.gradient_bytes),
        Buffer("optimizer", 0.0 if on_host else trained * recipe.optimizer_bytes / pipeline.shards),
        Buffer("frozen weights", (frozen + (0 if adapted else locked)) * FROZEN_WEIGHT_BYTES),
        *adapted,
    ]
    if recipe.ema_bytes and not on_host:
        buffers.append(Buffer("moving average", trained * recipe.ema_bytes))
    return buffers
