"""The small transformer of all real runs: its blocks are trained stage by stage, sharded by torch, or run in parts.

Linears of a block have no bias, so that parts of a divided product add up, and ranks own equal shares of parameters.

A sampler runs a DiT (Peebles and Xie, 2023) of such blocks: timestep and prompt modulate each. Weights follow from a
seed, the same in every process. Images are latents of 4 channels, held as tokens of 2 x 2 pixels; a row of tokens is
what patches divide.
"""

from collections.abc import Callable
from functools import cache, partial
from math import log, sqrt
from typing import Final, NamedTuple

import torch
from torch import Tensor, nn
from torch.nn.functional import layer_norm, scaled_dot_product_attention, silu

from validate.equal_blocks import LATENT_CHANNELS
from validate.running.sampling.settings import HEADS, HIDDEN, LAYERS, PATCHED, ROWS, Settings

linear = partial(nn.Linear, bias=False)
TOKEN: Final = 4 * LATENT_CHANNELS  # numbers of one token of the latents: 2 x 2 pixels
TRAINING_STEPS: Final = 1000
GUIDANCE_SCALE: Final = 2.0
HEAD: Final = HIDDEN // HEADS
WIDER: Final = 4  # inner width of a feed-forward over the outer
SHARPNESS: Final = 2.0
"""Factor on queries of parts: with random weights attention would be uniform, and stale tokens would not matter."""


def attend(queries: Tensor, keys: Tensor, values: Tensor) -> Tensor:
    """Attention of (samples, tokens, heads, channels) on one rank."""
    parts = [part.transpose(1, 2) for part in (queries, keys, values)]
    return scaled_dot_product_attention(parts[0], parts[1], parts[2]).transpose(1, 2)


def heads_of(tensor: Tensor) -> Tensor:
    """Channels of several heads side by side, as (..., heads, channels)."""
    return tensor.reshape(*tensor.shape[:-1], -1, HEAD)


class Attention(nn.Module):
    """Attention, of which each rank of tensor parallelism has some heads."""

    def __init__(self, attend: Callable[..., Tensor]) -> None:
        super().__init__()
        self.query, self.key, self.value, self.out = (linear(HIDDEN, HIDDEN) for _ in range(4))
        self.attend = attend

    def forward(self, hidden: Tensor) -> Tensor:
        """Attention of the tokens, shape (samples, tokens, hidden)."""
        parts = (heads_of(project(hidden)) for project in (self.query, self.key, self.value))
        result: Tensor = self.out(self.attend(*parts).flatten(2))
        return result


class Modulation(NamedTuple):
    """Modulation of a block by timestep and prompt, each (batch, 1, hidden)."""

    shift: Tensor
    scale: Tensor
    gate: Tensor
    inner_shift: Tensor
    inner_scale: Tensor
    inner_gate: Tensor


