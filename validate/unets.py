"""U-Nets: Stable Diffusion 2.1 and XL, PULSE's widened Stable Diffusion 2, cascaded diffusion models."""

from functools import partial
from typing import Any, Final

from diffusers.models.unets.unet_2d import UNet2DModel
from diffusers.models.unets.unet_2d_condition import UNet2DConditionModel
from torch import nn

from validate.decoders import vae_decoder
from validate.encoders import CLIP_TOKENS, clip_encoder, projecting_clip_encoder, vae_encoder
from validate.layering import unet_layers
from validate.specs import CONFIGS, LATENT_SCALE, Architecture, ComponentSpec, latent, step, tensor

CARRIED: Final = ("encoder_hidden_states", "time_embedding")
# what DistriFusion's tensor-parallel baseline sums up; with the first convolution it would send 1.4 % more than printed
SUMS: Final = r"conv_out|.+\.((resnets|downsamplers|upsamplers)\.\d+|attn1|attn2|ff)"
SELF_CONDITIONING: Final = (
    "self_conditioning: DiffusionPipe (MLSys 2024), Table 5, trains this model with it; "
    "probability 0.5 as in Chen et al., Analog Bits (2022)"
)
HEAD_CHANNELS: Final = 32
NUM_CLASSES: Final = 1000


def unet(config: str) -> nn.Module:
    """Build a text-conditioned U-Net."""
    net: nn.Module = UNet2DConditionModel(**CONFIGS[config])
    return net


