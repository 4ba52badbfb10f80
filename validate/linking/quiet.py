"""Whether a machine was quiet: the processor time of other programs while something was measured."""

import os
import time
from pathlib import Path
from typing import Final

STAT: Final = Path("/proc/stat")
BUSY_FIELDS: Final = (0, 1, 2, 5, 6)
"""User, nice, system, interrupts: not idle, not waiting for a disk."""
QUIET_CORES: Final = 0.1
"""Cores in the hands of others above which times are not of the links alone."""


class Clock:
    """Reads, from its making on, what all programs and this process have computed."""

    def __init__(self) -> None:
        self._begin = time.perf_counter()
        self._busy_s = busy_s()
        self._own_s = time.process_time()

    def own_s(self) -> float:
        """Return the processor seconds of this process."""
        return time.process_time() - self._own_s

    def others(self, ours_s: float) -> float | None:
        """Return the cores that other programs held on average; nothing where the system does not say."""
        before, now = self._busy_s, busy_s()
        if before is None or now is None:
            return None
        return max(0.0, now - before - ours_s) / (time.perf_counter() - self._begin)


def busy_s() -> float | None:
    """Return the seconds that all processors have been busy since the system started."""
    try:
        words = STAT.read_text(encoding="ascii").splitlines()[0].split()[1:]
    except OSError:
        return None
    return sum(int(words[field]) for field in BUSY_FIELDS) / os.sysconf("SC_CLK_TCK")
