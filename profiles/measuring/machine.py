"""The machine that measures."""

import os
import platform
from datetime import UTC, datetime
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path


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
