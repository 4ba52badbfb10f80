"""Architectures: how to build each component of a model and call it on one sample.

A new model is one more entry of ``ARCHITECTURES``, and its configurations in ``configs.json``. Everything is
built on torch's meta device: shapes without weights, from a config dict, without a network.
"""

import json
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, Final

import torch
from diffusers.models.autoencoders.autoencoder_kl import AutoencoderKL
from diffusers.models.transformers.pixart_transformer_2d import PixArtTransformer2DModel
from diffusers.models.unets.unet_2d_condition import UNet2DConditionModel
from torch import Tensor, nn
from transformers import CLIPTextConfig, CLIPTextModel, CLIPTextModelWithProjection, T5Config, T5EncoderModel

from profiles.errors import InputError
from validate.layering import LayerSpec, clip_layers, pixart_layers, t5_layers, unet_layers, vae_layers

DTYPE: Final = torch.float16
LATENT_SCALE: Final = 8  # pixels per latent pixel, in each direction
CLIP_TOKENS: Final = 77
PIXART_TOKENS: Final = 120

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


@dataclass(frozen=True, slots=True)
class Architecture:
    """A model: its components and the resolution its tables are counted at.

    Args:
        title: its name for people.
        configs: where the configurations were published.
        components: its components, inputs first.
        height: pixels.
        width: pixels.
        granularity: both must be multiples of this many pixels.
        remark: what else the model file's source should say.
    """

    title: str
    configs: str
    components: tuple[ComponentSpec, ...]
    height: int
    width: int
    granularity: int
    remark: str = ""


class LatentEncoder(nn.Module):
    """The half of an autoencoder that training needs: image to moments of the latent."""

    def __init__(self, autoencoder: nn.Module) -> None:
        super().__init__()
        self.encoder = autoencoder.get_submodule("encoder")
        self.quant_conv = autoencoder.get_submodule("quant_conv")

    def forward(self, image: Tensor) -> Tensor:
        """Encode, as ``AutoencoderKL.encode`` does."""
        moments: Tensor = self.quant_conv(self.encoder(image))
        return moments


def clip(config: str) -> nn.Module:
    """Build a CLIP text encoder."""
    return CLIPTextModel(CLIPTextConfig(**CONFIGS[config]))


def clip_with_projection(config: str) -> nn.Module:
    """Build a CLIP text encoder that projects its pooled output."""
    return CLIPTextModelWithProjection(CLIPTextConfig(**CONFIGS[config]))


def t5(config: str) -> nn.Module:
    """Build a T5 encoder."""
    return T5EncoderModel(T5Config(**CONFIGS[config]))


def vae_encoder(config: str) -> nn.Module:
    """Build an autoencoder's encoder."""
    return LatentEncoder(AutoencoderKL(**CONFIGS[config]))


def unet(config: str) -> nn.Module:
    """Build a text-conditioned U-Net."""
    net: nn.Module = UNet2DConditionModel(**CONFIGS[config])
    return net


def pixart_transformer(config: str) -> nn.Module:
    """Build a PixArt transformer."""
    net: nn.Module = PixArtTransformer2DModel(**CONFIGS[config])
    return net


def tensor(*shape: int, dtype: torch.dtype = DTYPE) -> Tensor:
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


def unet_sample(text_width: int, height: int, width: int) -> dict[str, Any]:
    """Return the arguments of Stable Diffusion's U-Net."""
    return {
        "sample": latent(4, height, width),
        "timestep": tensor(1, dtype=torch.long),
        "encoder_hidden_states": tensor(1, CLIP_TOKENS, text_width),
    }


def sdxl_sample(height: int, width: int) -> dict[str, Any]:
    """Return the arguments of SDXL's U-Net; pooled text, sizes and crop are conditions."""
    conditions = {"text_embeds": tensor(1, 1280), "time_ids": tensor(1, 6)}
    return unet_sample(2048, height, width) | {"added_cond_kwargs": conditions}


