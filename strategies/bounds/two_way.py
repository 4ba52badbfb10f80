"""Bounds of pipelines in two directions."""

from strategies.bounds.critical_path import order_bound, reduced_bound
from strategies.bounds.pipelines import frozen_s
from strategies.orders.chimera import chimera_ends_s, extra_ends_s
from strategies.pipelining.layout import Layout
from strategies.pipelining.two_way import is_one_backbone, two_way_rows


def two_way_bound(layout: Layout, *, frozen_first: bool = True) -> float:
    """Seconds that no iteration can undercut, whatever runs before it or in its bubbles."""
    if is_one_backbone(layout):
        return layout.remember("chimera bound", lambda: _chimera_bound(layout))
    return order_bound(layout, lambda: two_way_rows(layout), "two-way", frozen_first=frozen_first)


def _chimera_bound(layout: Layout) -> float:
    """Seconds that no iteration in Chimera's order can undercut, frozen work and extra forwards first."""
    count, problem = layout.shape.micro_batches, layout.problem()
    starts_s = tuple(frozen_s(layout, position) for position in range(layout.shape.degree))
    extra = layout.scenario.workload.extra_forward

    def ends_s() -> tuple[list[float], list[float]]:
        begins_s = extra_ends_s(problem, count, starts_s) if extra else starts_s
        return chimera_ends_s(problem, count, begins_s)

    # group sizes on links alike have one answer
    free_s, complete_s = layout.scenario.remember(("chimera", problem, starts_s, extra), ends_s)
    return reduced_bound(layout, free_s, complete_s)


def two_way_least_memory(layout: Layout, *, frozen_first: bool = True) -> float:
    """Bytes that the fullest device cannot do without.

    Several backbones might wait for one another: one micro-batch of one of them is all that must be there at once.

    Args:
        layout: the stages.
        frozen_first: all frozen work runs before the pipeline.
    """
    _, shape = layout.placement, layout.shape  # refused where it is none
    if is_one_backbone(layout):
        ahead = min(shape.degree, shape.micro_batches) // 2
        held = [min(ahead, shape.degree - stage) for stage in range(shape.degree)] * 2
        return layout.least_memory_bytes(held, frozen_first=frozen_first)
    return max(
        layout.least_memory_bytes([int(seat.cut == cut) for seat in layout.seats], frozen_first=frozen_first)
        for cut in range(len(layout.cuts))
    )
