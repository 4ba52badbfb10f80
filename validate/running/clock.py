"""The clock of a run, one for all processes of a machine, and how to wait on it."""

import time
from typing import Final, NamedTuple

SPIN_S: Final = 2e-4
"""The end of a wait is spun away: a sleep oversleeps by about 0.1 ms."""


class Instant(NamedTuple):
    """A moment in wall time and in virtual time, in seconds."""

    wall: float
    virtual: float

    def later(self, other: "Instant") -> "Instant":
        """The later of two moments, in each time for itself."""
        return Instant(max(self.wall, other.wall), max(self.virtual, other.virtual))

    def after(self, seconds: float) -> "Instant":
        """The moment so much later."""
        return Instant(self.wall + seconds, self.virtual + seconds)


ALWAYS: Final = Instant(float("-inf"), float("-inf"))


def now() -> float:
    """Seconds on a clock that all processes of a machine share (Linux: CLOCK_MONOTONIC)."""
    return time.perf_counter()


def sleep_until(at: float) -> None:
    """Wait until a moment in wall time."""
    left = at - now() - SPIN_S
    if left > 0:
        time.sleep(left)
    while now() < at:
        pass
