"""What sampling takes: the layers of a model at any resolution, for any share of a layer's work.

The columns of a model folder hold at its reference. There, linear work and memory traffic grow with the tokens,
self-attention with their square; tokens of the text stay. Where the one-GPU latency of a model on a device was
published, the estimate is scaled to it, so that a prediction starts from what was measured.
"""

from math import exp, log
from typing import Final, NamedTuple

import numpy as np
from numpy.typing import NDArray

from profiles.anchors import Anchor
from profiles.components import Component
from profiles.costs import ComponentCosts
from profiles.devices import Device, Rates
from profiles.models import Model

FloatArray = NDArray[np.float64]

HALF_BYTES: Final = 2.0
"""Sampling runs in half precision, whatever precision a model is trained in."""
ELEMENT_BYTES: Final = {"float16": 2.0, "bfloat16": 2.0, "float32": 4.0}
REPLICATED_SHARE: Final = 1 / 3
"""What tensor parallelism leaves whole of a block's hidden states: input, norm and sum, 4 of 12; the other 8 are inside
attention and feed-forward, whose inner width is four times the outer (Megatron-LM, section 3)."""


class Share(NamedTuple):
    """The part of a layer's work at the whole image that one device does.

    Attributes:
        linear: of convolutions and matrix products.
        attention: of self-attention: its queries, or heads, times all keys.
        memory: of the memory traffic that no matrix unit hides.
    """

    linear: float = 1.0
    attention: float = 1.0
    memory: float = 1.0

    def times(self, other: "Share") -> "Share":
        """Return the share of a share."""
        return Share(*(a * b for a, b in zip(self, other, strict=True)))


WHOLE: Final = Share()


def sequence_share(degree: int) -> Share:
    """Return what each device does where all tokens are divided evenly, and the heads in attention."""
    return Share(1 / degree, 1 / degree, 1 / degree)


def tensor_share(degree: int) -> Share:
    """Return what each device does under tensor parallelism: matrices and heads are divided.

    Norms and sums run on whole tokens on every device; of the memory traffic they are taken as the share of the
    hidden states that they hold.
    """
    return Share(1 / degree, 1 / degree, REPLICATED_SHARE + (1 - REPLICATED_SHARE) / degree)


class Extent:
    """How large a component is at a resolution, over its reference."""

    def __init__(self, model: Model, component: Component, height: int, width: int) -> None:
        self.pixels: Final = height * width / (model.height * model.width)
        self.width: Final = width / model.width
        image, text = component.image_tokens * self.pixels, component.text_tokens
        reference = component.image_tokens + component.text_tokens
        self.tokens: Final = (image + text) / reference if component.image_tokens else 1.0
        self.image: Final = image / (image + text) if image else 0.0
        """Share of the image in the tokens."""
        self.bytes: Final = HALF_BYTES / ELEMENT_BYTES[model.dtype]
        """Bytes in half precision over those of the model's files."""

    def patch_share(self, rows: float) -> Share:
        """Return what computing a share of the rows takes: against all keys, and with all tokens of the text."""
        tokens = self.image * rows + 1 - self.image
        return Share(tokens, tokens, tokens)

    def alone_share(self, rows: float) -> Share:
        """Return what computing a share of the rows takes if they see only themselves and the text."""
        tokens = self.image * rows + 1 - self.image
        return Share(tokens, tokens**2, tokens)


class SamplingCosts:
    """Forward times and sizes of all components of a model on one device at one resolution.

    Args:
        model: the model, in half precision.
        device: the device.
        height: pixels.
        width: pixels.

    Raises:
        InputError: the device has no rates, and a component no times measured on it.
    """

    def __init__(self, model: Model, device: Device, height: int, width: int) -> None:
        self.extents: Final = tuple(Extent(model, c, height, width) for c in model.components)
        costs = [ComponentCosts(component, device) for component in model.components]
        self.provenance: Final = "measured" if all(c.provenance == "measured" for c in costs) else "estimated"
        self._times: Final = tuple(
            _Times(model, component, device, extent, height * width)
            for component, extent in zip(model.components, self.extents, strict=True)
        )

    def forward_s(self, component: int, batch: float, share: Share = WHOLE) -> FloatArray:
        """Return the forward seconds of each layer of a component, shape (layers,).

        Args:
            component: its index.
            batch: samples in one pass.
            share: what one device does of them.
        """
        return self._times[component].forward_s(batch, share)

    def attention_s(self, component: int, batch: float, share: Share = WHOLE) -> FloatArray:
        """Return the seconds of each layer's self-attention alone, shape (layers,)."""
        return self._times[component].attention_s(batch, share)


