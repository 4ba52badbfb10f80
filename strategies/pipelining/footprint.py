"""Footprint: the bytes that a device cannot do without, whatever the order of its micro-batches.

Where blocks are checkpointed each keeps its inputs: the hidden state, skips that end in it, and outputs of frozen
components. The layers of a block that lie in one stage are recomputed together.
Units of a mesh all lie on one device, which keeps each skip once.
"""

from collections.abc import Iterator, Sequence
from dataclasses import replace
from itertools import groupby, pairwise
from typing import Final, NamedTuple

import numpy as np

from profiles.costs.checkpointing import Checkpointed
from profiles.software.recipes import FROZEN_WEIGHT_BYTES
from profiles.units import FloatArray
from strategies.pipelining.layout import Layout
from strategies.pipelining.stages import Cut
from strategies.plans.plan import Buffer, Stage

BACKBONE: Final = "backbone weights"
"""Buffer of a backbone's frozen weights, where adapters are trained beside them."""
TRAINED_STATE: Final = ("weights", "gradients", "optimizer", "moving average", BACKBONE)
"""Buffers of trained parameters, or of locked ones beside adapters."""
IN_FLIGHT: Final = "gradients in flight"
"""Buffer of what a backward hands on: gradients of a layer's output and of the largest tensor within."""
MASTERS: Final = "masters"
"""Among divided buffers: weights are cast from their masters for a gather, and nothing else of them stays."""


WHOLE_GRADIENTS: Final = "whole gradients"
"""Among divided buffers: gradients as the backward writes them, as precise as weights, lie whole beside the others.

Source: DeepSpeed, ``estimate_zero2_model_states_mem_needs``: 4 P + 16 P / N bytes.
"""


def saved_bytes(layout: Layout, stage: Stage) -> float:
    """Bytes one micro-batch keeps for its backward: its activations, or the inputs to recompute them."""
    checkpointing = layout.scenario.workload.checkpointing
    if checkpointing == "full":
        return _stage_input_bytes(layout, stage) * layout.held_batch
    if checkpointing == "none":
        return float(_activations(layout, stage).sum()) * layout.held_batch
    kept = _blocks_input_bytes(layout, stage)
    if checkpointing == "selective":
        kept += float(_attended(layout, stage).sum())
    return kept * layout.held_batch


def recomputed_bytes(layout: Layout, stage: Stage) -> float:
    """Bytes of one micro-batch's activations beyond those it kept, once its blocks have run again."""
    if layout.scenario.workload.checkpointing in ("none", "full"):
        return 0.0
    return sum(part.total for part in _recomputed(layout, stage)) * layout.held_batch


class Recomputed(NamedTuple):
    """Bytes per sample of a part that runs again: all, at once with gradients, and whether it is first or last.

    With these lie the embedding and the head, which do not run again.
    """

    total: float
    at_once: float
    at_end: bool


def _recomputed(layout: Layout, stage: Stage) -> tuple[Recomputed, ...]:
    """The activations of each part of a stage that runs again, beyond those it kept.

    A block saves the hidden state that it kept, but where norms cast it, or where a skip is joined to it first: then it
    saves the sum.
    """

    def make() -> tuple[Recomputed, ...]:
        saved, component = _activations(layout, stage), layout.component(stage)
        if layout.scenario.workload.checkpointing == "selective":
            saved = saved - _attended(layout, stage)
        first, joined = stage.first_layer, {skip.target for skip in component.skips}
        kept, last = _checkpointed(layout, stage), len(component.layers) - 1
        saved = saved - kept.spared[first : first + len(saved)]
        parts = []
        for block in blocks_of(layout, stage):
            for run in [range(i, i + 1) for i in block if kept.parts[i]] if kept.by_layer else [block]:
                alone = run.start == block.start > 0 and (kept.by_layer or run.start not in joined)
                again = float(kept.input_size[run.start]) * alone
                input_bytes = again * component.layers[run.start - 1].output_bytes
                total = max(0.0, float(saved[run.start - first : run.stop - first].sum()) - input_bytes)
                at_once = total / kept.parts[run.start] + float(kept.gradients[run.start : run.stop].max())
                at_end = bool(component.kernels) and (run.start == 0 or run.stop > last)
                parts.append(Recomputed(total, at_once, at_end))
        return tuple(parts)

    return layout.scenario.remember(("recomputed", *stage.layers, layout.share), make)


