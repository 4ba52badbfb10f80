"""What one forward pass does, operator by operator, tallied by layer.

A layer *ends* where its module returns, and holds everything that ran since the layer before it ended. So
work between modules (joining a skip, embedding the time step, the norm before the last convolution) falls to
the layer that needs it, work after the last module to the last layer, and nothing is lost. A parameter
belongs to the first layer that reads it; a skip is a layer's output that a layer after the next one reads. A
layer whose output needs no gradient has no backward pass; one whose parameters are all locked has that of its input.
"""

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from math import prod
from typing import Any, Final

import torch
from torch import Tensor, nn
from torch._ops import OpOverload
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves
from torch.utils.flop_counter import flop_registry

from validate.layering import LayerSpec

aten = torch.ops.aten

LAUNCH_NOTHING: Final = {
    aten._unsafe_view,
    aten.empty,
    aten.empty_like,
    aten.empty_strided,
    aten.new_empty,
    aten.lift_fresh,
}
LOOKUPS: Final = {aten.embedding, aten.index, aten.index_select, aten.gather}


@dataclass(slots=True)
class Work:
    """The work of one layer's forward pass on one sample, its tensors and its parameters.

    ``trained`` are those of the parameters that get a gradient; ``backward`` is as in a model folder.
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


class Tally(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Watches one forward pass of ``module``.

    Args:
        module: the component.
        layers: its layers, in execution order.
        inputs: tensors by the name of the component that wrote them; the layers that read them are noted.
    """

    def __init__(
        self, module: nn.Module, layers: Sequence[LayerSpec], inputs: Mapping[str, Sequence[Tensor]]
    ) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.work = [Work() for _ in layers]
        self.skips: list[tuple[int, int]] = []
        self.reads: Counter[tuple[str, int]] = Counter()
        self._ended = 0
        self._streams = [layer.streams for layer in layers]
        self._inputs = {_storage(t): (name, t) for name, tensors in inputs.items() for t in tensors}
        self._read: set[tuple[int, int]] = set()
        self._parameters = {_storage(p): p.numel() for p in module.parameters()}
        self._trained = {_storage(p) for p in module.parameters() if p.requires_grad}
        self._unread = dict(self._parameters)
        self._outputs: dict[int, int] = {}
        self._alive: dict[int, Tensor] = {}  # a storage's address is its identity only while it lives
        self._saved: set[int] = set()
        for index, layer in enumerate(layers):
            layer.end.register_forward_hook(partial(self._end, index))

    def __torch_dispatch__(
        self,
        func: OpOverload[..., Any],
        types: object,
        args: tuple[Any, ...] = (),
        kwargs: dict[str, Any] | None = None,
    ) -> object:
        """Run one operator and add its work to the layer under way."""
        result = func(*args, **(kwargs or {}))
        inputs = _tensors((args, kwargs))
        self._read_parameters(inputs)
        if not func.is_view and func.overloadpacket not in LAUNCH_NOTHING:
            self._follow_skips(inputs)
            self._follow_reads(inputs)
            _add_work(self._layer, func, args, kwargs or {}, result)
        return result

    def save(self, tensor: Tensor) -> Tensor:
        """Count what autograd keeps for the backward pass, once per storage and without the parameters."""
        storage = _storage(tensor)
        if storage not in self._parameters and storage not in self._saved:
            self._saved.add(storage)
            self._alive[storage] = tensor
            self._layer.saved_bytes += tensor.untyped_storage().nbytes()
        return tensor

    def check_complete(self) -> None:
        """Assert that every layer ran, in order, and that every parameter was read."""
        assert self._ended == len(self.work), f"{self._ended} of {len(self.work)} layers ran"
        assert not self._unread, f"{sum(self._unread.values())} parameters were never read"

    @property
    def index(self) -> int:
        """Index of the layer under way."""
        return min(self._ended, len(self.work) - 1)

    @property
    def _layer(self) -> Work:
        return self.work[self.index]

    def _end(self, index: int, module: nn.Module, args: object, output: object) -> None:
        assert index == self._ended, f"layer {index} ended when layer {self._ended} should"
        hidden = _tensors(output)[: self._streams[index]]
        for tensor in hidden:
            self._outputs[_storage(tensor)] = index
            self._alive[_storage(tensor)] = tensor
        self._layer.output_bytes = tensor_bytes(hidden)
        if hidden[0].requires_grad:
            locked = self._layer.parameters and not self._layer.trained
            self._layer.backward = "input" if locked else "full"
        self._ended += 1

    def _read_parameters(self, inputs: Iterable[Tensor]) -> None:
        for tensor in inputs:
            parameters = self._unread.pop(_storage(tensor), 0)
            self._layer.parameters += parameters
            self._layer.trained += parameters if _storage(tensor) in self._trained else 0

    def _follow_skips(self, inputs: Iterable[Tensor]) -> None:
        target = self.index
        for tensor in inputs:
            source = self._outputs.get(_storage(tensor), target)
            if source + 1 < target and (source, target) not in self.skips:
                self.skips.append((source, target))

    def _follow_reads(self, inputs: Iterable[Tensor]) -> None:
        for storage in {_storage(tensor) for tensor in inputs} & self._inputs.keys():
            if (storage, self.index) not in self._read:
                self._read.add((storage, self.index))
                name, tensor = self._inputs[storage]
                self.reads[name, self.index] += tensor_bytes([tensor])


