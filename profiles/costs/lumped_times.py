"""Lumped times: seconds of layers whose kernels nobody counted, from their total work and the device's rates.

Where a device has only laws, its rates are those at which they run kernels of a usual size.
"""

from typing import Final

import numpy as np
from numpy.typing import ArrayLike, NDArray

from profiles.architectures.components import Component, Layer
from profiles.architectures.shares import Extent, Share
from profiles.machines.devices import Rates
from profiles.machines.laws import ELEMENT_BYTES, Laws
from profiles.software.stacks import Stack

FloatArray = NDArray[np.float64]

BACKWARD_WORK: Final = {"full": (2.0, 2.5), "input": (1.0, 2.0), "none": (0.0, 0.0)}
"""Backward over forward work, by kind of backward pass: (attention apart, attention). A full pass computes input
and weight gradients, two products for each of the forward; attention's five for the forward's two (flash)."""
TOKENS: Final = 4096
"""Tokens of a usual kernel: those of a diffusion transformer for an image of 1024 x 1024 pixels."""
HEADS: Final = 24
HEAD_DIM: Final = 64
WIDTH: Final = HEADS * HEAD_DIM
"""Channels of a usual product, divided into heads by attention."""
CHANNELS: Final = 640
"""Channels of a usual convolution, in and out."""
WINDOW: Final = 9
"""Positions of its window, 3 x 3."""


def rates_of(laws: Laws, stack: Stack) -> Rates:
    """Rates at which a device's laws run kernels of a usual size, in the shares that a stack reaches.

    A launch takes the host's time or the GPU's, whichever is longer.
    """
    product_s = float(laws.matmul_s(1, TOKENS, WIDTH, WIDTH))
    moved_bytes = ELEMENT_BYTES * (2 * TOKENS * CHANNELS + WINDOW * CHANNELS**2)
    convolution_s = float(laws.conv_s(1, TOKENS, CHANNELS, WINDOW * CHANNELS, moved_bytes))
    attention_s = float(laws.attention_s(HEADS, TOKENS, TOKENS, HEAD_DIM))
    reached = stack.rates
    return Rates(
        conv_flop_per_s=reached.conv * 2 * TOKENS * WINDOW * CHANNELS**2 / convolution_s,
        matmul_flop_per_s=reached.matmul * 2 * TOKENS * WIDTH**2 / product_s,
        attention_flop_per_s=reached.attention * 4 * HEADS * HEAD_DIM * TOKENS**2 / attention_s,
        memory_bytes_per_s=reached.memory * laws.memory.bytes_per_s("pointwise"),
        kernel_s=max(laws.memory.fixed_s, stack.forward_operator_s),
    )


def _layer_work(layer: Layer, rates: Rates) -> tuple[float, float, float, float, float]:
    """Forward seconds of a layer's totals: of one sample's work by class, and of the launches of a pass."""
    return (
        layer.conv_flop / rates.conv_flop_per_s,
        layer.matmul_flop / rates.matmul_flop_per_s,
        layer.attention_flop / rates.attention_flop_per_s,
        layer.moved_bytes / rates.memory_bytes_per_s,
        layer.kernels * rates.kernel_s,
    )


def attended_bytes(component: Component, extent: Extent) -> FloatArray:
    """Bytes per sample that self-attention leaves in each layer: as many as the layer's output has.

    Heads together are as wide as the hidden state.
    """
    attends = np.array([layer.attention_flop > 0 for layer in component.layers])
    sizes = np.array([layer.output_bytes for layer in component.layers]) * extent.tokens
    return np.where(attends, sizes, 0.0)


class LumpedTimes:
    """Estimated seconds of the layers of a component."""

    def __init__(self, component: Component, rates: Rates, extent: Extent) -> None:
        work = np.array([_layer_work(layer, rates) for layer in component.layers]).T
        conv, matmul, self._pairs, memory, self._launches = work
        self._products, self._memory = conv + matmul, memory * extent.bytes
        self._component, self._extent = component, extent
        self._others_back, self._pairs_back = np.array(
            [BACKWARD_WORK[layer.backward] for layer in component.layers]
        ).T
        self._trained = np.array([layer.backward == "full" for layer in component.layers])

    def forward_s(self, batch: ArrayLike, share: Share) -> FloatArray:
        """Forward seconds of each layer; launches do not grow with the batch."""
        samples = np.asarray(batch, dtype=float)[..., None]
        return np.asarray(samples * (self._others(share) + self._attention(share)) + self._launches)

    def gpu_s(self, batch: ArrayLike, share: Share) -> FloatArray:
        """Forward seconds of each layer; a launch takes the longer of host and GPU, which totals cannot tell apart."""
        return self.forward_s(batch, share)

    def host_s(self) -> FloatArray:
        """Zeros: operators are not counted."""
        return np.zeros_like(self._launches)

    def attention_s(self, batch: float, share: Share) -> FloatArray:
        """Seconds of self-attention in each layer's forward."""
        return batch * self._attention(share)

    def attention_backward_s(self, batch: float, share: Share) -> FloatArray:
        """Seconds of self-attention in each layer's backward."""
        return np.asarray(self._pairs_back * batch * self._attention(share))

    def beside_attention_s(self, batch: float, share: Share) -> FloatArray:
        """Forward seconds of each layer without self-attention."""
        return np.asarray(batch * self._others(share) + self._launches)

    def attention_bytes(self) -> FloatArray:
        """Bytes per sample that self-attention leaves in each layer."""
        return attended_bytes(self._component, self._extent)

    def backward_s(self, batch: float, share: Share) -> tuple[FloatArray, FloatArray]:
        """Backward seconds of each layer, half of them of its weights' gradients where it is trained.

        Source: Qi et al., Zero Bubble Pipeline Parallelism, 2023, section 2 (T_B close to T_W).
        """
        others_s = self._others_back * (batch * self._others(share) + self._launches)
        total_s = others_s + self._pairs_back * batch * self._attention(share)
        weights_s = np.where(self._trained, total_s / 2, 0.0)
        return total_s - weights_s, weights_s

    def copied_s(self, moved_bytes: float, launches: int) -> float:
        """Zero: where kernels are not counted, neither are copies."""
        return 0.0

    def saved_bytes(self) -> FloatArray:
        """Zeros: ``Layer.saved_bytes`` is all that is kept."""
        return np.zeros_like(self._launches)

    def _others(self, share: Share) -> FloatArray:
        """Seconds of one sample's work apart from self-attention."""
        of = self._extent
        tokens = of.tokens * (of.image * share.rows / share.sequence + (1 - of.image) / share.text)
        return np.asarray(tokens * (self._products / share.tensor + self._memory * share.replicated))

    def _attention(self, share: Share) -> FloatArray:
        """Seconds of one sample's self-attention."""
        of = self._extent
        pairs = of.tokens**2 * of.tokens_share(share.rows) * of.tokens_share(share.keys)
        return np.asarray(pairs / (share.sequence * share.tensor) * self._pairs)
