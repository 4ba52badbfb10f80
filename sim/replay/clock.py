"""The clock of a replay: SimPy's environment, with events for a moment and for collectives, which go on chunk by chunk.

Where several collectives share ports, the chunk of one follows that of another: these go on one after the other, in
the order of their events, without a step of the environment between.
"""

from collections.abc import Callable
from heapq import heappush, heapreplace
from typing import Any, Protocol

import simpy
from simpy.events import NORMAL


class Moving(Protocol):
    """A collective under way."""

    def go_on(self) -> float | None:
        """Move the next chunks; when the last of them has, in seconds, or None where the collective has ended."""
        ...


class Clock(simpy.Environment):
    """An environment in which an event can be scheduled for a moment, where a delay would round."""

    def schedule_at(self, event: simpy.Event, moment: float) -> None:
        """Let an event happen at a moment."""
        heappush(self._queue, (moment, NORMAL, next(self._eid), event))

    def then(self, due: "Due", moment: float) -> "Due | None":
        """Schedule a collective; if another comes before it, and before all else, that one, now its turn."""
        entry = moment, NORMAL, next(self._eid), due
        first = self._queue[0] if self._queue else entry
        follower = first[3]
        if first < entry and type(follower) is Due:
            self._now = heapreplace(self._queue, entry)[0]
            return follower
        heappush(self._queue, entry)
        return None


class Due(simpy.Event):
    """A timeout that comes again and again, where a new one each time would cost more than what it calls."""

    env: Clock

    def __init__(self, env: Clock, move: Moving) -> None:
        super().__init__(env)
        self.move = move
        self._ok, self._value = True, None
        self._calls: list[Callable[[Any], None]] = [self._go_on]

    def come_at(self, moment: float) -> None:
        """Come at a moment."""
        self.callbacks = self._calls
        self.env.schedule_at(self, moment)

    def stop(self) -> None:
        """Let go of what it calls: whoever holds what holds it is freed at once, without the garbage collector."""
        self._calls = []
        del self.move

    def _go_on(self, _: simpy.Event) -> None:
        """Let the collective go on, and others in their turn."""
        due: Due | None = self
        while due is not None and (moment := due.move.go_on()) is not None:
            due.callbacks = due._calls
            due = due.env.then(due, moment)
