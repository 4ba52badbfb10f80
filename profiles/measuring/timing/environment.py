"""The environment of a measurement, for the header beside the times."""

import os
import platform
import subprocess
from datetime import UTC, datetime
from importlib.metadata import version
from pathlib import Path
from typing import Final

import torch

from profiles.units import GIB

CLOCK_FIELDS: Final = ("clocks.sm", "clocks.mem", "clocks.max.sm", "power.draw", "temperature.gpu")
NOT_READ: Final = "not read"

Value = str | int | float


def environment(device: torch.device) -> dict[str, Value]:
    """Machine, software and GPU of a measurement on a device."""
    machine: dict[str, Value] = {
        "date": datetime.now(UTC).isoformat(timespec="seconds"),
        **{package: version(package) for package in ("torch", "diffusers", "transformers")},
        "python": platform.python_version(),
        "platform": platform.platform(),
        "processor": next(iter(_cpuinfo("model name")), platform.machine()),
        "cores": os.cpu_count() or 0,
        "threads": torch.get_num_threads(),
    }
    if device.type == "cpu":
        return machine
    properties = torch.cuda.get_device_properties(device)
    return {
        **machine,
        "gpu": properties.name,
        "memory_GiB": round(properties.total_memory / GIB, 2),
        "multiprocessors": properties.multi_processor_count,
        "driver": (_nvidia_smi(device, "driver_version") or [NOT_READ])[0],
        "cuda": torch.version.cuda or NOT_READ,
        "cudnn": str(torch.backends.cudnn.version()),  # type: ignore[no-untyped-call]
    }


def clocks(device: torch.device) -> str:
    """Current clocks: of a GPU as its driver says, of a CPU by core."""
    if device.type == "cuda":
        cells = _nvidia_smi(device, *CLOCK_FIELDS)
        return ", ".join(map(" ".join, zip(CLOCK_FIELDS, cells, strict=False))) or NOT_READ
    megahertz = [float(cell) for cell in _cpuinfo("cpu MHz")]
    return f"cores at {min(megahertz):.0f} to {max(megahertz):.0f} MHz" if megahertz else NOT_READ


def device_name(device: torch.device) -> str:
    """Default name of a device."""
    name = "cpu" if device.type == "cpu" else torch.cuda.get_device_name(device).lower()
    return "-".join("".join(c if c.isalnum() else " " for c in name).split())


def _cpuinfo(key: str) -> list[str]:
    """Values of one field of every core; empty where the kernel does not say."""
    try:
        lines = Path("/proc/cpuinfo").read_text(encoding="ascii").splitlines()
    except (OSError, UnicodeDecodeError):
        return []
    return [line.split(":", 1)[1].strip() for line in lines if line.startswith(key)]


def _nvidia_smi(device: torch.device, *fields: str) -> list[str]:
    """Return the fields that ``nvidia-smi`` prints of a GPU, by its UUID; empty without the tool."""
    uuid = str(torch.cuda.get_device_properties(device).uuid).removeprefix("GPU-")
    command = ["nvidia-smi", f"--query-gpu={','.join(fields)}", "--format=csv,noheader", f"--id=GPU-{uuid}"]
    try:
        output = subprocess.run(command, capture_output=True, text=True, timeout=20, check=True).stdout
    except (OSError, subprocess.SubprocessError):
        return []
    return [cell.strip() for cell in output.split(",")]
