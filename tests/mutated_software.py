"""Mutated files of the software that ships, runtimes and levers: no command line names them."""

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from random import Random
from types import ModuleType
from typing import Any, NamedTuple
from unittest.mock import patch

from mutations import spoil

from profiles.software import levers, runtimes

LAUNCHED = {
    "accelerate": "wan2.1-1.3b --gpus 2 --strategy fsdp --batch-size 4",
    "deepspeed": "uvit-h --gpus 2 --strategy zero3 --batch-size 4",
    "diffusers": "flux-dev --gpus 2 --strategy ulysses --steps 2",
    "diffusion-pipe": "wan2.1-1.3b --gpus 2 --strategy 1f1b --pipeline-degree 2 --micro-batches 4 --batch-size 4",
    "distrifusion": "sdxl --gpus 2 --strategy distrifusion --steps 4",
    "fastvideo": "wan2.1-1.3b --gpus 2 --strategy ulysses --frames 17 --steps 2",
    "fastvideo-train": "wan2.1-1.3b --gpus 2 --strategy fsdp --batch-size 2",
    "fsdp2": "wan2.1-1.3b --gpus 2 --strategy fsdp --batch-size 4",
    "sglang": "flux-dev --gpus 2 --strategy ring --steps 2",
    "torch-pipelining": "uvit-h --gpus 2 --strategy 1f1b --pipeline-degree 2 --micro-batches 4 --batch-size 4",
    "torchtitan": "flux-dev --gpus 2 --strategy fsdp --batch-size 2 --checkpointing block",
    "vllm-omni": "flux-dev --gpus 2 --strategy tensor --steps 2",
    "xdit": "flux-dev --gpus 2 --strategy pipefusion --patches 2 --warmup-steps 1 --steps 4 --receive after",
    "xdit-scripts": "pixart --gpus 2 --strategy pipefusion --patches 2 --warmup-steps 1 --steps 4 --receive after",
    "xfuser-0.1": "sd3-medium --gpus 2 --strategy pipefusion --patches 2 --warmup-steps 1 --steps 4",
}
"""A point that each runtime starts."""
PULLED = (
    "flux-dev --gpus 2 --strategy ulysses --steps 2 --precision fp8 --all-to-all fp8 --device h100-80gb-sxm",
    "flux-dev --gpus 1 --strategy single --steps 8 --cache-steps fbcache --device h20-96gb --precision fp8",
    "flux-dev --gpus 2 --strategy ring --steps 8 --cache-steps teacache",
)
"""Points that pull a lever."""


class Shipped(NamedTuple):
    """Where something of the software is read, and what remembers what was read there."""

    module: ModuleType
    name: str
    remembering: Any


SHIPPED = {
    "runtimes": Shipped(runtimes, "RUNTIMES", runtimes.all_runtimes),
    "levers.toml": Shipped(levers, "LEVERS", levers.load_levers),
}
"""By the name of what stands in its place."""


@contextmanager
def in_place(file: str) -> Iterator[None]:
    """Let a mutated file, if it is one of the software, stand in the place of what ships."""
    name = file.partition("/")[0]
    if name not in SHIPPED:
        yield
        return
    shipped = SHIPPED[name]
    shipped.remembering.cache_clear()
    try:
        with patch.object(shipped.module, shipped.name, Path(name)):
            yield
    finally:
        shipped.remembering.cache_clear()


def mutated_runtime(random: Random, folder: Path) -> tuple[list[str], str]:
    """A command line that meets a runtime, and the runtime's file, in which something is wrong."""
    name = random.choice(list(LAUNCHED))
    (folder / "runtimes").mkdir()
    _spoil(random, runtimes.RUNTIMES / f"{name}.toml", folder / "runtimes" / f"{name}.toml")
    asked = random.choice((f"launch --runtime {name}", f"launch --runtime {name}", "launch", "run --json"))
    return [*asked.split(), "--model", *LAUNCHED[name].split()], f"runtimes/{name}.toml"


def mutated_levers(random: Random, folder: Path) -> tuple[list[str], str]:
    """A command line that pulls a lever, and the file of levers, in which something is wrong."""
    _spoil(random, levers.LEVERS, folder / "levers.toml")
    return ["run", "--json", "--model", *random.choice(PULLED).split()], "levers.toml"


def _spoil(random: Random, shipped: Path, path: Path) -> None:
    spoil(random, path, shipped.read_text(encoding="utf-8"))
