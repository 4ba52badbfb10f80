"""Reserved memory: what a process takes of a device, of which the bytes of its tensors are a part.

The rest is the allocator's gaps, workspaces of kernels, NCCL's buffers and the context (``reserved.toml``). Whether a
point fits is judged by the middle estimate.
"""

from functools import cache
from pathlib import Path
from typing import Final, NamedTuple

from profiles.files import load_toml
from profiles.units import GB

FILE: Final = Path(__file__).parents[1] / "reserved.toml"
PARTS: Final = ("allocator", "context", "collectives")


class Reserved(NamedTuple):
    """Bytes that a process reserves, by the low, the middle and the high estimate."""

    low: float
    middle: float
    high: float


def reserved_bytes(allocated_bytes: float, num_gpus: int) -> Reserved:
    """Bytes that a process on one of so many GPUs reserves at a peak of so many bytes of tensors."""
    return Reserved(*(allocated_bytes * (1 + share) + fixed for share, fixed in _margins(num_gpus)))


def room_bytes(memory_bytes: float | None, num_gpus: int) -> float | None:
    """Bytes of tensors for which a GPU, one of so many, has room by the middle estimate; None where unlimited."""
    if memory_bytes is None:
        return None
    share, fixed = _margins(num_gpus)[1]
    return max(1.0, (memory_bytes - fixed) / (1 + share))


@cache
def _margins(num_gpus: int) -> list[tuple[float, float]]:
    """Share of the tensors' bytes and bytes besides, by estimate; a GPU alone has no collectives."""
    rows = load_toml(FILE)
    each = ([rows[part][estimate] for part in PARTS] for estimate in Reserved._fields)
    return [(share, GB * (context + more * (num_gpus > 1))) for share, context, more in each]
