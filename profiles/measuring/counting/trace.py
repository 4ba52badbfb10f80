"""Traces: one forward pass, recorded operator by operator; everything that is counted is read off one.

The pass runs on torch's meta device: shapes and operators are real, numbers are not. Attention is one opaque operator,
as a fused kernel runs it: torch decomposes ``scaled_dot_product_attention`` there into two matrix products and a
softmax, and the N x N scores would pass for memory traffic and for tensors that the backward pass keeps. A fused kernel
has neither: it keeps queries, keys, values, the output and one log-sum-exp per query.

A class that reads a mask (``mask.sum().tolist()``) needs its numbers, so a sample may hold real tensors; many classes
make small tables on the CPU. Torch refuses to combine either with a meta tensor; here it may, and the result has no
contents.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from math import prod
from typing import Any, Final, NamedTuple
from unittest.mock import patch

import torch
from diffusers.models.autoencoders.autoencoder_kl_hunyuanvideo15 import HunyuanVideo15AttnBlock
from torch import Tensor, nn
from torch._ops import OpOverload
from torch.autograd.function import FunctionCtx
from torch.autograd.graph import saved_tensors_hooks
from torch.nn.functional import scaled_dot_product_attention
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode, _disable_current_modes
from torch.utils._pytree import tree_leaves, tree_map_only
from torch.utils.flop_counter import register_flop_formula, sdpa_flop_count

from profiles.architectures.kernels import FEW_ROWS
from profiles.errors import DiffusimError, InputError, one_line
from profiles.measuring.counting.specs import LayerSpec


@torch.library.custom_op("diffusim::attention", mutates_args=())
def attention(query: Tensor, key: Tensor, value: Tensor) -> tuple[Tensor, Tensor]:
    """Stand for a fused attention kernel, on the meta device only: its output and each query's log-sum-exp.

    All are (batch, heads, queries or keys, head dimension).
    """
    raise RuntimeError("diffusim::attention counts work on the meta device; it computes nothing")


@attention.register_fake
def _(query: Tensor, key: Tensor, value: Tensor) -> tuple[Tensor, Tensor]:
    batch, heads, queries, _ = query.shape
    kernel_layout = query.new_empty(batch, queries, heads, value.shape[-1])
    return kernel_layout.transpose(1, 2), query.new_empty(batch, heads, queries, dtype=torch.float32)


def _backward(ctx: FunctionCtx, *gradients: Tensor) -> None:
    raise RuntimeError("only forward passes are counted")


attention.register_autograd(
    _backward, setup_context=lambda ctx, inputs, output: ctx.save_for_backward(*inputs, *output)
)


@register_flop_formula(torch.ops.diffusim.attention)
def attention_flop(
    query: tuple[int, ...], key: tuple[int, ...], value: tuple[int, ...], *_: object, **__: object
) -> int:
    """The FLOP of the two matrix products, in full, also where a causal mask would halve them."""
    return int(sdpa_flop_count(query, key, value))  # type: ignore[no-untyped-call]


class Instead(TorchFunctionMode):
    """Within this context ``instead`` stands for a function of torch."""

    def __init__(self, func: Callable[..., Any], instead: Callable[..., object]) -> None:
        super().__init__()
        self._func, self._instead = func, instead

    def __torch_function__(
        self,
        func: Callable[..., object],
        types: object,
        args: tuple[Any, ...] = (),
        kwargs: dict[str, Any] | None = None,
    ) -> object:
        """Replace one function, leave everything else."""
        return (self._instead if func is self._func else func)(*args, **(kwargs or {}))


def _unmasked(query: Tensor, key: Tensor, value: Tensor, *_: object, **__: object) -> Tensor:
    """Call the operator without mask, dropout and scale, which cost a fused kernel next to nothing."""
    if query.dim() == 3:  # one head
        return _unmasked(query.unsqueeze(1), key.unsqueeze(1), value.unsqueeze(1)).squeeze(1)
    output: Tensor = torch.ops.diffusim.attention(query, key, value)[0]
    return output


OpaqueAttention: Final = partial(Instead, scaled_dot_product_attention, _unmasked)
"""Within this context every ``scaled_dot_product_attention`` is the opaque operator."""


aten = torch.ops.aten

META: Final = "meta"
MADE_THERE: Final = {aten._to_copy, aten.copy_}
"""Operators that may read one device and write another."""


def _numbers(data: object, **kwargs: Any) -> Tensor:  # noqa: ANN401  torch's own
    """A tensor made of numbers, which keeps them also where it was asked for on the meta device."""
    elsewhere = {"device": "cpu"} if str(kwargs.get("device")) == META else {}
    return torch.tensor(data, **kwargs | elsewhere)


def _is_meta(tensor: Tensor) -> bool:
    return tensor.device.type == META


def _emptied(tree: Any) -> Any:  # noqa: ANN401  arguments of any operator
    def empty(tensor: Tensor) -> Tensor:
        return torch.empty_strided(tensor.shape, tensor.stride(), dtype=tensor.dtype, device=META)

    with _disable_current_modes():
        return tree_map_only(Tensor, lambda tensor: tensor if _is_meta(tensor) else empty(tensor), tree)


def _places(index: Tensor | None) -> Tensor | None:
    """Where a mask with contents is true, as numbers; any other index as it is."""
    if index is None or _is_meta(index) or index.dtype is not torch.bool or index.dim() != 1:
        return index
    with _disable_current_modes():
        return index.nonzero().squeeze(1)


MANY_PAIRS: Final = 2**30
"""Pairs of tokens of which no engine makes a mask, though a class may: fused kernels take lengths."""


def _is_of_pairs(sides: Sequence[int], dtype: torch.dtype) -> bool:
    """Return whether a tensor of these sides is such a mask."""
    return dtype is torch.bool and prod(sides) > MANY_PAIRS


LAUNCH_NOTHING: Final = {aten._unsafe_view, aten.lift_fresh, aten.new_empty} | {
    aten.empty, aten.empty_like, aten.empty_strided
}  # fmt: skip


class Ran(NamedTuple):
    """An operator, the tensors that it read and wrote, its other arguments, and the lengths of what the pass reads."""

    func: OpOverload[..., Any]
    args: tuple[Any, ...]
    kwargs: dict[str, Any]
    result: object
    reads: tuple[Tensor, ...]
    writes: tuple[Tensor, ...]
    lengths: frozenset[int] = frozenset()

    @property
    def launches(self) -> bool:
        """Whether the operator does anything on a GPU."""
        return not self.func.is_view and self.func.overloadpacket not in LAUNCH_NOTHING

    @property
    def attends_to_itself(self) -> bool:
        """Whether this is self-attention: keys are those of its queries, and maybe of a text that the pass reads."""
        if self.func.overloadpacket is not torch.ops.diffusim.attention:
            return False
        queries, keys = (arg.shape[-2] for arg in self.args[:2])
        return keys == queries or (queries > FEW_ROWS and keys - queries in self.lengths)

    @property
    def is_flat(self) -> bool:
        """Whether this is a convolution of images that does not enlarge them."""
        return self.func.overloadpacket is aten.convolution and self.args[1].dim() == 4 and not self.args[6]


class Returned(NamedTuple):
    """A module, by its path, and what it returned."""

    path: str
    outputs: tuple[Tensor, ...]


class Kept(NamedTuple):
    """A tensor that autograd keeps for the backward pass."""

    tensor: Tensor


Event = Ran | Returned | Kept


@dataclass(frozen=True, slots=True)
class Trace:
    """One pass of a module on the meta device, called with ``sample``.

    It keeps the tensors of its events, so that storages stay distinct.
    """

    module: nn.Module
    sample: Mapping[str, Any]
    events: tuple[Event, ...]

    def held(self) -> set[int]:
        """Storages of the module's parameters and buffers."""
        return {storage(one) for one in (*self.module.parameters(), *self.module.buffers())}

    def positions(self, ends: Iterable[str]) -> list[int]:
        """Number of modules of ``ends`` that had returned before each event."""
        ending, ended, positions = set(ends), set[str](), list[int]()
        for event in self.events:
            positions.append(len(ended))
            if isinstance(event, Returned) and event.path in ending:
                ended.add(event.path)
        return positions

    def by_layer(self, layers: Sequence[LayerSpec]) -> Iterator[tuple[Event, int]]:
        """Each event with the index of the layer that it falls to."""
        positions = self.positions(layer.end for layer in layers)
        for event, position in zip(self.events, positions, strict=True):
            yield event, min(position, len(layers) - 1)

    def returned(self) -> dict[str, tuple[Tensor, ...]]:
        """Last outputs of each module by its path, in the order of their returns."""
        return {event.path: event.outputs for event in self.events if isinstance(event, Returned)}


