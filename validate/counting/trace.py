"""Traces: one forward pass, recorded operator by operator; everything that is counted is read off one.

The pass runs on torch's meta device: shapes and operators are real, numbers are not.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from math import prod
from typing import Any, Final, NamedTuple

import torch
from torch import Tensor, nn
from torch._ops import OpOverload
from torch.autograd.graph import saved_tensors_hooks
from torch.utils._pytree import tree_leaves, tree_map_only
from torch.utils.flop_counter import FlopCounterMode

from validate.counting.attention import OpaqueAttention
from validate.counting.mixing import mixing

aten = torch.ops.aten

LAUNCH_NOTHING: Final = {aten._unsafe_view, aten.lift_fresh, aten.new_empty} | {
    aten.empty, aten.empty_like, aten.empty_strided
}  # fmt: skip


class Ran(NamedTuple):
    """An operator, the tensors that it read and wrote, and its other arguments."""

    func: OpOverload[..., Any]
    args: tuple[Any, ...]
    kwargs: dict[str, Any]
    result: object
    reads: tuple[Tensor, ...]
    writes: tuple[Tensor, ...]

    @property
    def launches(self) -> bool:
        """Whether the operator does anything on a GPU."""
        return not self.func.is_view and self.func.overloadpacket not in LAUNCH_NOTHING

    @property
    def attends_to_itself(self) -> bool:
        """Whether this is self-attention, which grows with the square of the tokens: as many keys as queries.

        Cross-attention of as many image tokens as text tokens would pass for it; that few hardly count.
        """
        if self.func.overloadpacket is not torch.ops.diffusim.attention:
            return False
        return bool(self.args[0].shape[-2] == self.args[1].shape[-2])


class Returned(NamedTuple):
    """A module, by its path, and what it returned."""

    path: str
    outputs: tuple[Tensor, ...]


class Kept(NamedTuple):
    """A tensor that autograd keeps for the backward pass."""

    tensor: Tensor


Event = Ran | Returned | Kept


class EndedTwiceError(Exception):
    """A module that was to end one layer returned more than once."""

    def __init__(self, path: str) -> None:
        super().__init__(path)
        self.path = path


@dataclass(frozen=True, slots=True)
class Trace:
    """One pass of a module.

    Attributes:
        module: on the meta device.
        sample: the arguments that it was called with.
        events: in the order in which they happened; their tensors live on, so that storages stay distinct.
        flop: FLOP of the whole pass by torch's own counter.
        spread: whether tokens chose experts, over which they were spread evenly.
    """

    module: nn.Module
    sample: Mapping[str, Any]
    events: tuple[Event, ...]
    flop: int
    spread: bool

    def positions(self, ends: Iterable[str]) -> list[int]:
        """Number of modules of ``ends`` that had returned before each event.

        Raises:
            EndedTwiceError: one of them returned twice.
        """
        left, gone, found, ended = set(ends), set[str](), [], 0
        for event in self.events:
            found.append(ended)
            if isinstance(event, Returned):
                if event.path in gone:
                    raise EndedTwiceError(event.path)
                if event.path in left:
                    left.remove(event.path)
                    gone.add(event.path)
                    ended += 1
        return found

    def returned(self) -> dict[str, tuple[Tensor, ...]]:
        """What each module returned last, by its path, in the order of their returns."""
        return {event.path: event.outputs for event in self.events if isinstance(event, Returned)}


class Recorder:
    """Notes what happens in one pass."""

    def __init__(self) -> None:
        self.events: list[Event] = []

    def run(self, func: OpOverload[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]) -> object:
        """Run one operator and note it."""
        result = func(*args, **kwargs)
        self.events.append(Ran(func, args, kwargs, result, tensors((args, kwargs)), tensors(result)))
        return result

    def keep(self, tensor: Tensor) -> Tensor:
        """Note what autograd keeps."""
        self.events.append(Kept(tensor))
        return tensor

    def leave(self, path: str, module: nn.Module, args: object, output: object) -> None:
        """Note that a module returns."""
        self.events.append(Returned(path, tensors(output)))


def record(module: nn.Module, sample: Mapping[str, Any], *, grad: bool) -> Trace:
    """Run one forward pass of a module on the meta device.

    Args:
        module: what to run.
        sample: its keyword arguments.
        grad: whether a backward pass is to follow, for which tensors are kept.
    """
    recorder, counter = Recorder(), FlopCounterMode(display=False)
    hooks = [
        part.register_forward_hook(partial(recorder.leave, path)) for path, part in module.named_modules()
    ]
    try:
        with (
            torch.set_grad_enabled(grad),
            saved_tensors_hooks(recorder.keep, lambda tensor: tensor),
            OpaqueAttention(),
            counter,
            mixing(recorder.run) as mixed,
        ):
            module(**sample)
    finally:
        for hook in hooks:
            hook.remove()
    return Trace(module, sample, tuple(recorder.events), int(counter.get_total_flops()), mixed.spread)


def tensors(tree: object) -> tuple[Tensor, ...]:
    """Every tensor in some nested lists and dicts."""
    return tuple(leaf for leaf in tree_leaves(tree) if isinstance(leaf, Tensor))


def storage(tensor: Tensor) -> int:
    """Identity of the memory that a tensor is a view of, while the tensor lives."""
    return int(tensor.untyped_storage()._cdata)


def tensor_bytes(of: Iterable[Tensor]) -> int:
    """Bytes of the distinct elements of tensors (an expanded dimension is one element)."""
    return sum(
        tensor.element_size() * prod(n for n, step in zip(tensor.shape, tensor.stride(), strict=True) if step)
        for tensor in of
    )


def cast(sample: Mapping[str, Any], dtype: torch.dtype) -> dict[str, Any]:
    """A sample with its floating point tensors in another precision."""
    change: Callable[[Tensor], Tensor] = lambda one: one.to(dtype) if one.is_floating_point() else one  # noqa: E731
    found: dict[str, Any] = tree_map_only(Tensor, change, dict(sample))
    return found


def paths(module: nn.Module, parts: Sequence[nn.Module]) -> list[str]:
    """Path of each of some submodules."""
    known = {id(part): path for path, part in module.named_modules()}
    return [known[id(part)] for part in parts]


def first_line(error: Exception) -> str:
    """What an error says, on one line."""
    words = str(error).strip().splitlines()
    return f"{type(error).__name__}: {words[0][:200]}" if words else type(error).__name__
