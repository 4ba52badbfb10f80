"""Checkpointing: what diffusers keeps of blocks that run again, and what is in flight while one does.

Most networks have whole blocks run again. Of a U-Net diffusers checkpoints ResNets and the transformer blocks within
attentions one by one; what is around these stays.
"""

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, replace
from itertools import pairwise
from typing import Final

import numpy as np

from profiles.architectures.components import Component
from profiles.architectures.kernels import Kernel
from profiles.units import FloatArray

BLOCK_NORMS: Final = 3
"""Layer norms of a transformer block in a U-Net. Source: diffusers, ``BasicTransformerBlock``."""
AROUND: Final = 3
"""Tensors as large as the hidden state that a U-Net's attention keeps around its transformer blocks: its input, the
tokens that this is laid out as, and what the last block gives. Source: diffusers, ``Transformer2DModel``."""


@dataclass(frozen=True, slots=True)
class Checkpointed:
    """Bytes per sample in each layer under checkpointing, arrays of shape (layers,).

    Attributes:
        around: kept beside what the layer's block gets from the layer before.
        spared: of ``around``, what saved activations count, too.
        parts: how many parts of the layer run again one by one; 0 where nothing does.
        gradients: in flight in the backward: of the layer's output and of the largest tensor within; 0 where kernels
            were not counted.
        input_size: bytes of what a block gets, over those of the output before, that activations count again.
        stream: bytes of the hidden state over those of a layer's output: 2 where autocast lets it be single.
        by_layer: whether layers of a block run again one by one.
    """

    around: FloatArray
    spared: FloatArray
    parts: FloatArray
    gradients: FloatArray
    input_size: FloatArray
    stream: float
    by_layer: bool

    @property
    def together(self) -> "Checkpointed":
        """The same where several blocks run again together, whatever the network."""
        none = np.zeros_like(self.parts)
        return replace(self, around=none, spared=none, parts=none + 1, by_layer=False)


def transformer_blocks(component: Component) -> FloatArray:
    """Transformer blocks within each layer of a U-Net that attends; 0 of all other layers."""
    found = np.zeros(len(component.layers))
    for index, kernels in enumerate(component.kernels):
        count = _counts(kernels)
        found[index] = count["layer_norm"] // BLOCK_NORMS if count["group_norm"] else 0
    return found


def residual_in_single(component: Component) -> bool:
    """Whether autocast lets the hidden state be in single precision: each block adds a table of weights to modulations.

    Source: diffusers, ``scale_shift_table`` of PixArt and LTX-Video; weights are in single precision, and so are sums.
    """
    middle = component.kernels[len(component.layers) // 2] if component.kernels else ()
    return any(
        kernel.kind == "pointwise" and 0 < kernel.weight_bytes == kernel.written_bytes for kernel in middle
    )


def checkpointed(
    component: Component, saved_bytes: FloatArray, largest_bytes: FloatArray, *, norms_in_single: bool
) -> Checkpointed:
    """What checkpointing keeps of each layer of a component.

    Args:
        component: whose blocks are checkpointed.
        saved_bytes: per sample, that each layer saves without checkpointing.
        largest_bytes: per sample, of the largest tensor that each layer writes.
        norms_in_single: whether norms are in single precision: they keep inputs as such.
    """
    layers, counts = component.layers, [_counts(kernels) for kernels in component.kernels]
    outputs = np.array([layer.output_bytes for layer in layers])
    blocks, joined = transformer_blocks(component), _joined(component)
    stream = 2.0 if norms_in_single and residual_in_single(component) else 1.0
    cast = norms_in_single and stream == 1.0  # norms keep a cast of what blocks get
    inputs, parts = blocks * outputs, np.maximum(1.0, blocks)
    around = (blocks > 0) * (AROUND + cast) * outputs
    for skip in component.skips:
        if counts and counts[skip.target]["group_norm"]:  # joined to the hidden state before the ResNet
            inputs[skip.target] += outputs[skip.source]
    for index, (before, layer) in enumerate(pairwise(layers[: len(counts)]), 1):
        norms, attends = counts[index]["group_norm"], counts[index]["attention"] > 0
        upsamples = counts[index]["conv"] and not norms and not attends
        if upsamples and layer.output_bytes > before.output_bytes:
            around[index], parts[index] = layer.output_bytes, 0.0
        elif before.block == layer.block and norms > 1 and not attends:  # a ResNet
            inputs[index] += before.output_bytes  # the second of the middle, whose first is not checkpointed
            around[index - 2], parts[index - 2] = saved_bytes[index - 2], 0.0
    backward = np.array([layer.backward != "none" for layer in layers])
    gradients = backward * (largest_bytes > 0) * ((stream + joined) * outputs + largest_bytes)
    return Checkpointed(
        around + inputs, around + inputs * (not cast), parts, gradients,
        np.zeros(len(layers)) if cast else stream * (1 - joined), stream, any(kind["group_norm"] for kind in counts),
    )  # fmt: skip


def _joined(component: Component) -> FloatArray:
    """1 for layers that join text and image first and part them in the end, else 0.

    What blocks get is then not what their norm keeps, and there are gradients of both.
    Source: diffusers, ``FluxSingleTransformerBlock``.
    """
    found = np.zeros(len(component.layers))
    for index, (kernels, layer) in enumerate(zip(component.kernels, component.layers, strict=False)):
        as_large = {kernel.kind for kernel in kernels if kernel.written_bytes >= layer.output_bytes > 0}
        found[index] = component.text_tokens > 0 and {"copy", "layer_norm"} <= as_large
    return found


def _counts(kernels: tuple[Kernel, ...]) -> Mapping[str, int]:
    counts = Counter[str]()
    for kernel in kernels:
        counts[kernel.kind] += kernel.count
    return counts
