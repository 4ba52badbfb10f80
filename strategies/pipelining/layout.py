"""Layouts: where the stages of a pipeline lie, and what follows from it whatever their order."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

import numpy as np

from profiles.collectives import collective_time
from profiles.errors import InfeasibleError
from strategies.orders.problem import Chain, Problem
from strategies.parameters import PARTITIONS, check_choice
from strategies.partitions.chain import ChainCosts, Partition, block_partition, optimal_partition
from strategies.pipelining.builder import PipelineBuilder, Recipe
from strategies.pipelining.stages import Cut, Seat, Shape, handover_bytes, layer_times, make_stages, seats_of
from strategies.plans.actions import Rows
from strategies.plans.network import Network, network_of
from strategies.plans.plan import Plan, Stage
from strategies.scenario import Scenario


class Linear(Protocol):
    """The fields of a linear pipeline."""

    @property
    def pipeline_degree(self) -> int: ...
    @property
    def micro_batches(self) -> int: ...
    @property
    def group_size(self) -> int | None: ...
    @property
    def partition(self) -> str: ...
    @property
    def p2p(self) -> str: ...
    @property
    def skip_route(self) -> str: ...


def unfilled_plan(strategy: Linear, scenario: Scenario, rows: Rows) -> Plan:
    """The plan of a linear pipeline whose frozen work runs before it."""
    cut = cut_backbone(strategy, scenario)
    recipe = Recipe(blocking=strategy.p2p == "blocking", skip_route=strategy.skip_route)
    return PipelineBuilder(scenario, shape_of(strategy), [cut], rows, recipe).build()


def shape_of(strategy: Linear) -> Shape:
    """The integers of a linear pipeline."""
    return Shape(
        strategy.pipeline_degree, strategy.micro_batches, strategy.group_size or strategy.pipeline_degree
    )


def cut_backbone(strategy: Linear, scenario: Scenario) -> Cut:
    """The cut of the backbone.

    Raises:
        InfeasibleError: there are fewer layers than stages, or a skip that must stay local would cross a cut.
    """
    component = scenario.backbone
    layers = scenario.model.components[component].layers
    degree = strategy.pipeline_degree
    if strategy.partition == "optimal":
        shape, local = shape_of(strategy), strategy.skip_route == "local"
        cut = Cut(component, optimal_boundaries(scenario, shape, component, degree, local_skips=local))
    else:
        blocks = len({layer.block for layer in layers})
        if degree > blocks:
            raise InfeasibleError(
                f"pipeline_degree({degree}) exceeds the {blocks} blocks of the backbone",
                "more stages than blocks",
            )
        cut = Cut(component, block_partition([layer.block for layer in layers], degree))
    if strategy.skip_route == "local":
        _refuse_crossing_skips(scenario, cut)
    return cut


def stages_of(strategy: Linear, scenario: Scenario) -> tuple[Stage, ...]:
    """The stages of a linear pipeline."""
    shape = shape_of(strategy)
    return scenario.remember(
        ("stages", shape, strategy.partition, strategy.skip_route),
        lambda: make_stages(scenario, cut_backbone(strategy, scenario), shape.local_batch(scenario)),
    )


def _refuse_crossing_skips(scenario: Scenario, cut: Cut) -> None:
    backbone = scenario.model.components[cut.component]
    for boundary in cut.boundaries[1:-1]:
        for skip in backbone.live_skips(boundary - 1):
            raise InfeasibleError(
                f"skip_route is local, but the skip from layer {skip.source} to {skip.target} crosses the cut"
                f" before layer {boundary}",
                "a skip that must stay local crosses a cut",
            )


def optimal_boundaries(
    scenario: Scenario, shape: Shape, component: int, num_stages: int, *, local_skips: bool = False
) -> tuple[int, ...]:
    """The boundaries of the optimal partition of a backbone.

    Raises:
        InfeasibleError: there are fewer layers, or legal cuts, than it takes.
    """
    num_layers = len(scenario.model.components[component].layers)
    if num_stages > num_layers:
        raise InfeasibleError(
            f"pipeline_degree({shape.degree}) exceeds the {num_layers} layers of the backbone"
            if num_stages == shape.degree
            else f"{num_stages // shape.degree} stages per position * pipeline_degree({shape.degree}) ="
            f" {num_stages} exceeds the {num_layers} layers of the backbone",
            "more stages than layers",
        )
    probability = scenario.extra_forward_probability(shape.placement(scenario).num_groups)
    fed_back_s = feedback_s(scenario, shape, component, (shape.degree - 1, 0))

    def solve() -> Partition:
        costs = chain_costs(scenario, shape, component, local_skips=local_skips)
        return optimal_partition(costs, num_stages, shape.micro_batches, probability, fed_back_s)

    # group sizes on links alike have one answer
    links = (_slowest_hop(scenario, shape), gradient_reduction_s(scenario, shape), fed_back_s)
    key = (
        "partition",
        component,
        num_stages,
        shape.degree,
        shape.micro_batches,
        local_skips,
        probability,
        links,
    )
    try:
        return scenario.remember(key, solve).boundaries
    except ValueError as error:
        raise InfeasibleError(str(error), "no legal cuts") from None


def chain_costs(scenario: Scenario, shape: Shape, backbone: int, *, local_skips: bool = False) -> ChainCosts:
    """The costs that the partition minimises: layers, messages over each cut, gradient reduction."""
    component = scenario.model.components[backbone]
    batch = shape.local_batch(scenario)
    forward_s, backward_s = layer_times(scenario, backbone, batch)
    cuts = range(len(component.layers) - 1)
    cut_bytes = np.array([component.cut_bytes(cut) for cut in cuts]) * batch
    wire_s, delay_s = _slowest_hop(scenario, shape)
    legal = np.array([not any(component.live_skips(cut)) for cut in cuts], dtype=bool)
    trained = np.array([float(x.parameters if x.backward == "full" else 0) for x in component.layers])
    reduce_s, reduce_latency_s = gradient_reduction_s(scenario, shape)
    return ChainCosts(
        forward_s=forward_s,
        backward_s=backward_s,
        cut_forward_s=(cut_bytes + component.carried_bytes * batch) * wire_s + delay_s,
        cut_backward_s=cut_bytes * wire_s + delay_s,
        sync_s=trained * reduce_s,
        sync_latency_s=reduce_latency_s,
        legal_cuts=legal if local_skips else None,
    )


def pipeline_network(scenario: Scenario, shape: Shape) -> Network:
    """The network under the positions of a pipeline."""
    return network_of(scenario, shape.placement(scenario))


def _slowest_hop(scenario: Scenario, shape: Shape) -> tuple[float, float]:
    """Seconds per byte and delay of the slowest hop between neighbours."""
    network = pipeline_network(scenario, shape)
    routes = [network.route(p, p + 1) for p in range(shape.degree - 1)]
    return max((r.wire_s_per_byte for r in routes), default=0.0), max(
        (r.delay_s for r in routes), default=0.0
    )


def gradient_reduction_s(
    scenario: Scenario, shape: Shape, positions: tuple[int, ...] = (0,)
) -> tuple[float, float]:
    """Seconds per trained parameter and fixed seconds of the gradient all-reduce of some positions."""
    placement = shape.placement(scenario)
    size = scenario.workload.recipe.gradient_bytes

    def time() -> tuple[float, float]:
        time = collective_time(scenario.cluster, "all_reduce", size, placement.group(*positions))
        return max(time.device_port_s, time.node_port_s), time.fixed_s

    return scenario.remember(("reduction", shape.degree, shape.group_size, positions), time)


def feedback_s(scenario: Scenario, shape: Shape, backbone: int, positions: tuple[int, int]) -> float:
    """The time of the message that feeds the extra forward's output back (T_F of Eq. 18)."""
    if positions[0] == positions[1]:
        return 0.0
    route = pipeline_network(scenario, shape).route(*positions)
    output = scenario.model.components[backbone].layers[-1].output_bytes
    return output * shape.local_batch(scenario) * route.wire_s_per_byte + route.delay_s


