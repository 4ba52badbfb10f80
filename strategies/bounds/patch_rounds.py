"""Rounds: how long patches take at least that pass through a line of stages again and again.

A stage works on one patch after another; a patch enters the next stage when it has arrived there, and the first
stage again when what became of it has come back. Ports that messages share, and receives posted late, only delay.
"""

from collections.abc import Sequence
from typing import NamedTuple


class Pass(NamedTuple):
    """One patch on one stage: seconds until the stage is free again, and until the next stage has its output."""

    held_s: float
    sent_s: float


Row = Sequence[Pass]
"""The way of one patch, or of the whole image, through all stages, and back to the first."""


def least_seconds(whole: Row, patches: Sequence[Row], whole_rounds: int, rounds: int) -> float:
    """Seconds below which no run can take.

    Args:
        whole: the way of the whole image.
        patches: the way of each patch.
        whole_rounds: rounds of the whole image.
        rounds: rounds of the patches after them.
    """
    free, at = [0.0] * len(whole), 0.0
    for _ in range(whole_rounds):
        at = _go_round(whole, free, at)
    there = [at] * len(patches)
    for _ in range(rounds):
        for number, row in enumerate(patches):
            there[number] = _go_round(row, free, there[number])
    return max(free)


def _go_round(row: Row, free: list[float], at: float) -> float:
    """Send a patch round; return when it is back, and note when each stage is free."""
    for stage, (held_s, sent_s) in enumerate(row):
        start = free[stage] if free[stage] > at else at
        free[stage] = start + held_s
        at = start + sent_s
    return at
