"""A diffusion transformer made by formula, to compare samplers with closed forms and to run them on."""

from dataclasses import replace
from typing import Final

from profiles.architectures.components import Exchange, Skip
from profiles.architectures.models import Model
from profiles.architectures.synthetic import equal_layers_model

LATENT_CHANNELS: Final = 4
PIXELS_PER_TOKEN: Final = 16
"""Along each side: 8 pixels become one latent, 2 latents one token."""
HALF: Final = 2
"""Bytes of a number in half precision."""


def equal_blocks_transformer(
    num_layers: int,
    forward_s: float = 1e-3,
    *,
    rows: int = 16,
    hidden_size: int = 64,
    heads: int = 8,
    text_tokens: int = 0,
    parameters: int = 0,
    saved_bytes: float = 0.0,
    skips: bool = False,
    device: str = "ideal",
) -> Model:
    """A diffusion transformer whose blocks are all alike, to sample from.

    Each block attends once to all tokens, and sums twice under tensor parallelism, after attention and after the
    feed-forward. The last block's output is the noise prediction.

    ``forward_s`` are seconds of one block per sample, measured on ``device``; there are as many columns as ``rows`` of
    image tokens, and ``text_tokens`` that pass through beside them; ``parameters`` and ``saved_bytes`` (per sample) are
    of one block. With ``skips`` each block of the first half sends its output to its mirror image, as in Hunyuan-DiT.
    """
    model = equal_layers_model(
        num_layers,
        forward_s,
        parameters=parameters,
        output_bytes=HALF * (rows**2 + text_tokens) * hidden_size,
        saved_bytes=saved_bytes,
        device=device,
    )
    (chain,), pixels, elements = model.components, rows * PIXELS_PER_TOKEN, rows**2 * hidden_size
    latents = HALF * LATENT_CHANNELS * (pixels // 8) ** 2
    exchanged = (("key_value", 2 * elements, heads), ("reduce", elements, 0), ("reduce", elements, 0))
    transformer = replace(
        chain,
        name="transformer",
        image_tokens=rows**2,
        text_tokens=text_tokens,
        layers=(*chain.layers[:-1], replace(chain.layers[-1], output_bytes=float(latents))),
        skips=tuple(Skip(i, num_layers - 1 - i) for i in range(num_layers // 2)) if skips else (),
        exchanges=tuple(Exchange(layer, *exchange) for layer in range(num_layers) for exchange in exchanged),
    )
    title = f"{num_layers} equal blocks"
    return replace(
        model, name="equal-blocks", title=title, height=pixels, width=pixels, components=(transformer,)
    )
