"""Layer times: lumped ones, of layers whose kernels nobody counted, and measured ones.

Lumped times follow from a layer's total work and the device's rates; where a device has only laws, its rates are those
at which they run kernels of a usual size. Measured times are of whole layers at the reference; for other resolutions
and shares they grow as estimates do.
"""

from abc import ABC, abstractmethod
from collections.abc import Iterable, Sequence
from dataclasses import astuple
from math import log
from typing import Final

import numpy as np
from numpy.typing import ArrayLike

from profiles.architectures.components import WORK, Component, MeasuredTime
from profiles.architectures.extents import Extent
from profiles.architectures.shares import WHOLE, Share
from profiles.machines.laws import ELEMENT_BYTES, Laws, Rates
from profiles.software.stacks import Stack
from profiles.units import FloatArray

BatchCurve = Sequence[tuple[float, float, float]]
"""(batch, forward seconds, backward seconds), ascending in the batch; linear between and beyond."""

BACKWARD_WORK: Final = {"full": (2.0, 2.5), "input": (1.0, 2.0), "none": (0.0, 0.0)}
"""Backward over forward work, by kind of backward pass: (attention apart, attention). A full pass computes input
and weight gradients, two products for each of the forward; attention's five for the forward's two (flash)."""
EACH_BATCH: Final = 4096
"""Batches up to this are tried one by one for the least time per sample; beyond, in spans of one part in so many."""
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
    attention_s = float(laws.attention.seconds(HEADS, TOKENS, TOKENS, HEAD_DIM))
    reached = stack.rates
    return Rates(
        conv_flop_per_s=reached.conv * 2 * TOKENS * WINDOW * CHANNELS**2 / convolution_s,
        matmul_flop_per_s=reached.matmul * 2 * TOKENS * WIDTH**2 / product_s,
        attention_flop_per_s=reached.attention * 4 * HEADS * HEAD_DIM * TOKENS**2 / attention_s,
        memory_bytes_per_s=reached.memory * laws.memory.bytes_per_s("pointwise"),
        kernel_s=max(laws.memory.fixed_s, stack.forward_operator_s),
    )


class LayerTimes(ABC):
    """Seconds of the layers of a component, measured or estimated; arrays of shape (layers,).

    By default nobody counted kernels, operators and copies, so that the GPU is never apart from the host.
    """

    norms_in_single = False
    """Whether norms run in single precision, under autocast."""

    def __init__(self, component: Component) -> None:
        self._component = component
        self._trained = np.array([kind == "full" for kind in component.backwards], dtype=float)

    @abstractmethod
    def forward_s(self, batch: ArrayLike, share: Share) -> FloatArray:
        """Forward seconds of each layer; of several batches, shape (batches, layers)."""

    @abstractmethod
    def attention_s(self, batch: float, share: Share, *, backward: bool = False) -> FloatArray:
        """Seconds of self-attention in ``gpu_s``, around a ring with the merging of its blocks, or in the backward."""

    @abstractmethod
    def attention_bytes(self) -> FloatArray:
        """Bytes per sample that attention leaves in each layer: its output, and what else its backward needs."""

    @abstractmethod
    def backward_s(self, batch: float, share: Share) -> tuple[FloatArray, FloatArray]:
        """Backward seconds of each layer: of the gradients of inputs, and of weights."""

    def gpu_s(self, batch: ArrayLike, share: Share) -> FloatArray:
        """Seconds of the GPU alone in the forward of each layer."""
        return self.forward_s(batch, share)

    def beside_attention_s(self, batch: float, share: Share) -> FloatArray:
        """Forward seconds of each layer without attention: what runs again where attention's output was kept."""
        return self.forward_s(batch, share) - self.attention_s(batch, share)

    def host_s(self) -> FloatArray:
        """Seconds in which the host dispatches the forward of each layer, beside the GPU."""
        return np.zeros_like(self._trained)

    def copied_s(self, moved_bytes: float, launches: int) -> float:
        """Seconds of copies beside the layers that read and write so many bytes in all."""
        return 0.0

    def saved_bytes(self) -> FloatArray:
        """Bytes per sample that the stack keeps for each layer's backward beside ``Layer.saved_bytes``."""
        return np.zeros_like(self._trained)

    def largest_bytes(self) -> FloatArray:
        """Bytes per sample of the largest tensor that each layer writes, shape (layers,); 0 if nobody counted it."""
        return np.zeros_like(self._trained)

    def both_backward_s(self, batch: float, share: Share) -> FloatArray:
        """Backward seconds of each layer."""
        return np.asarray(np.sum(self.backward_s(batch, share), axis=0))

    def weight_s(self, batch: float) -> FloatArray:
        """Seconds of weight gradients among them, of the whole work."""
        return self.backward_s(batch, WHOLE)[1]

    def least_s_per_sample(self, largest_batch: int) -> FloatArray:
        """Least forward seconds per sample of each layer, at any batch up to the largest."""
        batches = np.arange(1.0, min(largest_batch, EACH_BATCH) + 1)
        least = np.min(self.forward_s(batches, WHOLE) / batches[:, None], axis=0)
        if largest_batch > EACH_BATCH:  # a larger batch never takes the GPU less
            count = int(EACH_BATCH * log(largest_batch / EACH_BATCH)) + 1
            marks = np.unique(np.ceil(np.geomspace(EACH_BATCH + 1.0, largest_batch + 1.0, count + 1)))
            per_sample = self.gpu_s(marks[:-1], WHOLE) / (marks[1:, None] - 1)
            least = np.minimum(least, np.min(per_sample, axis=0))
        return np.asarray(least)

    def _halved(self, total_s: FloatArray) -> tuple[FloatArray, FloatArray]:
        """Backward seconds, half of them of the weights' gradients where a layer is trained.

        Source: Qi et al., Zero Bubble Pipeline Parallelism, 2023, section 2 (T_B close to T_W).
        """
        weights_s = np.where(self._trained, total_s / 2, 0.0)
        return total_s - weights_s, weights_s


