"""Laws of kernels: seconds of one launch on a device, from the shapes of its operands, in half precision.

Shapes are arrays or numbers that broadcast against one another. They are those of a launch, whatever the batch:
rows of all samples stand in ``m`` where they share the other operand (linear layers, convolutions), samples multiply
``heads`` where each has its own (batched products, attention). Backward kernels go by the shape of their forward one.
Every law grows with every shape, and none is faster than its device's peaks allow. One exception: where wide heads have
a kernel of their own, a head of 128 channels may take less than one of 96.
"""

from dataclasses import dataclass, replace
from typing import Annotated, Final, Literal

import numpy as np
from numpy.typing import ArrayLike

from profiles.checks import AT_LEAST_1, Positive, check_fields
from profiles.units import FloatArray

KernelPart = Literal["forward", "data", "weight"]
"""A kernel of a layer: its forward pass, the gradient of its input, the gradient of its weight."""
PARTS: Final[tuple[KernelPart, ...]] = ("forward", "data", "weight")
MEMORY_KINDS: Final = ("pointwise", "copy", "layer_norm", "group_norm", "softmax")
ELEMENT_BYTES: Final = 2.0
"""Laws hold for half precision."""
HEAD_DIMS: Final = np.array([32.0, 64.0, 96.0, 128.0, 192.0, 256.0])
"""Fused attention exists for these head dimensions; others are padded to the next (FlashAttention-2)."""
WIDE_CHANNELS: Final = 128.0
"""Channels from which a head may have a kernel of its own."""
SCALED_SIDE: Final = 32
"""Fewest rows, outputs and inputs of a product in fewer bits: the numbers that share a scale in mxfp8 (OCP Microscaling
Formats 1.0, section 5.2)."""
TILES: Final = ((256, 128), (128, 256), (128, 128), (128, 64), (64, 128), (64, 64))
"""Rows and columns of a result that one multiprocessor computes at a time (CUTLASS's usual thread blocks)."""
BACKWARD_FLOP: Final = 2.5
"""Attention's backward pass makes five products for the forward pass's two (FlashAttention, section 3)."""
BACKWARD_KERNELS: Final = 3
"""Launches of a backward pass (FlashAttention-2): row sums, gradients, conversion of the queries' gradient."""


@dataclass(frozen=True, slots=True)
class Rates:
    """FLOP and bytes per second that a device reaches, by class of work, and seconds of a kernel's launch."""

    conv_flop_per_s: Positive
    matmul_flop_per_s: Positive
    attention_flop_per_s: Positive
    memory_bytes_per_s: Positive
    kernel_s: float

    def __post_init__(self) -> None:
        check_fields("rates", self)


@dataclass(frozen=True, slots=True)
class Traffic:
    """Rates at which the operands and results of a kernel move.

    Attributes:
        cache_bytes: as much of what a kernel moves lies in the second-level cache. 0 where the cache makes no
            difference.
    """

    bytes_per_s: Positive
    cache_bytes: float = 0.0
    cache_bytes_per_s: float = 0.0

    def moved_s(self, moved_bytes: FloatArray) -> FloatArray:
        """Seconds for so many bytes."""
        if not self.cache_bytes:
            return moved_bytes / self.bytes_per_s
        cached = np.minimum(moved_bytes, self.cache_bytes)
        return np.asarray((moved_bytes - cached) / self.bytes_per_s + cached / self.cache_bytes_per_s)


