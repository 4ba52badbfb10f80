"""Kernels: what the forward pass of a layer launches on a GPU for one sample, and what the host dispatches for it.

Precision decides casts too, so kernels are counted in each that a model runs in.
"""

from collections.abc import Iterable
from dataclasses import dataclass, replace
from typing import Annotated, Final

from profiles.checks import AT_LEAST_1, FINITE, Count, check_fields, check_number
from profiles.errors import InputError

PRODUCTS: Final = {"matmul": 2, "conv": 2, "attention": 4}
"""FLOP of a kernel over ``heads * m * n * k``: attention has two products."""
MEMORY_BOUND: Final = ("group_norm", "layer_norm", "softmax", "pointwise", "copy")
DISPATCH: Final = "dispatch"
LAUNCHED: Final = (*PRODUCTS, *MEMORY_BOUND)
"""Kinds of which there is a kernel on the device."""
KINDS: Final = (*LAUNCHED, DISPATCH)
SHAPE: Final = ("heads", "m", "n", "k")
FEW_ROWS: Final = 2
"""Most rows of a product that is not of tokens, but of the time step or the size of an image."""
IMAGE: Final = ("image_heads", "image_m", "image_n")


@dataclass(frozen=True, slots=True)
class Kernel:
    """Kernels of one shape in a layer's forward pass on one sample at the reference.

    ``kind`` is one of ``KINDS``. A product is m x k by k x n: of a linear layer m are rows, n outputs; of a convolution
    m are output positions, n output channels of a group, k input channels of a group times the window (of a transposed
    one m are input positions, and the window is of n); of attention m are queries, n keys, k the head dimension. A
    kernel that memory bounds writes m elements. ``dispatch`` is no kernel: ``count`` operators, views among them, that
    the host dispatches for the whole layer.

    Attributes:
        count: launches of this shape.
        heads: independent products in one launch, whose operands all differ: attention heads, groups of a convolution.
        k: inner dimension.
        image_heads: part of ``heads`` that grows in proportion to the pixels; the rest stays.
        image_m: the same of ``m``.
        image_n: the same of ``n``.
        read_bytes: activations that one launch reads, growing as ``m`` does; of a product without weights both
            operands.
        written_bytes: activations that one launch writes, growing as ``m`` does.
        weight_bytes: parameters and tables that one launch reads, whatever the batch; 0 of a product where each sample
            has operands of its own.
    """

    kind: Annotated[str, KINDS]
    count: Count
    heads: int = 0
    m: int = 0
    n: int = 0
    k: int = 0
    image_heads: int = 0
    image_m: int = 0
    image_n: int = 0
    read_bytes: float = 0.0
    written_bytes: float = 0.0
    weight_bytes: float = 0.0

    def __post_init__(self) -> None:
        owner = "kernel"
        product, launched = self.kind in PRODUCTS, self.kind != DISPATCH
        heads, product_check = (AT_LEAST_1 if there else FINITE for there in (launched, product))
        check_fields(owner, self, heads=heads, m=product_check, n=product_check, k=product_check)
        for key in ("heads", "m", "n"):
            check_number(owner, f"image_{key}", getattr(self, f"image_{key}"), (0, getattr(self, key)))
        unused = () if product else ("n", "k") if launched else (*SHAPE, "moved_bytes")
        for key in unused:
            if getattr(self, key):
                raise InputError(f"{owner}: {key} is {getattr(self, key):g}, must be 0 of {self.kind}")

    def at(self, pixels: float) -> "Kernel":
        """The kernel for an image of ``pixels`` times as many pixels."""
        grown = (pixels - 1) * self.image_m / self.m if self.m else 0.0
        larger, images = {}, {}
        for key in ("heads", "m", "n"):
            whole, image = getattr(self, key), getattr(self, f"image_{key}")
            larger[key] = max(round(whole + (pixels - 1) * image), min(whole, 1))
            images[f"image_{key}"] = min(round(pixels * image), larger[key])
        moved = {key: getattr(self, key) * (1 + grown) for key in ("read_bytes", "written_bytes")}
        return replace(self, **larger, **images, **moved)

    @property
    def flop(self) -> int:
        """FLOP of all launches."""
        return PRODUCTS.get(self.kind, 0) * self.count * self.heads * self.m * self.n * self.k

    @property
    def attends_to_itself(self) -> bool:
        """Whether this is self-attention, as the columns of a layer have it: of all tokens, or of an image's own."""
        return self.kind == "attention" and (self.m == self.n or min(self.image_m, self.image_n) > 0)

    @property
    def of_tokens(self) -> bool:
        """Whether this is a linear through which tokens pass."""
        return self.kind == "matmul" and self.weight_bytes > 0 and self.m > FEW_ROWS

    @property
    def moved_bytes(self) -> float:
        """Bytes that one launch reads and writes."""
        return self.read_bytes + self.written_bytes + self.weight_bytes


LayerKernels = tuple[tuple[Kernel, ...], ...]
"""Kernels of each layer of a component."""


def class_flop(kernels: Iterable[Kernel]) -> dict[str, int]:
    """Return the FLOP of kernels by class of work; cross-attention counts as a matrix product."""
    flop = {"conv_flop": 0, "matmul_flop": 0, "attention_flop": 0}
    for kernel in kernels:
        if kernel.kind in PRODUCTS:
            kind = "matmul" if kernel.kind == "attention" and not kernel.attends_to_itself else kernel.kind
            flop[f"{kind}_flop"] += kernel.flop
    return flop
