"""Decoders: the frozen halves of autoencoders that sampling runs behind a backbone."""

from functools import partial
from typing import Any, Final

from diffusers.models.autoencoders.autoencoder_kl import AutoencoderKL
from diffusers.models.autoencoders.autoencoder_kl_cogvideox import AutoencoderKLCogVideoX
from torch import Tensor, nn

from validate.layering import decoder_layers
from validate.specs import CONFIGS, LATENT_SCALE, ComponentSpec, latent, tensor

NAME: Final = "vae_decoder"


class LatentDecoder(nn.Module):
    """The half of an autoencoder that sampling needs: latent to image."""

    def __init__(self, autoencoder: nn.Module) -> None:
        super().__init__()
        if isinstance(autoencoder.post_quant_conv, nn.Module):  # those of 16 channels have none
            self.post_quant_conv = autoencoder.post_quant_conv
        self.decoder = autoencoder.get_submodule("decoder")

    def forward(self, latent: Tensor) -> object:
        """Decode, as the ``decode`` of the whole autoencoder does."""
        return self.decoder(self.post_quant_conv(latent) if hasattr(self, "post_quant_conv") else latent)


def image_decoder(config: str) -> nn.Module:
    """Build an image autoencoder's decoder."""
    return LatentDecoder(AutoencoderKL(**CONFIGS[config]))


def video_decoder(config: str) -> nn.Module:
    """Build a video autoencoder's decoder."""
    return LatentDecoder(AutoencoderKLCogVideoX(**CONFIGS[config]))


def latent_image(channels: int, height: int, width: int) -> dict[str, Any]:
    """Return the latent of one image."""
    return {"latent": latent(channels, height, width)}


def latent_frames(channels: int, frames: int, height: int, width: int) -> dict[str, Any]:
    """Return some latent frames of one video."""
    return {"latent": tensor(1, channels, frames, height // LATENT_SCALE, width // LATENT_SCALE)}


def vae_decoder(backbone: str, config: str = "vae") -> ComponentSpec:
    """Return the frozen decoder of what a backbone sampled."""
    return ComponentSpec(
        NAME,
        partial(image_decoder, config),
        partial(latent_image, CONFIGS[config]["latent_channels"]),
        decoder_layers,
        token_pixels=LATENT_SCALE**2,
        inputs=(backbone,),
        tasks=("sample",),
    )


def vae_video_decoder(backbone: str, config: str, groups: tuple[int, ...]) -> ComponentSpec:
    """Return the frozen decoder of a video, which decodes ``groups`` of so many latent frames one by one."""
    channels = CONFIGS[config]["latent_channels"]
    first, *others = (partial(latent_frames, channels, frames) for frames in groups)
    return ComponentSpec(
        NAME,
        partial(video_decoder, config),
        first,
        decoder_layers,
        token_pixels=LATENT_SCALE**2,
        inputs=(backbone,),
        tasks=("sample",),
        frames=sum(groups),
        again=tuple(others),
    )
