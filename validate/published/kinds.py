"""Kinds of methods: what parallelism a strategy is of, as errors of predictions are grouped by it."""

from typing import Final

ONE_GPU: Final = "one GPU"
OTHER: Final = "other"
KINDS: Final = {
    ONE_GPU: ("single",),
    "data parallel": ("ddp", "zero2", "zero3"),
    "sharded data parallel": ("fsdp",),
    "pipeline": (
        "gpipe", "1f1b", "spp", "interleaved", "zero-bubble", "bidirectional", "wave", "pulse", "diffusionpipe",
    ),
    "patches": ("naive-patch", "sync-patch", "distrifusion"),
    "patch pipeline": ("pipefusion",),
    "sequence": ("ulysses", "ring", "usp"),
    "sequence in rows and columns": ("attention2d",),
    "tensor": ("tensor",),
    "products": ("hybrid",),
    "steps": ("paradigms",),
}  # fmt: skip
"""Shipped strategies by kind."""


def kind_of(strategy: str, num_gpus: int) -> str:
    """The kind of a method; on one GPU all are alike, and strategies that do not ship are of a kind of their own."""
    if num_gpus == 1:
        return ONE_GPU
    return next((kind for kind, names in KINDS.items() if strategy in names), OTHER)
