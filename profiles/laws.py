"""Laws of kernels: seconds of one launch on a device, from the shapes of its operands, in half precision.

Shapes are arrays or numbers that broadcast against one another. They are those of a launch, whatever the batch:
rows of all samples stand in ``m`` where they share the other operand (linear layers, convolutions), samples multiply
``heads`` where each has its own (batched products, attention). Backward kernels go by the shape of their forward one.
"""

from dataclasses import dataclass
from typing import TYPE_CHECKING, Final, Literal

import numpy as np
from numpy.typing import ArrayLike, NDArray

from profiles.checks import check_choice, check_numbers, check_positive

if TYPE_CHECKING:
    from profiles.devices import Rates

FloatArray = NDArray[np.float64]

Part = Literal["forward", "data", "weight"]
"""A kernel of a layer: its forward pass, the gradient of its input, the gradient of its weight."""
PARTS: Final[tuple[Part, ...]] = ("forward", "data", "weight")
MEMORY_KINDS: Final = ("pointwise", "copy", "layer_norm", "group_norm", "softmax")
ELEMENT_BYTES: Final = 2.0
"""Laws hold for half precision."""


@dataclass(frozen=True, slots=True)
class ProductLaw:
    """Seconds of a matrix product, or of a convolution as the product it implies.

    Attributes:
        fixed_s: of a launch, however small.
        flop_per_s: pace of large products.
        bytes_per_s: pace at which operands are read and the result is written.
    """

    fixed_s: float
    flop_per_s: float
    bytes_per_s: float

    def __post_init__(self) -> None:
        check_positive("laws", flop_per_s=self.flop_per_s, bytes_per_s=self.bytes_per_s)
        check_numbers("laws", fixed_s=self.fixed_s)

    def seconds(
        self, heads: FloatArray, m: FloatArray, n: FloatArray, k: FloatArray, moved_bytes: FloatArray
    ) -> FloatArray:
        """Seconds of ``heads`` products of m x k by k x n that move so many bytes."""
        return self.fixed_s + 2 * heads * m * n * k / self.flop_per_s + moved_bytes / self.bytes_per_s


@dataclass(frozen=True, slots=True)
class AttentionLaw:
    """Seconds of fused attention, forward and backward."""

    fixed_s: float
    flop_per_s: float
    bytes_per_s: float
    backward_flop_per_s: float

    def __post_init__(self) -> None:
        check_positive(
            "laws",
            flop_per_s=self.flop_per_s,
            bytes_per_s=self.bytes_per_s,
            backward_flop_per_s=self.backward_flop_per_s,
        )
        check_numbers("laws", fixed_s=self.fixed_s)

    def seconds(
        self, heads: FloatArray, queries: FloatArray, keys: FloatArray, head_dim: FloatArray
    ) -> FloatArray:
        """Seconds of the forward kernel: two products per head."""
        flop, moved = _attention_work(heads, queries, keys, head_dim)
        return self.fixed_s + flop / self.flop_per_s + moved / self.bytes_per_s

    def backward_seconds(
        self, heads: FloatArray, queries: FloatArray, keys: FloatArray, head_dim: FloatArray
    ) -> FloatArray:
        """Seconds of the backward kernels: five products per head, operands and gradients moved."""
        flop, moved = _attention_work(heads, queries, keys, head_dim)
        return self.fixed_s + 2.5 * flop / self.backward_flop_per_s + 2 * moved / self.bytes_per_s


def _attention_work(
    heads: FloatArray, queries: FloatArray, keys: FloatArray, head_dim: FloatArray
) -> tuple[FloatArray, FloatArray]:
    return 4 * heads * queries * keys * head_dim, ELEMENT_BYTES * 2 * heads * (queries + keys) * head_dim


@dataclass(frozen=True, slots=True)
class MemoryLaw:
    """Seconds of kernels that do little but read and write, by kind."""

    fixed_s: float
    pointwise_bytes_per_s: float
    copy_bytes_per_s: float
    layer_norm_bytes_per_s: float
    group_norm_bytes_per_s: float
    softmax_bytes_per_s: float

    def __post_init__(self) -> None:
        check_positive("laws", **{f"{kind}_bytes_per_s": self.bytes_per_s(kind) for kind in MEMORY_KINDS})
        check_numbers("laws", fixed_s=self.fixed_s)

    def bytes_per_s(self, kind: str) -> float:
        """Pace of a kind, in bytes that must be read and written."""
        check_choice("laws", "kind", kind, MEMORY_KINDS)
        return float(getattr(self, f"{kind}_bytes_per_s"))

    def seconds(self, kind: str, moved_bytes: FloatArray) -> FloatArray:
        """Seconds of kernels of a kind."""
        return self.fixed_s + moved_bytes / self.bytes_per_s(kind)