class LumpedTimes(LayerTimes):
    """Estimated seconds of the layers of a component; without rates, all are 0."""

    def __init__(self, component: Component, rates: Rates | None, extent: Extent) -> None:
        super().__init__(component)
        amounts = np.array(
            [[getattr(layer, key) for key in WORK] for layer in component.layers], dtype=float
        ).T
        *per_s, kernel_s = astuple(rates) if rates else (np.inf,) * 4 + (0.0,)
        conv, matmul, self._pairs, memory = amounts / np.array(per_s)[:, None]
        self._launches = kernel_s * np.array([layer.kernels for layer in component.layers])
        self._products, self._memory, self._extent = conv + matmul, memory * extent.bytes, extent
        self._others_back, self._pairs_back = np.array(
            [BACKWARD_WORK[kind] for kind in component.backwards]
        ).T

    def forward_s(self, batch: ArrayLike, share: Share) -> FloatArray:
        """Forward seconds of each layer; launches do not grow with the batch."""
        samples = np.asarray(batch, dtype=float)[..., None]
        return np.asarray(samples * (self._others(share) + self._attention(share)) + self._launches)

    def attention_s(self, batch: float, share: Share, *, backward: bool = False) -> FloatArray:
        """Seconds of self-attention in each layer's forward or backward."""
        return np.asarray((self._pairs_back if backward else 1.0) * batch * self._attention(share))

    def attention_bytes(self) -> FloatArray:
        """Bytes per sample that self-attention leaves in each layer: as many as the layer's output has.

        Heads together are as wide as the hidden state.
        """
        sizes = [layer.output_bytes * (layer.attention_flop > 0) for layer in self._component.layers]
        return np.array(sizes) * self._extent.tokens

    def backward_s(self, batch: float, share: Share) -> tuple[FloatArray, FloatArray]:
        """Backward seconds of each layer: of the gradients of inputs, and of weights."""
        others_s = self._others_back * (batch * self._others(share) + self._launches)
        return self._halved(others_s + self.attention_s(batch, share, backward=True))

    def _others(self, share: Share) -> FloatArray:
        """Seconds of one sample's work apart from self-attention."""
        extent = self._extent
        tokens = extent.tokens * (
            extent.image * share.rows / share.sequence + (1 - extent.image) / share.text
        )
        return np.asarray(tokens * (self._products / share.tensor + self._memory * share.replicated))

    def _attention(self, share: Share) -> FloatArray:
        """Seconds of one sample's self-attention."""
        extent = self._extent
        pairs = extent.tokens**2 * extent.tokens_share(share.rows) * extent.tokens_share(share.keys)
        return np.asarray(pairs / (share.sequence * share.tensor) * self._pairs)


