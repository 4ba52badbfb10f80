"""Bounds of pipelines: seconds that no order of their stages can undercut, or no iteration in an order of theirs."""

from collections.abc import Callable, Hashable, Iterator, Sequence

from strategies.orders.problem import Chain, Pass, follow
from strategies.pipelining.builder import with_extra_forwards
from strategies.pipelining.footprint import least_memory_bytes
from strategies.pipelining.layout import Layout
from strategies.pipelining.two_way import is_one_backbone
from strategies.plans.actions import BACKWARD_INPUT, BACKWARD_WEIGHT, Rows


def frozen_s(layout: Layout, position: int = 0) -> float:
    """The seconds of all frozen work of a position, data-parallel over a whole group.

    Where the samples do not divide, the first positions get one more each.
    """
    scenario, degree = layout.scenario, layout.shape.degree
    _ = layout.placement  # refuses sizes that do not divide
    samples = (layout.group_batch + degree - 1 - position) // degree
    if not samples:
        return 0.0
    local = -(-samples // layout.replicas)
    return sum(float(scenario.costs.components[i].forward_s(local).sum()) for i in scenario.frozen)


def least_frozen_s(layout: Layout) -> float:
    """The frozen seconds per device if every layer ran at the local batch that suits it best."""
    scenario, samples, each = layout.scenario, layout.group_batch, layout.shape.group_size

    def make() -> float:
        components = [scenario.costs.components[index] for index in scenario.frozen]
        total = sum(sum(costs.least_forward_s_per_sample(samples)) for costs in components)
        return total * samples / each

    return scenario.remember(("least frozen", samples, each), make)


def uncut_bound(
    layout: Layout, stages: int, *, chains: int = 1, frozen_first: bool = True, split: bool = False
) -> float:
    """Seconds below which no cut of the backbones into so many stages can take.

    The positions share all work. And a chain of V stages that take w_1 to w_V seconds for each of M micro-batches, of
    which a share s cannot wait, does not end before s (w_1 + ... + w_(j-1)) + M w_j; with w_1 + ... + w_V = W the
    longest of these is at least s W / (1 - (1 - s/M)^V).

    Args:
        layout: without cuts.
        stages: of each chain.
        chains: among which the micro-batches are divided.
        frozen_first: as of ``staged_bound``.
        split: likewise.
    """
    scenario, count, degree = layout.scenario, layout.shape.micro_batches, layout.shape.degree
    backbones, batch, frozen_s = scenario.model.backbones, layout.local_batch, least_frozen_s(layout)

    def make() -> tuple[float, float]:
        each_s = [forward_s + back_s for forward_s, back_s in map(layout.layer_times, backbones)]
        waits_s = [scenario.costs.components[one].weight_s(batch) for one in backbones]
        shares = (part[times > 0] / times[times > 0] for part, times in zip(waits_s, each_s, strict=True))
        most = max(float(share.max(initial=0)) for share in shares)
        return sum(float(times.sum()) for times in each_s), 1 - most

    work_s, share = scenario.remember(("work", batch), make)
    evenly_s = frozen_s + work_s * count / degree
    share = share if split else 1.0
    chain_s = (
        share * work_s / (1 - (1 - share * chains / count) ** stages)
        if share and len(backbones) == 1
        else 0.0
    )
    return max(evenly_s, chain_s + frozen_s * frozen_first)


def staged_bound(layout: Layout, *, frozen_first: bool = True, split: bool = False) -> float:
    """Seconds below which no order of a layout can take.

    A pass waits for those before it in its chain, runs for all its micro-batches, and those after it must follow. So
    do all passes of a position together: for the first of them, and before what must follow the last.

    Args:
        layout: the stages.
        frozen_first: the frozen work runs before the pipeline; else, cross-iteration, wherever there is room.
        split: the gradients of weights may be computed later than those of inputs.
    """
    limits: list[list[tuple[float, float, float]]] = [
        [] for _ in layout.hosted
    ]  # before, of, and after passes
    for cut in range(len(layout.cuts)):
        passes = layout.passes(cut, extra=layout.scenario.workload.extra_forward, split=split)
        count = len(layout.micro_batches(cut))
        ready_s, after_s = 0.0, sum(one.duration_s + one.lag_s for one in passes)
        for number, kind, pass_s, lag_s in passes:
            here, after_s = limits[layout.stages[number].position], after_s - (pass_s + lag_s)
            here.append((ready_s, count * pass_s, max(0.0, after_s) + lag_s))
            if kind == BACKWARD_INPUT:
                waiting_s = layout.weight_part_s(layout.stages[number])
                here.append((ready_s + pass_s, count * waiting_s, 0.0))
            ready_s += pass_s + lag_s
    steps = _steps_s(layout)
    last_s = min(steps[seat.first] for seat in layout.seats)
    least_s = 0.0
    for hosted, here in zip(layout.hosted, limits, strict=True):
        heads_s, works_s, tails_s = zip(*here, strict=True)
        spans = [*here, (min(heads_s), sum(works_s), min(tails_s))]
        step_s = min((steps[stage] for stage in hosted), default=0.0)
        for head_s, work_s, tail_s in spans:
            # after a part of a backward that may wait comes nothing but its own device's step
            after_s = step_s if split and not tail_s else max(tail_s + last_s, step_s)
            least_s = max(least_s, head_s + work_s + after_s)
    starts = {layout.stages[seat.first].position for seat in layout.seats}
    before_s = min(frozen_s(layout, p) for p in starts) if frozen_first else 0.0
    return before_s + least_s


def _steps_s(layout: Layout) -> list[float]:
    """For each stage the seconds from its last backward to the end of its optimizer step, on free ports."""
    seconds = [0.0] * len(layout.stages)
    for twins in layout.twins:
        positions = tuple(sorted(layout.stages[number].position for number in twins))
        for number in twins:
            seconds[number], _ = layout.update_s(number, positions)
    return seconds


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

    Every pass starts as soon as its device is free and its input is there, on links that nobody shares. Then gradients
    are summed.

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
