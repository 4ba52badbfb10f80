"""The work of one forward pass, tallied by layer, and the exchanges in it.

A layer *ends* where its module returns, and holds everything that ran since the layer before it ended. So
work between modules (joining a skip, embedding the time step, the norm before the last convolution) falls to
the layer that needs it, work after the last module to the last layer, and nothing is lost. A parameter
belongs to the first layer that reads it, or if none does to the first; a skip is a layer's output that a layer after
the next one reads. A layer whose output needs no gradient has no backward pass; one whose parameters are all locked
has that of its input.

Exchanges are the points where patches, or shards of the weights, need one another. Self-attention, convolutions and
group norms are found by their operators, what tensor parallelism sums up by the names of submodules.
"""

import re
from collections import Counter
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, fields, replace
from functools import partial
from math import prod
from typing import Any, Final

import torch
from torch import Tensor

from profiles.architectures.components import Exchange
from profiles.architectures.kernels import PRODUCTS, Kernel
from profiles.measuring.counting.specs import LayerSpec
from profiles.measuring.counting.trace import Kept, Ran, Returned, Trace, aten, storage, tensor_bytes, tensors

LOOKUPS: Final = {aten.embedding, aten.index, aten.index_select, aten.gather}
OPERATORS_BY_KIND: Final = {
    "group_norm": {aten.native_group_norm},
    "layer_norm": {aten.native_layer_norm, aten._fused_rms_norm},
    "softmax": {aten._softmax, aten._safe_softmax, aten._log_softmax},
    "copy": LOOKUPS | {
        aten.cat, aten.stack, aten.clone, aten.copy_, aten._to_copy, aten.constant_pad_nd, aten.repeat, aten.roll,
        aten.flip, aten.pixel_shuffle, aten.pixel_unshuffle, aten.upsample_nearest1d, aten.upsample_nearest2d,
        aten.upsample_nearest3d, aten.slice_scatter, aten.index_put, aten.index_put_, aten.reflection_pad2d,
        aten.replication_pad2d, aten.replication_pad3d,
    },
}  # fmt: skip
"""Operators by the kind of their kernels; what is neither here nor a product is pointwise."""
FIRST_OPERAND: Final = {aten.mm: 0, aten.bmm: 0, aten.addmm: 1, aten.baddbmm: 1}
"""Matrix products, with the place of the first factor among their arguments."""


@dataclass(frozen=True, slots=True)
class Work:
    """The work of one layer's forward pass on one sample, its tensors and its parameters.

    ``trained`` is the number of parameters that get a gradient; ``backward`` is as in a model folder.
    """

    parameters: int = 0
    conv_flop: int = 0
    matmul_flop: int = 0
    attention_flop: int = 0
    moved_bytes: int = 0
    kernels: int = 0
    output_bytes: int = 0
    saved_bytes: int = 0
    trained: int = 0
    backward: str = "none"

    @property
    def flop(self) -> int:
        """FLOP of all classes."""
        return self.conv_flop + self.matmul_flop + self.attention_flop


NUMBERS: Final = tuple(field.name for field in fields(Work) if field.name != "backward")


def total(layers: Sequence[Work]) -> Work:
    """The work of all layers; its output is that of the last."""
    return replace(Work(), **_sums(layers) | {"output_bytes": layers[-1].output_bytes})


def together(passes: Sequence[Work]) -> Work:
    """A layer's work in several passes: work adds up; of tensors, the largest of a pass counts."""
    largest = {name: max(getattr(work, name) for work in passes) for name in ("output_bytes", "saved_bytes")}
    weights = {name: getattr(passes[0], name) for name in ("parameters", "trained")}
    return replace(passes[0], **_sums(passes) | largest | weights)


def _sums(works: Sequence[Work]) -> dict[str, Any]:
    return {name: sum(getattr(work, name) for work in works) for name in NUMBERS}


