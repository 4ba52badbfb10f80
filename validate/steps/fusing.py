"""Memory traffic that a compiler's fusion leaves of transformer blocks, counted by torch's inductor.

Of the kernels that inductor plans for a training step of a block, those of its own are the chains between products;
products and attention are calls of libraries.
"""

import tomllib
from argparse import Namespace
from collections import defaultdict
from collections.abc import Callable, Iterator
from math import prod
from pathlib import Path
from pkgutil import resolve_name
from typing import Any, Final
from unittest.mock import patch

import numpy as np
import torch
from diffusers.models.embeddings import apply_rotary_emb
from diffusers.models.transformers import transformer_qwenimage as qwen
from torch import nn
from torch._inductor import scheduler
from torch._inductor.utils import fresh_cache

from profiles.files import read_text
from profiles.measuring.counting.trace import tensors
from validate.tables import Section, print_sections

BLOCKS: Final = Path(__file__).with_suffix(".toml")
HALF_BYTES: Final = 2


def blocks() -> Iterator[tuple[str, int, nn.Module, dict[str, Any]]]:
    """Kinds of models, and their blocks: how many, one of them, and the arguments of a pass."""
    read, made = tomllib.loads(read_text(BLOCKS)), dict[str, Any](none=None)
    for name, shape in read["noise"].items():
        generator = torch.Generator().manual_seed(prod(shape))
        made[name] = torch.randn(shape, dtype=torch.bfloat16, generator=generator).requires_grad_()
    made |= {name: (torch.ones(shape), torch.ones(shape)) for name, shape in read["rope"].items()}
    made |= {"six_rows": torch.ones(read["six_rows"]), "ropes": (made["rope"], made["rope_of_text"])}
    for entry in read["block"]:
        block = resolve_name(f"diffusers.models.transformers.{entry['class']}")(**entry["of"])
        given = {key: made[name] for key, name in entry["given"].items()}
        yield entry["kind"], entry["number"], block, given


def _rotated(hidden: torch.Tensor, by: Any, **_: Any) -> Any:  # noqa: ANN401  as diffusers has it
    """Rotated heads in real numbers, as engines have them."""
    return apply_rotary_emb(hidden, by, sequence_dim=1)


def traffic(block: nn.Module, *arguments: Any, **named: Any) -> tuple[float, float, float]:  # noqa: ANN401  any block's
    """Bytes of a block's products and attention without their weights, and of its chains, forward and backward."""
    plans: list[tuple[float, float]] = []
    codegen: Callable[..., Any] = scheduler.Scheduler.codegen

    def tally(plan: Any) -> Any:  # noqa: ANN401  private to torch, of its pinned release
        moved = {False: 0.0, True: 0.0}
        for node in plan.nodes:
            called = isinstance(node, scheduler.ExternKernelSchedulerNode)
            moved[called] += node.get_read_write_buffers_sizes()
        plans.append((moved[True], moved[False]))
        return codegen(plan)

    torch.compiler.reset()
    planned = patch.object(scheduler.Scheduler, "codegen", tally)
    with (
        fresh_cache(),
        planned,
        patch.object(qwen, "apply_rotary_emb_qwen", _rotated),
    ):  # nothing is planned yet
        outputs = torch.compile(block.to(torch.bfloat16).train(), fullgraph=True)(*arguments, **named)
        torch.autograd.backward([tensor.float().sum() for tensor in tensors(outputs)])
    (products, chains), (_, backward) = plans
    weights = sum(parameter.numel() for parameter in block.parameters() if parameter.ndim > 1)
    return products - HALF_BYTES * weights, chains, backward


def print_fusing(_: Namespace) -> None:
    """Print the traffic of blocks' chains over that of their products: the ``chains`` of stacks that fuse."""
    sums: dict[str, Any] = defaultdict(lambda: np.zeros(3))
    for kind, number, block, given in blocks():
        sums[kind] += number * np.array(traffic(block, **given))
    ratios = {kind: moved[1:] / moved[0] for kind, moved in sums.items()}
    ratios["median"] = np.median([*ratios.values()], axis=0)
    rows = [(kind, *(f"{ratio:.2f}" for ratio in both)) for kind, both in ratios.items()]
    print_sections([Section("Chains' traffic over products'", ("blocks", "forward", "backward"), rows)])
