"""The environment of a measurement: what was measured with, as read, for the header beside the times."""

import json
import os
import platform
import subprocess
from collections.abc import Mapping
from datetime import UTC, datetime
from importlib.metadata import version
from pathlib import Path
from typing import Final

import torch

from profiles.units import GIB

GPU_FIELDS: Final = (
    "driver_version",
    "clocks.sm",
    "clocks.mem",
    "clocks.max.sm",
    "power.draw",
    "temperature.gpu",
)
NOT_READ: Final = "not read"

Value = str | int | float


def environment(device: torch.device) -> dict[str, Value]:
    """Return what a measurement on a device was made with."""
    found: dict[str, Value] = {"date": datetime.now(UTC).isoformat(timespec="seconds")}
    found |= {name: version(name) for name in ("torch", "diffusers", "transformers")}
    found |= {"python": platform.python_version(), "platform": platform.platform()}
    found |= {"processor": _processor(), "cores": os.cpu_count() or 0, "threads": torch.get_num_threads()}
    return found | (_gpu(device) if device.type == "cuda" else {})


def clocks(device: torch.device) -> str:
    """Return the clocks as read now: of a GPU what its driver says, of a CPU its cores."""
    if device.type == "cuda":
        read = _read_gpu(device)
        return ", ".join(f"{key} {read[key]}" for key in GPU_FIELDS[1:]) if read else NOT_READ
    lines = _read("/proc/cpuinfo").splitlines()
    megahertz = [float(line.split(":")[1]) for line in lines if line.startswith("cpu MHz")]
    return f"cores at {min(megahertz):.0f} to {max(megahertz):.0f} MHz" if megahertz else NOT_READ


def device_name(device: torch.device) -> str:
    """Return the name that a device gets unless it is given one."""
    if device.type == "cpu":
        return "cpu"
    name = torch.cuda.get_device_name(device).lower()
    return "-".join("".join(c if c.isalnum() else " " for c in name).split())


def toml_lines(values: Mapping[str, Value]) -> list[str]:
    """Return values as lines of TOML, which writes these as JSON does."""
    return [f"{key} = {json.dumps(value)}" for key, value in values.items()]


def _gpu(device: torch.device) -> dict[str, Value]:
    properties = torch.cuda.get_device_properties(device)
    return {
        "gpu": properties.name,
        "memory_GiB": round(properties.total_memory / GIB, 2),
        "multiprocessors": properties.multi_processor_count,
        "driver": _read_gpu(device).get("driver_version", NOT_READ),
        "cuda": torch.version.cuda or NOT_READ,
        "cudnn": str(torch.backends.cudnn.version()),  # type: ignore[no-untyped-call]
    }


def _read_gpu(device: torch.device) -> dict[str, str]:
    return nvidia_smi(str(torch.cuda.get_device_properties(device).uuid))


def nvidia_smi(uuid: str) -> dict[str, str]:
    """Return what the driver's tool says of a GPU; nothing where there is no such tool, or it knows no such GPU.

    By its UUID: torch numbers the GPUs that it may see, the tool all that there are.
    """
    command = ["nvidia-smi", f"--query-gpu={','.join(GPU_FIELDS)}", "--format=csv,noheader"]
    try:
        found = subprocess.run(
            [*command, f"--id=GPU-{uuid.removeprefix('GPU-')}"],
            capture_output=True,
            text=True,
            timeout=20,
            check=True,
        )
    except (OSError, subprocess.SubprocessError):
        return {}
    return dict(zip(GPU_FIELDS, (cell.strip() for cell in found.stdout.split(",")), strict=False))


def _processor() -> str:
    lines = _read("/proc/cpuinfo").splitlines()
    names = [line.split(":")[1].strip() for line in lines if line.startswith("model name")]
    return names[0] if names else platform.machine()


def _read(path: str) -> str:
    try:
        return Path(path).read_text(encoding="ascii")
    except (OSError, UnicodeDecodeError):
        return ""
