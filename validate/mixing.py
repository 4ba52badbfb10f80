"""Mixing: passes over tensors without contents that meet tensors with contents.

A class that reads a mask (``mask.sum().tolist()``) needs its numbers, so a sample may hold real tensors; many classes
make small tables on the CPU by themselves. On the meta device neither may meet a tensor without contents: here they
may, and lose their contents where they do.
"""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, Final

import torch
from torch import Tensor
from torch._ops import OpOverload
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode, _disable_current_modes
from torch.utils._pytree import tree_leaves, tree_map_only

aten = torch.ops.aten

META: Final = "meta"
MADE_THERE: Final = {aten._to_copy, aten.copy_}
"""Operators that may read one device and write another."""
INDEXED: Final = {aten.index, aten.index_put, aten.index_put_}


class Mixing(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Within this context operators over tensors with and without contents work without.

    Experts are chosen by the contents of a token; where those are missing, tokens are spread evenly over them.
    """

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.spread = False
        self._experts: dict[int, int] = {}
        self._alive: list[Tensor] = []

    def __torch_dispatch__(
        self,
        func: OpOverload[..., Any],
        types: object,
        args: tuple[Any, ...] = (),
        kwargs: dict[str, Any] | None = None,
    ) -> object:
        """Run one operator, its tensors without contents if one of them is."""
        if func.overloadpacket is aten.bincount and _storage(args[0]) in self._experts:
            self.spread = True
            return _evenly(args[0].numel(), self._experts[_storage(args[0])])
        if func.overloadpacket not in MADE_THERE and _mixed((args, kwargs)):
            args = _with_places(args) if func.overloadpacket in INDEXED else args
            args, kwargs = _emptied(args), _emptied(kwargs)
        result = func(*args, **(kwargs or {}))
        if func.overloadpacket is aten.topk and _is_meta(args[0]):
            indices = result[1]
            self._experts[_storage(indices)] = args[0].shape[-1]
            self._alive.append(indices)  # a storage's address is its identity only while it lives
        return result


class Numbers(TorchFunctionMode):
    """Within this context a tensor that is made of numbers keeps them, whatever its device."""

    def __torch_function__(
        self,
        func: Callable[..., object],
        types: object,
        args: tuple[Any, ...] = (),
        kwargs: dict[str, Any] | None = None,
    ) -> object:
        """Call a function; make tensors of numbers where they can be read."""
        kwargs = kwargs or {}
        if func is torch.tensor and str(kwargs.get("device")) == META:
            kwargs = {**kwargs, "device": "cpu"}
        return func(*args, **kwargs)


@contextmanager
def mixing() -> Iterator[Mixing]:
    """Let tensors with and without contents meet, and let autocast stand where there is nothing to cast."""
    original = torch.autocast

    class Autocast(original):  # type: ignore[misc,valid-type]
        def __init__(self, device_type: str, *args: Any, **kwargs: Any) -> None:  # noqa: ANN401  torch's own
            if device_type == META:
                super().__init__("cpu", enabled=False)
            else:
                super().__init__(device_type, *args, **kwargs)

    torch.autocast = Autocast  # type: ignore[misc]
    try:
        with Numbers(), Mixing() as mixed:
            yield mixed
    finally:
        torch.autocast = original  # type: ignore[misc]


def _evenly(number: int, parts: int) -> Tensor:
    """Return how many of a number fall to each of some parts, as evenly as can be."""
    with _disable_current_modes():
        return torch.tensor([number // parts + (part < number % parts) for part in range(parts)])


def _mixed(tree: object) -> bool:
    tensors = [leaf for leaf in tree_leaves(tree) if isinstance(leaf, Tensor)]
    return any(_is_meta(tensor) for tensor in tensors) and not all(_is_meta(tensor) for tensor in tensors)


def _is_meta(tensor: Tensor) -> bool:
    return tensor.device.type == META


def _emptied(tree: Any) -> Any:  # noqa: ANN401  arguments of any operator
    with _disable_current_modes():
        return tree_map_only(Tensor, _without_contents, tree)


def _with_places(args: tuple[Any, ...]) -> tuple[Any, ...]:
    """Return an indexing's arguments with the places that masks with contents choose in their stead."""
    places: list[Tensor | None] = []
    with _disable_current_modes():
        for index in args[1]:
            chooses = index is not None and index.dtype is torch.bool and not _is_meta(index)
            places += index.nonzero(as_tuple=True) if chooses else [index]
    return (args[0], places, *args[2:])


def _without_contents(tensor: Tensor) -> Tensor:
    if _is_meta(tensor):
        return tensor
    return torch.empty_strided(tensor.shape, tensor.stride(), dtype=tensor.dtype, device=META)


def _storage(tensor: Tensor) -> int:
    return int(tensor.untyped_storage()._cdata)
