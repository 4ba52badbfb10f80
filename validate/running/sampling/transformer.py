"""A small diffusion transformer, whose blocks can be computed in parts, its scheduler, and the images of one process.

A DiT (Peebles and Xie, 2023): timestep and prompt modulate every block. Weights follow from a seed, the same in every
process. Images are latents of 4 channels, held as tokens of 2 x 2 pixels; a row of tokens is what patches divide.

The images of one process, also of displaced and of independent patches in turn, are computed without plans: a few
lines say which keys and values a patch sees.
"""

from collections.abc import Sequence
from functools import cache
from math import log, sqrt
from typing import Final

import torch
from torch import Tensor, nn
from torch.nn.functional import layer_norm, silu

from profiles.architectures.synthetic import LATENT_CHANNELS
from validate.running import model as blocks
from validate.running.model import Block, Modulation, heads_of
from validate.running.sampling.settings import HIDDEN, LAYERS, PATCHED, ROWS, Settings

TOKEN: Final = 4 * LATENT_CHANNELS  # numbers of one token of the latents: 2 x 2 pixels
TRAINING_STEPS: Final = 1000
GUIDANCE_SCALE: Final = 2.0


def attend(queries: Tensor, keys: Tensor, values: Tensor) -> Tensor:
    """Attention of tokens with heads side by side: (batch, tokens, heads * size of a head)."""
    return blocks.attend(heads_of(queries), heads_of(keys), heads_of(values)).flatten(2)


def attend_part(queries: Tensor, *both: Tensor) -> tuple[Tensor, Tensor]:
    """Attention on the keys and values of some tokens, and its log-sum-exps in double precision: twice its bytes."""
    parts = [heads_of(part).transpose(1, 2) for part in (queries, *both)]
    seen, log_sums = torch.ops.aten._scaled_dot_product_flash_attention_for_cpu(*parts)
    return seen.transpose(1, 2).flatten(2), log_sums.transpose(1, 2).double()


def merged(parts: Sequence[Tensor], log_sums: Sequence[Tensor]) -> Tensor:
    """Attention on all keys and values, from that on several parts of them with the log-sum-exps of these."""
    shares = torch.stack(list(log_sums)).softmax(0).to(parts[0].dtype)[..., None]
    return (shares * torch.stack([heads_of(part) for part in parts])).sum(0).flatten(2)


class SmallTransformer(nn.Module):
    """``LAYERS`` blocks on ``ROWS`` x ``ROWS`` tokens; predicts velocities."""

    def __init__(self, seed: int = 0) -> None:
        super().__init__()
        self.blocks = nn.ModuleList(Block() for _ in range(LAYERS))
        self.modulations = nn.ModuleList(nn.Linear(HIDDEN, 6 * HIDDEN) for _ in range(LAYERS))
        self.token = nn.Linear(TOKEN, HIDDEN)
        self.time = nn.Linear(HIDDEN, HIDDEN)
        self.prompts = nn.Embedding(2, HIDDEN)
        self.velocity = nn.Linear(HIDDEN, TOKEN)
        self.register_buffer("position", _positions(), persistent=False)
        generator = torch.Generator().manual_seed(seed)
        for name, parameter in self.named_parameters():
            parameter.requires_grad_(False)
            if name.rpartition(".")[0].endswith(("before", "between", "after")):
                continue  # norms stay plain
            width = parameter.shape[-1] if parameter.dim() > 1 else 4
            parameter.data.normal_(0.0, 1 / sqrt(width), generator=generator)

    def block(self, layer: int) -> Block:
        """A block."""
        block = self.blocks[layer]
        assert isinstance(block, Block)
        return block

    def modulate(self, layer: int, condition: Tensor) -> Modulation:
        """The modulation of a block by a condition (batch, hidden)."""
        return Modulation(*self.modulations[layer](silu(condition)).unsqueeze(1).chunk(6, dim=-1))

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


Kept = list[Tensor]  # for each layer keys and values of all tokens, (2, batch, tokens, hidden)


def one_device_image(settings: Settings) -> Tensor:
    """The image of one device: every step synchronous."""
    return _draw(Settings("sync-patch", steps=settings.steps, guidance=settings.guidance), settings.steps)


def displaced_image(settings: Settings) -> Tensor:
    """The image of displaced patches: in a pipeline they see those before them fresh, else all others stale."""
    return one_device_image(settings) if settings.exact else _draw(settings, settings.warmup_steps)


def independent_image(settings: Settings) -> Tensor:
    """The image of patches that never see one another."""
    return _draw(settings, 0)


@cache
@torch.no_grad()
def _draw(settings: Settings, synchronous_steps: int) -> Tensor:
    model, scheduler = SmallTransformer(), Scheduler(settings.steps)
    latents, whole = first_latents(), torch.arange(ROWS**2)
    kept: Kept | None = None
    for step in range(settings.steps):
        condition = model.condition(scheduler.time(step))[: settings.batch]
        if step < synchronous_steps:
            predicted, kept = _forward(model, latents, whole, condition, [None] * LAYERS)
        else:
            predicted, kept = _patches(settings, model, latents, condition, kept)
        latents = scheduler.move(latents, predicted, step)
    return latents


def _patches(
    settings: Settings, model: SmallTransformer, latents: Tensor, condition: Tensor, kept: Kept | None
) -> tuple[Tensor, Kept | None]:
    """The prediction of one patch after another, and the keys and values that they leave.

    Where none are kept, as at the start, a patch sees itself alone, and leaves nothing.
    """
    fresh = None if kept is None else [layer.clone() for layer in kept]
    predicted = []
    for rows in map(settings.patch_rows, range(settings.num_patches)):
        at = tokens_of(rows)
        seen = kept if settings.strategy in PATCHED else fresh
        part, joined = _forward(model, latents[:, at], at, condition, seen or [None] * LAYERS)
        predicted.append(part)
        for layer, tensor in zip(fresh or [], joined, strict=fresh is not None):
            layer[:, :, at] = tensor[:, :, at]
    return torch.cat(predicted, dim=1), fresh


def _forward(
    model: SmallTransformer, latents: Tensor, at: Tensor, condition: Tensor, seen: Sequence[Tensor | None]
) -> tuple[Tensor, Kept]:
    """The prediction for some tokens, and all keys and values that they saw: their own, and those given."""
    hidden, joined = model.embed(latents, at, len(condition)), list[Tensor]()
    for layer, others in enumerate(seen):
        block = model.block(layer)
        by = model.modulate(layer, condition)
        projected = block.project(hidden, by)
        both = projected[1:]
        if others is not None:
            both = others.clone()
            both[:, :, at] = projected[1:]
        hidden = block.finish(hidden, attend(projected[0], both[0], both[1]), by)
        joined.append(both)
    return model.predict(hidden), joined