class Tally:
    """Work of each layer of a trace.

    ``inputs`` are tensors by the component that wrote them: the layers that read them are noted. ``locked`` are
    parameters that nothing trains, even if they have gradients. Of the whole, the hidden state is the first output of
    most dimensions.
    """

    def __init__(
        self,
        trace: Trace,
        layers: Sequence[LayerSpec],
        inputs: Mapping[str, Sequence[Tensor]],
        locked: Iterable[Tensor] = (),
    ) -> None:
        self.skips: list[tuple[int, int]] = []
        self.reads: Counter[tuple[str, int]] = Counter()
        self._sums: list[Counter[str]] = [Counter() for _ in layers]
        self._backward = [False] * len(layers)
        self._inputs = {storage(t): (name, t) for name, some in inputs.items() for t in some}
        self._read: set[tuple[int, int]] = set()
        self._locked = set(map(storage, locked))
        self._outputs: dict[int, int] = {}
        self._held = trace.held()
        parameters = {storage(p): p for p in trace.module.parameters()}
        self._unread, self._saved = dict(parameters), set(parameters)
        ends = [layer.end for layer in layers]
        order = [one.path for one in trace.events if isinstance(one, Returned) and one.path in ends]
        assert order == ends, f"layers end with {order}, must end with {ends}"
        for event, layer in trace.by_layer(layers):
            if isinstance(event, Ran):
                self._run(event, layer)
            elif isinstance(event, Kept):
                self._keep(event.tensor, layer)
            elif event.path in ends:
                outputs = event.outputs if event.path else (max(event.outputs, key=Tensor.dim),)
                self._end(outputs[: layers[layer].streams], layer)
        self._count_parameters(0, [*self._unread])
        self.work = tuple(map(self._work, range(len(layers))))

    def _run(self, ran: Ran, layer: int) -> None:
        self._count_parameters(layer, [storage(tensor) for tensor in ran.reads])
        if ran.launches:
            self._follow(ran, layer)
            sums = self._sums[layer]
            for kernel in launched(ran, self._held):
                norm = kernel.kind == "group_norm"  # three: moments, scale and shift, their application
                sums["kernels"] += 3 if norm else 1
                if kernel.kind not in PRODUCTS:
                    sums["moved_bytes"] += int(kernel.moved_bytes)
                elif kernel.kind == "attention" and not ran.attends_to_itself:
                    sums["matmul_flop"] += kernel.flop
                else:
                    sums[f"{kernel.kind}_flop"] += kernel.flop

    def _keep(self, tensor: Tensor, layer: int) -> None:
        """Count what autograd keeps for the backward pass, once per storage and without the parameters."""
        if storage(tensor) not in self._saved:
            self._saved.add(storage(tensor))
            self._sums[layer]["saved_bytes"] += tensor.untyped_storage().nbytes()

    def _end(self, hidden: Sequence[Tensor], layer: int) -> None:
        self._outputs |= {storage(tensor): layer for tensor in hidden}
        self._sums[layer]["output_bytes"] = tensor_bytes(hidden)
        self._backward[layer] = any(tensor.requires_grad for tensor in hidden[:1])

    def _count_parameters(self, layer: int, storages: Sequence[int]) -> None:
        for one in (one for one in storages if one in self._unread):
            parameter = self._unread.pop(one)
            trained = parameter.requires_grad and one not in self._locked
            self._sums[layer]["parameters"] += parameter.numel()
            self._sums[layer]["trained"] += parameter.numel() * trained

    def _follow(self, ran: Ran, layer: int) -> None:
        """Note the skips and the outputs of other components that an operator reads."""
        for stored in dict.fromkeys(storage(tensor) for tensor in ran.reads):
            source = self._outputs.get(stored, layer)
            if source + 1 < layer and (source, layer) not in self.skips:
                self.skips.append((source, layer))
            if stored in self._inputs and (stored, layer) not in self._read:
                self._read.add((stored, layer))
                name, tensor = self._inputs[stored]
                self.reads[name, layer] += tensor_bytes([tensor])

    def _work(self, layer: int) -> Work:
        sums = self._sums[layer]
        locked = sums["parameters"] and not sums["trained"]
        backward = ("input" if locked else "full") if self._backward[layer] else "none"
        return Work(**sums, backward=backward)


def launched(ran: Ran, held: Collection[int]) -> Iterator[Kernel]:
    """Yield the kernels of an operator that is not a view, as eager PyTorch launches them; ``held`` are weights.

    A lookup reads only what it returns. A group norm reads its input twice, for the statistics and to apply them; a
    layer norm's rows stay in the cache. A convolution's bias is a pass of its own.
    """
    operator, written = ran.func.overloadpacket, tensor_bytes(ran.writes)
    most = max((tensor.numel() for tensor in ran.writes), default=0)  # without the statistics of norms
    memory_bound = partial(Kernel, count=1, heads=1, m=most, written_bytes=written)
    weight_bytes = tensor_bytes(tensor for tensor in ran.reads if storage(tensor) in held)
    if product := _product(ran):
        kind, shape = product
        bias_bytes = tensor_bytes([ran.args[2]]) if kind == "conv" and ran.args[2] is not None else 0
        moved = tensor_bytes(ran.reads) - weight_bytes, written, weight_bytes - bias_bytes
        yield Kernel(kind, 1, *shape, 0, 0, 0, *moved)
        if bias_bytes:
            yield memory_bound("pointwise", read_bytes=written)
        return
    kind = next((kind for kind, known in OPERATORS_BY_KIND.items() if operator in known), "pointwise")
    if operator in LOOKUPS:
        yield memory_bound(kind, read_bytes=written)
        return
    again = tensor_bytes(ran.reads[:1]) if kind == "group_norm" else 0
    read_bytes = tensor_bytes(tensors(ran.args)) + again - weight_bytes
    yield memory_bound(kind, read_bytes=read_bytes, weight_bytes=weight_bytes)


