"""Wave: orders of stages laid out down the positions and up again.

Source: Liu et al., Hanayo: Harnessing Wave-like Pipeline Parallelism, 2023.
"""

from functools import lru_cache
from typing import Final

from strategies.orders.list_scheduling import list_schedule
from strategies.orders.problem import evaluate, most_in_flight, peak_held, wave_problem
from strategies.plans.actions import Rows

LATE_BACKWARD: Final = (("balanced", 2.0),)
EARLY_AND_LATE: Final = (("most-advanced", 1.0), ("longest-tail", 1.0), *LATE_BACKWARD)
"""Orders that are tried: the priority of list scheduling, and the forwards that a backward is taken to last.

Made for a backward of one forward, up to two rounds of micro-batches fill the pipeline best even where it takes two;
from more than two rounds on the last of them is as short as any. Found by trying all priorities, both ratios and up
to 4 waves, 8 positions and 4 rounds.
"""
STEADY: Final = 4
"""Rounds of micro-batches after which a wave holds as much as it ever does, or nearly."""


@lru_cache(maxsize=256)
def wave_order(degree: int, micro_batches: int, waves: int) -> Rows:
    """Return the order of list scheduling that is shortest on free links where a backward takes two forwards.

    Of equals the one that holds fewest activations counts, then the first.
    """
    problem = wave_problem(degree, micro_batches, waves)
    tried = EARLY_AND_LATE if micro_batches <= 2 * degree else LATE_BACKWARD
    orders = [
        list_schedule(wave_problem(degree, micro_batches, waves, backward_s=backward_s), priority).rows
        for priority, backward_s in tried
    ]
    if len(orders) == 1:
        return orders[0]

    def merit(rows: Rows) -> tuple[float, float]:
        return evaluate(problem, rows).makespan_s, max(peak_held(rows))

    return min(orders, key=merit)


@lru_cache(maxsize=256)
def wave_in_flight(degree: int, micro_batches: int, waves: int) -> tuple[int, ...]:
    """For each stage the least micro-batches that it holds when its position is fullest.

    A long order holds no less than the one of its first micro-batches: both begin alike.
    """
    return tuple(most_in_flight(wave_order(degree, min(micro_batches, STEADY * degree), waves)))
