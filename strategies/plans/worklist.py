"""The worklist: when steps end on links that nobody shares, without an event queue.

It walks rows of steps as far as their inputs are there (Kahn's algorithm).
"""

from collections.abc import Sequence
from math import inf

from strategies.plans.wiring import Slots

Outputs = tuple[tuple[int, float], ...]
"""Slots and seconds: a slot is filled that long after a step ends, or, of early ones, starts."""
Step = tuple[Slots, float, Outputs, Outputs]
"""The slots that a step waits for, its seconds, and the slots that it fills by its end, and before it."""


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
        done, now = starts[row], free_s[row]
        for waits, duration_s, outputs, early in rows[row][len(done) :] if done else rows[row]:
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
            for base_s, slots in ((start, early), (now, outputs)) if early else ((now, outputs),):
                for slot, lag_s in slots:
                    filled_s[slot] = base_s + lag_s
                    if slot in waiting:
                        open_rows += waiting.pop(slot)
        free_s[row] = now
    return starts
