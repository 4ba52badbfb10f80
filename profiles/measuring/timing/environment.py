"""The environment of a measurement, for the header beside the times."""

import os
import platform
import re
import subprocess
from contextlib import suppress
from datetime import UTC, datetime
from importlib.metadata import version
from pathlib import Path

import torch

from profiles.units import GIB

Value = str | int | float


def environment(device: torch.device) -> dict[str, Value]:
    """Machine, software and GPU of a measurement on a device."""
    names: list[str] = []
    with suppress(OSError, UnicodeDecodeError):
        names = re.findall(r"model name\s*:\s*(.+)", Path("/proc/cpuinfo").read_text(encoding="ascii"))
    machine: dict[str, Value] = {
        "date": datetime.now(UTC).isoformat(timespec="seconds"),
        **{package: version(package) for package in ("torch", "diffusers", "transformers")},
        "python": platform.python_version(),
        "platform": platform.platform(),
        "processor": next(iter(names), platform.machine()),
        "cores": os.cpu_count() or 0,
        "threads": torch.get_num_threads(),
    }
    if device.type == "cpu":
        return machine
    properties, driver = torch.cuda.get_device_properties(device), "not read"
    with suppress(OSError, subprocess.CalledProcessError):
        query = ["nvidia-smi", "--query-gpu=driver_version", "--format=csv,noheader"]
        driver = subprocess.check_output(query, text=True).split()[0]
    return {
        **machine,
        "gpu": properties.name,
        "driver": driver,
        "memory_GiB": round(properties.total_memory / GIB, 2),
        "cuda": str(torch.version.cuda),
        "cudnn": str(torch.backends.cudnn.version()),  # type: ignore[no-untyped-call]
    }


def device_name(device: torch.device) -> str:
    """Default name of a device."""
    name = "cpu" if device.type == "cpu" else torch.cuda.get_device_name(device).lower()
    return "-".join("".join(c if c.isalnum() else " " for c in name).split())