def _checkpointed(layout: Layout, stage: Stage) -> Checkpointed:
    """What diffusers keeps of a stage's blocks, or what is kept where several run again together."""
    kept = layout.scenario.costs.components[stage.component].checkpointed
    return kept if layout.scenario.workload.recomputed_together <= 1 else kept.together


def blocks_of(layout: Layout, stage: Stage) -> list[range]:
    """The layers of a stage, by blocks that run again together; those without a backward are not among them."""
    layers = layout.component(stage).layers
    return [run for run in _segments(layout, stage) if any(layers[index].backward != "none" for index in run)]


def _segments(layout: Layout, stage: Stage) -> list[range]:
    """The same with all layers."""
    layers, together = layout.component(stage).layers, layout.scenario.workload.recomputed_together
    blocks = groupby(range(stage.first_layer, stage.last_layer + 1), lambda index: layers[index].block)
    starts = [next(indices) for _, indices in blocks][:: max(1, together)]
    return [range(*ends) for ends in pairwise([*starts, stage.last_layer + 1])]


def _activations(layout: Layout, stage: Stage) -> FloatArray:
    """Bytes per sample of ``held_batch`` that each layer of a stage saves for its backward.

    Of the inputs that tensor parallelism gathers for a pair of matrices each GPU keeps all tokens. Source: torch,
    ``ColwiseParallel``: autograd saves its input as it is multiplied, gathered.
    """
    costs, first = layout.scenario.costs.components[stage.component], stage.first_layer
    saved = costs.saved_bytes[first : stage.last_layer + 1]
    if layout.mesh.tensor == 1:
        return saved
    gathered = np.zeros(len(saved))
    for exchange in layout.component(stage).exchanges:
        if exchange.kind == "reduce" and first <= exchange.layer <= stage.last_layer:
            gathered[exchange.layer - first] += layout.exchanged_bytes(stage) * exchange.elements
    return saved + (layout.mesh.tensor - 1) * gathered


def _attended(layout: Layout, stage: Stage) -> FloatArray:
    """Bytes per sample that attention leaves in each layer of a stage that has a backward."""
    costs, layers = layout.scenario.costs.components[stage.component], layout.component(stage).layers
    passed = np.array([layer.backward != "none" for layer in layers])
    return (passed * costs.attention_bytes)[stage.first_layer : stage.last_layer + 1]


def _blocks_input_bytes(layout: Layout, stage: Stage) -> float:
    """Bytes per sample that the blocks of a stage get from outside; a tensor that several of them read counts once."""
    model, component = layout.scenario.model, layout.component(stage)
    blocks = blocks_of(layout, stage)
    kept = sorted({block.start - 1 for block in blocks if block.start} | set(_skips_kept(layout, stage)))
    reads = (
        size
        for source in model.inputs_of(stage.component)
        for layer, size in model.reads_of(stage.component, source)
        if any(layer in block for block in blocks)
    )
    carried = 0.0 if layout.in_units and stage.first_layer else component.carried_bytes
    checkpointed = _checkpointed(layout, stage)
    if blocks and blocks[0].start == 0 and component.layers[0].attention_flop:
        kept.append(0)  # what the embedding gives the first block is as large as what that gives
    hidden = checkpointed.stream * sum(component.layers[layer].output_bytes for layer in kept)
    around = sum(float(checkpointed.around[layer]) for block in blocks for layer in block)
    return hidden + around + sum(reads) + carried


def _skips_kept(layout: Layout, stage: Stage) -> Iterator[int]:
    """Sources of the skips whose tensors a stage keeps.

    Within a stage those that lead from one block to another; of those that come from elsewhere the copy received. On
    one device there is no copy: the tensor is kept where it was made, as long as that needs it, or by the next stage,
    whose input it is.
    """
    component, first, last = layout.component(stage), stage.first_layer, stage.last_layer
    segments = _segments(layout, stage)
    for source, target in ((skip.source, skip.target) for skip in component.skips):
        starts, ends = first <= source <= last, first <= target <= last
        if starts and ends:
            if not any(source in segment and target in segment for segment in segments):
                yield source
        elif layout.in_units:
            if starts and source < last:
                yield source
        elif ends and not _keeps_beside(layout, stage, source):
            yield source


