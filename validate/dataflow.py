"""Data flow: which units of a network run in which order in one pass, and which tensors later ones read.

The pass runs on torch's meta device, like that of the count itself, which needs these answers first.
"""

from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, Final

import torch
from torch import Tensor, nn
from torch._ops import OpOverload
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves
from torch.utils.hooks import RemovableHandle

from validate.attention import OpaqueAttention
from validate.mixing import mixing
from validate.tally import attends_to_itself, tensor_bytes
from validate.units import Unit

EVERYWHERE: Final = ("rotary", "mask", "ids", "shapes")
"""Parts of the names of arguments that every device can make for itself."""
NEAR: Final = 2
SMALL: Final = 10
"""What one unit alone reads is carried if that is a later one than NEAR, or if SMALL times it is less than the hidden
state; else the units up to its reader are one, so that no cut has to carry it."""


@dataclass(frozen=True, slots=True)
class Flow:
    """What one pass shows.

    Attributes:
        units: those that ran, in execution order.
        streams: how many of the tensors that each returns are the hidden state.
        last: path of the module at whose return the last one ends.
        carried: names of what later units read beside the hidden state, and its bytes.
        carried_bytes: all of it.
        attended: tokens of the longest self-attention.
        unread: names of the parameters that nothing reads.
        uncut: those after which a cut would have to carry more than the hidden state, the skips and what is carried.
        spread: whether tokens chose experts, over which they were spread evenly.
    """

    units: tuple[Unit, ...]
    streams: tuple[int, ...]
    last: str
    carried: tuple[str, ...]
    carried_bytes: int
    attended: int
    unread: tuple[str, ...]
    uncut: tuple[Unit, ...] = ()
    spread: bool = False


class RunTwiceError(Exception):
    """A unit ran more than once."""

    def __init__(self, unit: Unit) -> None:
        super().__init__(unit.name)
        self.unit = unit


def flow_of(module: nn.Module, units: Sequence[Unit], sample: Mapping[str, Any]) -> Flow:
    """Run one pass and return what it shows.

    Raises:
        RunTwiceError: a unit ran more than once.
    """
    watch = Watch(module, units, sample)
    try:
        with torch.no_grad(), OpaqueAttention(), watch, mixing() as mixed:
            output = module(**sample)
    finally:
        watch.leave()
    carried = watch.carried()
    return Flow(
        units=tuple(units[number] for number, _ in watch.ends),
        streams=tuple(watch.streams(position) for position in range(len(watch.ends))),
        last=watch.last(output, units),
        carried=tuple(dict.fromkeys(name for name, _ in carried)),
        carried_bytes=sum(size for _, size in carried),
        attended=watch.attended,
        unread=tuple(name for name, p in module.named_parameters() if _storage(p) in watch.unread),
        uncut=tuple(units[watch.ends[position][0]] for position in watch.uncut()),
        spread=mixed.spread,
    )