def pixart_sample(height: int, width: int) -> dict[str, Any]:
    """Return the arguments of PixArt's transformer; resolution and aspect ratio are conditions."""
    return {
        "hidden_states": latent(4, height, width),
        "timestep": tensor(1, dtype=torch.long),
        "encoder_hidden_states": tensor(1, PIXART_TOKENS, 4096),
        "added_cond_kwargs": {"resolution": tensor(1, 2), "aspect_ratio": tensor(1, 1)},
    }


def clip_encoder(name: str, config: str) -> ComponentSpec:
    """Return a frozen CLIP text encoder."""
    return ComponentSpec(
        name, partial(clip, config), partial(prompt, CLIP_TOKENS), clip_layers, text_tokens=CLIP_TOKENS
    )


VAE_ENCODER: Final = ComponentSpec(
    "vae_encoder", partial(vae_encoder, "vae"), image, vae_layers, token_pixels=LATENT_SCALE**2
)

SD21: Final = Architecture(
    title="Stable Diffusion 2.1",
    configs="stabilityai/stable-diffusion-2-1",
    components=(
        clip_encoder("text_encoder", "clip_h"),
        VAE_ENCODER,
        ComponentSpec(
            "unet",
            partial(unet, "sd21_unet"),
            partial(unet_sample, 1024),
            unet_layers,
            token_pixels=LATENT_SCALE**2,
            trainable=True,
            inputs=("text_encoder", "vae_encoder"),
            carried=("encoder_hidden_states", "time_embedding"),
            self_conditioning=0.5,
        ),
    ),
    height=512,
    width=512,
    granularity=64,
    remark="self_conditioning: DiffusionPipe (MLSys 2024), Table 5, trains this model with it; "
    "probability 0.5 as in Chen et al., Analog Bits (2022)",
)

SDXL: Final = Architecture(
    title="Stable Diffusion XL",
    configs="stabilityai/stable-diffusion-xl-base-1.0",
    components=(
        clip_encoder("text_encoder", "clip_l"),
        ComponentSpec(
            "text_encoder_2",
            partial(clip_with_projection, "clip_g"),
            partial(prompt, CLIP_TOKENS),
            partial(clip_layers, root="text_model."),
            text_tokens=CLIP_TOKENS,
        ),
        VAE_ENCODER,
        ComponentSpec(
            "unet",
            partial(unet, "sdxl_unet"),
            sdxl_sample,
            unet_layers,
            token_pixels=LATENT_SCALE**2,
            trainable=True,
            inputs=("text_encoder", "text_encoder_2", "vae_encoder"),
            carried=("encoder_hidden_states", "time_embedding"),
        ),
    ),
    height=1024,
    width=1024,
    granularity=32,
)

PIXART: Final = Architecture(
    title="PixArt-alpha XL/2",
    configs="PixArt-alpha/PixArt-XL-2-1024-MS",
    components=(
        ComponentSpec(
            "text_encoder",
            partial(t5, "t5_xxl"),
            partial(prompt, PIXART_TOKENS),
            t5_layers,
            text_tokens=PIXART_TOKENS,
        ),
        VAE_ENCODER,
        ComponentSpec(
            "transformer",
            partial(pixart_transformer, "pixart_transformer"),
            pixart_sample,
            pixart_layers,
            token_pixels=(2 * LATENT_SCALE) ** 2,
            trainable=True,
            inputs=("text_encoder", "vae_encoder"),
            carried=("caption_projection", "adaln_single"),
        ),
    ),
    height=1024,
    width=1024,
    granularity=16,
)

ARCHITECTURES: Final = {"pixart": PIXART, "sd21": SD21, "sdxl": SDXL}


def architecture(name: str) -> Architecture:
    """Return an architecture.

    Raises:
        InputError: there is none of this name.
    """
    if name not in ARCHITECTURES:
        raise InputError(f"unknown model '{name}'; choose from {', '.join(ARCHITECTURES)}")
    return ARCHITECTURES[name]
