"""Paces of memory-bound kernels: medians of large ones, by kind."""

from pathlib import Path
from typing import Final

import numpy as np

from profiles.machines.law_tables import Coefficients
from profiles.machines.laws import FloatArray
from validate.fitting.kernels import rows
from validate.fitting.kernels.fits import Unknown, fit
from validate.fitting.kernels.rows import Samples
from validate.fitting.kernels.targets import Origin, Target

LARGE: Final = 50e6
"""Bytes beyond which no second-level cache hides the memory."""
OPERATIONS: Final = {"pointwise": "add", "copy": "relu", "layer_norm": "layernorm", "softmax": "softmax"}
"""Operation that stands for a kind; one that reads and writes a tensor once for a copy."""
GROUP_NORM: Final = {"softmax": 1, "pointwise": 2}
"""Passes over its input or output, by the kind that has their pace: moments are reduced over what is read, and a second
kernel scales it (PyTorch, native/cuda/group_norm_kernel.cu)."""
STREAMS: Final = {"pointwise": "stream_add", "copy": "stream_copy"}


def paces(folder: Path, origin: Origin, target: Target) -> dict[str, float]:
    """GB/s of each kind by the operation that stands for it; of another card by the ratio of the two data sheets."""
    ratio = target.bytes_peak / origin.device_peak if origin.device_peak else 1.0
    return {
        f"{kind}_GB_per_s": ratio * _median(folder, origin.rows[0], operation, origin.device)
        for kind, operation in OPERATIONS.items()
    }


def streams(folder: Path, origin: Origin) -> dict[str, float]:
    """GB/s of pointwise kernels and copies by a stream benchmark."""
    return {
        f"{kind}_GB_per_s": _median(folder, origin.stream, operation, origin.device)
        for kind, operation in STREAMS.items()
    }


def group_norm(found: Coefficients) -> float:
    """GB/s of a group norm, of all that its two kernels read and write."""
    seconds = sum(passes / found[f"{kind}_GB_per_s"] for kind, passes in GROUP_NORM.items())
    return sum(GROUP_NORM.values()) / seconds


def launch_us(folder: Path, origin: Origin) -> float:
    """Microseconds of a memory-bound kernel, however small."""
    frame = rows.memory(folder, origin.launch, "add")
    samples = Samples(
        (frame.bytes_min.to_numpy(float),),
        frame.latency_us.to_numpy(float),
        np.arange(len(frame), dtype=float),
    )
    unknowns = {"fixed_us": Unknown(2.0), "GB_per_s": Unknown(1000.0)}
    return fit(_seconds, samples, unknowns, {}).values["fixed_us"]


def _seconds(values: Coefficients, samples: Samples) -> FloatArray:
    """Microseconds of samples by their bytes."""
    return np.asarray(values["fixed_us"] + samples.shapes[0] / (1e3 * values["GB_per_s"]))


def _median(folder: Path, prefix: str, operation: str, device: str) -> float:
    frame = rows.memory(folder, prefix, operation, device)
    large = frame[(frame.bytes_min > LARGE) | frame.bytes_min.isna()]
    return float(large.GBps_of_bytes_min.median())
