"""Diffusion transformers: PixArt, Hunyuan-DiT, Stable Diffusion 3 and FLUX.

Under tensor parallelism they sum after self-attention and feed-forward (PipeFusion, Table 1: two sums a block); the
small cross-attention runs whole on every device.
"""

from functools import partial
from typing import Any, Final

import torch
from diffusers.models.transformers.hunyuan_transformer_2d import HunyuanDiT2DModel
from diffusers.models.transformers.pixart_transformer_2d import PixArtTransformer2DModel
from diffusers.models.transformers.transformer_flux import FluxTransformer2DModel
from diffusers.models.transformers.transformer_sd3 import SD3Transformer2DModel
from torch import nn

from validate.decoders import vae_decoder
from validate.encoders import bert_encoder, clip_encoder, projecting_clip_encoder, t5_encoder, vae_encoder
from validate.layering import flux_layers, hunyuan_layers, pixart_layers, sd3_layers
from validate.specs import CONFIGS, LATENT_SCALE, Architecture, ComponentSpec, latent, step, tensor

PATCH_PIXELS: Final = (2 * LATENT_SCALE) ** 2  # patches of 2x2 latent pixels
PIXART_TOKENS: Final = 120
HUNYUAN_CLIP_TOKENS: Final = 77
HUNYUAN_T5_TOKENS: Final = 256
SD3_T5_TOKENS: Final = 256
SD3_TOKENS: Final = 77 + SD3_T5_TOKENS  # CLIP's and T5's, one after the other
FLUX_TOKENS: Final = 512
SAMPLE: Final = ("sample",)


def pixart_transformer(config: str) -> nn.Module:
    """Build a PixArt transformer."""
    net: nn.Module = PixArtTransformer2DModel(**CONFIGS[config])
    return net


def hunyuan_transformer(num_blocks: int) -> nn.Module:
    """Build a Hunyuan-DiT of so many blocks."""
    net: nn.Module = HunyuanDiT2DModel(**(CONFIGS["hunyuan_transformer"] | {"num_layers": num_blocks}))
    return net


def sd3_transformer(config: str) -> nn.Module:
    """Build a Stable Diffusion 3 transformer."""
    net: nn.Module = SD3Transformer2DModel(**CONFIGS[config])
    return net


def flux_transformer(config: str) -> nn.Module:
    """Build a FLUX transformer."""
    net: nn.Module = FluxTransformer2DModel(**CONFIGS[config])
    return net


def pixart_sample(height: int, width: int) -> dict[str, Any]:
    """Return the arguments of PixArt's transformer; resolution and aspect ratio are conditions."""
    return {
        "hidden_states": latent(4, height, width),
        "timestep": step(),
        "encoder_hidden_states": tensor(1, PIXART_TOKENS, 4096),
        "added_cond_kwargs": {"resolution": tensor(1, 2), "aspect_ratio": tensor(1, 1)},
    }


def hunyuan_sample(height: int, width: int) -> dict[str, Any]:
    """Return the arguments of Hunyuan-DiT; its precision is that of the time step."""
    tokens, head = height * width // PATCH_PIXELS, CONFIGS["hunyuan_transformer"]["attention_head_dim"]
    return {
        "hidden_states": latent(4, height, width),
        "timestep": tensor(1),
        "encoder_hidden_states": tensor(1, HUNYUAN_CLIP_TOKENS, 1024),
        "text_embedding_mask": tensor(1, HUNYUAN_CLIP_TOKENS),
        "encoder_hidden_states_t5": tensor(1, HUNYUAN_T5_TOKENS, 2048),
        "text_embedding_mask_t5": tensor(1, HUNYUAN_T5_TOKENS),
        "image_meta_size": tensor(1, 6),
        "style": step(),
        "image_rotary_emb": (tensor(tokens, head), tensor(tokens, head)),
    }


def sd3_sample(height: int, width: int) -> dict[str, Any]:
    """Return the arguments of Stable Diffusion 3's transformer."""
    return {
        "hidden_states": latent(16, height, width),
        "encoder_hidden_states": tensor(1, SD3_TOKENS, 4096),
        "pooled_projections": tensor(1, 2048),
        "timestep": step(),
    }


def flux_sample(height: int, width: int) -> dict[str, Any]:
    """Return the arguments of FLUX's transformer: latents packed by 2x2, positions of all tokens."""
    tokens = height * width // PATCH_PIXELS
    return {
        "hidden_states": tensor(1, tokens, 64),
        "encoder_hidden_states": tensor(1, FLUX_TOKENS, 4096),
        "pooled_projections": tensor(1, 768),
        "timestep": tensor(1),
        "guidance": tensor(1),
        "img_ids": tensor(tokens, 3, dtype=torch.float32),
        "txt_ids": tensor(FLUX_TOKENS, 3, dtype=torch.float32),
    }


