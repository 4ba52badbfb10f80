"""Linear pipelines: what ``gpipe``, ``1f1b``, ``spp`` and ``diffusionpipe`` share: one stage per position.

A strategy file names its fields and its order; how the backbone is cut, which points are worth a look and how
fast a point can be at best is the same for all.
"""

from collections.abc import Iterator, Sequence
from typing import Protocol

import numpy as np

from profiles.collectives import collective_time
from profiles.errors import InfeasibleError
from strategies.actions import BACKWARD, FORWARD, StageAction
from strategies.footprint import least_memory_bytes, trained_parameters
from strategies.network import Network, network_of
from strategies.partition import ChainCosts, Partition, block_partition, optimal_partition
from strategies.pipeline import PipelineBuilder, Recipe
from strategies.plan import Plan, Stage
from strategies.ports import busiest_port_s, chain_traffic
from strategies.scenario import Scenario
from strategies.stages import Cut, FloatArray, Shape, layer_times, make_stages
from strategies.sums import sums_end_s

Rows = tuple[tuple[StageAction, ...], ...]


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


def gpipe_order(degree: int, micro_batches: int) -> Rows:
    """Return all forwards, then all backwards. Source: GPipe, section 2.3."""
    return tuple(
        tuple(StageAction(p, kind, m) for kind in (FORWARD, BACKWARD) for m in range(micro_batches))
        for p in range(degree)
    )


def one_forward_one_backward_order(degree: int, micro_batches: int) -> Rows:
    """Return the FIFO-1F1B order: fill the pipeline, alternate, drain it. Source: DiffusionPipe, Fig. 2."""
    rows = []
    for position in range(degree):
        ahead = min(degree - 1 - position, micro_batches)
        row = [StageAction(position, FORWARD, m) for m in range(ahead)]
        for m in range(micro_batches):
            if m + ahead < micro_batches:
                row.append(StageAction(position, FORWARD, m + ahead))
            row.append(StageAction(position, BACKWARD, m))
        rows.append(tuple(row))
    return tuple(rows)


def unfilled_plan(strategy: Linear, scenario: Scenario, rows: Rows) -> Plan:
    """Return the plan of a linear pipeline whose frozen work runs before it."""
    cut = cut_backbone(strategy, scenario)
    recipe = Recipe(blocking=strategy.p2p == "blocking", skip_route=strategy.skip_route)
    return PipelineBuilder(scenario, shape_of(strategy), [cut], rows, recipe).build()


def shape_of(strategy: Linear) -> Shape:
    """Return the integers of a linear pipeline."""
    return Shape(
        strategy.pipeline_degree, strategy.micro_batches, strategy.group_size or strategy.pipeline_degree
    )


def cut_backbone(strategy: Linear, scenario: Scenario) -> Cut:
    """Return where the backbone is cut.

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
    """Return the stages of a linear pipeline."""
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
    """Return the boundaries of the optimal partition of a backbone.

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
    links = (_slowest_hop(scenario, shape), _reduction(scenario, shape), fed_back_s)
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
    """Return what the partition is optimised on: layers, messages over each cut, gradient reduction."""
    component = scenario.model.components[backbone]
    batch = shape.local_batch(scenario)
    forward_s, backward_s = layer_times(scenario, backbone, batch)
    cuts = range(len(component.layers) - 1)
    cut_bytes = np.array([component.cut_bytes(cut) for cut in cuts]) * batch
    wire_s, delay_s = _slowest_hop(scenario, shape)
    legal = np.array([not any(component.live_skips(cut)) for cut in cuts], dtype=bool)
    trained = np.array([float(x.parameters if x.backward == "full" else 0) for x in component.layers])
    reduce_s, reduce_latency_s = _reduction(scenario, shape)
    return ChainCosts(
        forward_s=forward_s,
        backward_s=backward_s,
        cut_forward_s=(cut_bytes + component.carried_bytes * batch) * wire_s + delay_s,
        cut_backward_s=cut_bytes * wire_s + delay_s,
        sync_s=trained * reduce_s,
        sync_latency_s=reduce_latency_s,
        legal_cuts=legal if local_skips else None,
    )


def _network(scenario: Scenario, shape: Shape) -> Network:
    return network_of(scenario, shape.placement(scenario))


def _slowest_hop(scenario: Scenario, shape: Shape) -> tuple[float, float]:
    """Return seconds per byte and delay of the slowest hop between neighbours."""
    network = _network(scenario, shape)
    routes = [network.route(p, p + 1) for p in range(shape.degree - 1)]
    return max((r.wire_s_per_byte for r in routes), default=0.0), max(
        (r.delay_s for r in routes), default=0.0
    )


