"""Two-way pipelines: two directions on the same positions, down from the first and up from the last.

With one backbone both directions hold all of it, and half of the micro-batches take each, as in Chimera. With
several, each direction trains its own, and every micro-batch takes both: so DiffusionPipe trains cascaded models.
Stages of backbones that go the same way run one after the other, as one larger stage would.

Source: DiffusionPipe, sections 2.2 and 4.2.
"""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from itertools import combinations
from typing import Final

from profiles.checks import sum_in_order
from profiles.errors import InfeasibleError
from strategies.orders.chimera import check_halves, chimera_order
from strategies.orders.list_scheduling import list_schedule
from strategies.orders.problem import Chain, Problem, evaluate
from strategies.partitions.chain import optimal_partition
from strategies.partitions.pair import optimal_pair, pair_rounds
from strategies.pipelining.cutting import chain_costs, cut_chain, lay_out
from strategies.pipelining.layout import Layout
from strategies.pipelining.stages import Cut, Shape
from strategies.plans.actions import FORWARD, Rows, StageAction
from strategies.scenario import Scenario

SPARE: Final = 1
"""Micro-batches that a stage of a pair may hold beyond the P - s of FIFO-1F1B.

Measured on cdm-lsun and cdm-imagenet on 8 A100, 2 to 8 positions, 4 to 16 times P / 2 micro-batches: none take 6 %
longer than the one-machine bound, one 3.5 %, two 2 %, any number 0 %.
"""


def two_way_layout(scenario: Scenario, shape: Shape, partition: str, skip_route: str) -> Layout:
    """The stages of both directions: those that go down, then those that go up."""

    def cut(layout: Layout) -> tuple[Cut, ...]:
        if len(scenario.model.backbones) > 1:
            return _several(layout, partition, local_skips=skip_route == "local")
        return _one(layout, partition)

    return lay_out(scenario, shape, ("two-way", partition), skip_route, cut)


def _several(layout: Layout, partition: str, *, local_skips: bool) -> tuple[Cut, ...]:
    """The cuts of several backbones, each in one direction."""
    down = tuple(range(layout.shape.degree))
    ways = zip(ways_of(layout), (down, down[::-1]), strict=True)
    placed = [(backbone, positions) for way, positions in ways for backbone in way]
    if partition == "blocks":
        return tuple(cut_chain(layout, *of, "blocks") for of in placed)
    boundaries = _optimal_boundaries(layout, [backbone for backbone, _ in placed], local_skips)
    return tuple(Cut(backbone, of, at) for (backbone, at), of in zip(placed, boundaries, strict=True))


