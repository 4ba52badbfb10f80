"""Models made by formula, to compare with closed forms and to explore without a model folder."""

from dataclasses import replace
from typing import Final

from profiles.architectures.components import Component, Layer, MeasuredTime
from profiles.architectures.models import Model
from profiles.checks import check_counts, check_number

BACKWARD_OVER_FORWARD: Final = 2.0
"""A backward computes two products for each one of the forward."""


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
    check_counts("model", num_layers=num_layers, num_frozen_layers=num_frozen_layers)
    sizes = {"parameters": parameters, "output_bytes": output_bytes, "saved_bytes": saved_bytes}
    for key, value in {"forward_s": forward_s, "frozen_share": frozen_share, **sizes}.items():
        check_number("model", key, value)
    backbone_s = num_layers * forward_s * (1 + BACKWARD_OVER_FORWARD)
    trained = Layer(0, "", parameters, "full", output_bytes=output_bytes, saved_bytes=saved_bytes)
    components = [_chain("backbone", trained, num_layers, forward_s, device)]
    if frozen_share:
        frozen_s = frozen_share * backbone_s / num_frozen_layers
        frozen = Layer(0, "", 0, "none", output_bytes=output_bytes)
        encoder = _chain("encoder", frozen, num_frozen_layers, frozen_s, device)
        components = [encoder, replace(components[0], inputs=(encoder.name,))]
    title = f"{num_layers} equal layers"
    return Model("equal-layers", title, "made by formula", "float16", 512, 512, tuple(components))


def _chain(name: str, layer: Layer, num_layers: int, forward_s: float, device: str) -> Component:
    """A component of layers like the one given, without inputs."""
    trainable = layer.backward == "full"
    backward_s = BACKWARD_OVER_FORWARD * forward_s if trainable else 0.0
    layers = tuple(replace(layer, block=index, name=f"layer {index}") for index in range(num_layers))
    times = tuple(MeasuredTime(index, 1, forward_s, backward_s) for index in range(num_layers))
    return Component(name, trainable, (), 1, 0, 0.0, 0.0, layers, times=((device, times),))
