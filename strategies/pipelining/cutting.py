"""Cutting: where the backbone of a pipeline is divided into stages."""

from collections.abc import Callable, Hashable, Sequence
from math import inf

import numpy as np

from profiles.errors import InfeasibleError
from profiles.software.recipes import FROZEN_WEIGHT_BYTES
from profiles.units import FloatArray
from strategies.partitions.chain import ChainCosts, StageMemory, block_partition, optimal_partition
from strategies.pipelining.footprint import saved_bytes
from strategies.pipelining.layout import Layout
from strategies.pipelining.stages import Cut, Shape
from strategies.scenario import Scenario


def lay_out(
    scenario: Scenario,
    shape: Shape,
    key: Hashable,
    skip_route: str,
    cut: Callable[[Layout], tuple[Cut, ...]],
    *,
    distant_skips: bool = False,
) -> Layout:
    """Return the layout of the cuts that ``cut`` makes of one without any, once for each key.

    With ``distant_skips`` local skips may lead from one device to another.
    """
    divided = ("optimizer",) if shape.sharded else ()

    def make() -> Layout:
        cuts = cut(Layout(scenario, shape))
        layout = Layout(scenario, shape, cuts, skip_route, divided=divided)
        if skip_route == "local" and not distant_skips:
            refuse_distant_skips(layout)
        return layout

    return scenario.remember(("layout", shape, key, skip_route, scenario.workload.extra_forward), make)


def folded(
    scenario: Scenario,
    shape: Shape,
    positions: tuple[int, ...],
    partition: str,
    skip_route: str,
    *,
    in_flight: Callable[[], Sequence[int]],
) -> Layout:
    """Return the only backbone in one stage per entry of ``positions``, where it lies.

    ``in_flight`` gives the micro-batches that each stage holds at once, where the partition asks for them.
    """
    # with one stage per position a skip that no cut crosses stays on its device
    local = skip_route == "local" and len(positions) == shape.degree
    held = tuple(in_flight()) if partition == "optimal" else ()

    def cut(layout: Layout) -> tuple[Cut, ...]:
        return (cut_chain(layout, scenario.backbone_index, positions, partition, held, local_skips=local),)

    return lay_out(scenario, shape, (positions, partition, held), skip_route, cut)


def refuse_distant_skips(layout: Layout) -> None:
    """Refuse skips that must stay on one device although their ends lie on two."""
    for source, target in layout.skips_bytes:
        here, there = layout.stages[source].position, layout.stages[target].position
        if here != there:
            raise InfeasibleError(
                f"`skip_route` is local, but a skip from stage {source} to {target} leads from position {here} to"
                f" {there}",
                "a skip that must stay local leaves its device",
            )


def cut_chain(
    layout: Layout,
    component: int,
    positions: Sequence[int],
    partition: str,
    in_flight: tuple[int, ...] = (),
    *,
    local_skips: bool = False,
) -> Cut:
    """A backbone cut into one stage per entry of ``positions``: equal blocks, or the optimal partition.

    With ``local_skips`` the optimal partition cuts no skip; with ``in_flight``, of each stage, it heeds memory.
    """
    blocks = [layer.block for layer in layout.scenario.model.components[component].layers]
    if partition == "optimal":
        refuse_too_many(layout, len(positions), len(blocks), "layers")
        boundaries = _optimal_boundaries(layout, component, len(positions), in_flight, local_skips)
    else:
        refuse_too_many(layout, len(positions), len(set(blocks)), "blocks")
        boundaries = block_partition(blocks, len(positions))
    return Cut(component, boundaries, tuple(positions))


def refuse_too_many(layout: Layout, num_stages: int, there: int, pieces: str) -> None:
    """Refuse more stages than a backbone has layers, or blocks."""
    if num_stages <= there:
        return
    stages, degree = f"`pipeline_degree({layout.shape.degree})`", layout.shape.degree
    if num_stages != degree:
        stages = f"{num_stages // degree} stages per position * {stages} = {num_stages}"
    raise InfeasibleError(
        f"{stages} exceeds the {there} {pieces} of the backbone", f"more stages than {pieces}"
    )


