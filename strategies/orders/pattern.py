"""Patterns: a good order of a small pipeline, carried over to more devices and more micro-batches.

Source: PULSE, section V-B: the schedule of four devices is the template of larger ones. Here the template says
what goes first where a device has a choice; the length of the larger schedule is replayed, never assumed.
"""

from operator import attrgetter

import numpy as np

from profiles.checks import sum_in_order
from profiles.units import FloatArray
from strategies.orders.capacity import check_room, fits
from strategies.orders.list_scheduling import ListScheduler
from strategies.orders.problem import Chain, Lane, Ordering, Problem, evaluate, lanes_of
from strategies.plans.actions import BACKWARD, FORWARD, Rows, StageAction


def extend(problem: Problem, ordering: Ordering, larger: Problem) -> Ordering:
    """Return the order of a larger problem that follows the pattern of a small one.

    The starts of the small order are a picture: pass by pass, device by device, micro-batch by micro-batch. It is
    stretched to the other number of devices, and the micro-batches with it. If there are to be more of them, the
    first half of the picture is the warm-up, the second the cool-down, and between the two the micro-batch in the
    middle is repeated at the pace of the busiest device. What starts first in that picture goes first: strictly,
    or wherever a device has a choice, whichever is shorter.

    Args:
        problem: The small problem.
        ordering: Its order.
        larger: The other problem; its chains pass as often over all devices as those of the small one.

    Raises:
        InfeasibleError: a device cannot hold one micro-batch.
    """
    check_room(larger)
    lanes = lanes_of(larger)
    pace_s = max(
        sum_in_order(lane.duration_s for lane in lanes if lane.device == device)
        for device in range(larger.num_devices)
    )
    keys: list[list[float]] = []
    for chain, larger_chain in zip(problem.chains, larger.chains, strict=True):
        rounds = _rounds(problem, ordering, chain)
        micro_batches = len(larger_chain.micro_batches)
        keys += _stretch(rounds, larger.num_devices, micro_batches, pace_s).tolist()
    orderings = [ListScheduler(larger, lanes, keys).run().order()]
    strict = _rows(larger, lanes, keys)
    if fits(larger, strict):
        orderings.append(evaluate(larger, strict))
    return min(orderings, key=attrgetter("makespan_s"))


def _rows(problem: Problem, lanes: list[Lane], keys: list[list[float]]) -> Rows:
    """The rows in which every pass comes in the order of its key."""
    rows: list[list[tuple[float, int, int]]] = [[] for _ in range(problem.num_devices)]
    for number, (lane, of_lane) in enumerate(zip(lanes, keys, strict=True)):
        rows[lane.device] += [(key, number, index) for index, key in enumerate(of_lane)]
    numbers = [problem.chains[lane.chain].micro_batches for lane in lanes]
    return tuple(
        tuple(StageAction(lanes[n].stage, lanes[n].kind, numbers[n][index]) for _, n, index in sorted(row))
        for row in rows
    )


def _rounds(problem: Problem, ordering: Ordering, chain: Chain) -> FloatArray:
    """The starts of a chain in seconds: (rounds over all devices, devices, micro-batches)."""
    starts_s = {
        action: start
        for row, starts in zip(ordering.rows, ordering.starts_s, strict=True)
        for action, start in zip(row, starts, strict=True)
    }
    passes = [(stage, FORWARD) for stage in chain.stages]
    passes += [(stage, BACKWARD) for stage in reversed(chain.stages)]
    of_chain = [[starts_s[StageAction(*of, m)] for m in chain.micro_batches] for of in passes]
    return np.array(of_chain).reshape(-1, problem.num_devices, len(chain.micro_batches))


def _stretch(rounds: FloatArray, num_devices: int, micro_batches: int, pace_s: float) -> FloatArray:
    """The starts in the stretched and lengthened picture: (passes, micro-batches)."""
    factor = num_devices / rounds.shape[1]
    count = min(micro_batches, max(1, round(rounds.shape[2] * factor)))
    wide = _resample(_resample(rounds, 1, num_devices), 2, count) * factor
    half, more = count // 2, micro_batches - count
    middle = wide[..., half : half + 1] + pace_s * np.arange(more)
    longer = np.concatenate([wide[..., :half], middle, wide[..., half:] + pace_s * more], axis=2)
    return longer.reshape(-1, micro_batches)


def _resample(values: FloatArray, axis: int, count: int) -> FloatArray:
    """Values at so many places spread evenly over an axis, interpolated between neighbours."""
    places = np.arange(values.shape[axis])
    targets = np.linspace(0, places[-1], count)
    return np.apply_along_axis(lambda line: np.interp(targets, places, line), axis, values)
