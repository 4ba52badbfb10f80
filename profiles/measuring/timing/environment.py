"""The environment of a measurement, for the header beside the times."""

import subprocess
from typing import Final

import torch

from profiles.measuring.machine import cpuinfo, facts
from profiles.units import GIB

CLOCK_FIELDS: Final = ("clocks.sm", "clocks.mem", "clocks.max.sm", "power.draw", "temperature.gpu")
GPU_FIELDS: Final = ("driver_version", *CLOCK_FIELDS)
NOT_READ: Final = "not read"

Value = str | int | float


def environment(device: torch.device) -> dict[str, Value]:
    """Machine, software and GPU of a measurement on a device."""
    found = facts("torch", "diffusers", "transformers") | {"threads": torch.get_num_threads()}
    return {**found, **(gpu(device) if device.type == "cuda" else {})}


def gpu(device: torch.device) -> dict[str, Value]:
    """A GPU, its driver and its libraries."""
    properties = torch.cuda.get_device_properties(device)
    return {
        "gpu": properties.name,
        "memory_GiB": round(properties.total_memory / GIB, 2),
        "multiprocessors": properties.multi_processor_count,
        "driver": nvidia_smi(str(properties.uuid)).get("driver_version", NOT_READ),
        "cuda": torch.version.cuda or NOT_READ,
        "cudnn": str(torch.backends.cudnn.version()),  # type: ignore[no-untyped-call]
    }


def clocks(device: torch.device) -> str:
    """Current clocks: of a GPU as its driver says, of a CPU by core."""
    if device.type == "cuda":
        read = nvidia_smi(str(torch.cuda.get_device_properties(device).uuid))
        return ", ".join(f"{key} {read[key]}" for key in CLOCK_FIELDS) if read else NOT_READ
    megahertz = [float(cell) for cell in cpuinfo("cpu MHz")]
    return f"cores at {min(megahertz):.0f} to {max(megahertz):.0f} MHz" if megahertz else NOT_READ


def device_name(device: torch.device) -> str:
    """Default name of a device."""
    if device.type == "cpu":
        return "cpu"
    name = torch.cuda.get_device_name(device).lower()
    return "-".join("".join(c if c.isalnum() else " " for c in name).split())


def nvidia_smi(uuid: str) -> dict[str, str]:
    """What ``nvidia-smi`` says of a GPU; empty where there is no such tool, or it knows no such GPU.

    The GPU is named by UUID: torch numbers only the GPUs that it may see, the tool all that there are.
    """
    command = ["nvidia-smi", f"--query-gpu={','.join(GPU_FIELDS)}", "--format=csv,noheader"]
    command.append(f"--id=GPU-{uuid.removeprefix('GPU-')}")
    try:
        found = subprocess.run(command, capture_output=True, text=True, timeout=20, check=True)
    except (OSError, subprocess.SubprocessError):
        return {}
    return dict(zip(GPU_FIELDS, (cell.strip() for cell in found.stdout.split(",")), strict=False))
