"""Bounds of pipelines in two directions."""

from strategies.bounds.critical_path import order_bound
from strategies.pipelining.footprint import least_memory_bytes
from strategies.pipelining.layout import Layout
from strategies.pipelining.two_way import is_one_backbone, two_way_rows


def two_way_bound(layout: Layout, *, frozen_first: bool = True) -> float:
    """Seconds that no iteration can undercut, whatever runs before it or in its bubbles."""
    return order_bound(layout, lambda: two_way_rows(layout), "two-way", frozen_first=frozen_first)


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
        return least_memory_bytes(layout, held, frozen_first=frozen_first)
    return max(
        least_memory_bytes(layout, [int(seat.cut == cut) for seat in layout.seats], frozen_first=frozen_first)
        for cut in range(len(layout.cuts))
    )
