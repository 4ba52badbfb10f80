"""Kernel tables: the kernels of a component as arrays, at any resolution and for any share of the work.

Kernels that several layers launch stand once; a matrix says how often each layer launches them.
"""

from dataclasses import dataclass
from operator import attrgetter
from typing import Final, NamedTuple

import numpy as np

from profiles.architectures.kernels import DISPATCH, FEW_ROWS, IMAGE, LAUNCHED, PRODUCTS, SHAPE, LayerKernels
from profiles.architectures.shares import Share
from profiles.units import FloatArray

COLUMNS: Final = (*SHAPE, *IMAGE, "read_bytes", "written_bytes", "weight_bytes")
"""All that tells kernels of a kind apart."""
_shape_of: Final = attrgetter(*COLUMNS)


class Shapes(NamedTuple):
    """Shapes of kernels for one sample, arrays of shape (kernels,).

    Attributes:
        heads: independent products.
        m: rows, queries, or elements written.
        n: columns, or keys.
        k: inner dimension.
        weight_bytes: parameters read, whatever the batch.
        launches: kernels on the device for one of the whole layer.
    """

    heads: FloatArray
    m: FloatArray
    n: FloatArray
    k: FloatArray
    read_bytes: FloatArray
    written_bytes: FloatArray
    weight_bytes: FloatArray
    launches: FloatArray

    @property
    def moved_bytes(self) -> FloatArray:
        """Activations read and written."""
        return self.read_bytes + self.written_bytes


class Dimensions(NamedTuple):
    """Parts of the dimensions of kernels that grow in proportion to the pixels, arrays of shape (kernels,)."""

    heads: FloatArray
    m: FloatArray
    n: FloatArray


class Parts(NamedTuple):
    """A dimension of kernels: what grows with the image, and what stays."""

    image: FloatArray
    text: FloatArray


