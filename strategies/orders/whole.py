"""Whole orders: every position has its passes, and every micro-batch passes each stage once there and once back."""

from collections import Counter
from collections.abc import Sequence

from profiles.errors import InputError
from strategies.plans.actions import BACKWARD, BACKWARD_WEIGHT, FORWARD, Rows


def of_positions(rows: Rows, degree: int) -> Rows:
    """Rows, one for each position of a pipeline.

    Raises:
        InputError: there are more or fewer, or one is empty.
    """
    if len(rows) != degree:
        raise InputError(
            f"the order has {len(rows)} rows, must have one for each of pipeline_degree({degree})"
        )
    if empty := [position for position, row in enumerate(rows) if not row]:
        raise InputError(f"row {empty[0]} of the order is empty, must hold its forwards and backwards")
    return rows


def check_whole(rows: Rows, passes: Sequence[int]) -> None:
    """Refuse an order that lacks passes, or has some twice.

    Args:
        rows: the passes of each position.
        passes: micro-batches that pass each stage.

    Raises:
        InputError: a stage has more or fewer forwards, or backwards, than micro-batches.
    """
    found = Counter((action.stage, action.kind) for row in rows for action in row)
    for stage, count in enumerate(passes):
        there = found[stage, FORWARD]
        back = found[stage, BACKWARD] + found[stage, BACKWARD_WEIGHT]
        if (there, back) != (count, count):
            raise InputError(
                f"the order has {there} forwards and {back} backwards of stage {stage}, must have {count} of each"
            )