def _product(ran: Ran) -> tuple[str, tuple[int, int, int, int]] | None:
    """Kind, heads, m, n and k of a matrix product, a convolution or attention; None of any other operator."""
    operator, args = ran.func.overloadpacket, ran.args
    if operator is torch.ops.diffusim.attention:
        query, key, value = args[:3]
        width, odd = divmod(query.shape[-1] + value.shape[-1], 2)
        assert not odd, f"attention has heads of {query.shape[-1]} and {value.shape[-1]}"
        return "attention", (prod(query.shape[:-2]), query.shape[-2], key.shape[-2], width)
    if operator is aten.convolution:
        image, weight, transposed, groups = args[0], args[1], args[6], args[8]
        positions = image if transposed else ran.writes[0]
        m, window = positions.shape[0] * prod(positions.shape[2:]), prod(weight.shape[2:])
        outer, inner = weight.shape[:2]
        if transposed:  # makes a window of each input position
            return "conv", (groups, m, inner * window, outer // groups)
        return "conv", (groups, m, outer // groups, inner * window)
    if operator not in FIRST_OPERAND:
        return None
    start = FIRST_OPERAND[operator]
    first, second = args[start : start + 2]
    return "matmul", (prod(first.shape[:-2]), first.shape[-2], second.shape[-1], first.shape[-1])


def exchanges_of(
    trace: Trace, layers: Sequence[LayerSpec], sums: str, image_tokens: int, text_tokens: int
) -> Iterator[Exchange]:
    """Exchanges of one pass, in execution order.

    Keys and values, and sums, count the image alone: every device computes the text for itself. A halo is the
    rows that a patch sends from both of its edges; the first convolution has none, for the whole latent is
    everywhere. ``sums`` is the regular expression of the submodules whose output
    tensor parallelism sums up; tokens are of one sample.
    """
    convolutions = 0
    for event, layer in trace.by_layer(layers):
        if isinstance(event, Returned) and re.fullmatch(sums, event.path):
            elements = _image_elements(event.outputs, image_tokens, text_tokens)
            if elements:
                yield Exchange(layer, "reduce", elements, 0)
        if isinstance(event, Ran):
            convolutions += event.is_flat
            if not event.is_flat or convolutions > 1:
                yield from _exchange(event, layer, image_tokens, text_tokens)


def _exchange(ran: Ran, layer: int, image_tokens: int, text_tokens: int) -> Iterator[Exchange]:
    """The exchange that an operator needs, if it needs one."""
    operator, args = ran.func.overloadpacket, ran.args
    if ran.attends_to_itself:
        key, value = args[1:3]
        alone = key.shape[-2] == image_tokens
        tokens, heads = key.shape[-2] - (0 if alone else text_tokens), key.shape[-3]
        if tokens > 0:  # text that attends to itself alone is no image
            elements = tokens * heads * (key.shape[-1] + value.shape[-1])
            yield Exchange(layer, "key_value", elements, heads)
    elif ran.is_flat and args[4][0]:
        image, rows = args[0], args[4][0]
        yield Exchange(layer, "halo", 2 * image.shape[1] * rows * image.shape[-1], 0)
    elif operator is aten.native_group_norm:
        yield Exchange(layer, "statistics", 2 * args[6], 0)


def _image_elements(streams: tuple[Tensor, ...], image_tokens: int, text_tokens: int) -> int:
    """Elements of the image in a submodule's output, whichever of its streams hold them; 0 where none does."""
    if not text_tokens:
        (image,) = streams
        return image.numel()
    lengths = (image_tokens, image_tokens + text_tokens)
    widths = {stream.shape[-1] for stream in streams if stream.dim() > 1 and stream.shape[-2] in lengths}
    (width,) = widths or {0}
    return image_tokens * width
