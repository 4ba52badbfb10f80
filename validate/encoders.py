"""Encoders: the frozen text encoders and autoencoders beside a backbone."""

from functools import partial
from typing import Final

from diffusers.models.autoencoders.autoencoder_kl import AutoencoderKL
from torch import Tensor, nn
from transformers import (
    BertConfig,
    BertModel,
    CLIPTextConfig,
    CLIPTextModel,
    CLIPTextModelWithProjection,
    T5Config,
    T5EncoderModel,
)

from profiles.models import TASKS
from validate.layering import bert_layers, clip_layers, t5_layers, vae_layers
from validate.specs import CONFIGS, LATENT_SCALE, ComponentSpec, image, prompt

CLIP_TOKENS: Final = 77


class LatentEncoder(nn.Module):
    """The half of an autoencoder that training needs: image to moments of the latent."""

    def __init__(self, autoencoder: nn.Module) -> None:
        super().__init__()
        self.encoder = autoencoder.get_submodule("encoder")
        if isinstance(autoencoder.quant_conv, nn.Module):  # those of 16 channels have none
            self.quant_conv = autoencoder.quant_conv

    def forward(self, image: Tensor) -> Tensor:
        """Encode, as ``AutoencoderKL.encode`` does."""
        moments: Tensor = self.encoder(image)
        return self.quant_conv(moments) if hasattr(self, "quant_conv") else moments


def clip(config: str) -> nn.Module:
    """Build a CLIP text encoder."""
    return CLIPTextModel(CLIPTextConfig(**CONFIGS[config]))


def clip_with_projection(config: str) -> nn.Module:
    """Build a CLIP text encoder that projects its pooled output."""
    return CLIPTextModelWithProjection(CLIPTextConfig(**CONFIGS[config]))


def t5(config: str) -> nn.Module:
    """Build a T5 encoder."""
    return T5EncoderModel(T5Config(**CONFIGS[config]))


def bert(config: str) -> nn.Module:
    """Build a BERT, without the pooled output that no backbone reads."""
    return BertModel(BertConfig(**CONFIGS[config]), add_pooling_layer=False)


def vae(config: str) -> nn.Module:
    """Build an autoencoder's encoder."""
    return LatentEncoder(AutoencoderKL(**CONFIGS[config]))


def clip_encoder(name: str, config: str) -> ComponentSpec:
    """Return a frozen CLIP text encoder."""
    return ComponentSpec(
        name, partial(clip, config), partial(prompt, CLIP_TOKENS), clip_layers, text_tokens=CLIP_TOKENS
    )


def projecting_clip_encoder(name: str, config: str) -> ComponentSpec:
    """Return a frozen CLIP text encoder whose pooled output is projected."""
    return ComponentSpec(
        name,
        partial(clip_with_projection, config),
        partial(prompt, CLIP_TOKENS),
        partial(clip_layers, root="text_model."),
        text_tokens=CLIP_TOKENS,
    )


def bert_encoder(name: str, config: str, tasks: tuple[str, ...] = TASKS) -> ComponentSpec:
    """Return a frozen BERT of prompts as long as CLIP's."""
    return ComponentSpec(
        name,
        partial(bert, config),
        partial(prompt, CLIP_TOKENS),
        bert_layers,
        text_tokens=CLIP_TOKENS,
        tasks=tasks,
    )


def t5_encoder(
    name: str, num_tokens: int, config: str = "t5_xxl", tasks: tuple[str, ...] = TASKS
) -> ComponentSpec:
    """Return a frozen T5 encoder of prompts of so many tokens."""
    return ComponentSpec(
        name,
        partial(t5, config),
        partial(prompt, num_tokens),
        t5_layers,
        text_tokens=num_tokens,
        tasks=tasks,
    )


def vae_encoder(
    name: str = "vae_encoder", config: str = "vae", tasks: tuple[str, ...] = ("train",)
) -> ComponentSpec:
    """Return a frozen encoder of images to latents."""
    return ComponentSpec(
        name, partial(vae, config), image, vae_layers, token_pixels=LATENT_SCALE**2, tasks=tasks
    )