@dataclass(frozen=True, slots=True, kw_only=True)
class ProductLaw(Traffic):
    """Seconds of a matrix product, or of a convolution as the product it implies.

    Attributes:
        fixed_s: of a launch, however small.
        flop_per_s: rate of large products.
        chain_s: per root of the inner dimension: sums that follow one another, however many may run at once.
        ramp: inner steps that every tile of the result takes to begin and to end, during which it hides no traffic.
        processors: multiprocessors, each of which computes tile after tile, so that some idle during the last; 0 where
            measurements show none, as what others leave of the power lets these run faster.
        edge: rows and columns beside a tile whose work its multiprocessor could do while it loads the operands.
        peak_flop_per_s: rate at which the multiprocessors compute tiles.
        forward: seconds over those of the law in a forward pass.
        data: likewise in the gradient of the input.
        weight: likewise in the gradient of the weight.
    """

    fixed_s: float
    flop_per_s: Positive
    chain_s: float = 0.0
    ramp: float = 0.0
    processors: float = 0.0
    edge: float = 0.0
    peak_flop_per_s: float = 0.0
    forward: Positive = 1.0
    data: Positive = 1.0
    weight: Positive = 1.0

    def seconds(
        self, heads: FloatArray, m: FloatArray, n: FloatArray, k: FloatArray, moved_bytes: FloatArray
    ) -> FloatArray:
        """Seconds of ``heads`` products of m x k by k x n that move so many bytes in all."""
        step = 2 * heads * m * n / self.flop_per_s
        if self.processors:
            step = np.maximum(step, self._tiled(heads, m, n))
        alone = self.fixed_s + step * self.ramp + self.chain_s * np.sqrt(k)
        return alone + _overlapped(step * k, self.moved_s(moved_bytes))

    def _tiled(self, heads: FloatArray, m: FloatArray, n: FloatArray) -> FloatArray:
        """Seconds of an inner step of whole waves of tiles; a wave that fills no device divides the inner dimension."""
        seconds = []
        for rows, columns in TILES:
            waves = heads * np.ceil(m / rows) * np.ceil(n / columns) / self.processors
            work = 2 * self.processors * (rows * columns + self.edge * (rows + columns))
            seconds.append(np.where(waves > 1, np.ceil(waves), waves) * work / self.peak_flop_per_s)
        return np.asarray(np.minimum.reduce(seconds))


@dataclass(frozen=True, slots=True, kw_only=True)
class AttentionLaw(Traffic):
    """Seconds of fused attention, forward and backward.

    Attributes:
        fixed_s: of a launch, however small.
        flop_per_s: rate of the products alone.
        rows: queries that keep the device busy about as long as its last, half empty wave does.
        keys: keys that every query costs on top of its own.
        channels: head channels whose products take as long as the exponential of a score.
        overlap: exponent by which products and exponentials, which run on separate units, hide one another: 1 adds
            the two, infinity takes the longer.
        wide: forward work of heads of 128 channels or more over that of the law, where a kernel of their own runs them.
        backward_flop_per_s: rate of the products alone, backward.
    """

    fixed_s: float
    flop_per_s: Positive
    rows: float = 0.0
    keys: float = 0.0
    channels: float = 0.0
    backward_flop_per_s: Positive
    backward_rows: float = 0.0
    overlap: Annotated[float, AT_LEAST_1] = 1.0
    wide: Positive = 1.0

    def seconds(
        self,
        heads: ArrayLike,
        queries: ArrayLike,
        keys: ArrayLike,
        head_dim: ArrayLike,
        *,
        backward: bool = False,
    ) -> FloatArray:
        """Seconds of the kernels of a pass, in which every query sees every key; ``heads`` of all samples."""
        heads, queries, keys, head_dim = _floats(heads, queries, keys, head_dim)
        scores = (heads * queries + (self.backward_rows if backward else self.rows)) * (keys + self.keys)
        moved = 2 * ELEMENT_BYTES * heads * (queries + keys) * head_dim
        if backward:  # operands and their gradients move
            return self.backward_of_scores(scores, head_dim, 2 * moved)
        return self.of_scores(scores, head_dim, moved)

    def of_scores(self, scores: FloatArray, head_dim: FloatArray, moved_bytes: FloatArray) -> FloatArray:
        """Seconds of a forward kernel that computes so many scores and moves so many bytes."""
        work = 4 * scores * self._forward_channels(head_dim) / self.flop_per_s
        return self.fixed_s + _overlapped(work, self.moved_s(moved_bytes))

    def backward_of_scores(
        self, scores: FloatArray, head_dim: FloatArray, moved_bytes: FloatArray
    ) -> FloatArray:
        """Seconds of backward kernels that compute so many scores and move so many bytes."""
        work = 4 * BACKWARD_FLOP * scores * self._channels(head_dim) / self.backward_flop_per_s
        return BACKWARD_KERNELS * self.fixed_s + _overlapped(work, self.moved_s(moved_bytes))

    @property
    def wide_flop_per_s(self) -> float:
        """FLOP per second of large attention with heads of 128 channels, forward."""
        return float(self.flop_per_s * WIDE_CHANNELS / self._forward_channels(np.array(WIDE_CHANNELS)))

    def _forward_channels(self, head_dim: FloatArray) -> FloatArray:
        """The same of a forward kernel; one of wide heads takes no less than their products alone."""
        channels, alone = self._channels(head_dim), padded(head_dim)
        return np.where(alone >= WIDE_CHANNELS, np.maximum(alone, self.wide * channels), channels)

    def _channels(self, head_dim: FloatArray) -> FloatArray:
        """Channels whose products take as long as a head's products and the exponential of its score."""
        both = padded(head_dim) ** self.overlap + self.channels**self.overlap
        return np.asarray(both ** (1 / self.overlap))


