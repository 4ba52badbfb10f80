"""Critical path: least seconds that the stages of a layout take in an order.

Every pass starts as soon as its device is free and its input is there, on links that nobody shares. Then gradients
are summed.
"""

from collections.abc import Callable, Hashable, Iterator, Sequence

from strategies.bounds.pipelines import frozen_s
from strategies.orders.problem import Chain, Pass, follow
from strategies.pipelining.builder import with_extra_forwards
from strategies.pipelining.footprint import least_memory_bytes
from strategies.pipelining.layout import Layout
from strategies.pipelining.two_way import is_one_backbone
from strategies.plans.actions import BACKWARD_WEIGHT, Rows


def order_bound(
    layout: Layout,
    order: Callable[[], Rows],
    name: Hashable,
    *,
    frozen_first: bool = True,
    frozen_after: bool = False,
    split: bool = False,
) -> float:
    """Seconds that no iteration in an order can undercut.

    Args:
        layout: the stages.
        order: makes the order of each position, without optimizer steps.
        name: tells the order from others of the layout.
        frozen_first: the frozen work runs before the pipeline; else, cross-iteration, wherever there is room.
        frozen_after: it runs between the last pass of a device and its optimizer steps.
        split: backwards come in two parts.
    """
    shape = layout.shape
    begins_s = tuple(frozen_s(layout, p) if frozen_first else 0.0 for p in range(shape.degree))
    chains = tuple(_chains(layout, split=split))
    # group sizes on links alike have one answer
    key = ("path", name, shape.degree, shape.micro_batches, layout.cuts, chains, begins_s)

    def ends_s() -> tuple[list[float], list[float]]:
        """Earliest seconds at which each position has done its last pass, and each stage its last backward."""
        rows = order()
        if layout.scenario.workload.extra_forward:
            rows = with_extra_forwards(layout, rows)
        free_s, complete_s = [*begins_s], [0.0] * len(layout.stages)
        for position, row in enumerate(follow(chains, rows, begins_s)):
            for (stage, _, _), _, end in row:
                complete_s[stage] = free_s[position] = end
        return free_s, complete_s

    free_s, complete_s = layout.scenario.remember(key, ends_s)
    if frozen_after:
        free_s = [end_s + frozen_s(layout, position) for position, end_s in enumerate(free_s)]
    return _sums_end_s(layout, free_s, complete_s)


def _chains(layout: Layout, *, split: bool) -> Iterator[Chain]:
    """The passes that the micro-batches of each chain take, and, apart, those parts of backwards that can wait."""
    for cut in range(len(layout.cuts)):
        numbers = layout.micro_batches(cut)
        extra = layout.scenario.workload.extra_forward
        yield Chain(tuple(layout.passes(cut, extra=extra, split=split)), numbers)
        for s in layout.chain(cut) if split else ():
            yield Chain((Pass(s, BACKWARD_WEIGHT, layout.weight_part_s(layout.stages[s]), 0.0),), numbers)


def _sums_end_s(layout: Layout, free_s: Sequence[float], complete_s: Sequence[float]) -> float:
    """Earliest seconds at which all gradients are summed, each sum on ports of its own, and all optimizers stepped."""
    stepped_s, ends_s = [*free_s], [0.0]
    for twins in layout.twins:
        if layout.summed_parameters[twins[0]]:
            positions = tuple([layout.stages[number].position for number in twins])
            after_s, step_s = layout.update_s(twins[0], positions)
            ends_s.append(max([complete_s[number] for number in twins]) + after_s)
            for position in positions:
                stepped_s[position] += step_s
    return max(*stepped_s, *ends_s)


def two_way_least_memory(layout: Layout) -> float:
    """Bytes that the fullest device cannot do without.

    Several backbones might wait for one another: one micro-batch of one of them is all that must be there at once.
    """
    _, shape = layout.placement, layout.shape  # refused where it is none
    if is_one_backbone(layout):
        ahead = min(shape.degree, shape.micro_batches) // 2
        held = [min(ahead, shape.degree - stage) for stage in range(shape.degree)] * 2
        return least_memory_bytes(layout, held)
    return max(
        least_memory_bytes(layout, [int(seat.cut == cut) for seat in layout.seats])
        for cut in range(len(layout.cuts))
    )
