"""Models made by formula, to compare with closed forms and to explore without a model folder."""

from collections.abc import Sequence
from dataclasses import replace
from typing import Final

from profiles.architectures.components import Component, Exchange, Layer, MeasuredTime, Skip
from profiles.architectures.models import Model
from profiles.checks import check_counts, check_numbers

BACKWARD_OVER_FORWARD: Final = 2.0
"""A backward computes two products for each one of the forward."""
LATENT_CHANNELS: Final = 4
PIXELS_PER_TOKEN: Final = 16
"""Along each side: 8 pixels become one latent, 2 latents one token."""
HALF: Final = 2
"""Bytes of a number in half precision."""


def equal_layers_model(
    num_layers: int,
    forward_s: float = 1e-3,
    *,
    frozen_share: float = 0.0,
    num_frozen_layers: int | None = None,
    parameters: int = 0,
    output_bytes: float = 0.0,
    saved_bytes: float = 0.0,
    device: str = "ideal",
) -> Model:
    """A model whose layers are all alike, with times in proportion to the batch.

    Args:
        num_layers: layers of the backbone, each a block of its own.
        forward_s: forward seconds of one backbone layer per sample; its backward takes twice that.
        frozen_share: time of the frozen encoder over that of the backbone, forward and backward together; where
            it is 0 there is no encoder.
        num_frozen_layers: layers of the encoder, by default as many as the backbone has.
        parameters: of one backbone layer.
        output_bytes: hidden state after any layer, per sample.
        saved_bytes: what one layer keeps for its backward, per sample.
        device: name of the device on which the times count as measured.

    Source: DiffusionPipe, section 2.4: its Figure 4 holds for such a model.
    """
    num_frozen_layers = num_layers if num_frozen_layers is None else num_frozen_layers
    check_counts("model", least=1, num_layers=num_layers, num_frozen_layers=num_frozen_layers)
    sizes = {"parameters": parameters, "output_bytes": output_bytes, "saved_bytes": saved_bytes}
    check_numbers("model", forward_s=forward_s, frozen_share=frozen_share, **sizes)
    backbone_s = num_layers * forward_s * (1 + BACKWARD_OVER_FORWARD)
    trained = Layer(0, "", parameters, "full", output_bytes=output_bytes, saved_bytes=saved_bytes)
    components = [_chain("backbone", trained, num_layers, forward_s, device)]
    if frozen_share:
        frozen_s = frozen_share * backbone_s / num_frozen_layers
        frozen = Layer(0, "", 0, "none", output_bytes=output_bytes)
        encoder = _chain("encoder", frozen, num_frozen_layers, frozen_s, device)
        components = [encoder, replace(components[0], inputs=(encoder.name,))]
    return _model("equal-layers", f"{num_layers} equal layers", 512, components)


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

    Args:
        num_layers: transformer blocks.
        forward_s: forward seconds of one block per sample.
        rows: of image tokens; there are as many columns.
        hidden_size: elements per token.
        heads: of the attention.
        text_tokens: tokens of the text that pass through the blocks beside those of the image.
        parameters: of one block.
        saved_bytes: what one block keeps for its backward, per sample.
        skips: whether each block of the first half sends its output to its mirror image, as in Hunyuan-DiT.
        device: name of the device on which the times count as measured.
    """
    check_counts("model", least=1, num_layers=num_layers, rows=rows, hidden_size=hidden_size, heads=heads)
    output_bytes = HALF * (rows**2 + text_tokens) * hidden_size
    block = Layer(0, "", parameters, "full", output_bytes=output_bytes, saved_bytes=saved_bytes)
    chain = _chain("transformer", block, num_layers, forward_s, device)
    latents = HALF * LATENT_CHANNELS * (rows * PIXELS_PER_TOKEN // 8) ** 2
    transformer = replace(
        chain,
        image_tokens=rows**2,
        text_tokens=text_tokens,
        layers=(*chain.layers[:-1], replace(chain.layers[-1], output_bytes=float(latents))),
        skips=tuple(Skip(i, num_layers - 1 - i) for i in range(num_layers // 2)) if skips else (),
        exchanges=_exchanges(num_layers, rows**2 * hidden_size, heads),
    )
    return _model("equal-blocks", f"{num_layers} equal blocks", rows * PIXELS_PER_TOKEN, [transformer])


def _exchanges(num_layers: int, elements: int, heads: int) -> tuple[Exchange, ...]:
    """Of each block the keys and values of an attention, and two sums under tensor parallelism."""
    each = (("key_value", 2 * elements, heads), ("reduce", elements, 0), ("reduce", elements, 0))
    return tuple(Exchange(layer, *rest) for layer in range(num_layers) for rest in each)


def _model(name: str, title: str, pixels: int, components: Sequence[Component]) -> Model:
    """A model of square images."""
    return Model(name, title, "made by formula", "float16", pixels, pixels, tuple(components))


def _chain(name: str, layer: Layer, num_layers: int, forward_s: float, device: str) -> Component:
    """A component of layers like the one given, without inputs."""
    trainable = layer.backward == "full"
    backward_s = BACKWARD_OVER_FORWARD * forward_s if trainable else 0.0
    layers = tuple(replace(layer, block=index, name=f"layer {index}") for index in range(num_layers))
    times = tuple(MeasuredTime(index, 1, forward_s, backward_s) for index in range(num_layers))
    return Component(name, trainable, (), 1, 0, 0.0, 0.0, layers, times=((device, times),))