def _one(layout: Layout, partition: str) -> tuple[Cut, ...]:
    """The cuts of the only backbone, half of the micro-batches in each direction."""
    degree, count = layout.shape.degree, layout.shape.micro_batches
    check_halves(degree, count)
    cut = cut_chain(layout, layout.scenario.backbone_index, tuple(range(degree)), partition)
    up = tuple(reversed(range(degree)))
    return (
        cut._replace(micro_batches=(0, count // 2)),
        cut._replace(positions=up, micro_batches=(count // 2, count)),
    )


def ways_of(layout: Layout) -> tuple[tuple[int, ...], tuple[int, ...]]:
    """The backbones that go down and those that go up, so that both ways take about as long.

    The first backbone goes down: mirrored, all would take as long.
    """
    backbones = layout.scenario.model.backbones
    seconds = {i: sum_in_order(float(s.sum()) for s in layout.layer_times(i)) for i in backbones}
    others = backbones[1:]
    choices = [up for size in range(1, len(backbones)) for up in combinations(others, size)]
    up = min(
        choices, key=lambda up: abs(sum_in_order(seconds.values()) - 2 * sum_in_order(seconds[i] for i in up))
    )
    return tuple(i for i in backbones if i not in up), up


def _optimal_boundaries(
    layout: Layout, backbones: Sequence[int], local_skips: bool
) -> Sequence[tuple[int, ...]]:
    """The cuts of the backbones: two as the best pair, more each for itself."""
    scenario, degree, count = layout.scenario, layout.shape.degree, layout.shape.micro_batches
    for component in (scenario.model.components[i] for i in backbones):
        if degree > len(component.layers):
            raise InfeasibleError(
                f"`pipeline_degree({degree})` exceeds the {len(component.layers)} layers of {component.name}",
                "more stages than layers",
            )
    # messages take twice as long: those of the other direction may compete for the links
    costs = [
        replace(of, cut_forward_s=2 * of.cut_forward_s, cut_backward_s=2 * of.cut_backward_s)
        for of in (chain_costs(layout, i, local_skips=local_skips) for i in backbones)
    ]
    probability = layout.extra_forward_probability

    def solve() -> list[tuple[int, ...]]:
        if len(costs) == 2:
            return optimal_pair(costs[0], costs[1], degree, pair_rounds(degree, count), probability)
        return [optimal_partition(of, degree, 2 * count, probability) for of in costs]

    # group sizes on links alike have one answer
    links = [(of.cut_forward_s.tobytes(), of.sync_s.tobytes(), of.sync_latency_s) for of in costs]
    return scenario.remember(("pair", degree, count, local_skips, probability, tuple(links)), solve)


def is_one_backbone(layout: Layout) -> bool:
    """True where both directions hold the same backbone, and half of the micro-batches take each."""
    return layout.cuts[0].micro_batches is not None


def two_way_rows(layout: Layout) -> Rows:
    """The order of each position: Chimera's for one backbone, the shortest known for several."""
    if is_one_backbone(layout):
        return chimera_order(layout.shape.degree, layout.shape.micro_batches)
    members = _members(layout)
    problem = _combined(layout.problem(), members)
    key = ("two-way order", problem, members)
    return layout.scenario.remember(key, lambda: _apart(_shortest(problem), members))


def _apart(rows: Rows, members: Sequence[tuple[int, ...]]) -> Rows:
    """Rows in which the members of each larger stage run one after the other."""
    return tuple(
        tuple(
            StageAction(stage, action.kind, action.micro_batch)
            for action in row
            for stage in members[action.stage][:: 1 if action.kind == FORWARD else -1]
        )
        for row in rows
    )


def _members(layout: Layout) -> tuple[tuple[int, ...], ...]:
    """The stages that make up each larger one: those of the same place in the same direction."""
    ways: dict[Sequence[int] | None, list[list[int]]] = {}
    for number, cut in enumerate(layout.cuts):
        ways.setdefault(cut.positions, []).append(list(layout.chain(number)))
    return tuple(members for way in ways.values() for members in zip(*way, strict=True))


def _combined(problem: Problem, members: Sequence[tuple[int, ...]]) -> Problem:
    """The problem of larger stages, each held as long as FIFO-1F1B would, and a little longer."""
    degree = problem.num_devices
    chains = [tuple(range(first, first + degree)) for first in range(0, len(members), degree)]

    def each(of: Callable[[Iterable[float]], float], values: Sequence[float]) -> tuple[float, ...]:
        return tuple(of(values[stage] for stage in stages) for stages in members)

    return Problem(
        forward_s=each(sum_in_order, problem.forward_s),
        backward_s=each(sum_in_order, problem.backward_s),
        positions=tuple(problem.positions[stages[0]] for stages in members),
        chains=tuple(Chain(stages, problem.chains[0].micro_batches) for stages in chains),
        forward_lag_s=each(max, problem.forward_lag_s),
        backward_lag_s=each(max, problem.backward_lag_s),
        in_flight=tuple(range(degree + SPARE, SPARE, -1)) * len(chains),
    )


def _shortest(problem: Problem) -> Rows:
    """The shorter of two orders: list scheduling's, and Chimera's as if both ways were one backbone."""
    listed = list_schedule(problem, "longest-tail")
    degree, count = problem.num_devices, len(problem.chains[0].micro_batches)
    if degree % 2 or len(problem.chains) == 1:
        return listed.rows
    named = tuple(
        tuple(StageAction(stage, kind, number % count) for stage, kind, number in row)
        for row in chimera_order(degree, 2 * count)
    )
    return min(evaluate(problem, named), listed, key=lambda ordering: ordering.makespan_s).rows