class Block(nn.Module):
    """Self-attention and feed-forward; for its backward, the norm at its end needs all before it.

    ``forward`` runs it whole and without modulation, all other methods run modulated parts of it.
    """

    def __init__(self, inner: int = WIDER * HIDDEN, attend: Callable[..., Tensor] = attend) -> None:
        super().__init__()
        self.before, self.between, self.after = (nn.LayerNorm(HIDDEN) for _ in range(3))
        self.attention = Attention(attend)
        self.inner = nn.Sequential(linear(HIDDEN, inner), nn.GELU(), linear(inner, HIDDEN))

    def forward(self, hidden: Tensor) -> Tensor:
        """The hidden state after the block, (samples, tokens, hidden)."""
        hidden = hidden + self.attention(self.before(hidden))
        result: Tensor = hidden + self.after(self.inner(self.between(hidden)))
        return result

    def divide(self, part: int, parts: int) -> None:
        """Keep one of several equal parts of the heads and of the feed-forward; what the parts put out adds up."""
        attention = self.attention
        rows, columns = (
            (attention.query, attention.key, attention.value, self.inner[0]),
            (attention.out, self.inner[2]),
        )
        for axis, product in [*((0, one) for one in rows), *((1, one) for one in columns)]:
            assert isinstance(product, nn.Linear)
            product.weight = nn.Parameter(product.weight.chunk(parts, axis)[part], requires_grad=False)

    def project(self, hidden: Tensor, by: Modulation) -> Tensor:
        """Queries, keys and values of some tokens, stacked: (3, batch, tokens, hidden)."""
        normed = self.before(hidden) * (1 + by.scale) + by.shift
        attention = self.attention
        return torch.stack(
            [SHARPNESS * attention.query(normed), attention.key(normed), attention.value(normed)]
        )

    def feed(self, hidden: Tensor, by: Modulation) -> Tensor:
        """The feed-forward of the hidden state before its norm."""
        result: Tensor = self.inner(self.between(hidden) * (1 + by.inner_scale) + by.inner_shift)
        return result

    def add_fed(self, hidden: Tensor, fed: Tensor, by: Modulation) -> Tensor:
        """The hidden state after the feed-forward."""
        result: Tensor = hidden + by.inner_gate * self.after(fed)
        return result

    def finish(self, hidden: Tensor, attended: Tensor, by: Modulation) -> Tensor:
        """The hidden state after the block."""
        hidden = hidden + by.gate * self.attention.out(attended)
        return self.add_fed(hidden, self.feed(hidden, by), by)


def attend_wide(queries: Tensor, keys: Tensor, values: Tensor) -> Tensor:
    """Attention of tokens with heads side by side: (batch, tokens, heads * size of a head)."""
    return attend(heads_of(queries), heads_of(keys), heads_of(values)).flatten(2)


class SmallTransformer(nn.Module):
    """``LAYERS`` blocks on ``ROWS`` x ``ROWS`` tokens; predicts velocities."""

    def __init__(self) -> None:
        super().__init__()
        self.blocks = nn.ModuleList(Block() for _ in range(LAYERS))
        self.modulations = nn.ModuleList(nn.Linear(HIDDEN, 6 * HIDDEN) for _ in range(LAYERS))
        self.token = nn.Linear(TOKEN, HIDDEN)
        self.time = nn.Linear(HIDDEN, HIDDEN)
        self.prompts = nn.Embedding(2, HIDDEN)
        self.velocity = nn.Linear(HIDDEN, TOKEN)
        self.position = _positions()
        generator = torch.Generator().manual_seed(0)
        for name, parameter in self.requires_grad_(False).named_parameters():
            if not name.rpartition(".")[0].endswith(("before", "between", "after")):  # norms stay plain
                width = parameter.shape[-1] if parameter.dim() > 1 else 4
                parameter.data.normal_(0.0, 1 / sqrt(width), generator=generator)

    def block(self, layer: int, time: float, prompts: slice) -> tuple[Block, Modulation]:
        """A block, and its modulation by timestep and prompt: with the prompt, without it, or both."""
        block, half = self.blocks[layer], HIDDEN // 2
        assert isinstance(block, Block)
        at = torch.tensor([time / 10 ** (2 * i / half) for i in range(half)])
        condition = self.time(torch.cat([at.sin(), at.cos()])) + self.prompts.weight
        by = self.modulations[layer](silu(condition[prompts]))
        return block, Modulation(*by.unsqueeze(1).chunk(6, dim=-1))

    def embed(self, latents: Tensor, tokens: Tensor, batch: int) -> Tensor:
        """Hidden state of some tokens of the latents, (batch, these tokens, numbers of a token)."""
        hidden: Tensor = self.token(latents[:, tokens]) + self.position[tokens]
        return hidden.expand(batch, -1, -1)

    def predict(self, hidden: Tensor) -> Tensor:
        """The velocities of some tokens, of each sample of the batch."""
        predicted: Tensor = self.velocity(layer_norm(hidden, (HIDDEN,)))
        return predicted


