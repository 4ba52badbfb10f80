"""Kernel times: seconds of the layers of a component, from its kernels, the device's laws and the software stack.

A layer's forward pass is the sum of its kernels; its backward pass that of their gradients' kernels. What autocast, the
memory format and unfused attention add is said here; how long a kernel takes, by ``profiles.machines.laws``.

The host dispatches operators while the GPU computes: a pass takes the longer of the two, and where that is the host its
time is spread over the layers in proportion, so that the times of layers still add up.
"""

from collections.abc import Callable, Collection, Mapping
from dataclasses import replace
from typing import Any, Final

import numpy as np
from numpy.typing import ArrayLike

from profiles.architectures.components import Component
from profiles.architectures.extents import Extent
from profiles.architectures.kernel_tables import KernelGroup, Shapes
from profiles.architectures.kernels import LAUNCHED, MEMORY_BOUND, PRODUCTS
from profiles.architectures.shares import Share
from profiles.costs.checkpointing import transformer_blocks
from profiles.costs.layer_times import LayerTimes
from profiles.machines.laws import ELEMENT_BYTES, PARTS, KernelPart, Laws, Smaller
from profiles.software.levers import CAST_OPERATORS, CASTS
from profiles.software.stacks import UNFUSED, Stack
from profiles.units import FloatArray

ATTENTION: Final = ("attention",)
CHAINED: Final = ("pointwise", "copy", "layer_norm")
"""Kernels that fuse between two products; a group norm reads its input twice and stays."""
LAYOUT: Final[dict[KernelPart, float]] = {"forward": 0.70, "data": 1.47, "weight": 1.47}
"""Seconds in which operands and result of a convolution are laid out anew for its kernel, over those of copying them
once. Some kernels read or write the framework's layout themselves; those of gradients more rarely, and on older
software. Set by ``python -m validate fit-kernels``: convolutional networks timed in both layouts."""
SINGLE: Final = 0.5
"""Rates in single over half precision: twice the bytes, and TF32 has half the peak (NVIDIA A100 data sheet)."""
BACKWARD_TRAFFIC: Final = {
    "pointwise": 1.5,
    "copy": 1.0,
    "group_norm": 5 / 3,
    "layer_norm": 2.5,
    "softmax": 1.5,
}
"""Bytes that the backward of a memory-bound kernel moves, over those of its forward. A softmax reads the gradient and
its output; a group norm both twice, where its forward read its input twice; a layer norm both for the input's and
again for the weight's gradient. Pointwise: of a residual block of a U-Net 0.9 (a bias reads its gradient, a sum passes
it on and adds what comes back at the fork), of its transformer block 1.8 (a gated unit writes two gradients)."""
LOCKED_TRAFFIC: Final = BACKWARD_TRAFFIC | {"layer_norm": 1.5}
"""The same where the weights are frozen: a layer norm has no gradient of its weight."""
CAST: Final = 3.0
"""Bytes that a cast between half and single precision moves, over those in half precision."""
GRADIENT_TRAFFIC: Final = CAST + 6.0
"""Bytes that a weight's gradient moves after its kernel, over the weight's in half precision: cast to single precision,
and added to the sum of the micro-batches before. The first is kept as it is, but what is sent is copied into a buffer
and back (DistributedDataParallel's buckets), which moves 8."""
NORM_CASTS: Final = {"group_norm": 2.0, "layer_norm": 1.0 + 5 / 3}
"""Casts around a norm in single precision: of its input, and of its output for each layer that reads it; of the three
layer norms of a block these are three, one and one."""
NORM_READERS: Final = {"group_norm": 1.0, "layer_norm": 0.0}
"""Pointwise kernels after a norm, SiLU, that autocast leaves in single precision."""
SCORE_BYTES: Final = {"sample": (8.0, 12.0), "train": (24.0, 28.0)}
"""Bytes per score that unfused attention moves between its products, forward and backward: scaled and normalised, in
half precision; in training autocast takes softmax to single precision and back."""
SCORE_KERNELS: Final = {"sample": 2, "train": 4}
"""Kernels between the products of unfused attention."""
NORM_SAVED: Final = 2.0
"""Bytes that autocast keeps around a group norm in single precision, over its output in half: its input and its output,
which SiLU reads, as single precision."""
BLOCK_NORM_SAVED: Final = 5 / 3
"""The same of a layer norm: its input; and queries, keys and values each keep a cast of their own of the output of one
of a block's three. Source: diffusers, ``BasicTransformerBlock``."""
MODULATED_SAVED: Final = 1.0
"""The same of a layer norm without weights of its own, which is scaled and shifted by what the step's embedding gives:
its input and its output as single precision, less the one cast of half precision."""
MODULATED_READERS: Final = 4.0
"""Layers that read such norms of a block, each with a cast of its own: queries, keys, values and the feed-forward, of
two norms or, where a block runs both side by side, of one. Sources: diffusers, ``AdaLayerNormZero`` and
``FluxSingleTransformerBlock``."""
SINGLE_BYTES: Final = 4.0
"""Bytes of a number in single precision."""
SAVED_SCORE_BYTES: Final = {"sample": 2.0, "train": 6.0}
"""Bytes per score that unfused attention keeps for its backward: the softmax, under autocast in single precision and
cast to half."""
MERGED: Final = 38.0, 9
"""Bytes that merging a block of ring attention moves per element of its output, operator by operator in float32: a cast
6, a difference 12, a product with the weight 8, a difference 12; and kernels: four of the outputs, and five of the much
smaller log-sum-exp. Source: ring-flash-attention, update_out_and_lse."""
MERGE_CASTS: Final = 12.0, 2
"""Bytes per element of casting the first block to single precision, and what comes out back to half; and kernels."""
WEIGHT_OPERATORS: Final = 2
"""Operators that cast the weight and the bias of a product."""