def widened_unet(width: int) -> nn.Module:
    """Build Stable Diffusion 2's U-Net with another width of its first level."""
    widths = [width, 2 * width, 4 * width, 4 * width]
    shape = {"block_out_channels": widths, "attention_head_dim": [w // HEAD_CHANNELS for w in widths]}
    net: nn.Module = UNet2DConditionModel(**(CONFIGS["sd21_unet"] | shape))
    return net


def pixel_unet(config: str, in_channels: int, num_classes: int | None) -> nn.Module:
    """Build a U-Net on pixels, with or without classes."""
    net: nn.Module = UNet2DModel(
        **CONFIGS[config], in_channels=in_channels, out_channels=3, num_class_embeds=num_classes
    )
    return net


def unet_sample(text_width: int, height: int, width: int) -> dict[str, Any]:
    """Return the arguments of Stable Diffusion's U-Net."""
    return {
        "sample": latent(4, height, width),
        "timestep": step(),
        "encoder_hidden_states": tensor(1, CLIP_TOKENS, text_width),
    }


def sdxl_sample(height: int, width: int) -> dict[str, Any]:
    """Return the arguments of SDXL's U-Net; pooled text, sizes and crop are conditions."""
    conditions = {"text_embeds": tensor(1, 1280), "time_ids": tensor(1, 6)}
    return unet_sample(2048, height, width) | {"added_cond_kwargs": conditions}


def pixel_sample(scale: int, channels: int, classes: bool, height: int, width: int) -> dict[str, Any]:
    """Return the arguments of a U-Net on pixels at 1 / scale of the last resolution of its cascade."""
    sample = {"sample": tensor(1, channels, height // scale, width // scale), "timestep": step()}
    return sample | {"class_labels": step()} if classes else sample


def cascade_backbone(name: str, config: str, scale: int, *, in_channels: int, classes: bool) -> ComponentSpec:
    """Return a backbone of a cascade at 1 / scale of its last resolution.

    Args:
        name: its name.
        config: of ``configs.json``.
        scale: last resolution over its own.
        in_channels: 3, or 6 where an enlarged smaller image is put beside the noisy one.
        classes: whether the class is a condition.
    """
    return ComponentSpec(
        name,
        partial(pixel_unet, config, in_channels, NUM_CLASSES if classes else None),
        partial(pixel_sample, scale, in_channels, classes),
        unet_layers,
        token_pixels=scale**2,
        trainable=True,
        carried=("time_embedding",),
    )


def widened(width: int, billions: str) -> Architecture:
    """Return one of PULSE's Stable Diffusion 2 models: the U-Net alone, on latents of 32x32."""
    spec = ComponentSpec(
        "unet",
        partial(widened_unet, width),
        partial(unet_sample, 1024),
        unet_layers,
        token_pixels=LATENT_SCALE**2,
        trainable=True,
        carried=CARRIED,
        sums=SUMS,
    )
    return Architecture(
        title=f"Stable Diffusion 2 widened to {billions} B",
        configs="",
        components=(spec,),
        height=256,
        width=256,
        granularity=64,
        remark="after PULSE, section VII: latents 32x32x4 and text embeddings precomputed, so nothing is frozen; the "
        "paper names sizes, no shapes: Stable Diffusion 2's U-Net with its first level widened from 320 to "
        f"{width} channels and heads of {HEAD_CHANNELS} is a guess that meets {billions} B; float32 as for the "
        "paper's other models, whose printed volumes ask for it; this model's own (MB: 0.77 on 2 devices and 4.84 on 8 "
        "at 1.7 B, 6.71 and 9.28 at 4.6 B) fit no one reading that was tried",
        dtype="float32",
    )


SD21: Final = Architecture(
    title="Stable Diffusion 2.1",
    configs="stabilityai/stable-diffusion-2-1",
    components=(
        clip_encoder("text_encoder", "clip_h"),
        vae_encoder(),
        ComponentSpec(
            "unet",
            partial(unet, "sd21_unet"),
            partial(unet_sample, 1024),
            unet_layers,
            token_pixels=LATENT_SCALE**2,
            trainable=True,
            inputs=("text_encoder", "vae_encoder"),
            carried=CARRIED,
            sums=SUMS,
            self_conditioning=0.5,
        ),
        vae_decoder("unet"),
    ),
    height=512,
    width=512,
    granularity=64,
    remark=SELF_CONDITIONING,
)

SDXL: Final = Architecture(
    title="Stable Diffusion XL",
    configs="stabilityai/stable-diffusion-xl-base-1.0",
    components=(
        clip_encoder("text_encoder", "clip_l"),
        projecting_clip_encoder("text_encoder_2", "clip_g"),
        vae_encoder(),
        ComponentSpec(
            "unet",
            partial(unet, "sdxl_unet"),
            sdxl_sample,
            unet_layers,
            token_pixels=LATENT_SCALE**2,
            trainable=True,
            inputs=("text_encoder", "text_encoder_2", "vae_encoder"),
            carried=CARRIED,
            sums=SUMS,
        ),
        vae_decoder("unet"),
    ),
    height=1024,
    width=1024,
    granularity=32,
)

CDM_IMAGENET: Final = Architecture(
    title="CDM ImageNet, 32 to 64 and 64 to 128",
    configs="",
    components=(
        cascade_backbone("unet_64", "cdm_unet_64", 2, in_channels=6, classes=True),
        cascade_backbone("unet_128", "cdm_unet_128", 1, in_channels=6, classes=True),
    ),
    height=128,
    width=128,
    granularity=32,
    remark="shapes after Ho et al., Cascaded Diffusion Models (2022), appendix B, in a second-hand transcription: "
    "256 x (1, 2, 3, 4) with 5 ResNets per level, 128 x (1, 2, 4, 8, 8) with 3; that attention is at 16x16 and 8x8, "
    "and at 16x16, is a guess; the second and third backbone, as DiffusionPipe (MLSys 2024), section 6, trains; each "
    "reads an image enlarged from data, so neither waits for the other and nothing is frozen",
)

CDM_LSUN: Final = Architecture(
    title="CDM LSUN, 64 and 64 to 128",
    configs="",
    components=(
        cascade_backbone("unet_64", "cdm_unet_64_small", 2, in_channels=3, classes=False),
        cascade_backbone("unet_128", "cdm_unet_128", 1, in_channels=6, classes=False),
    ),
    height=128,
    width=128,
    granularity=32,
    remark="all shapes are a guess, for the paper that DiffusionPipe (MLSys 2024) names for this model gives none: "
    "256 x (1, 2, 3, 4) with 3 ResNets per level, and cdm-imagenet's 64 to 128 without classes; the larger backbone "
    "reads an image enlarged from data, so neither waits for the other and nothing is frozen",
)