def _optimal_boundaries(
    layout: Layout, component: int, num_stages: int, in_flight: tuple[int, ...], local_skips: bool
) -> tuple[int, ...]:
    """Return the boundaries of the optimal partition of a backbone."""
    scenario, shape = layout.scenario, layout.shape
    probability = layout.extra_forward_probability

    def solve() -> tuple[int, ...]:
        costs = chain_costs(layout, component, local_skips=local_skips)
        memory = _stage_memory(layout, component, in_flight) if in_flight else None
        return optimal_partition(costs, num_stages, shape.micro_batches, probability, memory)

    # group sizes on links alike have one answer
    links = (layout.slowest_hop, layout.reduction(), layout.parts if shape.sharded else 1)
    size = (shape.degree, shape.micro_batches, in_flight)
    key = ("partition", component, num_stages, size, local_skips, probability, links)
    return scenario.remember(key, solve)


def _stage_memory(layout: Layout, backbone: int, in_flight: Sequence[int]) -> StageMemory:
    """The memory of the stages that a backbone can be cut into, as if each layer were recomputed by itself.

    Of several stages on a position each has its part of the room.
    """
    scenario, shape = layout.scenario, layout.shape
    recipe, layers = scenario.workload.recipe, scenario.model.components[backbone].layers

    def make() -> tuple[FloatArray, FloatArray, FloatArray]:
        apart = Layout(scenario, shape, (Cut(backbone, tuple(range(len(layers) + 1)), (0,) * len(layers)),))
        trained = np.array([layer.trained_parameters for layer in layers], dtype=float)
        locked = np.array([layer.parameters for layer in layers]) - trained
        return trained, locked, np.array([saved_bytes(apart, stage) for stage in apart.stages])

    trained, locked, saved = scenario.remember(("layers apart", backbone, layout.local_batch), make)
    optimizer_bytes = recipe.optimizer_bytes / (layout.parts if shape.sharded else 1)
    each = recipe.weight_bytes + recipe.gradient_bytes + optimizer_bytes + recipe.ema_bytes
    frozen_bytes = FROZEN_WEIGHT_BYTES * sum(scenario.model.components[i].parameters for i in scenario.frozen)
    room_bytes = inf if scenario.room_bytes is None else scenario.room_bytes - frozen_bytes
    return StageMemory(
        state_bytes=trained * each + locked * FROZEN_WEIGHT_BYTES,
        saved_bytes=saved,
        in_flight=in_flight,
        room_bytes=room_bytes * shape.degree / len(in_flight),
    )


def chain_costs(layout: Layout, backbone: int, *, local_skips: bool = False) -> ChainCosts:
    """The costs that the partition minimises: layers, messages over each cut, gradient reduction."""
    component, batch = layout.scenario.model.components[backbone], layout.local_batch
    forward_s, backward_s = layout.layer_times(backbone)
    layers = range(len(component.layers))
    summed = np.array([float(layout.summed_of(component, layer, layer + 1)) for layer in layers])
    legal = np.array([not any(component.live_skips(layer)) for layer in layers[:-1]], dtype=bool)
    cut_bytes = np.array(component.cut_bytes[:-1]) * batch
    wire_s, delay_s = layout.slowest_hop
    gradient_bytes, law = layout.scenario.workload.recipe.gradient_bytes, layout.reduction()
    stage_bytes = float(summed.sum()) * gradient_bytes / layout.shape.degree
    return ChainCosts(
        forward_s=forward_s,
        backward_s=backward_s,
        cut_forward_s=(cut_bytes + component.carried_bytes * batch) * wire_s + delay_s,
        cut_backward_s=cut_bytes * wire_s + delay_s,
        sync_s=summed * gradient_bytes * law.wire_s_per_byte,
        sync_latency_s=law.time(stage_bytes).fixed_s,  # what no byte adds to, of a stage of mean size
        legal_cuts=legal if local_skips else None,
    )


def cut_units(scenario: Scenario, backbone: int, least: float) -> Cut:
    """A backbone cut into units of whole blocks, all on one position; a remainder goes with the last one.

    Each has at least so many trained parameters, or beside adapters so many of all; blocks that run again together are
    in one.
    """
    layers, adapted = scenario.model.components[backbone].layers, scenario.workload.rank > 0
    boundaries, held, blocks, together = [0], 0, 0, max(1, scenario.workload.recomputed_together)
    for index, layer in enumerate(layers):
        held += layer.parameters if adapted else layer.trained_parameters
        ends_block = index + 1 == len(layers) or layers[index + 1].block != layer.block
        blocks += ends_block
        if ends_block and held >= least and blocks % together == 0:
            boundaries.append(index + 1)
            held = blocks = 0
    boundaries = [*boundaries[: max(1, len(boundaries) - 1)], len(layers)]
    return Cut(backbone, tuple(boundaries), (0,) * (len(boundaries) - 1))
