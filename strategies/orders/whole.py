"""Whole orders: every position has its passes, and every micro-batch passes each stage once there and once back."""

from collections import Counter
from collections.abc import Generator, Sequence
from typing import Any, Final

from profiles.errors import InputError, shown
from strategies.plans.actions import (
    BACKWARD,
    BACKWARD_INPUT,
    BACKWARD_WEIGHT,
    FORWARD,
    Rows,
    StageAction,
    passes_of,
)

WHOLE: Final = (FORWARD, BACKWARD)
SPLIT: Final = (FORWARD, BACKWARD_INPUT, BACKWARD_WEIGHT)
"""Kinds of passes; split, a backward comes in two parts."""


def placed(whose: str, positions: Any, degree: int) -> tuple[int, ...]:  # noqa: ANN401  whatever a strategy gives
    """The position of each stage, checked; numbers of NumPy become what they equal. Messages say ``whose`` they are."""
    _check_listed(whose, positions, "positions")
    known, placed_at = {at: at for at in range(degree)}, list[int]()
    for stage, entry in enumerate(positions):
        try:
            placed_at.append(known[entry])
        except (KeyError, TypeError, ValueError):  # what cannot be looked up is no position either
            rule = f"must be from 0 to {degree - 1}: there are `pipeline_degree({degree})` positions"
            raise InputError(f"{whose}, entry {stage} is {shown(entry)}, {rule}") from None
    if lacking := known.keys() - set(placed_at):
        rule = f"each of `pipeline_degree({degree})` positions must have a stage"
        raise InputError(f"{whose} has no entry {min(lacking)}, {rule}")
    return tuple(placed_at)


def order_of(strategy: Any) -> Rows:  # noqa: ANN401  whatever has an order
    """The order of a strategy, checked where it knows how."""
    order: Rows = getattr(strategy, "checked_order", strategy.order)()
    return order


def whole(
    whose: str,
    order: Any,  # noqa: ANN401  whatever a strategy gives
    positions: Sequence[int],
    micro_batches: int,
    kinds: tuple[str, ...],
) -> Rows:
    """An order whose positions have all passes of their stages, each once; ``positions`` are of each stage."""
    _check_listed(whose, order, "rows")
    if len(order) != (degree := max(positions) + 1):
        raise InputError(
            f"{whose} has {len(order)} rows, must have one for each of `pipeline_degree({degree})`"
        )
    rows = []
    for position, row in enumerate(order):
        stages = tuple(stage for stage, at in enumerate(positions) if at == position)
        rows.append(_row(f"{whose}, position {position}", row, _passes(stages, micro_batches, kinds)))
    return tuple(rows)


def _check_listed(where: str, rows: Any, what: str) -> None:  # noqa: ANN401
    if not isinstance(rows, list | tuple | range):
        kind = "a generator" if isinstance(rows, Generator) else shown(rows)
        raise InputError(f"{where} is {kind}, must be a tuple of {what}")


def _passes(stages: tuple[int, ...], micro_batches: int, kinds: tuple[str, ...]) -> dict[Any, StageAction]:
    """The passes of a position, under themselves and whatever equals them."""
    passes = (passes_of(stage, kind, range(micro_batches)) for stage in stages for kind in kinds)
    return {one: one for each in passes for one in each}


def _row(where: str, row: Sequence[Any], passes: dict[Any, StageAction]) -> tuple[StageAction, ...]:
    """A row of passes; plain tuples and numbers of NumPy become what they equal."""
    _check_listed(where, row, "passes")
    entries = iter(row)
    try:
        found = tuple([passes[entry] for entry in entries])
    except (KeyError, TypeError, ValueError):  # what cannot be looked up is no pass either
        at = len(row) - 1 - len([*entries])
        stages, kinds, numbers = (dict.fromkeys(one[field] for one in passes) for field in range(3))
        split = "; a strategy whose backwards come in two parts, I and W, says split = True"
        raise InputError(
            f"{where}, entry {at} is {shown(row[at])}, must be a StageAction of stage"
            f" {' or '.join(map(str, stages)) or 'none'}, which lies there, of kind {' or '.join(kinds)}, of"
            f" micro-batch {min(numbers, default=0)} to {max(numbers, default=0)}{split * (tuple(kinds) == WHOLE)}"
        ) from None
    if not len(found) == len({*found}) == len(passes):
        times = Counter(found)
        one = next(one for one in passes if times[one] != 1)
        rule = "each micro-batch passes each stage once there and once back"
        raise InputError(f"{where} {'repeats' if times[one] else 'lacks'} {one}: {rule}")
    return found
