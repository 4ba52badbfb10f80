"""What the shipped models hold for sampling: exchanges as DistriFusion prints them, decoders, text encoders."""

from collections import Counter

import pytest
import torch
from diffusers.models.autoencoders.autoencoder_kl import AutoencoderKL
from torch.utils.flop_counter import FlopCounterMode

from profiles.architectures.components import Component
from profiles.architectures.models import load_model
from profiles.measuring.counting.component import count_component
from profiles.measuring.counting.configured import architecture
from profiles.measuring.counting.specs import plain, tensor
from profiles.measuring.counting.trace import OpaqueAttention

pytestmark = pytest.mark.slow

DEVICES, HALF = 8, 2


def backbone(name: str) -> Component:
    model = load_model(name)
    return model.components[model.backbones[0]]


def elements(component: Component, area: float = 1.0, width: float = 1.0) -> Counter[str]:
    """Elements by kind, of so many times the pixels and the width of the reference."""
    growth = {"key_value": area, "reduce": area, "halo": width, "statistics": 1.0}
    found: Counter[str] = Counter()
    for exchange in component.exchanges:
        found[exchange.kind] += round(exchange.elements * growth[exchange.kind])
    return found


# Exchanges


@pytest.mark.parametrize(
    ("pixels", "patches_gb", "tensor_gb"),
    [(1024, 0.4244, 1.3329), (2048, 1.5827, 5.3316), (3840, 5.3760, 18.7440)],
)
def test_the_volumes_of_sdxl_are_those_of_distrifusions_table_2(pixels, patches_gb, tensor_gb):
    """Bytes per device and step; the first convolution is not summed, or tensor parallel would be 1.4 % more."""
    growth = pixels / 1024
    found = elements(backbone("sdxl"), growth**2, growth)
    gathered = found["key_value"] / DEVICES + found["halo"] + found["statistics"]
    assert gathered * (DEVICES - 1) * HALF / 1e9 == pytest.approx(patches_gb, rel=1e-4)
    summed = 2 * found["reduce"] * (DEVICES - 1) / DEVICES * HALF / 1e9
    assert summed == pytest.approx(tensor_gb, rel=1e-4)


def test_exchanges_of_a_larger_image_grow_as_their_kinds_say_and_its_macs_are_those_that_distrifusion_prints():
    """SDXL, 50 steps with guidance; one count of 1280 x 1920 px."""
    (spec,) = (spec for spec in architecture("sdxl").components if spec.trainable)
    wide, grown = count_component(spec, 1280, 1920), Counter[str]()
    for exchange in wide.exchanges:
        grown[exchange.kind] += exchange.elements
    assert grown == elements(backbone("sdxl"), 1280 * 1920 / 1024**2, 1920 / 1024)
    square, wider = (
        sum(layer.conv_flop + layer.matmul_flop + layer.attention_flop for layer in layers)
        for layers in (backbone("sdxl").layers, wide.work)
    )
    assert [100 * flop / 2e12 for flop in (square, wider)] == pytest.approx([338, 907], abs=0.5)


# Components for sampling alone


def test_a_decoder_does_what_the_autoencoder_does():
    with torch.device("meta"):
        vae = AutoencoderKL(**plain("vae")).requires_grad_(False)
    with FlopCounterMode(display=False) as counter, OpaqueAttention():
        vae.decode(tensor(1, 4, 64, 64))
    decoder = load_model("sd21").components[-1]
    flop = sum(layer.conv_flop + layer.matmul_flop + layer.attention_flop for layer in decoder.layers)
    assert round(flop) == counter.get_total_flops()
    parts = (vae.decoder, vae.post_quant_conv)
    assert decoder.parameters == sum(p.numel() for part in parts for p in part.parameters())


def test_a_video_is_decoded_in_groups_of_frames():
    """Nine frames come out of the first three latent ones, 49 of all; the last layer's output is one group's."""
    decoder = load_model("cogvideox-2b").components[-1]
    assert decoder.image_tokens == 13 * 60 * 90
    assert decoder.layers[-1].output_bytes == 3 * 9 * 480 * 720 * HALF
    last = 2 * 27 * 128 * 3 * 480 * 720 * 49
    norm = 2 * 2 * 16 * 128 * 480 * 720 * 49
    assert decoder.layers[-1].conv_flop == last + norm