class Recorder(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Notes what happens in one pass; operators on tensors with and without contents give tensors without."""

    def __init__(self, lengths: Iterable[int]) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.events: list[Event] = []
        self.lengths = frozenset(lengths)

    def __torch_dispatch__(
        self,
        func: OpOverload[..., Any],
        types: object,
        args: tuple[Any, ...] = (),
        kwargs: dict[str, Any] | None = None,
    ) -> object:
        """Run one operator and note it, its tensors without contents if one of them is."""
        kwargs = kwargs or {}
        if func.overloadpacket is aten.repeat and _is_of_pairs(args[0].shape[-1:] * 2, args[0].dtype):
            args = _emptied(args)
        if func.overloadpacket is aten.index:
            args = (args[0], [_places(index) for index in args[1]])
        if func.overloadpacket not in MADE_THERE and len(set(map(_is_meta, tensors((args, kwargs))))) == 2:
            args, kwargs = _emptied(args), _emptied(kwargs)
        result = func(*args, **kwargs)
        if isinstance(result, Tensor) and _is_of_pairs(result.shape[-2:], result.dtype):
            return result
        reads = tensors((args, kwargs))
        self.events.append(Ran(func, args, kwargs, result, reads, tensors(result), self.lengths))
        return result

    def keep(self, tensor: Tensor) -> Tensor:
        """Note what autograd keeps."""
        self.events.append(Kept(tensor))
        return tensor

    def leave(self, path: str, module: nn.Module, args: object, output: object) -> None:
        """Note that a module returns."""
        self.events.append(Returned(path, tensors(output)))


def _autocast(device_type: str, *args: Any, original: Any = torch.autocast, **kwargs: Any) -> torch.autocast:  # noqa: ANN401
    """Autocast that does nothing on the meta device rather than fail."""
    if device_type == META:
        device_type, args, kwargs = "cpu", (), {"enabled": False}
    cast: torch.autocast = original(device_type, *args, **kwargs)
    return cast


NO_MASK: Final = staticmethod(lambda *_, **__: None)
"""In place of a mask that would fill a row for each token: masks are left out anyway."""


def record(module: nn.Module, sample: Mapping[str, Any], *, grad: bool) -> Trace:
    """Run one forward pass of a module on the meta device; with ``grad`` tensors are kept for a backward pass."""
    recorder = Recorder(side for tensor in tensors(sample) for side in tensor.shape[:2] if side > 1)
    hooks = [
        part.register_forward_hook(partial(recorder.leave, path)) for path, part in module.named_modules()
    ]
    try:
        with (
            torch.set_grad_enabled(grad),
            saved_tensors_hooks(recorder.keep, lambda tensor: tensor),
            OpaqueAttention(),
            patch.object(torch, "autocast", _autocast),
            patch.object(HunyuanVideo15AttnBlock, "prepare_causal_attention_mask", NO_MASK),
            Instead(torch.tensor, _numbers),
            recorder,
        ):
            module(**sample)
    finally:
        for hook in hooks:
            hook.remove()
    return Trace(module, sample, tuple(recorder.events))


def tensors(tree: object) -> tuple[Tensor, ...]:
    """Every tensor in some nested lists and dicts."""
    return tuple(leaf for leaf in tree_leaves(tree) if isinstance(leaf, Tensor))


def storage(tensor: Tensor) -> int:
    """Identity of the memory that a tensor is a view of, while the tensor lives."""
    return int(tensor.untyped_storage()._cdata)


def tensor_bytes(values: Iterable[Tensor]) -> int:
    """Bytes of the distinct elements of tensors (an expanded dimension is one element)."""
    dimensions = ((tensor, zip(tensor.shape, tensor.stride(), strict=True)) for tensor in values)
    return sum(tensor.element_size() * prod(n for n, step in each if step) for tensor, each in dimensions)


def cast(sample: Mapping[str, Any], dtype: torch.dtype) -> dict[str, Any]:
    """Return a sample with its floating point tensors in another precision."""
    change: Callable[[Tensor], Tensor] = lambda one: one.to(dtype) if one.is_floating_point() else one  # noqa: E731
    result: dict[str, Any] = tree_map_only(Tensor, change, dict(sample))
    return result


@contextmanager
def blamed(failure: str) -> Iterator[None]:
    """Turn whatever a class raises into an InputError of one line."""
    try:
        yield
    except DiffusimError:
        raise
    except Exception as error:
        words = f"{failure}: {type(error).__name__}: {one_line(str(error), 200)}"
        raise InputError(words.removesuffix(": ")) from error
