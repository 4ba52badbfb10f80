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
from strategies.actions import BACKWARD, FORWARD, StageAction
from strategies.ordering import Problem

Rows = tuple[tuple[StageAction, ...], ...]


class Pass(NamedTuple):
    """One pass of a stage: where it runs, the slot of its first micro-batch, and where its input comes from."""

    stage: int
    kind: str
    position: int
    slot: int
    source: int


def chimera_order(degree: int, micro_batches: int) -> Rows:
    """Return the order of each position; stages 0 to P - 1 go down, P to 2P - 1 up. The last unit may be smaller.

    Raises:
        InfeasibleError: the degree or the number of micro-batches is odd.
    """
    check_halves(degree, micro_batches)
    half = micro_batches // 2
    slots: list[list[tuple[int, StageAction]]] = [[] for _ in range(degree)]
    for of in _passes(degree):
        first = 0 if of.stage < degree else half
        slots[of.position] += [
            (of.slot + _shift(degree, i), StageAction(of.stage, of.kind, first + i)) for i in range(half)
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


def _passes(degree: int) -> Iterator[Pass]:
    """Yield all passes, down and up."""
    for first, positions in ((0, range(degree)), (degree, range(degree - 1, -1, -1))):
        for stage, position in enumerate(positions):
            before, after = positions[max(stage - 1, 0)], positions[min(stage + 1, degree - 1)]
            yield Pass(first + stage, FORWARD, position, stage, before)
            yield Pass(first + stage, BACKWARD, position, 2 * degree - 1 - stage, after)


def _shift(degree: int, index: int) -> int:
    """Return how many slots after the first micro-batch of its direction one comes."""
    unit, place = divmod(index, degree // 2)
    return 2 * (unit * degree + place)


def chimera_ends_s(problem: Problem, micro_batches: int, begins_s: Sequence[float]) -> list[float]:
    """Return when each position is done in this order, in seconds.

    Slot after slot, so that a bound costs less than the replay that it may spare.

    Args:
        problem: how long passes and messages take.
        micro_batches: of both directions together.
        begins_s: when each position may begin.
    """
    degree = len(begins_s)
    last = _shift(degree, micro_batches // 2 - 1)
    table = [[(0, 0, 0, 0.0, 0.0)] * degree for _ in range(2 * degree)]
    for of in _passes(degree):
        forward = of.kind == FORWARD
        duration_s = (problem.forward_s if forward else problem.backward_s)[of.stage]
        lag_s = 0.0
        if of.source != of.position:
            lag_s = problem.forward_lag_s[of.stage - 1] if forward else problem.backward_lag_s[of.stage + 1]
        for slot in range(of.slot, of.slot + degree, 2):
            table[slot % len(table)][of.position] = of.slot, of.slot + last, of.source, lag_s, duration_s
    ends_s = list(begins_s)
    for slot in range(2 * degree + last):
        ends_s = [
            max(end_s, ends_s[source] + lag_s) + duration_s if first <= slot <= end else end_s
            for end_s, (first, end, source, lag_s, duration_s) in zip(
                ends_s, table[slot % len(table)], strict=True
            )
        ]
    return ends_s
