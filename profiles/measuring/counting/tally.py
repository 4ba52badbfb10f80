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
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, fields, replace
from typing import Any, Final

from torch import Tensor
from torch.utils.flop_counter import flop_registry

from profiles.architectures.components import Exchange
from profiles.measuring.counting.trace import Kept, Ran, Returned, Trace, aten, storage, tensor_bytes, tensors

LOOKUPS: Final = {aten.embedding, aten.index, aten.index_select, aten.gather}


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

    Layers end at the return of the modules at ``ends``, whose first ``streams`` tensors are the hidden state (of the
    whole, the first of most dimensions); ``inputs`` are tensors by the component that wrote them: the layers that read
    them are noted; ``locked`` are parameters that nothing trains, even if they have gradients.
    """

    def __init__(
        self,
        trace: Trace,
        ends: Sequence[str],
        streams: Sequence[int],
        inputs: Mapping[str, Sequence[Tensor]],
        locked: Iterable[Tensor] = (),
    ) -> None:
        self.skips: list[tuple[int, int]] = []
        self.reads: Counter[tuple[str, int]] = Counter()
        self._sums: list[Counter[str]] = [Counter() for _ in ends]
        self._backward = [False] * len(ends)
        self._inputs = {storage(t): (name, t) for name, some in inputs.items() for t in some}
        self._read: set[tuple[int, int]] = set()
        self._locked = set(map(storage, locked))
        self._outputs: dict[int, int] = {}
        parameters = {storage(p): p for p in trace.module.parameters()}
        self._unread, self._saved = dict(parameters), set(parameters)
        order = [one.path for one in trace.events if isinstance(one, Returned) and one.path in ends]
        assert order == list(ends), f"layers end with {order}, must end with {ends}"
        for event, layer in trace.by_layer(ends):
            if isinstance(event, Ran):
                self._run(event, layer)
            elif isinstance(event, Kept):
                self._keep(event.tensor, layer)
            elif event.path in ends:
                outputs = event.outputs if event.path else (max(event.outputs, key=Tensor.dim),)
                self._end(outputs[: streams[layer]], layer)
        self._count_parameters(0, [*self._unread])
        self.work = tuple(map(self._work, range(len(ends))))

    def _run(self, ran: Ran, layer: int) -> None:
        self._count_parameters(layer, [storage(tensor) for tensor in ran.reads])
        if ran.launches:
            self._follow(ran, layer)
            for name, amount in work_of(ran):
                self._sums[layer][name] += amount

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


def work_of(ran: Ran) -> Iterator[tuple[str, int]]:
    """Kernels of eager PyTorch on CUDA, moved bytes, and FLOP by class of one operator that is not a view."""
    operator = ran.func.overloadpacket
    kernels = 2 if operator is aten.convolution and has_bias(ran) else 1
    if operator is aten.native_group_norm:
        kernels = 3  # moments, fused scale and shift, their application
    yield "kernels", kernels
    yield "moved_bytes", moved_bytes(ran)
    if operator in flop_registry:
        flop = int(flop_registry[operator](*ran.args, **ran.kwargs, out_val=ran.result))
        if operator is aten.convolution:
            yield "conv_flop", flop
        else:
            yield ("attention_flop" if ran.attends_to_itself else "matmul_flop"), flop


def moved_bytes(ran: Ran) -> int:
    """Memory traffic of one operator that no matrix unit hides.

    Everything read and written, except: products and attention, whose operands stream beside the arithmetic,
    move nothing; a convolution's bias is added by a kernel of its own; a group norm reads its input twice,
    for the statistics and to apply them (a layer norm's rows stay in the cache); a lookup reads only what it
    returns.
    """
    operator, written = ran.func.overloadpacket, tensor_bytes(ran.writes)
    if operator is aten.convolution:
        return 2 * written if has_bias(ran) else 0
    if operator in flop_registry:
        return 0
    if operator in LOOKUPS:
        return 2 * written
    again = tensor_bytes(ran.reads[:1]) if operator is aten.native_group_norm else 0
    return tensor_bytes(tensors(ran.args)) + again + written


def has_bias(convolution: Ran) -> bool:
    """Return whether a convolution adds a bias."""
    return convolution.args[2] is not None


def exchanges_of(
    trace: Trace, ends: list[str], sums: str, image_tokens: int, text_tokens: int
) -> Iterator[Exchange]:
    """Exchanges of one pass, in execution order.

    Keys and values, and sums, count the image alone: every device computes the text for itself. A halo is the
    rows that a patch sends from both of its edges; the first convolution has none, for the whole latent is
    everywhere. Layers end at the return of ``ends``; ``sums`` is the regular expression of the submodules whose output
    tensor parallelism sums up; tokens are of one sample.
    """
    convolutions = 0
    for event, layer in trace.by_layer(ends):
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
