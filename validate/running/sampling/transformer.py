"""A small diffusion transformer, whose blocks can be computed in parts, and its sampler's scheduler.

A DiT (Peebles and Xie, 2023): timestep and prompt modulate every block. Weights follow from a seed, the same in every
process. Images are latents of 4 channels, held as tokens of 2 x 2 pixels; a row of tokens is what patches divide.
"""

from math import log, sqrt
from typing import Final, NamedTuple

import torch
from torch import Tensor, nn
from torch.nn.functional import gelu, layer_norm, scaled_dot_product_attention, silu

from profiles.synthetic import LATENT_CHANNELS
from validate.running.sampling.settings import HEADS, HIDDEN, LAYERS, ROWS

TOKEN: Final = 4 * LATENT_CHANNELS  # numbers of one token of the latents: 2 x 2 pixels
HEAD: Final = HIDDEN // HEADS
WIDER: Final = 4  # inner width of the feed-forward over the outer
TRAINING_STEPS: Final = 1000
GUIDANCE_SCALE: Final = 2.0
SHARPNESS: Final = 2.0
"""Of queries: with random weights all tokens would be attended to alike, and stale ones would not matter."""


class Modulation(NamedTuple):
    """What timestep and prompt do to a block, each (batch, 1, hidden)."""

    shift: Tensor
    scale: Tensor
    gate: Tensor
    inner_shift: Tensor
    inner_scale: Tensor
    inner_gate: Tensor


class Block(nn.Module):
    """Self-attention and feed-forward; ``part`` slices are those of tensor parallelism, whole by default."""

    def __init__(self) -> None:
        super().__init__()
        self.qkv = nn.Linear(HIDDEN, 3 * HIDDEN)
        self.out = nn.Linear(HIDDEN, HIDDEN)
        self.up = nn.Linear(HIDDEN, WIDER * HIDDEN)
        self.down = nn.Linear(WIDER * HIDDEN, HIDDEN)
        self.modulation = nn.Linear(HIDDEN, 6 * HIDDEN)

    def modulate(self, condition: Tensor) -> Modulation:
        """The modulation of a condition (batch, hidden)."""
        return Modulation(*self.modulation(silu(condition)).unsqueeze(1).chunk(6, dim=-1))

    def project(self, hidden: Tensor, by: Modulation, part: slice = slice(None)) -> Tensor:
        """Queries, keys and values of some tokens, stacked: (3, batch, tokens, part of hidden)."""
        normed = layer_norm(hidden, (HIDDEN,)) * (1 + by.scale) + by.shift
        weight, bias = (
            self.qkv.weight.view(3, HIDDEN, HIDDEN)[:, part],
            self.qkv.bias.view(3, HIDDEN)[:, part],
        )
        return torch.einsum("btc,ndc->nbtd", normed, weight) + bias[:, None, None]

    def mix(self, attended: Tensor, part: slice = slice(None)) -> Tensor:
        """What the output matrix makes of attention, without its bias: parts add up."""
        return attended @ self.out.weight[:, part].T

    def add_mixed(self, hidden: Tensor, mixed: Tensor, by: Modulation) -> Tensor:
        """The hidden state after attention."""
        return hidden + by.gate * (mixed + self.out.bias)

    def feed(self, hidden: Tensor, by: Modulation, part: slice = slice(None)) -> Tensor:
        """What the feed-forward makes of the hidden state, without its last bias: parts add up."""
        normed = layer_norm(hidden, (HIDDEN,)) * (1 + by.inner_scale) + by.inner_shift
        inner = gelu(normed @ self.up.weight[part].T + self.up.bias[part])
        return inner @ self.down.weight[:, part].T

    def add_fed(self, hidden: Tensor, fed: Tensor, by: Modulation) -> Tensor:
        """The hidden state after the feed-forward."""
        return hidden + by.inner_gate * (fed + self.down.bias)

    def finish(self, hidden: Tensor, attended: Tensor, by: Modulation) -> Tensor:
        """The hidden state after the block."""
        hidden = self.add_mixed(hidden, self.mix(attended), by)
        return self.add_fed(hidden, self.feed(hidden, by), by)


def attend(queries: Tensor, keys: Tensor, values: Tensor) -> Tensor:
    """Attention of tokens with heads side by side: (batch, tokens, heads * size of a head)."""
    attended = scaled_dot_product_attention(SHARPNESS * _heads(queries), _heads(keys), _heads(values))
    return attended.transpose(1, 2).flatten(2)


def _heads(tensor: Tensor) -> Tensor:
    """A tensor of (batch, tokens, heads * size) as (batch, heads, tokens, size)."""
    return tensor.view(*tensor.shape[:-1], -1, HEAD).transpose(1, 2)


class Blockwise:
    """Attention on the keys and values of one block of tokens after another, exact at the end.

    Source: Liu et al., Ring Attention with Blockwise Transformers, 2023.
    """

    def __init__(self, queries: Tensor) -> None:
        self._queries = _heads(queries)
        self._sum = torch.zeros_like(self._queries)
        self._weight = self._queries.new_zeros(*self._queries.shape[:-1], 1)
        self._most = torch.full_like(self._weight, -torch.inf)

    def attend(self, keys: Tensor, values: Tensor) -> None:
        """Add a block."""
        scores = SHARPNESS / sqrt(HEAD) * self._queries @ _heads(keys).transpose(-1, -2)
        most = torch.maximum(self._most, scores.amax(-1, keepdim=True))
        weights, before = (scores - most).exp(), (self._most - most).exp()
        self._sum = self._sum * before + weights @ _heads(values)
        self._weight = self._weight * before + weights.sum(-1, keepdim=True)
        self._most = most

    def result(self) -> Tensor:
        """Attention on all blocks so far."""
        return (self._sum / self._weight).transpose(1, 2).flatten(2)


