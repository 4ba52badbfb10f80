"""Bounds of pipelines in two directions."""

from strategies.bounds.critical_path import order_bound, reduced_bound
from strategies.bounds.pipelines import frozen_s, staged_least_memory
from strategies.orders.chimera import chimera_ends_s, extra_ends_s
from strategies.pipelining.layout import Layout, Linear, problem_of
from strategies.pipelining.two_way import two_way_layout, two_way_rows
from strategies.scenario import Scenario


def two_way_bound(strategy: Linear, scenario: Scenario, *, frozen_first: bool = True) -> float:
    """Seconds that no iteration can undercut, whatever runs before it or in its bubbles."""
    layout = two_way_layout(strategy, scenario)
    if layout.cuts[0].micro_batches is None:
        return order_bound(
            scenario, layout, lambda: two_way_rows(scenario, layout), "two-way", frozen_first=frozen_first
        )
    key = ("chimera bound", layout.shape, layout.cuts, layout.skip_route, scenario.workload.extra_forward)
    return scenario.remember(key, lambda: _chimera_bound(scenario, layout))


def _chimera_bound(scenario: Scenario, layout: Layout) -> float:
    """Seconds that no iteration in Chimera's order can undercut, frozen work and extra forwards first."""
    shape, problem = layout.shape, problem_of(scenario, layout)
    begins_s = [frozen_s(scenario, shape, position) for position in range(shape.degree)]
    if scenario.workload.extra_forward:
        begins_s = extra_ends_s(problem, shape.micro_batches, begins_s)
    free_s, complete_s = chimera_ends_s(problem, shape.micro_batches, begins_s)
    return reduced_bound(scenario, layout, free_s, complete_s)


def two_way_least_memory(strategy: Linear, scenario: Scenario) -> float:
    """Bytes that the fullest device cannot do without.

    Several backbones might wait for one another: one micro-batch of one of them is all that must be there at once.
    """
    layout = two_way_layout(strategy, scenario)
    shape = layout.shape
    if layout.cuts[0].micro_batches is not None:
        ahead = min(shape.degree, shape.micro_batches) // 2
        held = [min(ahead, shape.degree - stage) for stage in range(shape.degree)] * 2
        return staged_least_memory(scenario, layout, held)
    return max(
        staged_least_memory(scenario, layout, [int(seat.cut == cut) for seat in layout.seats])
        for cut in range(len(layout.cuts))
    )