class Watch(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Notes who writes and reads what; positions count the units that have ended.

    A tensor is *made* where it depends on parameters or conditions; tables of positions and masks do not.
    """

    def __init__(self, module: nn.Module, units: Sequence[Unit], sample: Mapping[str, Any]) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.ends: list[tuple[int, list[Tensor]]] = []
        self.attended = 0
        self.unread = {_storage(p) for p in module.parameters()}
        self._parameters = set(self.unread)
        self._names: dict[int, str] = {}
        self._returned: dict[int, tuple[str, int]] = {}
        self._early: dict[int, str] = {}
        self._written: dict[int, int] = {}
        self._read: defaultdict[int, set[int]] = defaultdict(set)
        self._made: set[int] = set()
        self._alive: dict[int, Tensor] = {}
        for name, value in sample.items():
            for tensor in _tensors(value):
                self._give(name, tensor)
        inside = tuple(f"{unit.path}." for unit in units)
        numbers = {unit.path: number for number, unit in enumerate(units)}
        self._hooks: list[RemovableHandle] = []
        for path, part in module.named_modules():
            if path in numbers:
                end = partial(self._end, numbers[path], units[numbers[path]])
                self._hooks.append(part.register_forward_hook(end))
            if path and not path.startswith(inside):
                self._hooks.append(part.register_forward_hook(partial(self._return, path)))

    def leave(self) -> None:
        """Take the hooks off the module, so that another pass can be watched."""
        for hook in self._hooks:
            hook.remove()

    def _give(self, name: str, tensor: Tensor) -> None:
        storage = _storage(tensor)
        self._names[storage], self._written[storage], self._alive[storage] = name, -1, tensor
        if not any(part in name for part in EVERYWHERE):
            self._made.add(storage)

    def __torch_dispatch__(
        self,
        func: OpOverload[..., Any],
        types: object,
        args: tuple[Any, ...] = (),
        kwargs: dict[str, Any] | None = None,
    ) -> object:
        """Run one operator and note what it reads and writes."""
        result = func(*args, **(kwargs or {}))
        inputs = {_storage(tensor) for tensor in _tensors((args, kwargs))}
        self.unread -= inputs
        if func.overloadpacket is torch.ops.diffusim.attention and attends_to_itself(*args[:2]):
            self.attended = max(self.attended, args[0].shape[-2])
        if not func.is_view:
            self._note(inputs, _tensors(result))
        return result

    def _note(self, inputs: set[int], outputs: Sequence[Tensor]) -> None:
        position = len(self.ends)
        for storage in inputs:
            self._read[storage].add(position)
        made = not inputs.isdisjoint(self._made | self._parameters)
        for tensor in outputs:
            storage = _storage(tensor)
            self._written.setdefault(storage, position)
            self._alive.setdefault(storage, tensor)
            if made:
                self._made.add(storage)

    def _end(self, number: int, unit: Unit, module: nn.Module, args: object, output: object) -> None:
        if number in (ended for ended, _ in self.ends):
            raise RunTwiceError(unit)
        self.ends.append((number, _tensors(output)))

    def _return(self, path: str, module: nn.Module, args: object, output: object) -> None:
        for tensor in _tensors(output):
            self._returned[_storage(tensor)] = (path, len(self.ends))
            if len(self.ends) <= 1:
                self._early[_storage(tensor)] = path

    def streams(self, position: int) -> int:
        """Return how many of the tensors that a unit returns are new, shaped like the first, and read later."""
        tensors = self.ends[position][1]
        count = 0
        for tensor in tensors if position < len(self.ends) - 1 else []:
            storage, first = _storage(tensor), tensors[0]
            alike = tensor.dim() == first.dim()
            later = any(reader > position for reader in self._read[storage])
            if not (alike and later and self._written.get(storage) == position):
                break
            count += 1
        return max(count, 1)

    def last(self, output: object, units: Sequence[Unit]) -> str:
        """Return the path of the module that returned the largest tensor of the output after the last unit."""
        largest = max(_tensors(output), key=lambda tensor: tensor.numel())
        path, position = self._returned.get(_storage(largest), ("", len(self.ends)))
        final = units[self.ends[-1][0]].path
        return path if position == len(self.ends) or path == final else ""

    def carried(self) -> list[tuple[str, int]]:
        """Return name and bytes of what was made before or in the first unit and is read beyond the second."""
        found = []
        for storage, later in self._beside():
            if self._is_carried(storage, later):
                name = self._names.get(storage) or self._early.get(storage, "computed")
                found.append((name, tensor_bytes([self._alive[storage]])))
        return found

    def uncut(self) -> list[int]:
        """Return the first positions after which something is alive that is neither carried nor a unit's output."""
        loose = [later for storage, later in self._beside() if not self._is_carried(storage, later)]
        return list(range(max((max(later) for later in loose), default=0)))

    def _beside(self) -> Iterator[tuple[int, set[int]]]:
        """Yield what is made before or in the first unit but is no hidden state, and which later units read it."""
        ends = enumerate(tensors for _, tensors in self.ends)
        hidden = {_storage(tensor) for at, tensors in ends for tensor in tensors[: self.streams(at)]}
        final = len(self.ends) - 1
        for storage, written in self._written.items():
            later = {min(position, final) for position in self._read[storage] if position > 0} - {0}
            if written <= 0 and later and storage in self._made and storage not in hidden:
                yield storage, later

    def _is_carried(self, storage: int, later: set[int]) -> bool:
        """Return whether every unit is given a tensor, rather than that those up to its only reader are one."""
        size, hidden = (
            tensor_bytes(tensors) for tensors in ([self._alive[storage]], self.ends[0][1][: self.streams(0)])
        )
        small = size * SMALL < hidden or (size < hidden and max(later) > NEAR)
        return len(later) > 1 or len(self.ends) - 1 in later or small


def _tensors(tree: object) -> list[Tensor]:
    return [leaf for leaf in tree_leaves(tree) if isinstance(leaf, Tensor)]


def _storage(tensor: Tensor) -> int:
    return int(tensor.untyped_storage()._cdata)
