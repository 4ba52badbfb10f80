"""Bounds of pipelines: seconds and bytes that no order of their stages can undercut."""

from collections.abc import Iterator, Sequence

import numpy as np

from strategies.bounds.gradient_sums import sums_end_s
from strategies.bounds.ports import Traffic, busiest_port_s, chain_traffic
from strategies.pipelining.footprint import (
    least_memory_bytes,
    resident_buffers,
    saved_bytes,
    trained_parameters,
)
from strategies.pipelining.layout import (
    Layout,
    Linear,
    feedback_s,
    gradient_reduction_s,
    pipeline_network,
    shape_of,
    stage_hops_s,
    stages_of,
)
from strategies.pipelining.stages import FloatArray, Shape, weight_part_s
from strategies.plans.plan import Stage
from strategies.scenario import Scenario


def pipeline_bound(
    strategy: Linear,
    scenario: Scenario,
    *,
    depth_first: bool = True,
    before_s: float = 0.0,
    frozen_after: bool = False,
) -> float:
    """Seconds below which no iteration of a linear pipeline can take.

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
    """For each entry the sum of those before it."""
    return np.cumsum(values) - values


def _hops(scenario: Scenario, shape: Shape, stages: Sequence[Stage]) -> tuple[FloatArray, FloatArray]:
    """Seconds on the wire of one micro-batch over each hop, there and back, (2, P - 1), and the delays."""
    component, batch = scenario.model.components[stages[0].component], shape.local_batch(scenario)
    network = pipeline_network(scenario, shape)
    routes = [network.route(p, p + 1) for p in range(shape.degree - 1)]
    back = np.array([component.cut_bytes(stage.last_layer) * batch for stage in stages[:-1]])
    sizes = np.stack([back + component.carried_bytes * batch, back])
    wire_s = sizes * np.array([route.wire_s_per_byte for route in routes])
    return wire_s, np.array([route.delay_s for route in routes])


def step_s(
    scenario: Scenario, shape: Shape, stage: Stage, beside_s: float = 0.0, positions: tuple[int, ...] = (0,)
) -> float:
    """The seconds from a stage's last backward to the end of its optimizer step, on free ports.

    Args:
        scenario: recipe and costs.
        shape: who reduces gradients with whom.
        stage: the stage.
        beside_s: seconds of compute that run while the gradients are reduced.
        positions: those that hold the stage's layers and sum their gradients; one is like another.
    """
    trained = trained_parameters(scenario.model.components[stage.component], stage)
    per_parameter_s, fixed_s = gradient_reduction_s(scenario, shape, positions)
    reduce_s = trained * per_parameter_s + fixed_s if trained else 0.0
    return max(reduce_s, beside_s) + scenario.costs.optimizer_s(trained, scenario.workload.recipe)


def frozen_s(scenario: Scenario, shape: Shape, position: int = 0) -> float:
    """The seconds of all frozen work of a position, data-parallel over a whole group.

    Where the samples do not divide, the first positions get one more each.
    """
    shape.placement(scenario)  # refuses sizes that do not divide
    samples = (shape.group_batch(scenario) + shape.degree - 1 - position) // shape.degree
    if not samples:
        return 0.0
    local = -(-samples // shape.replicas)
    return sum(float(scenario.costs.components[i].forward_s(local).sum()) for i in scenario.model.frozen)


def least_memory(strategy: Linear, scenario: Scenario, *, depth_first: bool = True) -> float:
    """Bytes that the fullest device of a linear pipeline cannot do without.

    FIFO-1F1B holds the activations of P - s micro-batches at position s, GPipe those of all.
    """
    shape = shape_of(strategy)
    ahead = [
        shape.degree - position if depth_first else shape.micro_batches for position in range(shape.degree)
    ]
    in_flight = [min(shape.micro_batches, count) for count in ahead]
    return least_memory_bytes(scenario, stages_of(strategy, scenario), in_flight, shape.local_batch(scenario))


def staged_bound(
    scenario: Scenario, layout: Layout, *, frozen_first: bool = True, split: bool = False
) -> float:
    """Seconds below which no order of a layout can take.

    The passes of a position that come late in their chain wait for all passes before them, and what follows the
    early ones must come after: for every such pair of limits, waiting before, the work between and waiting after
    add up.

    Args:
        scenario: what is asked about.
        layout: the stages.
        frozen_first: the frozen work runs before the pipeline; else, cross-iteration, wherever there is room.
        split: the gradients of weights may be computed later than those of inputs.
    """
    degree, hops_s = layout.shape.degree, stage_hops_s(scenario, layout)
    released_s = _released_s(layout, hops_s) if scenario.workload.extra_forward else [0.0] * degree
    lanes: list[Lane] = []
    complete_s: list[float] = []
    for cut in range(len(layout.cuts)):
        passes = _passes(scenario, layout, hops_s, cut, split=split)
        ready_s = _fed_back_s(scenario, layout, hops_s, cut)
        own = list(_lanes(passes, len(layout.micro_batches(cut)), ready_s, released_s))
        complete_s += _complete_s(passes, own)
        lanes += own
    steps = steps_s(scenario, layout)
    step = [
        [s for s, stage in zip(steps, layout.stages, strict=True) if stage.position == p]
        for p in range(degree)
    ]
    last_s = min(steps[seat.first] for seat in layout.seats)
    least_s = [
        _least_s([lane for lane in lanes if lane[0] == p], min(step[p], default=0.0), last_s, split=split)
        for p in range(degree)
    ]
    summed_s = sums_end_s(scenario, layout.shape, layout.stages, [0.0] * degree, complete_s)
    before_s = _before_s(scenario, layout, frozen_first=frozen_first)
    return max(before_s + max(*least_s, summed_s), port_bound(scenario, layout, frozen_first=frozen_first))


def _before_s(scenario: Scenario, layout: Layout, *, frozen_first: bool) -> float:
    """Earliest seconds at which the first forward can start."""
    starts = {layout.stages[seat.first].position for seat in layout.seats}
    return min(frozen_s(scenario, layout.shape, p) for p in starts) if frozen_first else 0.0


def port_bound(scenario: Scenario, layout: Layout, *, frozen_first: bool = True) -> float:
    """Seconds below which no order takes because of its busiest port.

    It is held between the first forward of a chain and the last backward of one.

    Args: as of ``staged_bound``.
    """
    traffic: list[Traffic] = []
    for number in range(len(layout.cuts)):
        own = [stage for stage, seat in zip(layout.stages, layout.seats, strict=True) if seat.cut == number]
        count = len(layout.micro_batches(number))
        traffic += chain_traffic(scenario, layout.shape, own, count, layout.skip_route)
    firsts = {seat.first for seat in layout.seats}
    around_s = min(layout.stages[first].forward_s for first in firsts) + min(
        layout.stages[first].backward_s for first in firsts
    )
    steps = steps_s(scenario, layout)
    before_s = _before_s(scenario, layout, frozen_first=frozen_first)
    held_s = busiest_port_s(scenario, layout.shape, traffic)
    return before_s + around_s + held_s + min(steps[first] for first in firsts)


def steps_s(scenario: Scenario, layout: Layout) -> list[float]:
    """For each stage the seconds from its last backward to the end of its optimizer step, on free ports."""
    holders: dict[tuple[int, int], list[int]] = {}
    for stage in layout.stages:
        holders.setdefault((stage.component, stage.first_layer), []).append(stage.position)
    return [
        step_s(
            scenario, layout.shape, stage,
            positions=tuple(sorted(holders[stage.component, stage.first_layer])),
        )
        for stage in layout.stages
    ]  # fmt: skip


Lane = tuple[int, float, float, float]
"""One pass of a stage by all its micro-batches: position, seconds before, of its work, and after it."""


Pass = tuple[int, float, float, float]
"""What one micro-batch does on a stage: position, seconds of it, what of them may wait, seconds to the next."""


Hops = Sequence[tuple[float, float]]


def _passes(scenario: Scenario, layout: Layout, hops_s: Hops, cut: int, *, split: bool) -> list[Pass]:
    """The passes of a chain in the order in which a micro-batch takes them."""
    batch, chain = layout.shape.local_batch(scenario), layout.chain(cut)
    passes = [(layout.stages[s].position, layout.stages[s].forward_s, 0.0, hops_s[s][0]) for s in chain]
    for number in reversed(chain):
        stage = layout.stages[number]
        waiting_s = weight_part_s(scenario, stage, batch) if split else 0.0
        back_s = 0.0 if number == chain.start else hops_s[number - 1][1]
        passes.append((stage.position, stage.backward_s - waiting_s, waiting_s, back_s))
    return passes


def _lanes(passes: Sequence[Pass], count: int, ready_s: float, released_s: Sequence[float]) -> Iterator[Lane]:
    """The lanes of a chain: each pass for all micro-batches, and what of it may wait.

    Args:
        passes: of one micro-batch, in order.
        count: micro-batches.
        ready_s: seconds before which none begins.
        released_s: for each position the seconds before which it does something else.
    """
    after_s = sum(seconds + hop_s for _, seconds, _, hop_s in passes)
    for position, seconds, waiting_s, hop_s in passes:
        head_s = max(ready_s, released_s[position])
        after_s -= seconds + hop_s
        yield position, head_s, count * seconds, max(0.0, after_s) + hop_s
        if waiting_s:
            yield position, head_s + seconds, count * waiting_s, 0.0
        ready_s = head_s + seconds + hop_s


def _fed_back_s(scenario: Scenario, layout: Layout, hops_s: Hops, cut: int) -> float:
    """The seconds before which no forward begins: the first extra one has come through and back."""
    if not scenario.workload.extra_forward:
        return 0.0
    chain = layout.chain(cut)
    ends = layout.stages[chain[-1]].position, layout.stages[chain[0]].position
    through_s = sum(layout.stages[s].forward_s + hops_s[s][0] for s in chain)
    return through_s + feedback_s(scenario, layout.shape, layout.cuts[cut].component, ends)


def _released_s(layout: Layout, hops_s: Hops) -> list[float]:
    """For each position the seconds before which its extra forwards, which come first, are not done."""
    lanes: list[Lane] = []
    for cut in range(len(layout.cuts)):
        forwards = [
            (layout.stages[s].position, layout.stages[s].forward_s, 0.0, hops_s[s][0])
            for s in layout.chain(cut)
        ]
        at_once = [0.0] * layout.shape.degree
        lanes += [(*lane[:3], 0.0) for lane in _lanes(forwards, len(layout.micro_batches(cut)), 0.0, at_once)]
    return [_least_s([lane for lane in lanes if lane[0] == p], 0.0, 0.0) for p in range(layout.shape.degree)]


def _least_s(lanes: Sequence[Lane], step_s: float, last_step_s: float, *, split: bool = False) -> float:
    """The longest waiting before, work between and waiting after over all pairs of limits.

    After a part of a backward that may wait comes nothing but the optimizer step of its own device.
    """

    def after_s(tail: float) -> float:
        return step_s if split and not tail else max(tail + last_step_s, step_s)

    return max((_done_s(lanes, tail) + after_s(tail) for tail in {lane[3] for lane in lanes}), default=0.0)


def _done_s(lanes: Sequence[Lane], tail_s: float) -> float:
    """Seconds until a device has done all lanes that at least ``tail_s`` must follow."""
    early = [lane for lane in lanes if lane[3] >= tail_s]
    return max(
        (head + sum(lane[2] for lane in early if lane[1] >= head) for head in {lane[1] for lane in early}),
        default=0.0,
    )


def _complete_s(passes: Sequence[Pass], lanes: Sequence[Lane]) -> Iterator[float]:
    """For each stage of a chain when its last backward can have ended at the earliest.

    By then its device has done all passes before it, of all micro-batches.
    """
    after_s = 0.0
    for position, seconds, _, hop_s in list(reversed(passes))[: len(passes) // 2]:
        own = [lane for lane in lanes if lane[0] == position]
        yield _done_s(own, (after_s + hop_s) * (1 - 1e-9))
        after_s += seconds + hop_s


def staged_least_memory(scenario: Scenario, layout: Layout, in_flight: Sequence[int]) -> float:
    """Bytes that the fullest device cannot do without.

    Args:
        scenario: model and recipe.
        layout: the stages.
        in_flight: for each stage the micro-batches whose activations it holds at once at least.
    """
    batch, fullest = layout.shape.local_batch(scenario), 0.0
    for position in range(layout.shape.degree):
        hosted = [
            (s, count) for s, count in zip(layout.stages, in_flight, strict=True) if s.position == position
        ]
        state = resident_buffers(scenario, [stage for stage, _ in hosted], batch)
        held = sum(count * saved_bytes(scenario, stage, batch) for stage, count in hosted)
        fullest = max(fullest, sum(buffer.size_bytes for buffer in state) + held)
    return fullest
