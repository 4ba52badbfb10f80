"""Two-way pipelines: two directions on the same positions, down from the first and up from the last.

With one backbone both directions hold all of it, and half of the micro-batches take each, as in Chimera. With two,
each direction trains its own, and every micro-batch takes both: so DiffusionPipe trains cascaded models.

Source: DiffusionPipe, sections 2.2 and 4.2.
"""

from collections.abc import Sequence
from dataclasses import replace
from typing import Final

from profiles.errors import InfeasibleError
from strategies.orders.list_scheduling import list_schedule
from strategies.orders.named import check_halves, chimera_order
from strategies.orders.problem import evaluate
from strategies.partitions.chain import optimal_pair
from strategies.pipelining.cutting import chain_costs, cut_chain, lay_out, refuse_too_many
from strategies.pipelining.layout import Layout
from strategies.pipelining.stages import Cut, Shape
from strategies.plans.actions import Rows, StageAction
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
            return _pair(layout, partition, local_skips=skip_route == "local")
        return _one(layout, partition)

    return lay_out(scenario, shape, ("two-way", partition), skip_route, cut)


def _pair(layout: Layout, partition: str, *, local_skips: bool) -> tuple[Cut, ...]:
    """The cuts of two backbones, each in one direction."""
    backbones, down = layout.scenario.model.backbones, tuple(range(layout.shape.degree))
    if len(backbones) > 2:
        raise InfeasibleError(
            f"two directions train two backbones, {layout.scenario.model.name} has {len(backbones)}",
            "more than two backbones",
        )
    placed = [*zip(backbones, (down, down[::-1]), strict=True)]
    if partition == "blocks":
        return tuple(cut_chain(layout, *place, "blocks") for place in placed)
    boundaries = _optimal_boundaries(layout, backbones, local_skips)
    return tuple(Cut(backbone, ends, at) for (backbone, at), ends in zip(placed, boundaries, strict=True))


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


def _optimal_boundaries(
    layout: Layout, backbones: Sequence[int], local_skips: bool
) -> Sequence[tuple[int, ...]]:
    """The cuts of the best pair."""
    scenario, degree, count = layout.scenario, layout.shape.degree, layout.shape.micro_batches
    for backbone in backbones:
        refuse_too_many(layout, degree, len(scenario.model.components[backbone].layers), "layers")
    # messages take twice as long: those of the other direction may compete for the links
    costs = [
        replace(chain, cut_forward_s=2 * chain.cut_forward_s, cut_backward_s=2 * chain.cut_backward_s)
        for chain in (chain_costs(layout, i, local_skips=local_skips) for i in backbones)
    ]
    probability = layout.extra_forward_probability

    def solve() -> list[tuple[int, ...]]:
        down, up = costs
        return optimal_pair(down, up, degree, count, probability)

    # group sizes on links alike have one answer
    links = [(chain.cut_forward_s.tobytes(), chain.sync_s.tobytes(), chain.sync_latency_s) for chain in costs]
    return scenario.remember(("pair", degree, count, local_skips, probability, tuple(links)), solve)


def is_one_backbone(layout: Layout) -> bool:
    """True where both directions hold the same backbone, and half of the micro-batches take each."""
    return layout.cuts[0].micro_batches is not None


def two_way_rows(layout: Layout) -> Rows:
    """The order of each position: Chimera's for one backbone; for two that, or list scheduling's if it is shorter.

    A stage of two holds as many micro-batches as in FIFO-1F1B, and ``SPARE`` more.
    """
    degree = layout.shape.degree
    if is_one_backbone(layout):
        return chimera_order(degree, layout.shape.micro_batches)
    problem = layout.problem(in_flight=tuple(range(degree + SPARE, SPARE, -1)) * 2)
    listed, count = list_schedule(problem, "longest-tail"), layout.shape.micro_batches
    if degree % 2:
        return listed.rows
    named = tuple(
        tuple(StageAction(stage, kind, number % count) for stage, kind, number in row)
        for row in chimera_order(degree, 2 * count)
    )
    return min(evaluate(problem, named), listed, key=lambda ordering: ordering.makespan_s).rows