class MeasuredTimes(LayerTimes):
    """Measured seconds of the layers of a component.

    ``here`` and ``reference`` are estimates at the extent and at the reference, without the host.
    """

    def __init__(
        self,
        component: Component,
        times: Sequence[MeasuredTime],
        extent: Extent,
        here: LayerTimes,
        reference: LayerTimes,
    ) -> None:
        super().__init__(component)
        self._curves = _curves(times, len(component.layers))
        self._extent, self._here, self._reference = extent, here, reference
        self.norms_in_single = here.norms_in_single

    def forward_s(self, batch: ArrayLike, share: Share) -> FloatArray:
        """Forward seconds of each layer."""
        batches = np.asarray(batch, dtype=float)
        if batches.ndim:
            return np.array([self._forward_s(float(samples), share) for samples in batches])
        return self._forward_s(float(batches), share)

    def attention_s(self, batch: float, share: Share, *, backward: bool = False) -> FloatArray:
        """Seconds of self-attention in each layer's forward or backward, in proportion to the estimate."""
        estimated_s, measured_s = (
            times.both_backward_s(batch, share) if backward else times.gpu_s(batch, share)
            for times in (self._here, self)
        )
        part = _over(self._here.attention_s(batch, share, backward=backward), estimated_s, np.zeros(1))
        return np.asarray(part * measured_s)

    def beside_attention_s(self, batch: float, share: Share) -> FloatArray:
        """Forward seconds without attention, in proportion to the estimate; all of them where that is 0."""
        beside_s, whole_s = self._here.beside_attention_s(batch, share), self._here.forward_s(batch, share)
        return np.asarray(_over(beside_s, whole_s, np.ones(1)) * self.forward_s(batch, share))

    def attention_bytes(self) -> FloatArray:
        """Bytes per sample that attention leaves, as estimated."""
        return self._here.attention_bytes()

    def backward_s(self, batch: float, share: Share) -> tuple[FloatArray, FloatArray]:
        """Backward seconds of each layer: of the gradients of inputs, and of weights."""
        return self._halved(self._at(batch, 2) * self._growth(batch, share))

    def copied_s(self, moved_bytes: float, launches: int) -> float:
        """Seconds of copies beside the layers, as estimated."""
        return self._here.copied_s(moved_bytes, launches)

    def largest_bytes(self) -> FloatArray:
        """Bytes of the largest tensors, as counted."""
        return self._here.largest_bytes()

    def least_s_per_sample(self, largest_batch: int) -> FloatArray:
        """Least forward seconds per sample at any batch up to the largest.

        Between two measured batches the time per sample is monotone, so the ends of the pieces decide.
        """
        batches = {1, largest_batch}
        batches |= {int(x) for curve in self._curves for x, _, _ in curve if 1 <= x <= largest_batch}
        each = [self._forward_s(batch, WHOLE) / batch for batch in sorted(batches)]
        return np.asarray(np.min(each, axis=0))

    def _forward_s(self, batch: float, share: Share) -> FloatArray:
        """Forward seconds: what one sample takes beyond what a second one adds are launches, which do not grow."""
        one, two, seconds = (self._at(samples, 1) for samples in (1, 2, batch))
        fixed_s = np.minimum(np.maximum(0.0, one - np.maximum(0.0, two - one)), seconds)
        return fixed_s + (seconds - fixed_s) * self._growth(batch, share)

    def _growth(self, batch: float, share: Share) -> FloatArray:
        """Work of one device over that of the whole reference, as estimated; by tokens where that is 0."""
        if share == WHOLE and self._extent.pixels == 1:
            return np.ones(len(self._curves))
        tokens = self._extent.tokens * self._extent.tokens_share(share.rows) / share.sequence / share.tensor
        here, there = (
            times.forward_s(batch, at_share) - times.forward_s(0.0, at_share)
            for times, at_share in ((self._here, share), (self._reference, WHOLE))
        )
        return _over(here, there, np.array(tokens))

    def _at(self, batch: float, column: int) -> FloatArray:
        return np.array([_line(curve, batch, column) for curve in self._curves])


def _over(parts: FloatArray, wholes: FloatArray, otherwise: FloatArray) -> FloatArray:
    """Quotients; ``otherwise`` where the whole is 0."""
    return np.divide(parts, wholes, out=np.broadcast_to(otherwise, wholes.shape).copy(), where=wholes > 0)


def _curves(times: Iterable[MeasuredTime], num_layers: int) -> list[BatchCurve]:
    curves: list[list[tuple[float, float, float]]] = [[] for _ in range(num_layers)]
    for time in times:
        curves[time.layer].append((time.batch_size, time.forward_s, time.backward_s))
    return [curve if len(curve) > 1 else [(0.0, 0.0, 0.0), *curve] for curve in curves]


def _line(curve: BatchCurve, batch: float, column: int) -> float:
    upper = 1
    while upper < len(curve) - 1 and curve[upper][0] < batch:
        upper += 1
    (x0, x1), (y0, y1) = ((curve[upper - 1][i], curve[upper][i]) for i in (0, column))
    return max(0.0, y0 + (y1 - y0) * (batch - x0) / (x1 - x0))
