"""Staged pipelines: what strategies with several stages per position share, whatever their order.

A layout says which stages lie where. From it follow the plan, a bound that holds for every order, the least
memory, and the problem that list scheduling orders.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from profiles.errors import InfeasibleError
from strategies.footprint import resident_buffers, saved_bytes
from strategies.linear import feedback_s, frozen_s, optimal_boundaries, step_s
from strategies.network import network_of
from strategies.ordering import Chain, Problem
from strategies.parameters import PARTITIONS, check_choice
from strategies.partition import block_partition
from strategies.pipeline import PipelineBuilder, Recipe, Rows
from strategies.plan import Plan, Stage
from strategies.ports import Traffic, busiest_port_s, chain_traffic
from strategies.scenario import Scenario
from strategies.stages import Cut, Seat, Shape, handover_bytes, make_stages, seats_of, weight_part_s
from strategies.sums import sums_end_s


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
        """Return the layout of some cuts."""
        batch = shape.local_batch(scenario)
        stages = tuple(stage for cut in cuts for stage in make_stages(scenario, cut, batch))
        return cls(shape, tuple(cuts), skip_route, stages, seats_of(cuts))

    def chain(self, cut: int) -> range:
        """Return the stages of a chain, in the order in which a micro-batch passes them."""
        first = sum(before.num_stages for before in self.cuts[:cut])
        return range(first, first + self.cuts[cut].num_stages)

    def micro_batches(self, cut: int) -> range:
        """Return the micro-batches that pass through a chain."""
        return range(*(self.cuts[cut].micro_batches or (0, self.shape.micro_batches)))


def cut_chain(
    scenario: Scenario, shape: Shape, component: int, positions: Sequence[int], partition: str
) -> Cut:
    """Return a backbone cut into one stage per entry of ``positions``: equal blocks, or the optimal partition.

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
    """Return the plan of an order whose frozen work runs before it."""
    recipe = Recipe(blocking=blocking, skip_route=layout.skip_route)
    return PipelineBuilder(scenario, layout.shape, layout.cuts, rows, recipe).build()


def problem_of(scenario: Scenario, layout: Layout, *, in_flight: tuple[int, ...] | None = None) -> Problem:
    """Return what list scheduling is to order: the stages' real times, and messages on ports nobody shares."""
    chains = []
    for number in range(len(layout.cuts)):
        stages = tuple(s for s, seat in enumerate(layout.seats) if seat.cut == number)
        chains.append(Chain(stages, tuple(layout.micro_batches(number))))
    hops = _hops_s(scenario, layout)
    return Problem(
        forward_s=tuple(stage.forward_s for stage in layout.stages),
        backward_s=tuple(stage.backward_s for stage in layout.stages),
        positions=tuple(stage.position for stage in layout.stages),
        chains=tuple(chains),
        forward_lag_s=tuple(there for there, _ in hops),
        backward_lag_s=tuple(0.0 if seat.before is None else hops[seat.before][1] for seat in layout.seats),
        in_flight=in_flight,
    )


def _hops_s(scenario: Scenario, layout: Layout) -> list[tuple[float, float]]:
    """Return seconds from each stage to the next and back for one micro-batch; none where both share a device."""
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


def staged_bound(
    scenario: Scenario, layout: Layout, *, frozen_first: bool = True, split: bool = False
) -> float:
    """Return seconds below which no order of a layout can take.

    The passes of a position that come late in their chain wait for all passes before them, and what follows the
    early ones must come after: for every such pair of limits, waiting before, the work between and waiting after
    add up.

    Args:
        scenario: what is asked about.
        layout: the stages.
        frozen_first: the frozen work runs before the pipeline; else, cross-iteration, wherever there is room.
        split: the gradients of weights may be computed later than those of inputs.
    """
    degree, hops_s = layout.shape.degree, _hops_s(scenario, layout)
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
    """Return when the first forward can start at the earliest."""
    starts = {layout.stages[seat.first].position for seat in layout.seats}
    return min(frozen_s(scenario, layout.shape, p) for p in starts) if frozen_first else 0.0


def port_bound(scenario: Scenario, layout: Layout, *, frozen_first: bool = True) -> float:
    """Return seconds below which no order takes because of its busiest port.

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
    """Return for each stage the seconds from its last backward to the end of its optimizer step, on free ports."""
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
    """Return the passes of a chain in the order in which a micro-batch takes them."""
    batch, chain = layout.shape.local_batch(scenario), layout.chain(cut)
    passes = [(layout.stages[s].position, layout.stages[s].forward_s, 0.0, hops_s[s][0]) for s in chain]
    for number in reversed(chain):
        stage = layout.stages[number]
        waiting_s = weight_part_s(scenario, stage, batch) if split else 0.0
        back_s = 0.0 if number == chain.start else hops_s[number - 1][1]
        passes.append((stage.position, stage.backward_s - waiting_s, waiting_s, back_s))
    return passes


def _lanes(passes: Sequence[Pass], count: int, ready_s: float, released_s: Sequence[float]) -> Iterator[Lane]:
    """Yield the lanes of a chain: each pass for all micro-batches, and what of it may wait.

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
    """Return the seconds before which no forward begins: the first extra one has come through and back."""
    if not scenario.workload.extra_forward:
        return 0.0
    chain = layout.chain(cut)
    ends = layout.stages[chain[-1]].position, layout.stages[chain[0]].position
    through_s = sum(layout.stages[s].forward_s + hops_s[s][0] for s in chain)
    return through_s + feedback_s(scenario, layout.shape, layout.cuts[cut].component, ends)


def _released_s(layout: Layout, hops_s: Hops) -> list[float]:
    """Return for each position the seconds before which its extra forwards, which come first, are not done."""
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
    """Return the longest waiting before, work between and waiting after over all pairs of limits.

    After a part of a backward that may wait comes nothing but the optimizer step of its own device.
    """

    def after_s(tail: float) -> float:
        return step_s if split and not tail else max(tail + last_step_s, step_s)

    return max((_done_s(lanes, tail) + after_s(tail) for tail in {lane[3] for lane in lanes}), default=0.0)


def _done_s(lanes: Sequence[Lane], tail_s: float) -> float:
    """Return when a device has done all lanes after which at least so many seconds come."""
    early = [lane for lane in lanes if lane[3] >= tail_s]
    return max(
        (head + sum(lane[2] for lane in early if lane[1] >= head) for head in {lane[1] for lane in early}),
        default=0.0,
    )


def _complete_s(passes: Sequence[Pass], lanes: Sequence[Lane]) -> Iterator[float]:
    """Yield for each stage of a chain when its last backward can have ended at the earliest.

    By then its device has done all passes before it, of all micro-batches.
    """
    after_s = 0.0
    for position, seconds, _, hop_s in list(reversed(passes))[: len(passes) // 2]:
        own = [lane for lane in lanes if lane[0] == position]
        yield _done_s(own, (after_s + hop_s) * (1 - 1e-9))
        after_s += seconds + hop_s


def staged_least_memory(scenario: Scenario, layout: Layout, in_flight: Sequence[int]) -> float:
    """Return bytes that the fullest device cannot do without.

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