class _Times:
    """Seconds per sample of each class of work in each layer, and per pass whatever the batch."""

    def __init__(
        self, model: Model, component: Component, device: Device, extent: Extent, pixels: int
    ) -> None:
        tokens, layers = extent.tokens, component.layers
        if device.rates is None:
            work = np.zeros((3, len(layers)))
            launches = np.zeros(len(layers))
        else:
            work, launches = _estimate(component, device.rates)
            work[2] *= extent.bytes
            scale = anchor_factor(model, device, pixels) if component.trainable else 1.0
            work, launches = work * scale, launches * scale
        times = dict(component.times).get(device.name)
        if times is not None:
            work, launches = _measured(ComponentCosts(component, device), work, launches)
        self._linear, self._attention, self._memory = work[0] * tokens, work[1] * tokens**2, work[2] * tokens
        self._launches = launches

    def forward_s(self, batch: float, share: Share) -> FloatArray:
        parts = share.linear * self._linear + share.attention * self._attention + share.memory * self._memory
        return np.asarray(batch * parts + self._launches)

    def attention_s(self, batch: float, share: Share) -> FloatArray:
        return np.asarray(batch * share.attention * self._attention)


def _estimate(component: Component, rates: Rates) -> tuple[FloatArray, FloatArray]:
    """Return seconds per sample at the reference (linear, attention, memory), and of launches."""
    layers = component.layers
    work = [
        [
            layer.conv_flop / rates.conv_flop_per_s + layer.matmul_flop / rates.matmul_flop_per_s
            for layer in layers
        ],
        [layer.attention_flop / rates.attention_flop_per_s for layer in layers],
        [layer.moved_bytes / rates.memory_bytes_per_s for layer in layers],
    ]
    return np.array(work), np.array([layer.kernels * rates.kernel_s for layer in layers])


def _measured(costs: ComponentCosts, work: FloatArray, launches: FloatArray) -> tuple[FloatArray, FloatArray]:
    """Return measured seconds, divided over the classes as the estimate is; all linear where there is none."""
    one, two = costs.forward_s(1), costs.forward_s(2)
    per_sample = np.maximum(0.0, two - one)
    total = work.sum(axis=0)
    shares = np.divide(work, total, out=np.zeros_like(work), where=total > 0)
    shares[0] = np.where(total > 0, shares[0], 1.0)
    return shares * per_sample, np.maximum(0.0, one - per_sample)


def anchor_factor(model: Model, device: Device, pixels: int) -> float:
    """Return published over estimated one-GPU seconds of the backbones, at some pixels.

    1 where nothing was published; the geometric mean where several latencies were; interpolated in the logarithm
    of the pixels between resolutions, constant beyond.
    """
    if device.rates is None:
        return 1.0
    found: dict[int, list[float]] = {}
    for anchor in model.anchors:
        if anchor.device == device.name:
            estimated = _one_gpu_s(model, device.rates, anchor)
            found.setdefault(anchor.height * anchor.width, []).append(log(anchor.latency_s / estimated))
    if not found:
        return 1.0
    sizes = sorted(found)
    factors = [sum(found[size]) / len(found[size]) for size in sizes]
    return exp(float(np.interp(log(pixels), [log(size) for size in sizes], factors)))


def _one_gpu_s(model: Model, rates: Rates, anchor: Anchor) -> float:
    """Return the estimated seconds of what an anchor measured."""
    total = 0.0
    for component in (model.components[i] for i in model.backbones):
        extent = Extent(model, component, anchor.height, anchor.width)
        work, launches = _estimate(component, rates)
        scale = np.array([extent.tokens, extent.tokens**2, extent.tokens * extent.bytes])
        total += float(anchor.batch * (scale @ work).sum() + launches.sum())
    return anchor.steps * total