@dataclass(frozen=True, slots=True)
class Layout:
    """Stages on positions.

    Attributes:
        shape: the integers of the pipeline.
        cuts: its chains.
        skip_route: how skips travel.
        stages: their stages, numbered one chain after the other.
        seats: where each stage sits in its chain.
    """

    shape: Shape
    cuts: tuple[Cut, ...]
    skip_route: str
    stages: tuple[Stage, ...]
    seats: tuple[Seat, ...]

    @classmethod
    def of(cls, scenario: Scenario, shape: Shape, cuts: Sequence[Cut], skip_route: str) -> "Layout":
        """The layout of some cuts."""
        batch = shape.local_batch(scenario)
        stages = tuple(stage for cut in cuts for stage in make_stages(scenario, cut, batch))
        return cls(shape, tuple(cuts), skip_route, stages, seats_of(cuts))

    def chain(self, cut: int) -> range:
        """The stages of a chain, in the order in which a micro-batch passes them."""
        first = sum(before.num_stages for before in self.cuts[:cut])
        return range(first, first + self.cuts[cut].num_stages)

    def micro_batches(self, cut: int) -> range:
        """The micro-batches that pass through a chain."""
        return range(*(self.cuts[cut].micro_batches or (0, self.shape.micro_batches)))


def cut_chain(
    scenario: Scenario, shape: Shape, component: int, positions: Sequence[int], partition: str
) -> Cut:
    """A backbone cut into one stage per entry of ``positions``: equal blocks, or the optimal partition.

    Raises:
        InfeasibleError: there are fewer blocks or layers than stages.
    """
    check_choice("partition", partition, PARTITIONS)
    if partition == "optimal":
        return Cut(
            component, optimal_boundaries(scenario, shape, component, len(positions)), tuple(positions)
        )
    blocks = [layer.block for layer in scenario.model.components[component].layers]
    if len(positions) > len(set(blocks)):
        raise InfeasibleError(
            f"{len(positions) // shape.degree} stages per position * pipeline_degree({shape.degree}) ="
            f" {len(positions)} exceeds the {len(set(blocks))} blocks of the backbone",
            "more stages than blocks",
        )
    return Cut(component, block_partition(blocks, len(positions)), tuple(positions))


