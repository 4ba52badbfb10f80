"""Memory traffic that a compiler's fusion leaves of transformer blocks, counted by torch's inductor.

Of the kernels that inductor plans for a training step of a block, those of its own are the chains between products;
products and attention are calls of libraries.
"""

from argparse import Namespace
from collections.abc import Callable, Iterator
from math import prod
from statistics import median
from typing import Any, Final

import torch
from diffusers.models import attention
from diffusers.models.transformers import cogvideox_transformer_3d as cogvideox
from diffusers.models.transformers import hunyuan_transformer_2d as hunyuan
from diffusers.models.transformers import transformer_flux as flux
from diffusers.models.transformers import transformer_hunyuan_video as video
from diffusers.models.transformers import transformer_ltx as ltx
from diffusers.models.transformers import transformer_wan as wan
from torch import nn
from torch._inductor import scheduler
from torch._inductor.utils import fresh_cache

from profiles.measuring.counting.trace import tensors
from profiles.units import MB
from validate.tables import Section, print_sections

TOKENS: Final = 4096
TEXT: Final = 256
WIDTH: Final = 512
HEADS: Final = 4
HALF_BYTES: Final = 2


def _noise(*shape: int) -> torch.Tensor:
    generator = torch.Generator().manual_seed(prod(shape))
    return torch.randn(shape, dtype=torch.bfloat16, generator=generator).requires_grad_()


def blocks() -> Iterator[tuple[str, nn.Module, tuple[Any, ...], dict[str, Any]]]:
    """Blocks by name, with the arguments of a pass: those of whose norms and rotations fusion leaves little."""
    image, text, time = _noise(1, TOKENS, WIDTH), _noise(1, TEXT, WIDTH), _noise(1, WIDTH)
    head = WIDTH // HEADS
    rope = tuple(torch.ones(TOKENS, head) for _ in range(2))
    both = tuple(torch.ones(TOKENS + TEXT, head) for _ in range(2))
    axes = tuple(torch.ones(1, TOKENS, 1, head) for _ in range(2))
    whole = tuple(torch.ones(1, TOKENS, WIDTH) for _ in range(2))
    yield "flux, double", flux.FluxTransformerBlock(WIDTH, HEADS, head), (image, text, time, both), {}
    yield "flux, single", flux.FluxSingleTransformerBlock(WIDTH, HEADS, head), (image, text, time, both), {}
    yield "sd3.5", attention.JointTransformerBlock(WIDTH, HEADS, head, "rms_norm"), (image, text, time), {}
    of: dict[str, Any] = {"mlp_ratio": 4.0, "qk_norm": "rms_norm"}
    arguments: Any = (image, text, time, None, rope)
    yield "hunyuanvideo, double", video.HunyuanVideoTransformerBlock(HEADS, head, **of), arguments, {}
    yield "hunyuanvideo, single", video.HunyuanVideoSingleTransformerBlock(HEADS, head, **of), arguments, {}
    arguments = (image, text, _noise(1, 1, 6 * WIDTH), whole)
    yield "ltx", ltx.LTXVideoTransformerBlock(WIDTH, HEADS, head, WIDTH), arguments, {}
    yield "cogvideox-5b", cogvideox.CogVideoXBlock(WIDTH, HEADS, head, WIDTH), (image, text, time, rope), {}
    named = {"encoder_hidden_states": text, "temb": time, "image_rotary_emb": rope}
    of = {"cross_attention_dim": WIDTH, "qk_norm": True}
    yield "hunyuandit", hunyuan.HunyuanDiTBlock(WIDTH, HEADS, **of), (image,), named
    block = wan.WanTransformerBlock(WIDTH, 27 * WIDTH // 10, HEADS, "rms_norm_across_heads", True)
    yield "wan", block, (image, text, torch.ones(1, 6, WIDTH), axes), {}


def traffic(block: nn.Module, *arguments: Any, **named: Any) -> tuple[float, float, float]:  # noqa: ANN401  any block's
    """Bytes of a block's products and attention without their weights, and of its chains, forward and backward."""
    plans: list[tuple[float, float]] = []
    codegen: Callable[..., Any] = scheduler.Scheduler.codegen

    def tally(plan: Any) -> Any:  # noqa: ANN401  private to torch, of its pinned release
        called, own = 0.0, 0.0
        for node in plan.nodes:
            moved = node.get_read_write_buffers_sizes()
            is_called = isinstance(node, scheduler.ExternKernelSchedulerNode)
            called, own = (called + moved, own) if is_called else (called, own + moved)
        plans.append((called, own))
        return codegen(plan)

    scheduler.Scheduler.codegen = tally  # type: ignore[method-assign,assignment]
    torch.compiler.reset()
    try:
        with fresh_cache():  # what was compiled before is not planned again
            outputs = torch.compile(block.to(torch.bfloat16).train(), fullgraph=True)(*arguments, **named)
            torch.autograd.backward([of.float().sum() for of in tensors(outputs)])
    finally:
        scheduler.Scheduler.codegen = codegen  # type: ignore[method-assign]
    (products, chains), (_, backward) = plans
    weights = sum(of.numel() for of in block.parameters() if of.ndim > 1)
    return products - HALF_BYTES * weights, chains, backward


def print_fusing(_: Namespace) -> None:
    """Print the traffic of each block's chains over that of its products: the ``chains`` of stacks that fuse."""
    rows, ratios = [], []
    for name, block, arguments, named in blocks():
        products, *chains = traffic(block, *arguments, **named)
        ratios.append([of / products for of in chains])
        rows.append(
            (name, *(f"{of / MB:.1f}" for of in (products, *chains)), *(f"{of:.2f}" for of in ratios[-1]))
        )
    rows.append(("median", "", "", "", *(f"{median(of):.2f}" for of in zip(*ratios, strict=True))))
    header = ("block", "products, MB", "chains forward, MB", "backward, MB", "forward", "backward")
    print_sections([Section("Traffic that fusion leaves, over that of the forward's products", header, rows)])
