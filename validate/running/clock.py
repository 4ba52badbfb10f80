"""The clock of a run: one for all processes of a machine; how to wait on it, and how busy others kept the machine."""

import os
import time
from collections.abc import Callable
from math import isnan, nan
from pathlib import Path
from typing import Final, NamedTuple

SPIN_S: Final = 2e-4
"""The end of a wait is spun away: a sleep oversleeps by about 0.1 ms."""
QUIET_CORES: Final = 0.1
"""Other programs may use so many cores beside a measurement in wall time."""


class Instant(NamedTuple):
    """A moment in wall time and in virtual time, in seconds."""

    wall: float
    virtual: float

    def later(self, other: "Instant") -> "Instant":
        """Return the later of two moments, in each time for itself."""
        return Instant(max(self.wall, other.wall), max(self.virtual, other.virtual))

    def after(self, seconds: float) -> "Instant":
        """Return the moment so much later."""
        return Instant(self.wall + seconds, self.virtual + seconds)


ALWAYS: Final = Instant(float("-inf"), float("-inf"))


def now() -> float:
    """Return seconds on a clock that all processes of a machine share (Linux: CLOCK_MONOTONIC)."""
    return time.perf_counter()


def sleep_until(at: float) -> None:
    """Wait until a moment in wall time."""
    left = at - now() - SPIN_S
    if left > 0:
        time.sleep(left)
    while now() < at:
        pass


class OtherPrograms:
    """Counts the cores that other programs use from now on.

    Over all iterations of a job: the kernel counts in steps of 10 ms, too coarse for one of them.
    """

    def __init__(self) -> None:
        self._began_s, self._busy_s, self._own_s = now(), _machine_busy_s(), time.process_time()

    def cores(self, all_ranks: Callable[[float], float]) -> float:
        """Return them; NaN where ``/proc/stat`` cannot be read.

        Args:
            all_ranks: adds up what each rank says.
        """
        own_s, took_s = all_ranks(time.process_time() - self._own_s), now() - self._began_s
        others_s = _machine_busy_s() - self._busy_s - own_s
        return others_s / took_s if isnan(others_s) else max(0.0, others_s / took_s)


def _machine_busy_s() -> float:
    """Return CPU seconds that all programs of the machine have used; NaN where ``/proc/stat`` cannot be read."""
    try:
        fields = Path("/proc/stat").read_text().splitlines()[0].split()[1:]
    except OSError:
        return nan
    user, nice, system, _, _, interrupts, soft_interrupts, steal = map(int, fields[:8])
    return (user + nice + system + interrupts + soft_interrupts + steal) / os.sysconf("SC_CLK_TCK")
