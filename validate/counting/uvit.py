"""U-ViT: a vision transformer on patches, time and class as tokens, with skips from its first half to its second.

Source: Bao et al., All are Worth Words: a ViT Backbone for Diffusion Models (CVPR 2023), and its published code.
"""

from typing import Final

import torch
from diffusers.models.embeddings import get_timestep_embedding
from torch import Tensor, nn
from torch.nn.functional import gelu, pixel_shuffle, scaled_dot_product_attention

EXTRA_TOKENS: Final = 2  # time and class
NUM_CLASSES: Final = 1001  # the last one stands for none
HEAD_CHANNELS: Final = 64


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
        """The tokens after attention and MLP."""
        if self.join is not None and skip is not None:
            tokens = self.join(torch.cat([tokens, skip], dim=-1))
        heads = self.query_key_value(self.norm1(tokens)).unflatten(-1, (3, self.num_heads, -1))
        query, key, value = heads.transpose(1, 3).unbind(2)
        attended = scaled_dot_product_attention(query, key, value).transpose(1, 2).flatten(2)
        tokens = tokens + self.projection(attended)
        result: Tensor = tokens + self.second(gelu(self.first(self.norm2(tokens))))
        return result


class UVit(nn.Module):
    """A U-ViT of ``depth`` blocks and one in the middle, on square latents of ``sample_size``."""

    def __init__(
        self, width: int, depth: int, in_channels: int, sample_size: int = 32, patch_size: int = 2
    ) -> None:
        super().__init__()
        num_heads, num_patches = width // HEAD_CHANNELS, (sample_size // patch_size) ** 2
        self.patch_size = patch_size
        self.embedding = nn.Conv2d(in_channels, width, patch_size, stride=patch_size)
        self.classes = nn.Embedding(NUM_CLASSES, width)
        self.positions = nn.Parameter(torch.empty(1, EXTRA_TOKENS + num_patches, width))
        self.blocks = nn.ModuleList(Block(width, num_heads, i > depth // 2) for i in range(depth + 1))
        self.norm = nn.LayerNorm(width)
        self.prediction = nn.Linear(width, patch_size**2 * in_channels)
        self.conv_out = nn.Conv2d(in_channels, in_channels, 3, padding=1)

    def forward(self, sample: Tensor, timestep: Tensor, label: Tensor) -> Tensor:
        """The predicted noise."""
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
        grid = predicted.unflatten(-1, patches.shape[2:])
        image: Tensor = self.conv_out(pixel_shuffle(grid, self.patch_size))
        return image