class SmallTransformer(nn.Module):
    """``LAYERS`` blocks on ``ROWS`` x ``ROWS`` tokens; predicts velocities."""

    def __init__(self, seed: int = 0, *, skips: bool = False) -> None:
        super().__init__()
        self.blocks = nn.ModuleList(Block() for _ in range(LAYERS))
        self.token = nn.Linear(TOKEN, HIDDEN)
        self.time = nn.Linear(HIDDEN, HIDDEN)
        self.prompts = nn.Embedding(2, HIDDEN)
        self.velocity = nn.Linear(HIDDEN, TOKEN)
        self.fusing = nn.ModuleList(nn.Linear(HIDDEN, HIDDEN) for _ in range(skips * LAYERS // 2))
        self.register_buffer("position", _positions(), persistent=False)
        generator = torch.Generator().manual_seed(seed)
        for parameter in self.parameters():
            width = parameter.shape[-1] if parameter.dim() > 1 else 4
            parameter.data.normal_(0.0, 1 / sqrt(width), generator=generator).requires_grad_(False)

    def block(self, layer: int) -> Block:
        """A block."""
        block = self.blocks[layer]
        assert isinstance(block, Block)
        return block

    def fuse(self, layer: int, hidden: Tensor, skip: Tensor) -> Tensor:
        """Hidden state before a block of the second half, with the output of its mirror image."""
        fused: Tensor = hidden + self.fusing[mirrored(layer)](skip)
        return fused

    def condition(self, time: float) -> Tensor:
        """Timestep and prompt as (2, hidden): with the prompt, and without it."""
        half = HIDDEN // 2
        at = self.token.weight.new_tensor([time / 10 ** (2 * i / half) for i in range(half)])
        times = self.time(torch.cat([at.sin(), at.cos()]))
        condition: Tensor = times + self.prompts.weight
        return condition

    def embed(self, latents: Tensor, tokens: Tensor, batch: int) -> Tensor:
        """Hidden state of some tokens of the latents, (1, these tokens, numbers of a token)."""
        assert isinstance(self.position, Tensor)
        hidden: Tensor = self.token(latents) + self.position[tokens]
        return hidden.expand(batch, -1, -1)

    def predict(self, hidden: Tensor) -> Tensor:
        """The velocities of some tokens, of each sample of the batch."""
        predicted: Tensor = self.velocity(layer_norm(hidden, (HIDDEN,)))
        return predicted


def tokens_of(rows: slice) -> Tensor:
    """Tokens of some rows."""
    return torch.arange(rows.start * ROWS, rows.stop * ROWS)


def mirrored(layer: int) -> int:
    """The layer at the other end of a skip."""
    return LAYERS - 1 - layer


def _positions() -> Tensor:
    """Sines and cosines of row and column of each token, shape (tokens, hidden)."""
    quarter = HIDDEN // 4
    frequencies = torch.exp(-log(100.0) * torch.arange(quarter) / quarter)
    angles = torch.arange(ROWS)[:, None] * frequencies
    side = torch.cat([angles.sin(), angles.cos()], dim=1)
    return torch.cat([side.repeat_interleave(ROWS, 0), side.repeat(ROWS, 1)], dim=1)


class Scheduler:
    """DDIM on velocities; every number of the latents moves on its own, so patches of them can be moved alone.

    Source: Song et al., DDIM, 2021, with the velocities of Salimans and Ho, 2022, and Stable Diffusion's betas.
    """

    def __init__(self, steps: int) -> None:
        betas = torch.linspace(0.00085**0.5, 0.012**0.5, TRAINING_STEPS, dtype=torch.float64) ** 2
        kept = (1 - betas).cumprod(0)
        self._times = [TRAINING_STEPS * (steps - step) // steps - 1 for step in range(steps)]
        self._kept = [float(kept[time]) for time in self._times] + [1.0]

    def time(self, step: int) -> float:
        """The time of a step, which the model is conditioned on."""
        return self._times[step] / TRAINING_STEPS

    def move(self, latents: Tensor, predicted: Tensor, step: int) -> Tensor:
        """The latents after a step; the second sample of a prediction is that without the prompt."""
        velocity = predicted[:1]
        if len(predicted) == 2:
            velocity = torch.lerp(predicted[1:], predicted[:1], GUIDANCE_SCALE)
        now, then = self._kept[step : step + 2]
        image = sqrt(now) * latents - sqrt(1 - now) * velocity
        noise = sqrt(now) * velocity + sqrt(1 - now) * latents
        return sqrt(then) * image + sqrt(1 - then) * noise


def first_latents(seed: int = 1) -> Tensor:
    """The noise that every run starts from, shape (1, tokens, numbers of a token)."""
    return torch.randn(1, ROWS**2, TOKEN, generator=torch.Generator().manual_seed(seed))
