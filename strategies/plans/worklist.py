"""The worklist: when steps end on links that nobody shares, without an event queue.

It walks rows of steps as far as their inputs are there (Kahn's algorithm).
"""

from collections.abc import Sequence
from math import inf

from strategies.plans.wiring import Slots

Outputs = tuple[tuple[int, float], ...]
"""Slots and seconds: a slot is filled that long after a step ends."""
Step = tuple[Slots, float, Outputs]
"""The slots that a step waits for, its seconds, and the slots that it fills."""


def walk(
    rows: Sequence[Sequence[Step]], filled_s: list[float], begins_s: Sequence[float]
) -> list[list[float]]:
    """Return the start of each step of each row: as soon as the one before it has ended and its inputs are there.

    A row that waits for what never comes ends there. When each slot is filled is written into ``filled_s``, infinite
    where that is not known yet.
    """
    starts: list[list[float]] = [[] for _ in rows]
    free_s, waiting, open_rows = [*begins_s], dict[int, list[int]](), [*range(len(rows))][::-1]
    while open_rows:
        row = open_rows.pop()
        steps, done, now = rows[row], starts[row], free_s[row]
        for index in range(len(done), len(steps)):  # a slice would be copied whenever a row goes on
            waits, duration_s, outputs = steps[index]
            start = now
            for slot in waits:
                if (at := filled_s[slot]) > start:
                    start = at
                    if at == inf:
                        break
            if start == inf:
                waiting.setdefault(slot, []).append(row)
                break
            done.append(start)
            now = start + duration_s
            for slot, lag_s in outputs:
                filled_s[slot] = now + lag_s
                if slot in waiting:
                    open_rows += waiting.pop(slot)
        free_s[row] = now
    return starts