def refuse_distant_skips(scenario: Scenario, layout: Layout) -> None:
    """Refuse skips that must stay on one device although their ends lie on two.

    Raises:
        InfeasibleError: there is one.
    """
    for number, cut in enumerate(layout.cuts):
        own = [stage for stage, seat in zip(layout.stages, layout.seats, strict=True) if seat.cut == number]
        at = {layer: s.position for s in own for layer in range(s.first_layer, s.last_layer + 1)}
        for skip in scenario.model.components[cut.component].skips:
            if at[skip.source] != at[skip.target]:
                raise InfeasibleError(
                    f"skip_route is local, but the skip from layer {skip.source} to {skip.target} leads from"
                    f" position {at[skip.source]} to {at[skip.target]}",
                    "a skip that must stay local leaves its device",
                )


def staged_plan(scenario: Scenario, layout: Layout, rows: Rows, *, blocking: bool) -> Plan:
    """The plan of an order whose frozen work runs before it."""
    recipe = Recipe(blocking=blocking, skip_route=layout.skip_route)
    return PipelineBuilder(scenario, layout.shape, layout.cuts, rows, recipe).build()


def problem_of(scenario: Scenario, layout: Layout, *, in_flight: tuple[int, ...] | None = None) -> Problem:
    """The problem that list scheduling solves: the stages' real times, and messages on ports nobody shares."""
    chains = []
    for number in range(len(layout.cuts)):
        stages = tuple(s for s, seat in enumerate(layout.seats) if seat.cut == number)
        chains.append(Chain(stages, tuple(layout.micro_batches(number))))
    hops = stage_hops_s(scenario, layout)
    return Problem(
        forward_s=tuple(stage.forward_s for stage in layout.stages),
        backward_s=tuple(stage.backward_s for stage in layout.stages),
        positions=tuple(stage.position for stage in layout.stages),
        chains=tuple(chains),
        forward_lag_s=tuple(there for there, _ in hops),
        backward_lag_s=tuple(0.0 if seat.before is None else hops[seat.before][1] for seat in layout.seats),
        in_flight=in_flight,
    )


def stage_hops_s(scenario: Scenario, layout: Layout) -> list[tuple[float, float]]:
    """Seconds from each stage to the next and back for one micro-batch; none where both share a device."""
    network = network_of(scenario, layout.shape.placement(scenario))
    batch = layout.shape.local_batch(scenario)
    hops = []
    for stage, seat in zip(layout.stages, layout.seats, strict=True):
        source, target = stage.position, stage.position
        if seat.after is not None:
            target = layout.stages[seat.after].position
        if source == target:
            hops.append((0.0, 0.0))
            continue
        size = handover_bytes(scenario, stage, batch, layout.skip_route)
        carried = scenario.model.components[stage.component].carried_bytes * batch
        there, back = network.route(source, target), network.route(target, source)
        there_s = (size + carried) * there.wire_s_per_byte + there.delay_s
        hops.append((there_s, size * back.wire_s_per_byte + back.delay_s))
    return hops