def _positions() -> Tensor:
    """Sines and cosines of row and column of each token, shape (tokens, hidden)."""
    quarter = HIDDEN // 4
    frequencies = torch.exp(-log(100.0) * torch.arange(quarter) / quarter)
    angles = torch.arange(ROWS)[:, None] * frequencies
    side = torch.cat([angles.sin(), angles.cos()], dim=1)
    return torch.cat([side.repeat_interleave(ROWS, 0), side.repeat(ROWS, 1)], dim=1)


def patches_of(count: int) -> list[Tensor]:
    """The tokens of so many patches; the first ones have one more row where they cannot be even."""
    rows = torch.arange(ROWS**2).view(ROWS, ROWS).tensor_split(count)
    return [patch.flatten() for patch in rows]


class Scheduler:
    """DDIM on velocities; every number of the latents moves on its own, so patches of them can be moved alone.

    Source: Song et al., DDIM, 2021, with the velocities of Salimans and Ho, 2022, and Stable Diffusion's betas.
    """

    def __init__(self, steps: int) -> None:
        betas = torch.linspace(0.00085**0.5, 0.012**0.5, TRAINING_STEPS, dtype=torch.float64) ** 2
        times = [TRAINING_STEPS * (steps - step) // steps - 1 for step in range(steps)]
        self._kept = [*(1 - betas).cumprod(0)[times].tolist(), 1.0]
        self.times = [time / TRAINING_STEPS for time in times]

    def move(self, latents: Tensor, predicted: Tensor, step: int) -> Tensor:
        """The latents after a step; the second sample of a prediction is that without the prompt."""
        velocity = predicted[:1]
        if len(predicted) == 2:
            velocity = torch.lerp(predicted[1:], predicted[:1], GUIDANCE_SCALE)
        now, then = self._kept[step : step + 2]
        image = sqrt(now) * latents - sqrt(1 - now) * velocity
        noise = sqrt(now) * velocity + sqrt(1 - now) * latents
        return sqrt(then) * image + sqrt(1 - then) * noise


def first_latents() -> Tensor:
    """The noise that every run starts from, shape (1, tokens, numbers of a token)."""
    return torch.randn(1, ROWS**2, TOKEN, generator=torch.Generator().manual_seed(1))


def one_device_image(settings: Settings) -> Tensor:
    """The image of one device: every step synchronous."""
    return draw(Settings("sync-patch", steps=settings.steps, guidance=settings.guidance), settings.steps)


@cache
@torch.no_grad()
def draw(settings: Settings, synchronous_steps: int) -> Tensor:
    """The image that patches draw in one process, one after the other, with the first steps synchronous.

    In a pipeline they see those before them fresh, else all others stale; where no step is synchronous, none other.
    """
    model, scheduler, latents = SmallTransformer(), Scheduler(settings.steps), first_latents()
    kept = torch.zeros(LAYERS, 2, settings.batch, ROWS**2, HIDDEN)
    for step, time in enumerate(scheduler.times):
        fresh, predicted = kept.clone(), []
        for tokens in patches_of(1 if step < synchronous_steps else settings.num_patches):
            hidden = model.embed(latents, tokens, settings.batch)
            for layer in range(LAYERS):
                block, by = model.block(layer, time, slice(settings.batch))
                projected = block.project(hidden, by)
                fresh[layer][:, :, tokens] = both = projected[1:]
                if step >= synchronous_steps > 0:
                    both = (kept if settings.strategy in PATCHED else fresh)[layer].clone()
                    both[:, :, tokens] = projected[1:]
                hidden = block.finish(hidden, attend_wide(projected[0], both[0], both[1]), by)
            predicted.append(model.predict(hidden))
        latents, kept = scheduler.move(latents, torch.cat(predicted, dim=1), step), fresh
    return latents
