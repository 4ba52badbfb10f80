"""Tiny models: each family small enough that every layer can be timed on two CPU cores in seconds.

Their shapes are made up. They stand for no published model; they rehearse what runs on a GPU, and teach.
"""

from functools import partial
from typing import Any, Final

from diffusers.models.autoencoders.autoencoder_kl import AutoencoderKL
from diffusers.models.transformers.pixart_transformer_2d import PixArtTransformer2DModel
from diffusers.models.unets.unet_2d_condition import UNet2DConditionModel
from torch import nn
from transformers import CLIPTextConfig, CLIPTextModel

from profiles.errors import InputError
from validate.architectures import ARCHITECTURES
from validate.dits import PATCH_PIXELS, pixart_sample
from validate.encoders import CLIP_TOKENS, LatentEncoder
from validate.layering import clip_layers, pixart_layers, unet_layers, vae_layers
from validate.specs import LATENT_SCALE, Architecture, ComponentSpec, image, prompt
from validate.unets import CARRIED, SUMS, unet_sample
from validate.uvit import uvit

WIDTH: Final = 128
REMARK: Final = "shapes made up to be small"
CLIP: Final[dict[str, Any]] = {
    "vocab_size": 1000,
    "hidden_size": WIDTH,
    "intermediate_size": 4 * WIDTH,
    "num_hidden_layers": 3,
    "num_attention_heads": 4,
    "max_position_embeddings": CLIP_TOKENS,
    "bos_token_id": 998,
    "eos_token_id": 999,
}
VAE: Final[dict[str, Any]] = {
    "block_out_channels": [16, 32, 32, 32],
    "down_block_types": ["DownEncoderBlock2D"] * 4,
    "up_block_types": ["UpDecoderBlock2D"] * 4,
    "layers_per_block": 1,
    "latent_channels": 4,
    "norm_num_groups": 8,
}
UNET: Final[dict[str, Any]] = {
    "block_out_channels": [64, 128, 192],
    "down_block_types": ["CrossAttnDownBlock2D", "CrossAttnDownBlock2D", "DownBlock2D"],
    "up_block_types": ["UpBlock2D", "CrossAttnUpBlock2D", "CrossAttnUpBlock2D"],
    "layers_per_block": 2,
    "cross_attention_dim": WIDTH,
    "attention_head_dim": [2, 4, 6],
    "norm_num_groups": 16,
    "use_linear_projection": True,
}
PIXART: Final[dict[str, Any]] = {
    "num_attention_heads": 4,
    "attention_head_dim": 48,
    "cross_attention_dim": 4 * 48,
    "num_layers": 8,
    "sample_size": 32,
    "patch_size": 2,
    "in_channels": 4,
    "out_channels": 8,
    "caption_channels": 4096,
    "norm_type": "ada_norm_single",
    "use_additional_conditions": False,
}


def tiny_clip() -> nn.Module:
    """Build a text encoder."""
    return CLIPTextModel(CLIPTextConfig(**CLIP))


def tiny_vae() -> nn.Module:
    """Build an autoencoder's encoder."""
    return LatentEncoder(AutoencoderKL(**VAE))


def tiny_unet() -> nn.Module:
    """Build a text-conditioned U-Net."""
    net: nn.Module = UNet2DConditionModel(**UNET)
    return net


def tiny_pixart() -> nn.Module:
    """Build a PixArt transformer."""
    net: nn.Module = PixArtTransformer2DModel(**PIXART)
    return net


TINY_SD: Final = Architecture(
    title="Tiny Stable Diffusion",
    configs="",
    components=(
        ComponentSpec(
            "text_encoder", tiny_clip, partial(prompt, CLIP_TOKENS), clip_layers, text_tokens=CLIP_TOKENS
        ),
        ComponentSpec(
            "vae_encoder", tiny_vae, image, vae_layers, token_pixels=LATENT_SCALE**2, tasks=("train",)
        ),
        ComponentSpec(
            "unet",
            tiny_unet,
            partial(unet_sample, WIDTH),
            unet_layers,
            token_pixels=LATENT_SCALE**2,
            trainable=True,
            inputs=("text_encoder", "vae_encoder"),
            carried=CARRIED,
            sums=SUMS,
        ),
    ),
    height=128,
    width=128,
    granularity=32,
    remark=REMARK,
    dtype="float32",
)

TINY_PIXART: Final = Architecture(
    title="Tiny PixArt",
    configs="",
    components=(
        ComponentSpec(
            "transformer",
            tiny_pixart,
            pixart_sample,
            pixart_layers,
            token_pixels=PATCH_PIXELS,
            trainable=True,
            carried=("caption_projection", "adaln_single"),
            sums=r"transformer_blocks\.\d+\.(attn1|ff)",
        ),
    ),
    height=256,
    width=256,
    granularity=16,
    remark=REMARK,
    dtype="float32",
)

TINY: Final = {
    "tiny-pixart": TINY_PIXART,
    "tiny-sd": TINY_SD,
    "tiny-uvit": uvit(WIDTH, 6, 4, title="Tiny U-ViT", configs="", remark=REMARK),
}


def profiled_architecture(name: str) -> Architecture:
    """Return an architecture that can be profiled: a counted one or a tiny one.

    Raises:
        InputError: there is none of this name.
    """
    known = ARCHITECTURES | TINY
    if name not in known:
        raise InputError(f"unknown model '{name}'; choose from {', '.join(known)}")
    return known[name]