def _reduction(scenario: Scenario, shape: Shape, positions: tuple[int, ...] = (0,)) -> tuple[float, float]:
    """Return seconds per trained parameter and fixed seconds of the gradient all-reduce of some positions."""
    placement = shape.placement(scenario)
    size = scenario.workload.recipe.gradient_bytes

    def time() -> tuple[float, float]:
        time = collective_time(scenario.cluster, "all_reduce", size, placement.group(*positions))
        return max(time.device_port_s, time.node_port_s), time.fixed_s

    return scenario.remember(("reduction", shape.degree, shape.group_size, positions), time)


def feedback_s(scenario: Scenario, shape: Shape, backbone: int, positions: tuple[int, int]) -> float:
    """Return the time of the message that feeds the extra forward's output back (T_F of Eq. 18)."""
    if positions[0] == positions[1]:
        return 0.0
    route = _network(scenario, shape).route(*positions)
    output = scenario.model.components[backbone].layers[-1].output_bytes
    return output * shape.local_batch(scenario) * route.wire_s_per_byte + route.delay_s


def pipeline_degrees(scenario: Scenario, backbones: Sequence[int], stages_per_position: int = 1) -> list[int]:
    """Return the pipeline degrees worth a look: divisors of the GPUs, with at most one stage per block.

    Raises:
        InfeasibleError: there is none.
    """
    gpus, components = scenario.workload.num_gpus, scenario.model.components
    blocks = min(len({layer.block for layer in components[i].layers}) for i in backbones)
    degrees = [degree for degree in divisors(gpus) if 2 <= degree <= blocks // stages_per_position]
    if not degrees:
        each = "" if stages_per_position == 1 else f" / {stages_per_position} stages per position"
        raise InfeasibleError(
            f"no divisor of gpus({gpus}) between 2 and the {blocks} blocks of the backbone{each}",
            "no pipeline degree",
        )
    return degrees


def shapes(
    scenario: Scenario, stages_per_position: int = 1, backbones: Sequence[int] | None = None
) -> Iterator[Shape]:
    """Yield the shapes worth a look: every degree, group size and number of micro-batches that divides.

    Raises:
        InfeasibleError: there is none, or the model has several backbones and none are named.
    """
    gpus, batch = scenario.workload.num_gpus, scenario.workload.batch_size
    for degree in pipeline_degrees(scenario, backbones or [scenario.backbone], stages_per_position):
        samples = batch * degree // gpus
        counts = [1] if batch * degree % gpus else divisors(samples)
        for size in divisors(gpus):
            if size % degree == 0:
                yield from (Shape(degree, count, size) for count in counts)


def divisors(number: int) -> list[int]:
    """Return the divisors of a positive number, ascending."""
    small = [i for i in range(1, int(number**0.5) + 1) if number % i == 0]
    return sorted({*small, *(number // i for i in small)})


def pipeline_bound(
    strategy: Linear,
    scenario: Scenario,
    *,
    depth_first: bool = True,
    before_s: float = 0.0,
    frozen_after: bool = False,
) -> float:
    """Return seconds below which no iteration of a linear pipeline can take.

    Each position first waits for the forwards before it, then runs its own work, then waits for the backwards
    after it; FIFO-1F1B besides sends at most P - s micro-batches ahead, so a round trip limits its pace. Each
    link, and each port that several share, likewise carries all its messages one after the other; a node's port
    carries the sums of the gradients of all its devices.

    Args:
        strategy: the point.
        scenario: what it is asked about.
        depth_first: the order is FIFO-1F1B.
        before_s: frozen work of each device before the pipeline, in seconds.
        frozen_after: all frozen work runs between the last backward of a device and its optimizer step.
    """
    shape = shape_of(strategy)
    extra = scenario.workload.extra_forward
    key = ("bound", shape, strategy.partition, strategy.skip_route, depth_first, frozen_after, extra)
    stages = stages_of(strategy, scenario)
    return before_s + scenario.remember(
        key,
        lambda: _pipeline_bound(
            scenario,
            shape,
            stages,
            strategy.skip_route,
            depth_first=depth_first,
            frozen_after=frozen_after,
        ),
    )


def _pipeline_bound(
    scenario: Scenario,
    shape: Shape,
    stages: Sequence[Stage],
    skip_route: str,
    *,
    depth_first: bool,
    frozen_after: bool,
) -> float:
    forward_s = np.array([stage.forward_s for stage in stages])
    backward_s = np.array([stage.backward_s for stage in stages])
    wire_s, delay_s = _hops(scenario, shape, stages)
    there_s, back_s = wire_s[0] + delay_s, wire_s[1] + delay_s
    count, degree = shape.micro_batches, shape.degree
    passes = 2 if scenario.workload.extra_forward else 1
    head_s = _before(forward_s + np.append(there_s, 0.0))
    tail_s = _before(backward_s + np.append(back_s, 0.0))
    work_s = count * (forward_s + backward_s)
    if depth_first:
        around_s = forward_s + backward_s + np.append(there_s + back_s, 0.0)
        work_s = np.maximum(work_s, count // (degree - np.arange(degree)) * np.cumsum(around_s[::-1])[::-1])
    own_s = head_s + (passes - 1) * count * forward_s + work_s
    ends_s = np.maximum.accumulate((own_s + tail_s)[::-1])[::-1] - tail_s
    link_s = (head_s + forward_s)[:-1] + passes * count * wire_s[0] + (tail_s + backward_s)[1:]
    after_s = [frozen_s(scenario, shape, p) if frozen_after else 0.0 for p in range(degree)]
    steps_s = np.array([step_s(scenario, shape, *of) for of in zip(stages, after_s, strict=True)])
    traffic = chain_traffic(scenario, shape, stages, count, skip_route)
    port_s = stages[0].forward_s + busiest_port_s(scenario, shape, traffic) + stages[0].backward_s
    last_s = max(float(link_s.max(initial=0.0)), port_s) + float(steps_s[0])
    summed_s = sums_end_s(scenario, shape, stages, ends_s.tolist(), ends_s.tolist())
    return max(float((ends_s + steps_s).max()), last_s, summed_s)


def _before(values: FloatArray) -> FloatArray:
    """Return for each entry the sum of those before it."""
    return np.cumsum(values) - values


def _hops(scenario: Scenario, shape: Shape, stages: Sequence[Stage]) -> tuple[FloatArray, FloatArray]:
    """Return seconds on the wire of one micro-batch over each hop, there and back, (2, P - 1), and the delays."""
    component, batch = scenario.model.components[stages[0].component], shape.local_batch(scenario)
    network = _network(scenario, shape)
    routes = [network.route(p, p + 1) for p in range(shape.degree - 1)]
    back = np.array([component.cut_bytes(stage.last_layer) * batch for stage in stages[:-1]])
    sizes = np.stack([back + component.carried_bytes * batch, back])
    wire_s = sizes * np.array([route.wire_s_per_byte for route in routes])
    return wire_s, np.array([route.delay_s for route in routes])


def step_s(
    scenario: Scenario, shape: Shape, stage: Stage, beside_s: float = 0.0, positions: tuple[int, ...] = (0,)
) -> float:
    """Return the seconds from a stage's last backward to the end of its optimizer step, on free ports.

    Args:
        scenario: recipe and costs.
        shape: who reduces gradients with whom.
        stage: the stage.
        beside_s: seconds of compute that run while the gradients are reduced.
        positions: those that hold the stage's layers and sum their gradients; one is like another.
    """
    trained = trained_parameters(scenario.model.components[stage.component], stage)
    per_parameter_s, fixed_s = _reduction(scenario, shape, positions)
    reduce_s = trained * per_parameter_s + fixed_s if trained else 0.0
    return max(reduce_s, beside_s) + scenario.costs.optimizer_s(trained, scenario.workload.recipe)


def frozen_s(scenario: Scenario, shape: Shape, position: int = 0) -> float:
    """Return the seconds of all frozen work of a position, data-parallel over a whole group.

    Where the samples do not divide, the first positions get one more each.
    """
    shape.placement(scenario)  # refuses sizes that do not divide
    samples = (shape.group_batch(scenario) + shape.degree - 1 - position) // shape.degree
    if not samples:
        return 0.0
    local = -(-samples // shape.replicas)
    return sum(float(scenario.costs.components[i].forward_s(local).sum()) for i in scenario.model.frozen)


def least_memory(strategy: Linear, scenario: Scenario, *, depth_first: bool = True) -> float:
    """Return bytes that the fullest device of a linear pipeline cannot do without.

    FIFO-1F1B holds the activations of P - s micro-batches at position s, GPipe those of all.
    """
    shape = shape_of(strategy)
    ahead = [
        shape.degree - position if depth_first else shape.micro_batches for position in range(shape.degree)
    ]
    in_flight = [min(shape.micro_batches, count) for count in ahead]
    return least_memory_bytes(scenario, stages_of(strategy, scenario), in_flight, shape.local_batch(scenario))
