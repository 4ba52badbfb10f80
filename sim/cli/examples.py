"""Examples: command lines that the help of each command shows; a test asks them all."""

from collections.abc import Collection, Mapping
from typing import Final

EXAMPLES: Final[Mapping[str, tuple[str, ...]]] = {
    "": (
        "sim sweep --model sd21 --gpus 64",
        "sim run --model flux-dev --cluster h100-ib --gpus 8 --strategy pipefusion",
        "sim run --strategy diffusionpipe --help",
    ),
    "models": ("sim models", "sim models show sd21", "sim models --json"),
    "clusters": ("sim clusters", "sim clusters show p4de > mine.toml", "sim clusters --json"),
    "devices": ("sim devices", "sim devices show h100-80gb-sxm > mine.toml", "sim devices --json"),
    "stacks": ("sim stacks", "sim stacks show eager > mine.toml", "sim stacks --json"),
    "strategies": ("sim strategies", "sim run --strategy zero3 --help"),
    "run": (
        "sim run --model sd21 --gpus 8 --strategy diffusionpipe --pipeline-degree 4 --micro-batches 8",
        "sim run --model pixart --cluster a100-nvlink-8 --strategy pipefusion --patches 8 --resolution 2048",
        "sim run --model sd21 --gpus 16 --strategy ddp --link inter=2x --device h200-141gb-sxm",
        "sim run --model sd21 --strategy zero2 --print-experiment > question.toml",
        "sim run --experiment question.toml --gpus 8 --json",
        "sim run --strategy hybrid --help",
    ),
    "launch": (
        "sim launch --model flux-dev --strategy usp --keys-values freed --gpus 4 --steps 28",
        "sim launch --model flux-dev --strategy pipefusion --gpus 8 --warmup-steps 1 --receive after --runtime xdit",
        "sim launch --model sd21 --strategy zero2 --gpus 16",
        "sim run --model sd21 --strategy fsdp --gpus 16 --json > result.json",
        "sim launch --result result.json --runtime fsdp2",
    ),
    "sweep": (
        "sim sweep --model sd21 --gpus 8 --batch-size 256",
        "sim sweep --model sd21 --gpus 8 --strategy diffusionpipe,ddp --objective memory",
        "sim sweep --model pixart --cluster l20-pcie-8 --gpus 8 --resolution 2048 --steps 20",
        "sim sweep --model sd21 --nodes 2 --strategy ddp,zero2 --link inter=400Gbit/s",
        "sim sweep --model sd21 --strategy ddp --memory 40GiB --print-experiment > question.toml",
        "sim sweep --experiment question.toml --objective memory",
        "sim sweep --model sd21 --gpus 2-8 --strategy ddp,zero2 --report scaling.html",
        "sim sweep --model sd21 --gpus 8 --strategy ddp,zero2 --store monday.db",
        "sim sweep --model sd21 --gpus 8 --strategy ddp,zero2 --link intra=2x --store tuesday.db",
    ),
    "compare": ("sim compare monday.db tuesday.db", "sim compare monday.db tuesday.db --json"),
    "merge": ("sim merge all.db monday.db tuesday.db",),
    "tune": (
        "sim tune --model sdv2-1.7b --cluster v100-2node --gpus 8",
        "sim tune --model sdv2-1.7b --cluster v100-2node --gpus 8 --memory 16GiB",
    ),
    "schedule": (
        "sim schedule --strategy 1f1b --pipeline-degree 4 --micro-batches 8",
        "sim schedule --strategy diffusionpipe --model sd21 --gpus 2 --format torch",
    ),
    "synthesize": (
        "sim synthesize --pipeline-degree 4 --micro-batches 8 --activation-cap 6",
        "sim synthesize --pipeline-degree 2 --micro-batches 4 --extend-to 4,8",
    ),
    "measure": (
        "sim measure profile --help",
        "torchrun --nproc-per-node 8 -m sim measure links --device a100-80gb-sxm --output mine.toml",
    ),
    "completion": (
        'eval "$(sim completion bash)"',
        "sim completion zsh > ~/.zfunc/_sim",
        "sim completion fish > ~/.config/fish/completions/sim.fish",
    ),
}
"""Examples by command; those of ``sim`` itself under the empty name."""


def epilog(command: str, flags: Collection[str] | None = None) -> str:
    """The examples of a command as the end of its help; those alone that can do with some flags."""
    chosen = [
        line
        for line in EXAMPLES[command]
        if flags is None or {word for word in line.split() if word.startswith("--")} <= {*flags}
    ]
    return "\n  ".join(("examples:", *chosen))
