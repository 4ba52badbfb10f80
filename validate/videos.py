"""Video transformers: CogVideoX."""

from typing import Any, Final

from diffusers.models.transformers.cogvideox_transformer_3d import CogVideoXTransformer3DModel
from torch import nn

from validate.decoders import vae_video_decoder
from validate.encoders import t5_encoder
from validate.layering import sd3_layers
from validate.specs import CONFIGS, LATENT_SCALE, Architecture, ComponentSpec, step, tensor

COGVIDEOX_TOKENS: Final = 226
LATENT_FRAMES: Final = 13
LATENT_CHANNELS: Final = 16
GROUPS: Final = (3, 2, 2, 2, 2, 2)
"""Latent frames that the decoder takes at a time: two, and what is left over with the first."""
PATCH_PIXELS: Final = (2 * LATENT_SCALE) ** 2


def cogvideox_transformer() -> nn.Module:
    """Build CogVideoX's transformer."""
    net: nn.Module = CogVideoXTransformer3DModel(**CONFIGS["cogvideox_transformer"])
    return net


def cogvideox_sample(height: int, width: int) -> dict[str, Any]:
    """Return the arguments of CogVideoX's transformer."""
    return {
        "hidden_states": tensor(
            1, LATENT_FRAMES, LATENT_CHANNELS, height // LATENT_SCALE, width // LATENT_SCALE
        ),
        "encoder_hidden_states": tensor(1, COGVIDEOX_TOKENS, 4096),
        "timestep": step(),
    }


COGVIDEOX_2B: Final = Architecture(
    title="CogVideoX 2 B, 49 frames",
    configs="zai-org/CogVideoX-2b",
    components=(
        t5_encoder("text_encoder", COGVIDEOX_TOKENS),
        ComponentSpec(
            "transformer",
            cogvideox_transformer,
            cogvideox_sample,
            sd3_layers,
            token_pixels=PATCH_PIXELS,
            text_tokens=COGVIDEOX_TOKENS,
            trainable=True,
            inputs=("text_encoder",),
            carried=("time_embedding",),
            sums=r"transformer_blocks\.\d+\.(attn1|ff)",
            frames=LATENT_FRAMES,
        ),
        vae_video_decoder("transformer", "cogvideox_vae", GROUPS),
    ),
    height=480,
    width=720,
    granularity=16,
    remark="49 frames of pixels, 13 of the latent; output_MB of the transformer is both streams, video and text; the "
    "latents that training needs are precomputed; the decoder takes 3 latent frames, then 2 at a time, as published: "
    "its work is that of all, its output_MB the largest of one pass",
)
