"""The clock of a run, one for all processes of a machine; how to wait on it, and for one's turn."""

import fcntl
import time
from pathlib import Path
from typing import Final, NamedTuple

SPIN_S: Final = 2e-4  # the end of a wait is spun away: a sleep oversleeps by about 0.1 ms


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


class Turns:
    """Entered by the rank whose turn it is; the others wait for the lock of a file, of which any will do."""

    def __init__(self) -> None:
        self._file = Path(__file__).open("rb")  # noqa: SIM115  open as long as the rank runs

    def __enter__(self) -> None:
        fcntl.flock(self._file, fcntl.LOCK_EX)

    def __exit__(self, *error: object) -> None:
        fcntl.flock(self._file, fcntl.LOCK_UN)