@dataclass(frozen=True, slots=True)
class MemoryLaw:
    """Seconds of kernels that do little but read and write, by kind.

    With ``cache_bytes``, the second-level cache keeps for them what the kernel before left there (``Traffic``).
    """

    fixed_s: float
    pointwise_bytes_per_s: Positive
    copy_bytes_per_s: Positive
    layer_norm_bytes_per_s: Positive
    group_norm_bytes_per_s: Positive
    softmax_bytes_per_s: Positive
    cache_bytes: float = 0.0
    cache_bytes_per_s: float = 0.0

    def bytes_per_s(self, kind: str) -> float:
        """Bytes per second that kernels of a kind read and write."""
        return float(getattr(self, f"{kind}_bytes_per_s"))

    def seconds(self, kind: str, moved_bytes: FloatArray) -> FloatArray:
        """Seconds of kernels of a kind."""
        traffic = Traffic(self.bytes_per_s(kind), self.cache_bytes, self.cache_bytes_per_s)
        return self.fixed_s + traffic.moved_s(moved_bytes)


@dataclass(frozen=True, slots=True)
class Smaller:
    """Matrix products in fewer bits than half precision: of one matrix each, whose sides all fill a block of scales.

    A product casts its first operand, activations or their gradient, which lies in half precision; the other was cast
    before. The gradient of a weight takes operands that were cast along their rows along their columns.

    Attributes:
        law: of such a product without what grows with the cast.
        element_bytes: of a number with its part of a scale.
        cast_bytes: what a pointwise kernel moves in the time in which an element is cast, scale and all.
        pace: seconds over those of the law.
    """

    law: ProductLaw
    element_bytes: float
    cast_bytes: float
    pace: float = 1.0

    @staticmethod
    def covers(heads: FloatArray, m: FloatArray, n: FloatArray, k: FloatArray) -> FloatArray:
        """Return whether products run in fewer bits."""
        return np.asarray((heads == 1) & (np.minimum(np.minimum(m, n), k) >= SCALED_SIDE))

    def cast_to(self, part: KernelPart, m: FloatArray, n: FloatArray, k: FloatArray) -> FloatArray:
        """Bytes that a pointwise kernel moves in the time of the casts of a part."""
        if part == "weight":
            return self.element_bytes * m * (n + k)
        return self.cast_bytes * m * (k if part == "forward" else n)