class KernelTimes(LayerTimes):
    """Seconds of the layers of a component whose kernels were counted, and whose products may be ``biased``.

    With ``training`` precision is mixed, else half.
    """

    def __init__(
        self,
        component: Component,
        laws: Laws,
        stack: Stack,
        extent: Extent,
        *,
        training: bool,
        biased: bool = True,
    ) -> None:
        super().__init__(component)
        self._biased = biased
        self._table = component.table if training else component.half_table
        self._laws, self._pixels = laws, extent.pixels
        encoders = "autocast" if component.trainable else stack.encoders
        single = training and encoders == "float32"
        self._stack = replace(stack, rates=stack.rates.scaled(SINGLE)) if single else stack
        self._task = "train" if training and encoders == "autocast" else "sample"
        self._blocks = transformer_blocks(component)
        self._passed = np.array([layer.backward != "none" for layer in component.layers], dtype=float)
        self._adapters: KernelTimes | None = None
        if training and component.adapters:  # frozen weights lie there in half precision
            self._stack = replace(self._stack, cast_weights=False)
            half = replace(laws, smaller=None)
            self._adapters = KernelTimes(
                component.of_adapters, half, stack, extent, training=True, biased=False
            )
        if training and not stack.autocast and component.half_kernels:
            self._task, self._table = "sample", component.half_table
        self._chained = self._chains(stack.forward_chains, dict.fromkeys(CHAINED, 1.0))
        self._backward_chained = self._chains(stack.backward_chains, BACKWARD_TRAFFIC)
        self.norms_in_single = self._task == "train" and self._stack.norms == "float32"
        self._casts_weights = self._task == "train" and self._stack.cast_weights
        self._casts = np.zeros((2, len(self._passed)))
        if training and laws.smaller is not None:

            def in_fewer_bits(_: KernelGroup, shapes: Shapes) -> FloatArray:
                return np.where(
                    shapes.weight_bytes > 0, Smaller.covers(shapes.heads, shapes.m, shapes.n, shapes.k), 0.0
                )

            products = self._sum(Share(), in_fewer_bits, ("matmul",))
            self._casts = products * np.where(self._trained, np.array([CASTS]).T, 1.0)

    def forward_s(self, batch: ArrayLike, share: Share) -> FloatArray:
        """Forward seconds of each layer, shape (layers,); of several batches (batches, layers)."""
        gpu_s = self.gpu_s(batch, share)
        return gpu_s * self._floor(gpu_s, self.host_s())

    def gpu_s(self, batch: ArrayLike, share: Share) -> FloatArray:
        """Seconds of the GPU alone in ``forward_s``, shape (layers,); of several batches (batches, layers)."""
        batch = np.asarray(batch, dtype=float)
        each = batch[:, None] if batch.ndim else batch
        total = self._sum(
            share, lambda group, shapes: self._forward(group, shapes, each), chained=self._chained
        )
        return total if self._adapters is None else total + self._adapters.gpu_s(batch, share)

    def host_s(self) -> FloatArray:
        """Seconds in which the host dispatches the forward of each layer, shape (layers,)."""
        return self._operators() * self._stack.forward_operator_s

    def attention_s(self, batch: float, share: Share, *, backward: bool = False) -> FloatArray:
        """Seconds of self-attention in each layer's forward or backward; around a ring with the merging of its blocks.

        It is what attends to image tokens.
        """
        samples = np.asarray(float(batch))

        def to_itself(group: KernelGroup, shapes: Shapes) -> FloatArray:
            seconds = self._attention_s(shapes, samples, backward=backward)
            return np.where(group.image.n > 0, seconds, 0.0)

        seconds = self._sum(share, to_itself, ATTENTION)
        return np.asarray(seconds * self._passed) if backward else seconds

    def beside_attention_s(self, batch: float, share: Share) -> FloatArray:
        """Forward seconds of each layer without attention's kernels; heads are laid out all the same."""
        samples = np.asarray(float(batch))
        gpu_s = self.gpu_s(batch, share) - self._sum(
            share,
            lambda _, shapes: self._attention_s(shapes, samples) - self._heads_s(shapes, samples),
            ATTENTION,
        )
        return gpu_s * self._floor(gpu_s, self.host_s())

    def attention_bytes(self) -> FloatArray:
        """Bytes per sample that attention's kernels write in each layer: outputs, and the sums of their softmax."""
        return self._sum(Share(), lambda _, shapes: shapes.written_bytes, ATTENTION)

    def backward_s(self, batch: float, share: Share) -> tuple[FloatArray, FloatArray]:
        """Backward seconds of each layer: of the gradients of inputs, and of weights; each of shape (layers,)."""
        inputs_s, weights_s = self._backward_gpu_s(batch, share)
        host_s = self._operators(backward=True) * self._passed * self._stack.backward_operator_s
        floor = self._floor(inputs_s + weights_s, host_s)
        return inputs_s * floor, weights_s * floor

    def _backward_gpu_s(self, batch: float, share: Share) -> FloatArray:
        """Seconds of the GPU alone in ``backward_s``, shape (2, layers)."""
        samples = np.asarray(float(batch))
        inputs_s, locked_s, weights_s = np.zeros((3, 1)) + self._sum(
            share,
            lambda group, shapes: np.array(self._backward(group, shapes, samples)),
            chained=self._backward_chained,
        )
        locked_s = locked_s * (self._passed - self._trained)
        total = np.array([inputs_s * self._trained + locked_s, weights_s * self._trained])
        return total if self._adapters is None else total + self._adapters._backward_gpu_s(batch, share)

    def copied_s(self, moved_bytes: float, launches: int) -> float:
        """Seconds of copies beside the layers that read and write so many bytes in all."""
        return float(self._moved_s("copy", moved_bytes, launches))

    def saved_bytes(self) -> FloatArray:
        """Bytes per sample that each layer keeps for its backward beside ``Layer.saved_bytes``, shape (layers,)."""
        return np.asarray(sum(map(self._saved_bytes, self._table.groups)) * self._passed)

    def largest_bytes(self) -> FloatArray:
        """Bytes per sample of the largest tensor that each layer writes, shape (layers,)."""
        largest = np.zeros_like(self._passed)
        for group in self._table.groups:
            written = group.shapes(self._pixels, Share(), self._table.text_tokens).written_bytes
            largest = np.maximum(largest, np.max(written * (group.counts > 0), axis=1, initial=0.0))
        return largest

    def _saved_bytes(self, group: KernelGroup) -> FloatArray:
        """The same of the kernels of a group."""
        shapes, counts = group.shapes(self._pixels, Share(), self._table.text_tokens), group.counts
        if group.kind == "attention" and self._stack.attention == UNFUSED:
            return np.asarray(counts @ (SAVED_SCORE_BYTES[self._task] * shapes.heads * shapes.m * shapes.n))
        if group.kind not in NORM_CASTS or not self.norms_in_single:
            return np.zeros_like(self._passed)
        launched = np.minimum(1.0, counts)
        if group.kind == "group_norm":  # that of a U-Net's attention has its output cast
            kept = NORM_SAVED * counts - launched * (self._blocks[:, None] > 0)
        else:
            modulated = MODULATED_SAVED * counts + MODULATED_READERS * launched
            kept = np.where(shapes.weight_bytes == 0, modulated, BLOCK_NORM_SAVED * counts)
        in_half = shapes.written_bytes < SINGLE_BYTES * shapes.m  # else the model itself casts
        return np.asarray(kept @ (in_half * shapes.written_bytes))

    def _sum(
        self,
        share: Share,
        value: Callable[[KernelGroup, Shapes], FloatArray],
        kinds: Collection[str] = LAUNCHED,
        chained: FloatArray | float = 1.0,
    ) -> FloatArray:
        """The sum in each layer of a value of the kernels of some kinds, of those in chains a share, (..., layers)."""
        table, total = self._table, np.zeros_like(self._passed)
        for group in table.groups:
            if group.kind in kinds:
                shapes = group.shapes(self._pixels, share, table.text_tokens)
                kept = chained if group.kind in CHAINED else 1.0
                total = total + value(group, shapes) @ group.counts.T * kept
        return total

    def _chains(self, most: float | None, moved: Mapping[str, float]) -> FloatArray:
        """Shares of each layer's chained kernels that fusion leaves, shape (layers,).

        Args:
            most: of their traffic over that of the layer's products in a forward pass; ``None``: all are left.
            moved: bytes of each kind over those of its forward.
        """
        if most is None:
            return np.ones_like(self._passed)
        products = self._sum(Share(), lambda _, shapes: shapes.moved_bytes, PRODUCTS)

        def chained_bytes(group: KernelGroup, shapes: Shapes) -> FloatArray:
            return np.asarray(
                moved[group.kind] * getattr(self._stack.traffic, group.kind) * shapes.moved_bytes
            )

        chained = self._sum(Share(), chained_bytes, CHAINED)
        kept = np.divide(most * products, chained, where=chained > 0, out=np.ones_like(chained))
        return np.where(products > 0, np.minimum(1.0, kept), 1.0)

    def _operators(self, *, backward: bool = False) -> FloatArray:
        """Operators that the host dispatches for each layer."""
        weights = WEIGHT_OPERATORS * self._casts_weights * self._table.weighted
        base = np.asarray(self._table.operators + weights + CAST_OPERATORS * self._casts[int(backward)])
        return base if self._adapters is None else base + self._adapters._operators(backward=backward)

    @staticmethod
    def _floor(gpu_s: FloatArray, host_s: FloatArray) -> FloatArray:
        """Factor by which the host stretches the layers of a pass, shape (1,) or (batches, 1)."""
        total = gpu_s.sum(axis=-1, keepdims=True)
        stretched = np.divide(host_s.sum(), total, out=np.ones_like(total), where=total > 0)
        return np.asarray(np.maximum(1.0, stretched))

    def _forward(self, group: KernelGroup, shapes: Shapes, batch: FloatArray) -> FloatArray:
        """Forward seconds of the kernels of a group, shape (kernels,) or (batches, kernels)."""
        if group.kind in MEMORY_BOUND:
            return self._memory_s(group.kind, shapes, batch, 1.0)
        if group.kind == "attention":
            return self._attention_s(shapes, batch)
        return self._product_s(group.kind, shapes, batch, "forward") + self._cast_weights_s(shapes)

    def _backward(
        self, group: KernelGroup, shapes: Shapes, batch: FloatArray
    ) -> tuple[FloatArray, FloatArray, FloatArray]:
        """Seconds of the gradients of inputs, of inputs where weights are frozen, and of weights."""
        if group.kind in MEMORY_BOUND:
            traffic = (BACKWARD_TRAFFIC[group.kind], LOCKED_TRAFFIC[group.kind])
            full, locked = (self._memory_s(group.kind, shapes, batch, share) for share in traffic)
            return full, locked, np.zeros_like(full)
        if group.kind == "attention":
            seconds = self._attention_s(shapes, batch, backward=True)
            return seconds, seconds, np.zeros_like(seconds)
        data, weight = (self._product_s(group.kind, shapes, batch, part) for part in PARTS[1:])
        cast = self._cast_weights_s(shapes, GRADIENT_TRAFFIC)
        if group.kind == "conv":
            return data, data, weight + cast
        alone = shapes.weight_bytes == 0  # both operands are activations
        both = data + np.where(alone, weight, 0.0)
        bias = self._moved_s("pointwise", batch * shapes.written_bytes) if self._biased else 0.0
        return both, both, np.where(alone, 0.0, weight + cast + bias)

    def _product_s(self, kind: str, shapes: Shapes, batch: FloatArray, part: KernelPart) -> FloatArray:
        """Seconds of a part of linears or convolutions."""
        laws, rates = self._laws, self._stack.rates
        if kind == "matmul":  # samples share a weight, else each has operands of its own
            weighted = shapes.weight_bytes > 0
            heads = shapes.heads * np.where(weighted, 1.0, batch)
            rows = shapes.m * np.where(weighted, batch, 1.0)
            return laws.matmul_s(heads, rows, shapes.n, shapes.k, part=part) / rates.matmul
        moved = batch * shapes.moved_bytes + shapes.weight_bytes
        seconds = laws.conv_s(shapes.heads, batch * shapes.m, shapes.n, shapes.k, moved, part=part)
        laid_out_s = 0.0 if self._stack.channels_last else self._moved_s("copy", 2 * LAYOUT[part] * moved, 2)
        return seconds / rates.conv + laid_out_s

    def _moved_s(self, kind: str, moved_bytes: ArrayLike, launches: FloatArray | float = 1.0) -> FloatArray:
        """Seconds of memory-bound kernels: the law for one launch, and its fixed part for each further one."""
        once, fixed = (self._laws.memory_s(kind, size) for size in (moved_bytes, 0.0))
        return (once + (launches - 1) * fixed) / self._stack.rates.memory

    def _cast_weights_s(self, shapes: Shapes, traffic: float = CAST) -> FloatArray:
        """Seconds of casting weights, or of casting and handing over their gradients."""
        cast = self._casts_weights & (shapes.weight_bytes > 0)
        return np.where(cast, self._moved_s("copy", traffic * shapes.weight_bytes), 0.0)

    def _memory_s(self, kind: str, shapes: Shapes, batch: FloatArray, traffic: float) -> FloatArray:
        """Seconds of memory-bound kernels that move ``traffic`` times the bytes of a forward pass."""
        stack = self._stack
        moved = traffic * (batch * shapes.moved_bytes + shapes.weight_bytes)
        single = self.norms_in_single and kind in NORM_CASTS
        kept, launches = getattr(stack.traffic, kind), getattr(stack.launches, kind)
        seconds = self._moved_s(kind, (2.0 if single else 1.0) * kept * moved, launches)
        if not single:
            return seconds
        casts, readers = NORM_CASTS[kind], NORM_READERS[kind]
        return seconds + self._moved_s(
            "copy", (CAST * casts + 2 * readers) * batch * shapes.written_bytes, casts
        )

    def _attention_s(self, shapes: Shapes, batch: FloatArray, *, backward: bool = False) -> FloatArray:
        """Seconds of attention with what is beside its kernels, block after block around a ring."""
        heads, m, n, k = batch * shapes.heads, shapes.m, shapes.n, shapes.k
        laws, rates = self._laws, self._stack.rates
        beside_s = self._heads_s(shapes, batch) + (0.0 if backward else self._merging_s(shapes, batch))
        if self._stack.attention != UNFUSED:
            fused_s = laws.attention.seconds(heads, m, n, k, backward=backward)
            return shapes.launches * fused_s / rates.attention + beside_s
        products = [
            laws.matmul_s(heads, m, *inner, part=part)
            for inner in ((n, k), (k, n))
            for part in (PARTS[1:] if backward else PARTS[:1])
        ]
        moved = SCORE_BYTES[self._task][backward] * heads * m * n
        scores_s = self._moved_s("softmax", moved, SCORE_KERNELS[self._task])
        return shapes.launches * (sum(products) / rates.matmul + scores_s) + beside_s

    def _heads_s(self, shapes: Shapes, batch: FloatArray) -> FloatArray:
        """Seconds of copies that lay out queries, keys, values and result by heads, or their gradients back."""
        copies = self._stack.generation.copies
        elements = 2 * batch * shapes.heads * (shapes.m + shapes.n) * shapes.k
        return bool(copies) * self._moved_s("copy", 2 * ELEMENT_BYTES * elements, copies)

    def _merging_s(self, shapes: Shapes, batch: FloatArray) -> FloatArray:
        """Seconds of merging the outputs of attention on one block of keys after another."""
        blocks, elements = shapes.launches, batch * shapes.heads * shapes.m * shapes.k
        moved, launches = merging(blocks)
        traffic, kernels = self._stack.traffic.pointwise, self._stack.launches.pointwise
        seconds = self._moved_s("pointwise", traffic * moved * elements, kernels * launches)
        return np.where(blocks > 1, seconds, 0.0)


def merging(blocks: Any) -> tuple[Any, ...]:  # noqa: ANN401  a number or an array
    """Bytes per element of an output of attention on so many blocks of keys, and kernels, that merge them."""
    return tuple((blocks - 1) * each + once for each, once in zip(MERGED, MERGE_CASTS, strict=True))
