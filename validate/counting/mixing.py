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
from torch.utils._python_dispatch import TorchDispatchMode, _disable_current_modes
from torch.utils._pytree import tree_leaves, tree_map_only

from validate.counting.attention import Instead

aten = torch.ops.aten

META: Final = "meta"
Run = Callable[[OpOverload[..., Any], tuple[Any, ...], dict[str, Any]], Any]
MADE_THERE: Final = {aten._to_copy, aten.copy_}
"""Operators that may read one device and write another."""
INDEXED: Final = {aten.index, aten.index_put, aten.index_put_}


class Mixing(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Within this context operators over tensors with and without contents work without.

    Experts are chosen by the contents of a token; where those are missing, tokens are spread evenly over them.

    Args:
        run: runs an operator on its arguments.
    """

    def __init__(self, run: Run) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self._run = run
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
        kwargs = kwargs or {}
        if func.overloadpacket is aten.bincount and _storage(args[0]) in self._experts:
            self.spread = True
            return _evenly(args[0].numel(), self._experts[_storage(args[0])])
        if func.overloadpacket not in MADE_THERE and _mixed((args, kwargs)):
            args = _with_places(args) if func.overloadpacket in INDEXED else args
            args, kwargs = _emptied(args), _emptied(kwargs)
        result = self._run(func, args, kwargs)
        if func.overloadpacket is aten.topk and _is_meta(args[0]):
            indices = result[1]
            self._experts[_storage(indices)] = args[0].shape[-1]
            self._alive.append(indices)  # a storage's address is its identity only while it lives
        return result


def _numbers(data: object, **kwargs: Any) -> Tensor:  # noqa: ANN401  torch's own
    """A tensor that is made of numbers keeps them, whatever its device."""
    elsewhere = {"device": "cpu"} if str(kwargs.get("device")) == META else {}
    return torch.tensor(data, **kwargs | elsewhere)


@contextmanager
def mixing(run: Run) -> Iterator[Mixing]:
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
        with Instead(torch.tensor, _numbers), Mixing(run) as mixed:
            yield mixed
    finally:
        torch.autocast = original  # type: ignore[misc]


def _evenly(number: int, parts: int) -> Tensor:
    """Shares of a number that fall to each of some parts, as evenly as can be."""
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
    """An indexing's arguments with the places that masks with contents choose in their stead."""
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