def together(passes: Sequence[Work]) -> Work:
    """Return a layer's work in several passes: work adds up, of the tensors the largest count."""
    added = ("conv_flop", "matmul_flop", "attention_flop", "moved_bytes", "kernels")
    largest = ("output_bytes", "saved_bytes")
    sums = {name: sum(getattr(work, name) for work in passes) for name in added}
    return replace(
        passes[0], **sums, **{name: max(getattr(work, name) for work in passes) for name in largest}
    )


def tensor_bytes(tensors: Iterable[Tensor]) -> int:
    """Return the bytes of the tensors' distinct elements (an expanded dimension is one element)."""
    return sum(
        tensor.element_size() * prod(n for n, step in zip(tensor.shape, tensor.stride(), strict=True) if step)
        for tensor in tensors
    )


def moved_bytes(func: OpOverload[..., Any], args: Sequence[Any], result: object) -> int:
    """Return the memory traffic of one operator that no matrix unit hides.

    Everything read and written, except: products and attention, whose operands stream beside the arithmetic,
    move nothing; a convolution's bias is added by a kernel of its own; a group norm reads its input twice,
    for the statistics and to apply them (a layer norm's rows stay in the cache); a lookup reads only what it
    returns.
    """
    operator = func.overloadpacket
    written = tensor_bytes(_tensors(result))
    if operator is aten.convolution:
        return 2 * written if _has_bias(args) else 0
    if operator in flop_registry:
        return 0
    if operator in LOOKUPS:
        return 2 * written
    again = tensor_bytes([args[0]]) if operator is aten.native_group_norm else 0
    return tensor_bytes(_tensors(args)) + again + written


def num_kernels(func: OpOverload[..., Any], args: Sequence[Any]) -> int:
    """Return how many kernels eager PyTorch launches on CUDA for one operator that is not a view."""
    operator = func.overloadpacket
    if operator is aten.native_group_norm:
        return 3  # moments, fused scale and shift, their application
    return 2 if operator is aten.convolution and _has_bias(args) else 1


def _add_work(
    layer: Work, func: OpOverload[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any], result: object
) -> None:
    operator = func.overloadpacket
    layer.kernels += num_kernels(func, args)
    layer.moved_bytes += moved_bytes(func, args, result)
    if operator not in flop_registry:
        return
    flop = int(flop_registry[operator](*args, **kwargs, out_val=result))
    if operator is aten.convolution:
        layer.conv_flop += flop
    elif operator is torch.ops.diffusim.attention and attends_to_itself(*args[:2]):
        layer.attention_flop += flop
    else:
        layer.matmul_flop += flop


def attends_to_itself(query: Tensor, key: Tensor) -> bool:
    """Tell self-attention, which grows with the square of the tokens, by as many keys as queries.

    Cross-attention of as many image tokens as text tokens would pass for it; that few hardly count.
    """
    return query.shape[-2] == key.shape[-2]


def _has_bias(convolution_args: Sequence[Any]) -> bool:
    return convolution_args[2] is not None


def _tensors(tree: object) -> list[Tensor]:
    return [leaf for leaf in tree_leaves(tree) if isinstance(leaf, Tensor)]


def _storage(tensor: Tensor) -> int:
    return int(tensor.untyped_storage()._cdata)
