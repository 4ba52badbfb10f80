"""Tiny models: each family small enough that every layer can be timed on two CPU cores in seconds.

Their shapes are made up. They stand for no published model; they rehearse what runs on a GPU, and teach.
"""

import json
from functools import partial
from pathlib import Path
from typing import Final

from diffusers.models.autoencoders.autoencoder_kl import AutoencoderKL
from diffusers.models.transformers.pixart_transformer_2d import PixArtTransformer2DModel
from diffusers.models.unets.unet_2d_condition import UNet2DConditionModel
from transformers import CLIPTextConfig, CLIPTextModel

from profiles.errors import InputError
from validate.architectures import ARCHITECTURES
from validate.dits import PATCH_PIXELS, pixart_sample
from validate.encoders import CLIP_TOKENS, LatentEncoder
from validate.layering import clip_layers, pixart_layers, unet_layers, vae_layers
from validate.specs import LATENT_SCALE, Architecture, ComponentSpec, image, prompt
from validate.unets import CARRIED, SUMS, unet_sample
from validate.uvit import uvit

SHAPES: Final = json.loads((Path(__file__).parent / "tiny.json").read_text(encoding="utf-8"))
WIDTH: Final = SHAPES["unet"]["cross_attention_dim"]
REMARK: Final = "shapes made up to be small"
ENCODER: Final = ComponentSpec(
    "text_encoder",
    lambda: CLIPTextModel(CLIPTextConfig(**SHAPES["clip"])),
    partial(prompt, CLIP_TOKENS),
    clip_layers,
    text_tokens=CLIP_TOKENS,
)
VAE: Final = ComponentSpec(
    "vae_encoder",
    lambda: LatentEncoder(AutoencoderKL(**SHAPES["vae"])),
    image,
    vae_layers,
    token_pixels=LATENT_SCALE**2,
    tasks=("train",),
)
UNET: Final = ComponentSpec(
    "unet",
    lambda: UNet2DConditionModel(**SHAPES["unet"]),
    partial(unet_sample, WIDTH),
    unet_layers,
    token_pixels=LATENT_SCALE**2,
    trainable=True,
    inputs=("text_encoder", "vae_encoder"),
    carried=CARRIED,
    sums=SUMS,
)
TRANSFORMER: Final = ComponentSpec(
    "transformer",
    lambda: PixArtTransformer2DModel(**SHAPES["pixart"]),
    pixart_sample,
    pixart_layers,
    token_pixels=PATCH_PIXELS,
    trainable=True,
    carried=("caption_projection", "adaln_single"),
    sums=r"transformer_blocks\.\d+\.(attn1|ff)",
)
TINY: Final = {
    "tiny-pixart": Architecture("Tiny PixArt", "", (TRANSFORMER,), 256, 256, 16, REMARK, "float32"),
    "tiny-sd": Architecture(
        "Tiny Stable Diffusion", "", (ENCODER, VAE, UNET), 128, 128, 32, REMARK, "float32"
    ),
    "tiny-uvit": uvit(WIDTH, 6, 4, title="Tiny U-ViT", configs="", remark=REMARK),
}


def profiled_architecture(name: str) -> Architecture:
    """An architecture that can be profiled: a counted one or a tiny one.

    Raises:
        InputError: there is none of this name.
    """
    known = ARCHITECTURES | TINY
    if name not in known:
        raise InputError(f"unknown model '{name}'; choose from {', '.join(known)}")
    return known[name]