@dataclass(frozen=True, slots=True)
class Laws:
    """Laws of a device, one for each class of kernels; ``matmul`` and ``conv`` have one for each part of a layer."""

    matmul: tuple[ProductLaw, ProductLaw, ProductLaw]
    conv: tuple[ProductLaw, ProductLaw, ProductLaw]
    attention: AttentionLaw
    memory: MemoryLaw

    @classmethod
    def of_rates(cls, rates: "Rates") -> "Laws":
        """Laws of a device that is known by constant rates alone: work over rate, bytes over pace, and a launch."""
        matmul = ProductLaw(rates.kernel_s, rates.matmul_flop_per_s, rates.memory_bytes_per_s)
        conv = ProductLaw(rates.kernel_s, rates.conv_flop_per_s, rates.memory_bytes_per_s)
        attention = AttentionLaw(
            rates.kernel_s, rates.attention_flop_per_s, rates.memory_bytes_per_s, rates.attention_flop_per_s
        )
        memory = MemoryLaw(rates.kernel_s, *[rates.memory_bytes_per_s] * len(MEMORY_KINDS))
        return cls((matmul,) * 3, (conv,) * 3, attention, memory)

    def matmul_s(
        self, heads: ArrayLike, m: ArrayLike, n: ArrayLike, k: ArrayLike, *, part: Part = "forward"
    ) -> FloatArray:
        """Seconds of ``heads`` products of m x k by k x n, or of the products of one of their gradients."""
        heads, m, n, k = _floats(heads, m, n, k)
        moved = ELEMENT_BYTES * heads * (m * k + k * n + m * n)
        return _law(self.matmul, part).seconds(heads, *_gradient_shape(m, n, k, part), moved)

    def conv_s(
        self,
        heads: ArrayLike,
        m: ArrayLike,
        n: ArrayLike,
        k: ArrayLike,
        moved_bytes: ArrayLike,
        *,
        part: Part = "forward",
    ) -> FloatArray:
        """Seconds of a convolution, or of one of its gradients.

        Args:
            heads: groups.
            m: output positions of all samples.
            n: output channels of a group.
            k: input channels of a group, times kernel height, times kernel width.
            moved_bytes: of input, output and weight together, each once.
            part: forward, or which gradient.
        """
        heads, m, n, k, moved = _floats(heads, m, n, k, moved_bytes)
        return _law(self.conv, part).seconds(heads, *_gradient_shape(m, n, k, part), moved)

    def attention_s(
        self, heads: ArrayLike, queries: ArrayLike, keys: ArrayLike, head_dim: ArrayLike
    ) -> FloatArray:
        """Seconds of fused attention over all keys; ``heads`` of all samples."""
        return self.attention.seconds(*_floats(heads, queries, keys, head_dim))

    def attention_backward_s(
        self, heads: ArrayLike, queries: ArrayLike, keys: ArrayLike, head_dim: ArrayLike
    ) -> FloatArray:
        """Seconds of the backward kernels of fused attention: the gradients of queries, keys and values together."""
        return self.attention.backward_seconds(*_floats(heads, queries, keys, head_dim))

    def memory_s(self, kind: str, moved_bytes: ArrayLike) -> FloatArray:
        """Seconds of kernels of a kind that read and write so many bytes."""
        return self.memory.seconds(kind, *_floats(moved_bytes))


def _law(laws: tuple[ProductLaw, ProductLaw, ProductLaw], part: Part) -> ProductLaw:
    check_choice("laws", "part", part, PARTS)
    return laws[PARTS.index(part)]


def _floats(*values: ArrayLike) -> tuple[FloatArray, ...]:
    return tuple(np.asarray(value, dtype=float) for value in values)


def _gradient_shape(
    m: FloatArray, n: FloatArray, k: FloatArray, part: Part
) -> tuple[FloatArray, FloatArray, FloatArray]:
    """Shape of a part: m x n over k, as input gradient m x k over n, as weight gradient n x k over m."""
    match part:
        case "forward":
            return m, n, k
        case "data":
            return m, k, n
        case "weight":
            return n, k, m