@dataclass(frozen=True, slots=True)
class Laws:
    """Laws of a device, one for each class of kernels; ``smaller``: of matrix products in fewer bits."""

    matmul: ProductLaw
    conv: ProductLaw
    attention: AttentionLaw
    memory: MemoryLaw
    smaller: Smaller | None = None

    @classmethod
    def of_rates(cls, rates: Rates) -> "Laws":
        """Laws of a device that is known by constant rates alone: work and bytes over their rates, and a launch."""
        bytes_per_s, flop_per_s = rates.memory_bytes_per_s, rates.attention_flop_per_s
        both = {"bytes_per_s": bytes_per_s, "fixed_s": rates.kernel_s}
        matmul = ProductLaw(flop_per_s=rates.matmul_flop_per_s, **both)
        attention = AttentionLaw(flop_per_s=flop_per_s, backward_flop_per_s=flop_per_s, **both)
        memory = MemoryLaw(rates.kernel_s, *[bytes_per_s] * len(MEMORY_KINDS))
        return cls(matmul, replace(matmul, flop_per_s=rates.conv_flop_per_s), attention, memory)

    def matmul_s(
        self, heads: ArrayLike, m: ArrayLike, n: ArrayLike, k: ArrayLike, *, part: KernelPart = "forward"
    ) -> FloatArray:
        """Seconds of ``heads`` products of m x k by k x n, or of the products of one of their gradients."""
        heads, m, n, k = _floats(heads, m, n, k)
        moved = ELEMENT_BYTES * heads * (m * k + k * n + m * n)
        shape = {"forward": (m, n, k), "data": (m, k, n), "weight": (n, k, m)}[part]
        factor, smaller = _factor(self.matmul, part), self.smaller
        seconds = factor * self.matmul.seconds(heads, *shape, moved)
        if smaller is None:
            return seconds
        rows, columns, inner = shape
        moved = smaller.element_bytes * inner * (rows + columns) + ELEMENT_BYTES * rows * columns
        cast_s = smaller.cast_to(part, m, n, k) / self.memory.pointwise_bytes_per_s
        faster_s = smaller.pace * (factor * smaller.law.seconds(heads, *shape, moved) + cast_s)
        return np.where(smaller.covers(heads, m, n, k), faster_s, seconds)

    def conv_s(
        self,
        heads: ArrayLike,
        m: ArrayLike,
        n: ArrayLike,
        k: ArrayLike,
        moved_bytes: ArrayLike,
        *,
        part: KernelPart = "forward",
    ) -> FloatArray:
        """Seconds of a convolution, or of one of its gradients.

        The gradient of the input is a convolution with the channels exchanged; it goes by the forward shape.

        Args:
            heads: groups.
            m: output positions of all samples.
            n: output channels of a group.
            k: input channels of a group, times kernel height, times kernel width.
            moved_bytes: of input, output and weight together, each once.
            part: forward, or which gradient.
        """
        heads, m, n, k, moved = _floats(heads, m, n, k, moved_bytes)
        shape = {"forward": (m, n, k), "data": (m, n, k), "weight": (n, k, m)}
        return _factor(self.conv, part) * self.conv.seconds(heads, *shape[part], moved)

    def memory_s(self, kind: str, moved_bytes: ArrayLike) -> FloatArray:
        """Seconds of kernels of a kind that read and write so many bytes."""
        return self.memory.seconds(kind, *_floats(moved_bytes))


def padded(head_dim: FloatArray) -> FloatArray:
    """Head dimension to which fused attention pads; beyond the largest kernel nothing is padded."""
    at = np.searchsorted(HEAD_DIMS, head_dim)
    beyond = np.maximum(head_dim, HEAD_DIMS[-1])
    return np.where(at < len(HEAD_DIMS), HEAD_DIMS[np.minimum(at, len(HEAD_DIMS) - 1)], beyond)


def _overlapped(work: FloatArray, traffic: FloatArray) -> FloatArray:
    """Seconds of work and traffic that partly hide one another.

    Exponent 1 would add the two, infinity take the longer. Four devices fit best with 1.5 (A100) to 6 (L40S); 3 costs
    none of them more than half a percentage point of median error.
    """
    return np.cbrt(work * work * work + traffic * traffic * traffic)


def _factor(law: ProductLaw, part: KernelPart) -> float:
    return float(getattr(law, part))


def _floats(*values: ArrayLike) -> tuple[FloatArray, ...]:
    return tuple(np.asarray(value, dtype=float) for value in values)
