"""The machine that measures: its parts, and how many of its cores other programs keep busy meanwhile."""

import os
import platform
from datetime import UTC, datetime
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from time import perf_counter, process_time
from typing import Final

BUSY_FIELDS: Final = {"user": 0, "nice": 1, "system": 2, "interrupts": 5, "soft interrupts": 6, "steal": 7}
"""Columns of ``/proc/stat``: not idle, not waiting for a disk; stolen time is that of another virtual machine."""
QUIET_CORES: Final = 0.1  # other programs that keep more cores busy make measured times too long


def facts(*packages: str) -> dict[str, str | int]:
    """Date, machine, and versions of Python and some packages with which this process computes."""
    date: dict[str, str | int] = {"date": datetime.now(UTC).isoformat(timespec="seconds")}
    versions = {package: _version(package) for package in packages} | {"python": platform.python_version()}
    machine: dict[str, str | int] = {
        "platform": platform.platform(),
        "processor": next(iter(cpuinfo("model name")), platform.machine()),
        "cores": os.cpu_count() or 0,
    }
    return {**date, **versions, **machine}


def _version(package: str) -> str:
    try:
        return version(package)
    except PackageNotFoundError:
        return "not installed"


def cpuinfo(key: str) -> list[str]:
    """Values of one field of every core; empty where the kernel does not say."""
    try:
        lines = Path("/proc/cpuinfo").read_text(encoding="ascii").splitlines()
    except (OSError, UnicodeDecodeError):
        return []
    return [line.split(":", 1)[1].strip() for line in lines if line.startswith(key)]


class OtherPrograms:
    """Counts, from when it is made, the processor time of this process and of all programs."""

    def __init__(self) -> None:
        self._begin = (perf_counter(), _machine_busy_s(), process_time())

    def own_s(self) -> float:
        """Processor seconds of this process."""
        return process_time() - self._begin[2]

    def cores(self, own_s: float | None = None) -> float:
        """Cores that other programs kept busy on average; ``own_s`` are left out, by default this process's."""
        busy_s = _machine_busy_s() - self._begin[1] - (self.own_s() if own_s is None else own_s)
        return max(0.0, busy_s) / (perf_counter() - self._begin[0])


def _machine_busy_s() -> float:
    """Seconds that all cores together have been busy since the system started."""
    words = Path("/proc/stat").read_text(encoding="ascii").splitlines()[0].split()[1:]
    return sum(int(words[field]) for field in BUSY_FIELDS.values()) / os.sysconf("SC_CLK_TCK")


def disturbance(cores: float) -> str:
    """A warning about other programs that kept so many cores busy; empty on a quiet machine."""
    if cores <= QUIET_CORES:
        return ""
    return f"other programs kept {cores:.2f} cores busy, more than {QUIET_CORES}: times are too long"
