"""Architectures: the models that can be counted, by name.

A new model is one more entry of ``ARCHITECTURES``, and its configurations in ``configs.json``. Everything is
built on torch's meta device: shapes without weights, from a config dict, without a network.
"""

from typing import Final

from profiles.errors import InputError
from validate.controlnet import CONTROLNET, CONTROLNET_HINT_VAE
from validate.dits import FLUX, HUNYUAN_1_5B, HUNYUAN_3B, PIXART, SD3
from validate.specs import Architecture
from validate.unets import CDM_IMAGENET, CDM_LSUN, SD21, SDXL, widened
from validate.uvit import UVIT_1B, UVIT_2_7B, UVIT_6B, UVIT_H
from validate.videos import COGVIDEOX_2B

ARCHITECTURES: Final = {
    "cdm-imagenet": CDM_IMAGENET,
    "cdm-lsun": CDM_LSUN,
    "cogvideox-2b": COGVIDEOX_2B,
    "controlnet": CONTROLNET,
    "controlnet-hint-vae": CONTROLNET_HINT_VAE,
    "flux-dev": FLUX,
    "hunyuan-1.5b": HUNYUAN_1_5B,
    "hunyuan-3b": HUNYUAN_3B,
    "pixart": PIXART,
    "sd21": SD21,
    "sd3-medium": SD3,
    "sdv2-1.7b": widened(448, "1.7"),
    "sdv2-2.5b": widened(544, "2.5"),
    "sdv2-4.6b": widened(736, "4.6"),
    "sdv2-7.2b": widened(928, "7.2"),
    "sdxl": SDXL,
    "uvit-1b": UVIT_1B,
    "uvit-2.7b": UVIT_2_7B,
    "uvit-6b": UVIT_6B,
    "uvit-h": UVIT_H,
}


def architecture(name: str) -> Architecture:
    """Return an architecture.

    Raises:
        InputError: there is none of this name.
    """
    if name not in ARCHITECTURES:
        raise InputError(f"unknown model '{name}'; choose from {', '.join(ARCHITECTURES)}")
    return ARCHITECTURES[name]
