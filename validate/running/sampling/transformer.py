"""A small diffusion transformer, its scheduler, and the images of one process.

A DiT (Peebles and Xie, 2023): timestep and prompt modulate every block. Weights follow from a seed, the same in every
process. Images are latents of 4 channels, held as tokens of 2 x 2 pixels; a row of tokens is what patches divide.
"""

from functools import cache
from math import log, sqrt
from typing import Final

import torch
from torch import Tensor, nn
from torch.nn.functional import layer_norm, silu

from validate.equal_blocks import LATENT_CHANNELS
from validate.running.model import Block, Modulation, attend, heads_of
from validate.running.sampling.settings import HIDDEN, LAYERS, PATCHED, ROWS, Settings

TOKEN: Final = 4 * LATENT_CHANNELS  # numbers of one token of the latents: 2 x 2 pixels
TRAINING_STEPS: Final = 1000
GUIDANCE_SCALE: Final = 2.0


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
