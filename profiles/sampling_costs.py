"""Costs of sampling: the layers of a model at any resolution, for any share of a layer's work.

The columns of a model folder hold at its reference. There, linear work and memory traffic grow with the tokens,
self-attention with their square; tokens of the text stay. What a layer takes there is said by ``profiles.costs``.
"""

from typing import Final, NamedTuple

import numpy as np

from profiles.components import Component
from profiles.costs import (
    ComponentCosts,
    FloatArray,
    ForwardWork,
    TaskCosts,
    half_precision_ratio,
    tokens_ratio,
)
from profiles.devices import Device
from profiles.models import Model

REPLICATED_SHARE: Final = 1 / 3
"""Share of a block's hidden states that tensor parallelism leaves whole: input, norm and sum, 4 of 12. The other 8 are
inside attention and feed-forward, whose inner width is four times the outer (Megatron-LM, section 3)."""


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
        """The share of a share."""
        return Share(*(a * b for a, b in zip(self, other, strict=True)))


WHOLE: Final = Share()


def sequence_share(degree: int) -> Share:
    """Work of each device where all tokens are divided evenly, and the heads in attention."""
    return Share(1 / degree, 1 / degree, 1 / degree)


def tensor_share(degree: int) -> Share:
    """Work of each device under tensor parallelism: matrices and heads are divided.

    Norms and sums run on whole tokens on every device; of the memory traffic they are taken as the share of the
    hidden states that they hold.
    """
    return Share(1 / degree, 1 / degree, REPLICATED_SHARE + (1 - REPLICATED_SHARE) / degree)


class Extent:
    """Size of a component at a resolution, over its reference."""

    def __init__(self, model: Model, component: Component, height: int, width: int) -> None:
        self.pixels: Final = height * width / (model.height * model.width)
        self.width: Final = width / model.width
        image, text = component.image_tokens * self.pixels, component.text_tokens
        self.tokens: Final = tokens_ratio(model, component, height, width)
        self.image: Final = image / (image + text) if image else 0.0
        """Share of the image in the tokens."""
        self.bytes: Final = half_precision_ratio(model)
        """Bytes in half precision over those of the model's files."""

    def patch_share(self, rows: float) -> Share:
        """Work of computing a share of the rows, against all keys and with all tokens of the text."""
        tokens = self.image * rows + 1 - self.image
        return Share(tokens, tokens, tokens)

    def alone_share(self, rows: float) -> Share:
        """Work of computing a share of the rows that see only themselves and the text."""
        tokens = self.image * rows + 1 - self.image
        return Share(tokens, tokens**2, tokens)


class SamplingCosts(TaskCosts):
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
        super().__init__(model, device, height * width)
        self._times: Final = tuple(_Times(*of) for of in zip(self.components, self.extents, strict=True))

    def forward_s(self, component: int, batch: float, share: Share = WHOLE) -> FloatArray:
        """The forward seconds of each layer of a component, shape (layers,).

        Args:
            component: its index.
            batch: samples in one pass.
            share: what one device does of them.
        """
        return self._times[component].forward_s(batch, share)

    def attention_s(self, component: int, batch: float, share: Share = WHOLE) -> FloatArray:
        """The seconds of each layer's self-attention alone, shape (layers,)."""
        return self._times[component].attention_s(batch, share)


class _Times:
    """Seconds of each class of work in each layer of a component, at one resolution."""

    def __init__(self, costs: ComponentCosts, extent: Extent) -> None:
        self._costs, self._extent = costs, extent
        self._work: dict[float, ForwardWork] = {}

    def forward_s(self, batch: float, share: Share) -> FloatArray:
        work = self._work_of(batch)
        parts = share.linear * work.linear + share.attention * work.attention + share.memory * work.memory
        return np.asarray(batch * parts + work.launches)

    def attention_s(self, batch: float, share: Share) -> FloatArray:
        return np.asarray(batch * share.attention * self._work_of(batch).attention)

    def _work_of(self, batch: float) -> ForwardWork:
        if batch not in self._work:
            work, tokens = self._costs.forward_work(batch, self._extent.bytes), self._extent.tokens
            self._work[batch] = ForwardWork(
                work.linear * tokens, work.attention * tokens**2, work.memory * tokens, work.launches
            )
        return self._work[batch]
