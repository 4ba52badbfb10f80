"""ControlNet 1.0 on Stable Diffusion 1.5: a trained copy of a U-Net's encoder steers the locked U-Net.

The chain that gradients pass through is the copy, whose blocks each end with the convolution that makes a residual of
their output, and after it the locked decoder, which adds the residuals to the locked encoder's skips.
"""

from collections.abc import Iterator
from functools import partial
from typing import Any, Final

import torch
from diffusers.models.controlnets.controlnet import ControlNetModel
from torch import Tensor, nn

from profiles.models import TASKS
from validate.encoders import clip_encoder, vae_encoder
from validate.layering import children, controlled_layers, locked_encoder_layers
from validate.specs import CONFIGS, LATENT_SCALE, Architecture, ComponentSpec, tensor
from validate.unets import SELF_CONDITIONING, unet, unet_sample

UNET: Final = "sd15_unet"
TEXT_WIDTH: Final = 768


class LockedEncoder(nn.Module):
    """The input half and the middle of the locked U-Net."""

    def __init__(self, net: nn.Module) -> None:
        super().__init__()
        self.time_proj = net.get_submodule("time_proj")
        self.time_embedding = net.get_submodule("time_embedding")
        self.conv_in = net.get_submodule("conv_in")
        self.down_blocks = net.get_submodule("down_blocks")
        self.mid_block = net.get_submodule("mid_block")

    def forward(
        self, sample: Tensor, timestep: Tensor, encoder_hidden_states: Tensor
    ) -> tuple[list[Tensor], Tensor]:
        """Return the skips with the output of the middle as the last, and the time embedding."""
        time = self.time_embedding(self.time_proj(timestep).to(sample.dtype))
        return [*encode(self, self.conv_in(sample), time, encoder_hidden_states)], time


class LockedDecoder(nn.Module):
    """The output half of the locked U-Net."""

    def __init__(self, net: nn.Module) -> None:
        super().__init__()
        self.up_blocks = net.get_submodule("up_blocks")
        self.conv_norm_out = net.get_submodule("conv_norm_out")
        self.conv_out = net.get_submodule("conv_out")

    def forward(self, skips: list[Tensor], residuals: list[Tensor], time: Tensor, text: Tensor) -> Tensor:
        """Return the predicted noise; what is added last to ``skips`` and ``residuals`` is used first."""
        hidden = skips.pop() + residuals.pop()
        for up in children(self, "up_blocks"):
            for i, resnet in enumerate(children(up, "resnets")):
                joined = torch.cat([hidden, skips.pop() + residuals.pop()], dim=1)
                hidden = attend(up, i, resnet(joined, time), text)
            for sampler in children(up, "upsamplers"):
                hidden = sampler(hidden)
        noise: Tensor = self.conv_out(nn.functional.silu(self.conv_norm_out(hidden)))
        return noise


class ControlledUNet(nn.Module):
    """The trained copy and the locked decoder; the locked encoder between them where it is no component of its own."""

    def __init__(self, holds_encoder: bool) -> None:
        super().__init__()
        locked = unet(UNET)
        self.copy = ControlNetModel(**CONFIGS["controlnet"])
        self.encoder = LockedEncoder(locked) if holds_encoder else None
        self.decoder = LockedDecoder(locked)

    def forward(
        self,
        sample: Tensor,
        timestep: Tensor,
        encoder_hidden_states: Tensor,
        hint: Tensor,
        *,
        skips: list[Tensor] | None = None,
        locked_time: Tensor | None = None,
    ) -> Tensor:
        """Return the predicted noise; ``skips`` and ``locked_time`` are what a locked encoder outside hands over."""
        copy, text = self.copy, encoder_hidden_states
        time = copy.time_embedding(copy.time_proj(timestep).to(sample.dtype))
        hidden = copy.conv_in(sample) + copy.controlnet_cond_embedding(hint)
        convolutions = [*copy.controlnet_down_blocks, copy.controlnet_mid_block]
        outputs = encode(copy, hidden, time, text)
        residuals = [convolution(output) for convolution, output in zip(convolutions, outputs, strict=True)]
        if self.encoder is not None:
            skips, locked_time = self.encoder(sample, timestep, text)
        assert skips is not None
        noise: Tensor = self.decoder([*skips], residuals, locked_time, text)
        return noise


