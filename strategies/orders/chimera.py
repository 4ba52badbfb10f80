"""Chimera: the order of one backbone in two directions, and how long it takes on links that nobody shares.

Units of as many micro-batches as positions follow one another, half of each unit down and half up. Were forwards
and backwards one slot long, the i-th of a unit in its direction would be on stage s in slot s + 2i, and back there
in slot 2P - 1 - s + 2i: never two on one position, each input ready in the slot before, and room for the next unit
2P slots later.

Source: Li and Hoefler, Chimera, 2021, sections 3.1 and 3.5 (direct concatenation).
"""

from collections.abc import Iterator, Sequence
from typing import NamedTuple

from profiles.errors import InfeasibleError
from strategies.orders.problem import Problem
from strategies.plans.actions import BACKWARD, FORWARD, Rows, StageAction


class Turn(NamedTuple):
    """The turns of a stage's pass: its position, its first slot, and the position that its input comes from."""

    stage: int
    kind: str
    position: int
    slot: int
    source: int


def chimera_order(degree: int, micro_batches: int) -> Rows:
    """The order of each position; stages 0 to P - 1 go down, P to 2P - 1 up. The last unit may be smaller.

    Raises:
        InfeasibleError: the degree or the number of micro-batches is odd.
    """
    check_halves(degree, micro_batches)
    half = micro_batches // 2
    slots: list[list[tuple[int, StageAction]]] = [[] for _ in range(degree)]
    for stage, kind, position, slot, _ in _turns(degree):
        first = 0 if stage < degree else half
        slots[position] += [
            (slot + _shift(degree, i), StageAction(stage, kind, first + i)) for i in range(half)
        ]
    return tuple(tuple(action for _, action in sorted(row)) for row in slots)


def check_halves(degree: int, micro_batches: int) -> None:
    """Refuse what two directions of one backbone cannot share.

    Raises:
        InfeasibleError: the degree or the number of micro-batches is odd.
    """
    for name, value in (("pipeline_degree", degree), ("micro_batches", micro_batches)):
        if value % 2:
            raise InfeasibleError(
                f"{name}({value}) / 2 directions of one backbone = {value / 2:g} is not whole",
                f"an odd {name} in two directions",
            )


def _turns(degree: int) -> Iterator[Turn]:
    """The turns of all passes, down and up."""
    for first, positions in ((0, range(degree)), (degree, range(degree - 1, -1, -1))):
        for stage, position in enumerate(positions):
            before, after = positions[max(stage - 1, 0)], positions[min(stage + 1, degree - 1)]
            yield Turn(first + stage, FORWARD, position, stage, before)
            yield Turn(first + stage, BACKWARD, position, 2 * degree - 1 - stage, after)


def _shift(degree: int, index: int) -> int:
    """Slots by which a micro-batch comes after the first one of its direction."""
    unit, place = divmod(index, degree // 2)
    return 2 * (unit * degree + place)


def extra_ends_s(problem: Problem, micro_batches: int, begins_s: Sequence[float]) -> list[float]:
    """Seconds until each position has done its extra forwards, which come first as two wave fronts.

    Args: as of ``chimera_ends_s``.
    """
    degree, half = len(begins_s), micro_batches // 2
    ends_s, done_s = list(begins_s), [0.0] * (2 * degree)
    deepest_first = sorted(range(2 * degree), key=lambda stage: (-(stage % degree), stage))
    for slot in range(half + degree - 1):
        for stage in deepest_first:
            if 0 <= slot - stage % degree < half:
                position = problem.positions[stage]
                there_s = done_s[stage - 1] + problem.forward_lag_s[stage - 1] if stage % degree else 0.0
                done_s[stage] = max(ends_s[position], there_s) + problem.forward_s[stage]
                ends_s[position] = done_s[stage]
    return ends_s


def chimera_ends_s(
    problem: Problem, micro_batches: int, begins_s: Sequence[float]
) -> tuple[list[float], list[float]]:
    """Seconds until each position, and each stage, is done in this order.

    They are found slot by slot, in less time than the replay that they may spare, however long the order is.

    Args:
        problem: How long passes and messages take.
        micro_batches: Of both directions together.
        begins_s: When each position may begin.
    """
    degree = len(begins_s)
    last = _shift(degree, micro_batches // 2 - 1)
    table = _table(problem, degree, last)
    ends_s, complete_s = list(begins_s), [0.0] * (2 * degree)
    for slot in range(2 * degree + last):
        turns = table[slot % len(table)]
        if 2 * degree <= slot <= last:  # everybody has a turn; a comparison takes less than a call of max
            ends_s = [
                (end_s if end_s > there_s else there_s) + duration_s
                for end_s, (_, _, source, lag_s, duration_s) in zip(ends_s, turns, strict=True)
                for there_s in (ends_s[source] + lag_s,)
            ]
        else:
            ends_s = [
                max(end_s, ends_s[source] + lag_s) + duration_s if first <= slot <= final else end_s
                for end_s, (first, final, source, lag_s, duration_s) in zip(ends_s, turns, strict=True)
            ]
        if slot >= degree + last:
            stage = 2 * degree - 1 + last - slot
            complete_s[stage], complete_s[degree + stage] = ends_s[stage], ends_s[degree - 1 - stage]
    return ends_s, complete_s


def _table(problem: Problem, degree: int, last: int) -> list[list[tuple[int, int, int, float, float]]]:
    """For each slot of a unit and each position first and last slot, source, lag and duration of a pass."""
    table = [[(0, 0, 0, 0.0, 0.0)] * degree for _ in range(2 * degree)]
    for stage, kind, position, first, source in _turns(degree):
        forward = kind == FORWARD
        lag_s = 0.0
        if source != position:
            lag_s = problem.forward_lag_s[stage - 1] if forward else problem.backward_lag_s[stage + 1]
        duration_s = (problem.forward_s if forward else problem.backward_s)[stage]
        for slot in range(first, first + degree, 2):
            table[slot % len(table)][position] = first, first + last, source, lag_s, duration_s
    return table
