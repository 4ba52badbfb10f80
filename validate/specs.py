"""Specifications: how to build each component of a model and call it on one sample."""

import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

import torch
from torch import Tensor, nn

from profiles.models import TASKS
from validate.layering import LayerSpec

LATENT_SCALE: Final = 8  # pixels per latent pixel, in each direction

CONFIGS: Final[dict[str, Any]] = json.loads(
    (Path(__file__).parent / "configs.json").read_text(encoding="utf-8")
)


@dataclass(frozen=True, slots=True)
class ComponentSpec:
    """One component of a model.

    Args:
        name: its name in the model's files.
        build: returns the module.
        sample: (height, width) in pixels to the keyword arguments of one sample's forward pass.
        layers: the module's layers in execution order.
        token_pixels: pixels of one image token; 0 where the work does not depend on the pixels.
        text_tokens: tokens that do not depend on the pixels.
        trainable: whether it is a backbone.
        inputs: components whose output it needs.
        carried: arguments and submodules whose (output) tensors every layer needs.
        self_conditioning: probability of the extra forward pass.
        locked: submodules of a backbone whose weights are not trained.
        reads: arguments that hold the output of an input, where it matters which layers read it.
        sums: regular expression of the submodules whose output tensor parallelism sums up; empty where nobody
            counted what patches and shards exchange.
        tasks: those that it exists for.
        frames: latent frames of a video, each of as many image tokens.
        again: samples of further passes, where one sample takes several; their work adds up, of bytes the
            largest count.
    """

    name: str
    build: Callable[[], nn.Module]
    sample: Callable[[int, int], dict[str, Any]]
    layers: Callable[[nn.Module], list[LayerSpec]]
    token_pixels: int = 0
    text_tokens: int = 0
    trainable: bool = False
    inputs: tuple[str, ...] = ()
    carried: tuple[str, ...] = ()
    self_conditioning: float = 0.0
    locked: tuple[str, ...] = ()
    reads: Mapping[str, str] = field(default_factory=dict)
    sums: str = ""
    tasks: tuple[str, ...] = TASKS
    frames: int = 1
    again: tuple[Callable[[int, int], dict[str, Any]], ...] = ()


@dataclass(frozen=True, slots=True)
class Architecture:
    """A model: its components and the resolution its tables are counted at.

    Args:
        title: its name for people.
        configs: where the configurations were published; empty where they were not.
        components: its components, inputs first, but those of sampling alone last, so that training counts the same.
        height: pixels.
        width: pixels.
        granularity: both must be multiples of this many pixels.
        remark: what else the model file's source should say.
        dtype: of activations; weights count by the memory recipe of a run.
        largest: pixels of a side beyond which it has no positions.
        guidance: whether it samples with classifier-free guidance (``batch``) or without (``none``).
    """

    title: str
    configs: str
    components: tuple[ComponentSpec, ...]
    height: int
    width: int
    granularity: int
    remark: str = ""
    dtype: str = "float16"
    largest: int | None = None
    guidance: str = "batch"


def tensor(*shape: int, dtype: torch.dtype | None = None) -> Tensor:
    """Return a tensor without contents."""
    return torch.empty(shape, dtype=dtype, device="meta")


def prompt(num_tokens: int, height: int, width: int) -> dict[str, Any]:
    """Return the token numbers of one prompt."""
    return {"input_ids": tensor(1, num_tokens, dtype=torch.long)}


def image(height: int, width: int) -> dict[str, Any]:
    """Return one image."""
    return {"image": tensor(1, 3, height, width)}


def latent(channels: int, height: int, width: int) -> Tensor:
    """Return the latent of one image."""
    return tensor(1, channels, height // LATENT_SCALE, width // LATENT_SCALE)


def step() -> Tensor:
    """Return the number of one time step."""
    return tensor(1, dtype=torch.long)