def _keeps_beside(layout: Layout, stage: Stage, source: int) -> bool:
    """Whether an earlier stage on the same device keeps the output of a layer, as input of a block of its own."""
    if layout.skip_route != "local":
        return False
    seat = layout.seats[layout.stages.index(stage)]
    makers = (layout.stages[number] for number in layout.chain(seat.cut))
    maker = next(maker for maker in makers if maker.first_layer <= source <= maker.last_layer)
    follows = any(segment.start == source + 1 for segment in _segments(layout, maker))
    return follows and maker.position == stage.position


def _stage_input_bytes(layout: Layout, stage: Stage) -> float:
    """Bytes per sample of a stage's input; on a mesh with tensors carried by the first, and skips that leave it."""
    scenario, component = layout.scenario, layout.component(stage)
    first, last, layers = stage.first_layer, stage.last_layer, component.layers
    sources, carried = scenario.model.inputs_of(stage.component), component.carried_bytes
    received = sum(scenario.model.components[i].layers[-1].output_bytes for i in sources)
    if not layout.in_units:
        return (component.cut_bytes[first - 1] if first else received) + carried
    leaving = {skip.source for skip in component.skips if first <= skip.source < last < skip.target}
    received = layers[first - 1].output_bytes if first else received + carried
    return received + sum(layers[source].output_bytes for source in leaving)


def resident_bytes(layout: Layout, position: int = 0) -> float:
    """All bytes that stay on a position."""
    return sum(buffer.size_bytes for buffer in resident_buffers(layout, position))


def resident_buffers(layout: Layout, position: int = 0) -> tuple[Buffer, ...]:
    """The bytes that stay on a position: its stages' state, all frozen weights, space of the backward."""
    checkpointing, state = layout.scenario.workload.checkpointing, _state_buffers(layout, position)
    stages = [layout.stages[number] for number in layout.hosted[position]]
    if checkpointing in ("none", "full"):
        name, again = (IN_FLIGHT, 0.0) if checkpointing == "none" else ("recomputed layer", 1.0)
        costs, size = layout.scenario.costs.components, 0.0
        for stage in stages:
            gradients = costs[stage.component].checkpointed.gradients[
                stage.first_layer : stage.last_layer + 1
            ]
            size = max(size, float((gradients + again * _activations(layout, stage)).max()))
    else:
        parts = [part for stage in stages for part in _recomputed(layout, stage)]
        inner = [part for part in parts if not part.at_end] or parts
        name, size = "recomputed block", max((part.at_once for part in inner), default=0.0)
    return state if name == IN_FLIGHT and not size else (*state, Buffer(name, size * layout.held_batch))


def _state_buffers(layout: Layout, position: int) -> tuple[Buffer, ...]:
    """The same without recomputation space; of divided buffers one part.

    What of a backbone is locked lies whole on each GPU, but beside adapters, with which it may be divided.
    """
    scenario, numbers = layout.scenario, layout.hosted[position]
    recipe, stages = scenario.workload.recipe, [layout.stages[number] for number in numbers]
    trained = sum(layout.parameters[number] for number in numbers)
    locked = sum(layout.stages[n].parameters - layout.trained_parameters[n] for n in numbers)
    frozen = sum(scenario.model.components[i].parameters for i in scenario.frozen)
    adapted, on_host = bool(scenario.workload.rank), scenario.workload.offload == "optimizer"
    masters = MASTERS in layout.divided and layout.parts > 1 and recipe.master_bytes and not on_host
    summed = sum(layout.summed_parameters[number] for number in numbers)
    whole = WHOLE_GRADIENTS in layout.divided and layout.parts > 1
    beside = sum(layout.kept(n).locked for n in numbers) if layout.mesh.tensor > 1 else locked
    cast_bytes = scenario.costs.cast_weight_bytes
    sizes = {
        "weights": None if masters else trained * recipe.weight_bytes,
        "cast weights": None if masters or "weights" in layout.divided else trained * cast_bytes,
        "gradients": summed * recipe.gradient_bytes,
        "backward gradients": summed * recipe.weight_bytes if whole else None,
        "optimizer": 0.0 if on_host else trained * recipe.optimizer_bytes,
        "frozen weights": (frozen + (0 if adapted else locked)) * FROZEN_WEIGHT_BYTES,
        BACKBONE: beside * FROZEN_WEIGHT_BYTES - _swapped_bytes(layout, stages) if adapted else None,
        "moving average": trained * recipe.ema_bytes if recipe.ema_bytes and not on_host else None,
    }
    parts = dict.fromkeys(layout.divided, layout.parts)
    return tuple(Buffer(name, size / parts.get(name, 1)) for name, size in sizes.items() if size is not None)


