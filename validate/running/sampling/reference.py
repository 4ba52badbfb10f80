"""One process: the image of one device, and those of displaced and of independent patches, one after another.

They know nothing of plans: a few lines say what keys and values a patch sees. They are drawn on the kind of device that
the run used: another's kernels round otherwise.
"""

from collections.abc import Sequence
from functools import cache

import torch
from torch import Tensor

from validate.running.sampling.settings import LAYERS, PATCHED, ROWS, Settings
from validate.running.sampling.transformer import (
    Scheduler,
    SmallTransformer,
    attend,
    first_latents,
    mirrored,
    tokens_of,
)

Kept = list[Tensor]  # for each layer keys and values of all tokens, (2, batch, tokens, hidden)


def one_device_image(settings: Settings) -> Tensor:
    """What one device draws: every step synchronous."""
    return _one_device_image(settings.steps, settings.guidance, settings.device, settings.skips)


@cache
def _one_device_image(steps: int, guidance: str, device: str, skips: bool) -> Tensor:
    return _draw(Settings("sync-patch", steps=steps, guidance=guidance, device=device, skips=skips), steps)


def displaced_image(settings: Settings) -> Tensor:
    """What displaced patches draw: in a pipeline they see those before them fresh, else all others stale."""
    return one_device_image(settings) if settings.exact else _draw(settings, settings.warmup_steps)


def independent_image(settings: Settings) -> Tensor:
    """What patches draw that never see one another."""
    return _draw(settings, 0)


def _draw(settings: Settings, synchronous_steps: int) -> Tensor:
    """Draw on one thread: the tensors are small, and threads that wait for one another take longer."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        with torch.no_grad():
            return _steps(settings, synchronous_steps)
    finally:
        torch.set_num_threads(threads)


def _steps(settings: Settings, synchronous_steps: int) -> Tensor:
    model, scheduler = SmallTransformer(skips=settings.skips).to(settings.device), Scheduler(settings.steps)
    latents, whole = first_latents().to(settings.device), torch.arange(ROWS**2)
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
    hidden, joined, skips = model.embed(latents, at, len(condition)), [], list[Tensor]()
    for layer, others in enumerate(seen):
        if len(model.fusing) and layer >= LAYERS // 2:
            hidden = model.fuse(layer, hidden, skips[mirrored(layer)])
        block = model.block(layer)
        by = block.modulate(condition)
        projected = block.project(hidden, by)
        both = projected[1:]
        if others is not None:
            both = others.clone()
            both[:, :, at] = projected[1:]
        hidden = block.finish(hidden, attend(projected[0], both[0], both[1]), by)
        skips.append(hidden)
        joined.append(both)
    return model.predict(hidden), joined
