"""Cutting: where the backbone of a pipeline is divided into stages."""

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from profiles.architectures.components import Component
from profiles.costs.layers import FloatArray
from profiles.errors import InfeasibleError
from strategies.parameters import PARTITIONS, check_option
from strategies.partitions.chain import BoolArray, ChainCosts, Partition, block_partition, optimal_partition
from strategies.pipelining.pipeline import Pipeline
from strategies.pipelining.stages import Cut
from strategies.scenario import Scenario


def cut_chain(
    pipeline: Pipeline, component: int, positions: Sequence[int], partition: str, *, local_skips: bool = False
) -> Cut:
    """A backbone cut into one stage per entry of ``positions``: equal blocks, or the optimal partition.

    Args:
        pipeline: the pipeline.
        component: the backbone.
        positions: the position of each stage.
        partition: ``blocks`` or ``optimal``.
        local_skips: the optimal partition cuts no skip.

    Raises:
        InfeasibleError: there are fewer blocks or layers than stages, or legal cuts than it takes.
    """
    check_option("partition", partition, PARTITIONS)
    if partition == "optimal":
        boundaries = _optimal_boundaries(pipeline, component, len(positions), local_skips=local_skips)
    else:
        boundaries = pipeline.scenario.remember(
            ("blocks", component, len(positions)),
            lambda: _block_boundaries(pipeline, component, len(positions)),
        )
    return Cut(component, boundaries, tuple(positions))


def _block_boundaries(pipeline: Pipeline, component: int, num_stages: int) -> tuple[int, ...]:
    """The boundaries of stages of equally many blocks.

    Raises:
        InfeasibleError: there are fewer blocks.
    """
    blocks = [layer.block for layer in pipeline.scenario.model.components[component].layers]
    _refuse_too_many(pipeline, num_stages, len(set(blocks)), "blocks")
    return block_partition(blocks, num_stages)


def _refuse_too_many(pipeline: Pipeline, num_stages: int, there: int, pieces: str) -> None:
    """Refuse more stages than a backbone has layers, or blocks.

    Raises:
        InfeasibleError: there are more.
    """
    if num_stages <= there:
        return
    degree = pipeline.shape.degree
    asked = f"`pipeline_degree({degree})`"
    if num_stages != degree:
        asked = f"{num_stages // degree} stages per position * {asked} = {num_stages}"
    raise InfeasibleError(
        f"{asked} exceeds the {there} {pieces} of the backbone", f"more stages than {pieces}"
    )


def _optimal_boundaries(
    pipeline: Pipeline, component: int, num_stages: int, *, local_skips: bool = False
) -> tuple[int, ...]:
    """The boundaries of the optimal partition of a backbone.

    Raises:
        InfeasibleError: there are fewer layers, or legal cuts, than it takes.
    """
    scenario, shape = pipeline.scenario, pipeline.shape
    _refuse_too_many(pipeline, num_stages, len(scenario.model.components[component].layers), "layers")
    probability = pipeline.extra_forward_probability
    fed_back_s = pipeline.feedback_s(component, shape.degree - 1, 0)

    def solve() -> Partition:
        costs = chain_costs(pipeline, component, local_skips=local_skips)
        return optimal_partition(costs, num_stages, shape.micro_batches, probability, fed_back_s)

    # group sizes on links alike have one answer
    links = (pipeline.slowest_hop, pipeline.reduction(), fed_back_s)
    size = (shape.degree, shape.micro_batches)
    key = ("partition", component, num_stages, size, local_skips, probability, links)
    try:
        return scenario.remember(key, solve).boundaries
    except ValueError as error:
        raise InfeasibleError(str(error), "no legal cuts") from None


def chain_costs(pipeline: Pipeline, backbone: int, *, local_skips: bool = False) -> ChainCosts:
    """The costs that the partition minimises: layers, messages over each cut, gradient reduction."""
    component, batch = pipeline.scenario.model.components[backbone], pipeline.local_batch
    forward_s, backward_s = pipeline.layer_times(backbone)
    cuts = pipeline.scenario.remember(("cuts", backbone), lambda: _Cuts.of(component))
    cut_bytes = cuts.cut_bytes * batch
    wire_s, delay_s = pipeline.slowest_hop
    gradient_bytes, law = pipeline.scenario.workload.recipe.gradient_bytes, pipeline.reduction()
    stage_bytes = float(cuts.trained.sum()) * gradient_bytes / pipeline.shape.degree
    return ChainCosts(
        forward_s=forward_s,
        backward_s=backward_s,
        cut_forward_s=(cut_bytes + component.carried_bytes * batch) * wire_s + delay_s,
        cut_backward_s=cut_bytes * wire_s + delay_s,
        sync_s=cuts.trained * gradient_bytes * law.wire_s_per_byte,
        sync_latency_s=law.time(stage_bytes).fixed_s,  # what no byte adds to, of a stage of mean size
        legal_cuts=cuts.legal if local_skips else None,
    )


class _Cuts(NamedTuple):
    """Of each layer its trained parameters, of each cut bytes per sample over it, and whether no skip crosses it."""

    trained: FloatArray
    cut_bytes: FloatArray
    legal: BoolArray

    @classmethod
    def of(cls, component: Component) -> "_Cuts":
        """Those of a component."""
        cuts = range(len(component.layers) - 1)
        return cls(
            np.array([float(layer.trained_parameters) for layer in component.layers]),
            np.array([component.cut_bytes(cut) for cut in cuts]),
            np.array([not any(component.live_skips(cut)) for cut in cuts], dtype=bool),
        )


def cut_units(scenario: Scenario, backbone: int, least: int) -> Cut:
    """A backbone cut into units of whole blocks, all on one position; a remainder goes with the last one.

    Args:
        scenario: what is asked about.
        backbone: its index.
        least: trained parameters of a unit, or of frozen ones beside adapters.
    """
    layers, adapted = scenario.model.components[backbone].layers, scenario.workload.rank > 0
    boundaries, held = [0], 0
    for index, layer in enumerate(layers):
        held += layer.parameters if adapted else layer.trained_parameters
        ends_block = index + 1 == len(layers) or layers[index + 1].block != layer.block
        if ends_block and held >= least:
            boundaries.append(index + 1)
            held = 0
    boundaries = [*boundaries[: max(1, len(boundaries) - 1)], len(layers)]
    return Cut(backbone, tuple(boundaries), (0,) * (len(boundaries) - 1))