def _swapped_bytes(layout: Layout, stages: Sequence[Stage]) -> float:
    """Bytes of blocks that lie in the host's memory; of each backbone there is room for the one that comes up."""
    if not layout.scenario.workload.swapped:
        return 0.0
    swapped = (layout.swapped_bytes(component) for component in {stage.component for stage in stages})
    return sum(sum(sizes) - max(sizes) for sizes in swapped)


def held_bytes(layout: Layout) -> tuple[tuple[float, ...], tuple[float, ...]]:
    """Activations that each stage saves of one micro-batch, and bytes that stay on each position."""
    # shared by group sizes and by orders
    parts = layout.parts if layout.divided else 1
    arrangement = (layout.cuts, layout.skip_route, layout.mesh, layout.in_units, layout.divided)
    saved = (saved_bytes(layout, stage) for stage in layout.stages)
    resident = (resident_bytes(layout, position) for position in range(layout.shape.degree))
    key = ("held", arrangement, parts, layout.local_batch)
    return layout.scenario.remember(key, lambda: (tuple(saved), tuple(resident)))


def uncut_memory_bytes(layout: Layout) -> float:
    """Bytes below which no cut of the backbones leaves the fullest device of a pipeline.

    All states lie somewhere. And when the first backward of a backbone begins, each of its stages holds a micro-batch.
    """
    scenario, degree = layout.scenario, layout.shape.degree
    divided = ("optimizer",) if layout.shape.sharded else ()

    def make() -> float:
        components, backbones = scenario.model.components, scenario.model.backbones
        cuts = tuple(Cut(one, (0, len(components[one].layers)), (0,)) for one in backbones)
        whole = replace(layout, cuts=cuts, divided=divided)
        frozen_bytes = FROZEN_WEIGHT_BYTES * sum(components[index].parameters for index in scenario.frozen)
        state_bytes = sum(buffer.size_bytes for buffer in _state_buffers(whole, 0))
        apart = scenario.workload.recomputed_together > 1  # which layers run again together, cuts decide
        saved = 0.0 if apart else max(saved_bytes(whole, stage) for stage in whole.stages)
        return frozen_bytes + (state_bytes - frozen_bytes + saved) / degree

    key = ("uncut memory", degree, layout.local_batch, layout.parts)
    return scenario.remember(key, make)


def least_memory_bytes(
    layout: Layout, in_flight: Sequence[int], *, recomputed: Sequence[int] | None = None
) -> float:
    """Bytes that the fullest device of a pipeline cannot do without.

    Args:
        layout: the stages.
        in_flight: for each stage the micro-batches whose activations it holds at once at least.
        recomputed: how many of these it has recomputed by then; None: recomputed activations are not kept.
    """
    saved, resident = held_bytes(layout)
    of_stages = [k * size for k, size in zip(in_flight, saved, strict=True)]
    if recomputed is not None:
        again = (recomputed_bytes(layout, stage) for stage in layout.stages)
        of_stages = [size + k * more for size, k, more in zip(of_stages, recomputed, again, strict=True)]
    held = (sum(of_stages[s] for s in hosted) for hosted in layout.hosted)
    return max(state + size for state, size in zip(resident, held, strict=True))