def hunyuan(
    num_blocks: int, billions: str, remark: str, sampling: tuple[ComponentSpec, ...] = ()
) -> Architecture:
    """Return one of PULSE's Hunyuan-DiT models: it trains the transformer alone, on latents of 64x64.

    Args:
        num_blocks: of the transformer.
        billions: of parameters, as the paper prints them.
        remark: what else the model file's source should say.
        sampling: what sampling needs besides.
    """
    spec = ComponentSpec(
        "transformer",
        partial(hunyuan_transformer, num_blocks),
        hunyuan_sample,
        hunyuan_layers,
        token_pixels=PATCH_PIXELS,
        trainable=True,
        carried=("encoder_hidden_states", "text_embedder", "time_extra_emb"),
        sums=r"blocks\.\d+\.(attn1|ff)",
        inputs=tuple(component.name for component in sampling if not component.inputs),
    )
    return Architecture(
        title=f"Hunyuan-DiT {billions} B",
        configs="Tencent-Hunyuan/HunyuanDiT-v1.2-Diffusers",
        components=(spec, *sampling),
        height=512,
        width=512,
        granularity=16,
        remark="after PULSE, section VII: latents 64x64x4 and both text embeddings precomputed, so nothing is frozen; "
        "float32, and the text and time embeddings carried over every cut, give its printed volumes exactly (in MiB "
        f"forwards: 13.6 over the 2 cuts of 2 devices, 95.3 over the 14 of 8){remark}",
        dtype="float32",
    )


HUNYUAN_1_5B: Final = hunyuan(
    40,
    "1.5",
    "; sampling adds its text encoders (the BERT's vocabulary of 47020 is a guess that meets the printed 350 M "
    "parameters) and its autoencoder's decoder",
    sampling=(
        bert_encoder("text_encoder", "hunyuan_bert", SAMPLE),
        t5_encoder("text_encoder_2", HUNYUAN_T5_TOKENS, "mt5_xl", SAMPLE),
        vae_decoder("transformer"),
    ),
)
HUNYUAN_3B: Final = hunyuan(
    80, "3", "; the paper names the size, no shape: 80 blocks are a guess that meets it"
)

PIXART: Final = Architecture(
    title="PixArt-alpha XL/2",
    configs="PixArt-alpha/PixArt-XL-2-1024-MS",
    components=(
        t5_encoder("text_encoder", PIXART_TOKENS),
        vae_encoder(),
        ComponentSpec(
            "transformer",
            partial(pixart_transformer, "pixart_transformer"),
            pixart_sample,
            pixart_layers,
            token_pixels=PATCH_PIXELS,
            trainable=True,
            inputs=("text_encoder", "vae_encoder"),
            carried=("caption_projection", "adaln_single"),
            sums=r"transformer_blocks\.\d+\.(attn1|ff)",
        ),
        vae_decoder("transformer"),
    ),
    height=1024,
    width=1024,
    granularity=16,
)

SD3: Final = Architecture(
    title="Stable Diffusion 3 medium",
    configs="stabilityai/stable-diffusion-3-medium",
    components=(
        projecting_clip_encoder("text_encoder", "clip_l"),
        projecting_clip_encoder("text_encoder_2", "clip_g"),
        t5_encoder("text_encoder_3", SD3_T5_TOKENS),
        vae_encoder(config="vae_16"),
        ComponentSpec(
            "transformer",
            partial(sd3_transformer, "sd3_transformer"),
            sd3_sample,
            sd3_layers,
            token_pixels=PATCH_PIXELS,
            text_tokens=SD3_TOKENS,
            trainable=True,
            inputs=("text_encoder", "text_encoder_2", "text_encoder_3", "vae_encoder"),
            carried=("time_text_embed",),
            sums=r"transformer_blocks\.\d+\.(attn|ff)",
        ),
        vae_decoder("transformer", "vae_16"),
    ),
    height=1024,
    width=1024,
    granularity=16,
    remark="output_MB of the transformer is both streams, image and text",
    largest=192 * 16,
)

FLUX: Final = Architecture(
    title="FLUX.1 dev",
    configs="black-forest-labs/FLUX.1-dev",
    components=(
        clip_encoder("text_encoder", "clip_l"),
        t5_encoder("text_encoder_2", FLUX_TOKENS),
        vae_encoder(config="vae_16"),
        ComponentSpec(
            "transformer",
            partial(flux_transformer, "flux_transformer"),
            flux_sample,
            flux_layers,
            token_pixels=PATCH_PIXELS,
            text_tokens=FLUX_TOKENS,
            trainable=True,
            inputs=("text_encoder", "text_encoder_2", "vae_encoder"),
            carried=("time_text_embed",),
            sums=r"transformer_blocks\.\d+\.(attn|ff)|single_transformer_blocks\.\d+",
        ),
        vae_decoder("transformer", "vae_16"),
    ),
    height=1024,
    width=1024,
    granularity=16,
    remark="output_MB of the transformer is both streams, image and text; its guidance is distilled into it",
    guidance="none",
)