def encode(net: nn.Module, hidden: Tensor, time: Tensor, text: Tensor) -> Iterator[Tensor]:
    """Yield the outputs of the blocks of a U-Net's input half, then that of its middle."""
    yield hidden
    for down in children(net, "down_blocks"):
        for i, resnet in enumerate(children(down, "resnets")):
            hidden = attend(down, i, resnet(hidden, time), text)
            yield hidden
        for sampler in children(down, "downsamplers"):
            hidden = sampler(hidden)
            yield hidden
    yield net.get_submodule("mid_block")(hidden, time, encoder_hidden_states=text)


def attend(level: nn.Module, index: int, hidden: Tensor, text: Tensor) -> Tensor:
    """Return what the attention after a ResNet makes of its output, on a level that has attention."""
    attentions = children(level, "attentions")
    return attentions[index](hidden, text, return_dict=False)[0] if attentions else hidden


def locked_encoder() -> nn.Module:
    """Build the locked U-Net's input half and middle."""
    return LockedEncoder(unet(UNET))


def hinted_sample(height: int, width: int) -> dict[str, Any]:
    """Return the arguments of a controlled U-Net that holds the locked encoder."""
    return unet_sample(TEXT_WIDTH, height, width) | {"hint": tensor(1, 3, height, width)}


def controlled_sample(height: int, width: int) -> dict[str, Any]:
    """Return the arguments of a controlled U-Net beside a locked encoder, what that hands over included."""
    with torch.device("meta"), torch.no_grad():
        skips, time = locked_encoder()(**unet_sample(TEXT_WIDTH, height, width))
    return hinted_sample(height, width) | {"skips": skips, "locked_time": time}


def controlnet(title: str, components: tuple[ComponentSpec, ...], remark: str) -> Architecture:
    """Return an assignment of ControlNet's parts to what is frozen and what is trained."""
    return Architecture(
        title=title,
        configs="stable-diffusion-v1-5/stable-diffusion-v1-5 and lllyasviel/sd-controlnet-canny",
        components=(clip_encoder("text_encoder", "clip_l"), vae_encoder(), *components),
        height=512,
        width=512,
        granularity=64,
        remark=f"{remark}; {SELF_CONDITIONING}",
    )


LOCKED_ENCODER: Final = ComponentSpec(
    "locked_encoder",
    locked_encoder,
    partial(unet_sample, TEXT_WIDTH),
    locked_encoder_layers,
    token_pixels=LATENT_SCALE**2,
    inputs=("text_encoder", "vae_encoder"),
)

CONTROLNET: Final = controlnet(
    "ControlNet 1.0 on Stable Diffusion 1.5",
    (
        LOCKED_ENCODER,
        ComponentSpec(
            "controlnet",
            partial(ControlledUNet, holds_encoder=False),
            controlled_sample,
            controlled_layers,
            token_pixels=LATENT_SCALE**2,
            trainable=True,
            inputs=("text_encoder", "vae_encoder", "locked_encoder"),
            carried=("encoder_hidden_states", "copy.time_embedding", "locked_time"),
            self_conditioning=0.5,
            locked=("decoder",),
            reads={"skips": "locked_encoder"},
        ),
    ),
    "the locked encoder counts as frozen work, which no gradient passes through, the locked decoder as part of the "
    "backbone, which gradients do; the hint is an image that the copy embeds",
)

CONTROLNET_HINT_VAE: Final = controlnet(
    "ControlNet 1.0 on Stable Diffusion 1.5, hint encoded, locked U-Net in the backbone",
    (
        vae_encoder("hint_encoder", tasks=TASKS),
        ComponentSpec(
            "controlnet",
            partial(ControlledUNet, holds_encoder=True),
            hinted_sample,
            controlled_layers,
            token_pixels=LATENT_SCALE**2,
            trainable=True,
            inputs=("text_encoder", "vae_encoder", "hint_encoder"),
            carried=("encoder_hidden_states", "copy.time_embedding", "encoder.time_embedding"),
            self_conditioning=0.5,
            locked=("encoder", "decoder"),
            reads={"sample": "vae_encoder"},
        ),
    ),
    "a guess at what DiffusionPipe's Table 1 counts, whose ratios it meets better: the frozen part is the text encoder "
    "and two passes of the autoencoder, over image and hint; the whole locked U-Net is in the backbone, its encoder "
    "without a backward pass; the copy embeds the hint as in controlnet",
)
