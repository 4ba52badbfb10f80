"""U-ViT: a vision transformer on patches, time and class as tokens, with skips from its first half to its second.

Source: Bao et al., All are Worth Words: a ViT Backbone for Diffusion Models (CVPR 2023), and its published code.
"""

from functools import partial
from typing import Any, Final

import torch
from diffusers.models.embeddings import get_timestep_embedding
from torch import Tensor, nn
from torch.nn.functional import gelu, pixel_shuffle, scaled_dot_product_attention

from validate.layering import uvit_layers
from validate.specs import LATENT_SCALE, Architecture, ComponentSpec, latent, step

PATCH: Final = 2
EXTRA_TOKENS: Final = 2  # time and class
NUM_CLASSES: Final = 1001  # the last one stands for none
HEAD_CHANNELS: Final = 64
PIXELS: Final = 256


class Block(nn.Module):
    """A transformer block, in the second half behind a linear layer that joins the skip."""

    def __init__(self, width: int, num_heads: int, joins_skip: bool) -> None:
        super().__init__()
        self.num_heads = num_heads
        self.join = nn.Linear(2 * width, width) if joins_skip else None
        self.norm1, self.norm2 = nn.LayerNorm(width), nn.LayerNorm(width)
        self.query_key_value = nn.Linear(width, 3 * width, bias=False)
        self.projection = nn.Linear(width, width)
        self.first, self.second = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)

    def forward(self, tokens: Tensor, skip: Tensor | None = None) -> Tensor:
        """Return the tokens after attention and MLP."""
        if self.join is not None and skip is not None:
            tokens = self.join(torch.cat([tokens, skip], dim=-1))
        heads = self.query_key_value(self.norm1(tokens)).unflatten(-1, (3, self.num_heads, -1))
        query, key, value = heads.transpose(1, 3).unbind(2)
        attended = scaled_dot_product_attention(query, key, value).transpose(1, 2).flatten(2)
        tokens = tokens + self.projection(attended)
        result: Tensor = tokens + self.second(gelu(self.first(self.norm2(tokens))))
        return result


class UVit(nn.Module):
    """A U-ViT of ``depth`` blocks and one in the middle."""

    def __init__(self, width: int, depth: int, num_heads: int, channels: int, num_patches: int) -> None:
        super().__init__()
        self.embedding = nn.Conv2d(channels, width, PATCH, stride=PATCH)
        self.classes = nn.Embedding(NUM_CLASSES, width)
        self.positions = nn.Parameter(torch.empty(1, EXTRA_TOKENS + num_patches, width))
        self.blocks = nn.ModuleList(Block(width, num_heads, i > depth // 2) for i in range(depth + 1))
        self.norm = nn.LayerNorm(width)
        self.prediction = nn.Linear(width, PATCH**2 * channels)
        self.conv_out = nn.Conv2d(channels, channels, 3, padding=1)

    def forward(self, sample: Tensor, timestep: Tensor, label: Tensor) -> Tensor:
        """Return the predicted noise."""
        patches = self.embedding(sample)
        time = get_timestep_embedding(timestep, patches.shape[1]).to(sample.dtype)
        tokens = [time.unsqueeze(1), self.classes(label).unsqueeze(1), patches.flatten(2).transpose(1, 2)]
        hidden = torch.cat(tokens, dim=1) + self.positions
        skips: list[Tensor] = []
        for i, block in enumerate(self.blocks):
            hidden = block(hidden, skips.pop()) if i > len(self.blocks) // 2 else block(hidden)
            if i < len(self.blocks) // 2:
                skips.append(hidden)
        predicted = self.prediction(self.norm(hidden))[:, EXTRA_TOKENS:].transpose(1, 2)
        image: Tensor = self.conv_out(pixel_shuffle(predicted.unflatten(-1, patches.shape[2:]), PATCH))
        return image


def uvit_sample(channels: int, height: int, width: int) -> dict[str, Any]:
    """Return the arguments of a U-ViT."""
    return {"sample": latent(channels, height, width), "timestep": step(), "label": step()}


def uvit(width: int, depth: int, channels: int, *, title: str, configs: str, remark: str) -> Architecture:
    """Return a U-ViT on latents of 32x32, without frozen components."""
    num_patches = (PIXELS // LATENT_SCALE // PATCH) ** 2
    spec = ComponentSpec(
        "uvit",
        partial(UVit, width, depth, width // HEAD_CHANNELS, channels, num_patches),
        partial(uvit_sample, channels),
        uvit_layers,
        token_pixels=(PATCH * LATENT_SCALE) ** 2,
        text_tokens=EXTRA_TOKENS,
        sums=r"blocks\.\d+\.(projection|second)",
        trainable=True,
    )
    return Architecture(
        title,
        configs,
        (spec,),
        height=PIXELS,
        width=PIXELS,
        granularity=PIXELS,
        remark=f"after PULSE, section VII: latents precomputed, so nothing is frozen; {remark}",
        dtype="float32",
        largest=PIXELS,
    )


def scaled_uvit(width: int, billions: str, shape: str) -> Architecture:
    """Return one of PULSE's larger U-ViTs, on the latents of 32x32x3 that its Table II prints."""
    remark = f"{shape}; heads of {HEAD_CHANNELS} channels are a guess; 3 channels and a class as in Table II; float32"
    return uvit(width, 48, 3, title=f"U-ViT {billions} B", configs="", remark=remark)


UVIT_H: Final = uvit(
    1152,
    28,
    4,
    title="U-ViT-H/2",
    configs="Bao et al., All are Worth Words (CVPR 2023), on ImageNet at 256x256",
    remark="float32 as for the larger ones, whose printed volumes ask for it",
)
UVIT_1B: Final = scaled_uvit(
    1280, "1", "the paper names the size, no shape: 48 blocks as of 2.7 B, of width 1280, are a guess"
)
UVIT_2_7B: Final = scaled_uvit(
    2048,
    "2.7",
    "width 2048, 48 blocks and float32 are recovered from Table III: 1F1B on 4 devices moves 51 x 258 x 2048 x 4 bytes",
)
UVIT_6B: Final = scaled_uvit(
    3072, "6", "the paper names the size, no shape: 48 blocks as of 2.7 B, of width 3072, are a guess"
)
