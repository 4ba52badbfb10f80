"""The environment of a measurement, in words: what ran where and when."""

import os
import platform
import re
from datetime import date
from pathlib import Path
from typing import Final

import torch

from validate.launching import Place

ROUNDS: Final = 8
"""How often all sizes are measured: odd rounds are fitted to, even ones judge the fit."""


def environment(place: Place, backend: str, device: torch.device) -> str:
    """Return one sentence for the ``source`` of a cluster file."""
    nodes = "one node" if place.num_nodes == 1 else f"{place.num_nodes} nodes"
    parts = [
        f"{date.today().isoformat()}: {place.num_ranks} ranks on {nodes}",
        *(_gpu(device) if device.type == "cuda" else [f"{backend}, between processes on {_processor()}"]),
        f"torch {torch.__version__}",
    ]
    return (
        ", ".join(parts)
        + f"; for each size the least of the medians of {ROUNDS // 2} rounds, idle, as many judge"
    )


def _gpu(device: torch.device) -> list[str]:
    version = ".".join(str(part) for part in torch.cuda.nccl.version())  # type: ignore[no-untyped-call]
    return [f"NCCL {version}", torch.cuda.get_device_name(device), f"CUDA {torch.version.cuda}", _driver()]


def _driver() -> str:
    try:
        text = Path("/proc/driver/nvidia/version").read_text(encoding="utf-8")
    except OSError:
        return "driver not known"
    found = re.search(r"\d+\.\d+(\.\d+)?", text)
    return f"driver {found[0]}" if found else "driver not known"


def _processor() -> str:
    try:
        text = Path("/proc/cpuinfo").read_text(encoding="utf-8")
    except OSError:
        text = ""
    found = re.search(r"^model name\s*:\s*(.+)$", text, re.MULTILINE)
    name = found[1].strip() if found else platform.machine()
    return f"{os.cpu_count()} cores of {name}"