@dataclass(frozen=True, eq=False)
class KernelGroup:
    """The kernels of one kind in a component.

    Attributes:
        whole: their shapes at the reference.
        image: what of them grows with the image.
        counts: launches of each kernel in each layer, shape (layers, kernels).
    """

    kind: str
    whole: Shapes
    image: Dimensions
    counts: FloatArray

    def parts(self, name: str, pixels: float) -> Parts:
        """The dimension ``name`` (heads, m or n) at ``pixels`` times those of the reference."""
        image = getattr(self.image, name)
        return Parts(pixels * image, getattr(self.whole, name) - image)

    def shapes(self, pixels: float, share: Share, text_tokens: int) -> Shapes:
        """Their shapes on one device.

        Args:
            pixels: of the image, over the reference.
            share: part of the work that the device does.
            text_tokens: tokens of the text that pass through the layers beside those of the image.
        """
        if self.kind == "attention":
            return self._attention(pixels, share)
        if self.kind in PRODUCTS:
            return self._products(pixels, share, text_tokens)
        return self._memory_bound(pixels, share, text_tokens)

    def _attention(self, pixels: float, share: Share) -> Shapes:
        """Attention to image tokens passes around the ring and has its heads divided; other attention, its queries.

        Where devices stand in rows and columns, its queries are divided by row, and its keys by column.
        """
        to_image = self.image.n > 0
        heads, m, n = (self.parts(name, pixels) for name in ("heads", "m", "n"))
        ring = np.where(to_image, share.ring, 1)
        of_image = np.where(self.image.m > 0, 1.0, share.rows / np.where(to_image, 1, share.sequence))
        of_heads = (heads.image * of_image + heads.text) / (
            share.tensor * np.where(to_image, share.ulysses, 1)
        )
        queries = m.image * share.rows / np.where(to_image, share.ring * share.device_rows, share.sequence)
        queries += m.text / np.where(
            to_image, 1 if share.whole_text else share.ring * share.device_rows, share.text
        )
        keys = (n.image * share.keys + n.text) / np.where(to_image, share.ring * share.device_columns, 1)
        whole = self.whole
        grown = of_heads / whole.heads
        return whole._replace(
            heads=of_heads,
            m=queries,
            n=keys,
            read_bytes=whole.read_bytes * grown * (queries + 2 * keys) / (whole.m + 2 * whole.n),
            written_bytes=whole.written_bytes * grown * queries / whole.m,
            launches=ring.astype(float),
        )

    def _products(self, pixels: float, share: Share, text_tokens: int) -> Shapes:
        """Rows are divided as tokens are; others than the image's are text where they are at least ``text_tokens``."""
        whole, weighted = self.whole, self.whole.weight_bytes > 0
        heads, m, n = (self.parts(name, pixels) for name in ("heads", "m", "n"))
        is_text = (m.text >= text_tokens) & (text_tokens > 0)
        rows = m.image * share.rows / share.sequence + m.text / np.where(is_text, share.text, 1)
        products = heads.image * share.rows / share.sequence + heads.text
        columns = n.image * share.keys + n.text
        by_column = whole.n >= whole.k
        grown = rows / whole.m * products / whole.heads
        whole_weights = share.sequence_parallel & (whole.m <= FEW_ROWS)  # of modulations: each GPU has all
        tensor = np.where(whole_weights, 1, share.tensor)
        return Shapes(
            heads=np.where(weighted, products, products / share.tensor),
            m=rows,
            n=np.where(weighted & by_column, columns / tensor, columns),
            k=np.where(weighted & ~by_column, whole.k / tensor, whole.k),
            read_bytes=whole.read_bytes * grown,
            written_bytes=whole.written_bytes * grown,
            weight_bytes=whole.weight_bytes / tensor,
            launches=whole.launches,
        )

    def _memory_bound(self, pixels: float, share: Share, text_tokens: int) -> Shapes:
        """Elements are divided as tokens are, but for those that tensor parallelism leaves whole."""
        whole = self.whole
        heads, m = (self.parts(name, pixels) for name in ("heads", "m"))
        divided = share.text if text_tokens else 1
        rows = (m.image * share.rows / share.sequence + m.text / divided) * share.replicated
        products = heads.image * share.rows / share.sequence + heads.text
        grown = rows * products / np.maximum(1.0, whole.m * whole.heads)
        return whole._replace(
            heads=products,
            m=rows,
            read_bytes=whole.read_bytes * grown,
            written_bytes=whole.written_bytes * grown,
        )


class KernelTable:
    """The kernels of the layers of a component, kind by kind.

    Attributes:
        text_tokens: tokens of the text that pass through the layers beside those of the image.
        groups: kernels of one kind each.
        operators: operators that the host dispatches for each layer, shape (layers,).
        weighted: products with weights in each layer, shape (layers,).
    """

    def __init__(self, layers: LayerKernels, text_tokens: int) -> None:
        self.text_tokens: Final = text_tokens
        self.groups: Final = tuple(
            group for kind in LAUNCHED for group in [_group(kind, layers)] if group.counts.size
        )
        self.operators: Final = np.array(
            [sum(kernel.count for kernel in layer if kernel.kind == DISPATCH) for layer in layers],
            dtype=float,
        )
        self.weighted: Final = np.zeros(len(layers)) + sum(
            group.counts @ (group.whole.weight_bytes > 0) for group in self.groups if group.kind in PRODUCTS
        )


def _group(kind: str, layers: LayerKernels) -> KernelGroup:
    numbers: dict[tuple[float, ...], int] = {}
    places = [
        (layer, numbers.setdefault(_shape_of(kernel), len(numbers)), kernel.count)
        for layer, kernels in enumerate(layers)
        for kernel in kernels
        if kernel.kind == kind
    ]
    counts = np.zeros((len(layers), len(numbers)))
    for layer, number, count in places:
        counts[layer, number] += count
    shapes = np.array(list(numbers), dtype=float).reshape(len(numbers), len(COLUMNS))
    column = dict(zip(COLUMNS, np.ascontiguousarray(shapes.T), strict=True))
    image = Dimensions(**{key.removeprefix("image_"): column.pop(key) for key in IMAGE})
    return KernelGroup(kind, Shapes(**column, launches=np.ones(len(numbers))), image, counts)
