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
from validate.tables import Section, print_sections

TOKENS: Final = 4096
TEXT: Final = 256
WIDTH: Final = 512
HEADS: Final = 4
HALF_BYTES: Final = 2


def _noise(*shape: int) -> torch.Tensor:
    generator = torch.Generator().manual_seed(prod(shape))
    return torch.randn(shape, dtype=torch.bfloat16, generator=generator).requires_grad_()


def blocks() -> Iterator[tuple[str, int, nn.Module, tuple[Any, ...], dict[str, Any]]]:
    """Kinds of models, and their blocks: how many, and the arguments of a pass."""
    image, text, time = _noise(1, TOKENS, WIDTH), _noise(1, TEXT, WIDTH), _noise(1, WIDTH)
    head, times = WIDTH // HEADS, _noise(1, 1, 6 * WIDTH)
    rope = tuple(torch.ones(TOKENS, head) for _ in range(2))
    both = tuple(torch.ones(TOKENS + TEXT, head) for _ in range(2))
    axes = tuple(torch.ones(1, TOKENS, 1, head) for _ in range(2))
    whole = tuple(torch.ones(1, TOKENS, WIDTH) for _ in range(2))
    yield "flux", 19, flux.FluxTransformerBlock(WIDTH, HEADS, head), (image, text, time, both), {}
    yield "flux", 38, flux.FluxSingleTransformerBlock(WIDTH, HEADS, head), (image, text, time, both), {}
    yield "sd3-medium", 1, attention.JointTransformerBlock(WIDTH, HEADS, head), (image, text, time), {}
    block: nn.Module = attention.JointTransformerBlock(WIDTH, HEADS, head, "rms_norm")
    yield "sd3.5-large", 1, block, (image, text, time), {}
    of: dict[str, Any] = {"mlp_ratio": 4.0, "qk_norm": "rms_norm"}
    arguments: Any = (image, text, time, None, rope)
    yield "hunyuanvideo", 20, video.HunyuanVideoTransformerBlock(HEADS, head, **of), arguments, {}
    yield "hunyuanvideo", 40, video.HunyuanVideoSingleTransformerBlock(HEADS, head, **of), arguments, {}
    yield (
        "ltx-video",
        1,
        ltx.LTXVideoTransformerBlock(WIDTH, HEADS, head, WIDTH),
        (image, text, times, whole),
        {},
    )
    block = cogvideox.CogVideoXBlock(WIDTH, HEADS, head, WIDTH)
    yield "cogvideox-2b", 1, block, (image, text, time), {}
    yield "cogvideox-5b", 1, block, (image, text, time, rope), {}
    named = {"encoder_hidden_states": text, "temb": time, "image_rotary_emb": rope}
    of = {"cross_attention_dim": WIDTH, "qk_norm": True}
    yield "hunyuan (DiT)", 1, hunyuan.HunyuanDiTBlock(WIDTH, HEADS, **of), (image,), named
    of = {"cross_attention_dim": WIDTH, "num_embeds_ada_norm": 1000, "norm_elementwise_affine": False}
    of |= {"activation_fn": "gelu-approximate", "norm_type": "ada_norm_single", "attention_bias": True}
    named = {"encoder_hidden_states": text, "timestep": times[0]}
    yield "pixart", 1, attention.BasicTransformerBlock(WIDTH, HEADS, head, **of), (image,), named
    block = wan.WanTransformerBlock(WIDTH, 27 * WIDTH // 10, HEADS, "rms_norm_across_heads", True)
    yield "wan", 1, block, (image, text, torch.ones(1, 6, WIDTH), axes), {}


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
    """Print the traffic of blocks' chains over that of their products: the ``chains`` of stacks that fuse."""
    sums = dict[str, list[float]]()
    for kind, number, block, arguments, named in blocks():
        so_far = sums.get(kind, [0.0] * 3)
        sums[kind] = [
            a + number * b for a, b in zip(so_far, traffic(block, *arguments, **named), strict=True)
        ]
    ratios = {kind: [of / products for of in chains] for kind, (products, *chains) in sums.items()}
    ratios["median"] = [median(of) for of in zip(*ratios.values(), strict=True)]
    rows = [(kind, *(f"{of:.2f}" for of in both)) for kind, both in ratios.items()]
    header = ("blocks of", "forward", "backward")
    print_sections([Section("Traffic that fusion leaves, over that of the forward's products", header, rows)])
