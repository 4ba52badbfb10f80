"""Data flow: the units of any network that can be its layers, in which order one pass ran them, and what they read.

Layers are what a partitioner may separate; blocks are the coarser units that published baselines count.

A list of blocks (``nn.ModuleList``) that is not inside another gives one unit per block; single operators, such as
norms or the output of an attention, are no blocks. The levels of a U-Net are taken apart further, into ResNets,
attentions, resamplings and outer convolutions. Its blocks are those whose outputs the input half hands to the output
half: each ResNet with its attention, and each downsampling; an upsampling belongs to the block before it, ``conv_out``
(with its norm) to the last. The time embedding is part of ``conv_in``, joining a skip part of the ResNet that reads it.
"""

from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from typing import Final, NamedTuple

from torch import Tensor, nn

from profiles.measuring.counting.specs import CLASSES
from profiles.measuring.counting.trace import (
    EndedTwiceError,
    Ran,
    Returned,
    Trace,
    storage,
    tensor_bytes,
    tensors,
)

SUMS: Final = r"conv_out|.+\.((resnets|downsamplers|upsamplers)\.\d+|attn1|attn2|ff)"
"""Submodules of a U-Net whose outputs DistriFusion's tensor-parallel baseline sums; with the first convolution it would
send 1.4 % more than published."""
MODULES: Final = CLASSES["modules"]
LEVELS: Final[dict[str, str]] = MODULES["levels"]
NAMES: Final[dict[str, str]] = MODULES["names"]
OPENING: Final = MODULES["opening"]
WHOLE: Final = "whole"
"""Name of the only layer of a network that cannot be cut, as it runs one block several times."""


class Unit(NamedTuple):
    """A module that can be a layer, by its path, the layer's name, and whether it opens a block of its own."""

    path: str
    name: str
    opens: bool = True


def units_of(module: nn.Module, word: str = "block") -> list[Unit]:
    """All units of a network, in the order of its definition; ``word`` names the blocks of its list if it has one."""
    unnamed = list(_units(module, ""))
    lists = {unit.path.rpartition(".")[0] for unit in unnamed if unit.name.startswith("#")}
    named = []
    for unit in unnamed:
        path, _, number = unit.path.rpartition(".")
        noun = word if len(lists) == 1 else path.rpartition(".")[2].removesuffix("s")
        named.append(Unit(unit.path, f"{noun}{number}") if unit.name.startswith("#") else unit)
    return named


def coarser(module: nn.Module, units: Sequence[Unit], path: str) -> list[Unit]:
    """Units, in which the module that holds and runs the unit at ``path`` replaces all units inside it.

    Weights that one pass reads several times cannot be cut apart, so all of these passes are one layer.
    """
    while path:
        path = path.rpartition(".")[0]
        if not isinstance(module.get_submodule(path), nn.ModuleList):
            break
    inside = f"{path}." if path else ""
    kept = [unit for unit in units if not unit.path.startswith(inside) and unit.path != path]
    return [*kept, Unit(path, path or WHOLE)]


def _units(module: nn.Module, prefix: str) -> Iterator[Unit]:
    names = dict(module.named_children())
    leveled = any(name in names for name in LEVELS)
    for name, child in names.items():
        path = f"{prefix}{name}"
        if name in LEVELS and isinstance(child, nn.ModuleList):
            for number, level in enumerate(child):
                yield from _level(level, f"{path}.{number}", f"{prefix}{LEVELS[name]}{number}")
        elif name in MODULES["middles"]:
            yield from _level(child, path, f"{prefix}middle", middle=True)
        elif name in MODULES["outer"] and (leveled or "quant" in name):
            yield Unit(path, path, name in OPENING)
        elif isinstance(child, nn.ModuleList):
            if all(member is not None and any(member.children()) for member in child):
                yield from (Unit(f"{path}.{i}", "#") for i in range(len(child)))
        else:
            yield from _units(child, f"{path}.")


def _level(level: nn.Module, path: str, name: str, *, middle: bool = False) -> Iterator[Unit]:
    """Yield the members of a level of a U-Net, or of its lists; a level without lists is a unit itself.

    The middle between the halves is one block, which its first ResNet opens.
    """
    if isinstance(level, nn.ModuleList) and not middle:
        yield from (Unit(f"{path}.{number}", f"{name}.block{number}") for number in range(len(level)))
        return
    divided = False
    for kind, child in level.named_children():
        members = child if isinstance(child, nn.ModuleList) else ()
        numbers = [i for i, member in enumerate(members) if isinstance(member, nn.Module)]
        numbered = len(numbers) > 1 or kind == "resnets" or (kind == "attentions" and not middle)
        for i in numbers:
            divided, word = True, NAMES.get(kind, kind.removesuffix("s"))
            opens = kind == "resnets" and i == 0 if middle else kind in OPENING
            yield Unit(f"{path}.{kind}.{i}", f"{name}.{word}{i if numbered else ''}", opens)
    if not divided:
        yield Unit(path, name)


def sums_of(module: nn.Module, units: Sequence[Unit]) -> str:
    """Regular expression of the submodules whose output tensor parallelism sums up.

    Of a U-Net, those of the shipped ones; of a block, its self-attention and feed-forward where it has both under
    names that are known (PipeFusion, Table 1: two sums a block), else its output; the small cross-attention runs
    whole on every device.
    """
    if any(name in dict(module.named_children()) for name in LEVELS):
        return SUMS
    parts: dict[str, None] = {}
    for unit in units:
        path = unit.path.rpartition(".")[0].replace(".", r"\.")
        children = dict(module.get_submodule(unit.path).named_children())
        attention = next((name for name in MODULES["attentions"] if name in children), None)
        feed_forward = next((name for name in MODULES["feed_forwards"] if name in children), None)
        both = rf"\.({attention}|{feed_forward})" if attention and feed_forward else ""
        parts[rf"{path}\.\d+{both}"] = None
    return "|".join(parts)


def parts_of(module: nn.Module) -> list[Unit]:
    """Units of a network without lists of blocks: its children, and for each ``nn.Sequential`` those of that."""
    units: list[Unit] = []
    for name, child in module.named_children():
        if isinstance(child, nn.Sequential):
            units += [Unit(f"{name}.{unit.path}", f"{name}.{unit.name}") for unit in parts_of(child)]
        elif not isinstance(child, nn.ModuleList | nn.ModuleDict):
            units.append(Unit(name, name))
    return units


NEAR_UNITS: Final = 2
SMALL: Final = 10
"""A tensor that only one unit reads is carried if it is smaller than the hidden state and read after unit
``NEAR_UNITS``, or if it is ``SMALL`` times smaller; else all units up to its reader become one, so that no cut has to
carry it."""


class Flow(NamedTuple):
    """Units of one pass that can be cut apart, in execution order, and where they end.

    ``ends`` are the paths of the modules at whose return they end, ``streams`` how many of the tensors they return
    are the hidden state, ``carried`` bytes of what later units read beside it, by name.
    """

    units: tuple[Unit, ...]
    ends: tuple[str, ...]
    streams: tuple[int, ...]
    carried: Mapping[str, int]


def flow_of(trace: Trace, units: Sequence[Unit], *, anywhere: bool = False) -> Flow:
    """The flow of one pass through units (in any order) that can be cut apart.

    A unit that runs several times is merged with what holds it, and one after which no cut can be with the next; with
    ``anywhere`` a cut can be after every unit, since what it has to carry is known.
    """
    while True:
        try:
            watch = Watch(trace, units)
        except EndedTwiceError as error:
            units = coarser(trace.module, units, error.path)
            continue
        uncut = [] if anywhere else watch.uncut()
        if not uncut:
            return watch.flow()
        units = [unit for unit in watch.units if unit not in uncut]


def attended(trace: Trace) -> int:
    """Tokens of the longest self-attention."""
    runs = (event for event in trace.events if isinstance(event, Ran) and event.attends_to_itself)
    return max((run.args[0].shape[-2] for run in runs), default=0)


def unread(trace: Trace) -> list[str]:
    """Names of the parameters that no operator reads."""
    runs = (event for event in trace.events if isinstance(event, Ran))
    read = {storage(tensor) for run in runs for tensor in run.reads}
    return [name for name, parameter in trace.module.named_parameters() if storage(parameter) not in read]


class Watch:
    """Writers and readers of each tensor; positions count the units that have ended.

    A tensor is *made* if it depends on parameters or conditions; tables of positions and masks do not.
    """

    def __init__(self, trace: Trace, units: Sequence[Unit]) -> None:
        self.units: list[Unit] = []
        self._outputs: list[tuple[Tensor, ...]] = []
        self._output = next(reversed(trace.returned().values()))
        self._parameters = {storage(p) for p in trace.module.parameters()}
        self._names: dict[int, str] = {}
        self._returned: dict[int, tuple[str, int]] = {}
        self._early: dict[int, str] = {}
        self._written: dict[int, tuple[int, Tensor]] = {}
        self._read: defaultdict[int, set[int]] = defaultdict(set)
        self._made: set[int] = set()
        for name, tensor in ((name, tensor) for name, of in trace.sample.items() for tensor in tensors(of)):
            self._names[storage(tensor)], self._written[storage(tensor)] = name, (-1, tensor)
            if not any(part in name for part in CLASSES["arguments"]["everywhere"]):
                self._made.add(storage(tensor))
        known = {unit.path: unit for unit in units}
        inside = tuple(f"{unit.path}." for unit in units)
        for event, position in zip(trace.events, trace.positions(known), strict=True):
            if isinstance(event, Ran) and not event.func.is_view:
                self._note(event, position)
            elif isinstance(event, Returned):
                self._return(event, known, inside)

    def flow(self) -> Flow:
        """Return the flow through the units, which can be cut apart."""
        positions = range(len(self.units))
        ends = [unit.path for unit in self.units[:-1]] + [self._last()] if self.units else []
        carried: defaultdict[str, int] = defaultdict(int)
        for one, later in self._beside():
            if self._is_carried(one, later):
                name = self._names.get(one) or self._early.get(one, "computed")
                carried[name] += tensor_bytes([self._written[one][1]])
        return Flow(tuple(self.units), tuple(ends), tuple(map(self._streams, positions)), carried)

    def uncut(self) -> list[Unit]:
        """The first units after which something is alive that is neither carried nor a unit's output."""
        loose = [later for one, later in self._beside() if not self._is_carried(one, later)]
        return self.units[: max((max(later) for later in loose), default=0)]

    def _note(self, ran: Ran, position: int) -> None:
        inputs = {storage(tensor) for tensor in ran.reads}
        for one in inputs:
            self._read[one].add(position)
        for tensor in ran.writes:
            self._written.setdefault(storage(tensor), (position, tensor))
        if not inputs.isdisjoint(self._made | self._parameters):
            self._made |= {storage(tensor) for tensor in ran.writes}

    def _return(self, event: Returned, known: Mapping[str, Unit], inside: tuple[str, ...]) -> None:
        if event.path in known:
            self.units.append(known[event.path])
            self._outputs.append(event.outputs)
        if event.path and not event.path.startswith(inside):
            for one in map(storage, event.outputs):
                self._returned[one] = (event.path, len(self.units))
                if len(self.units) <= 1:
                    self._early[one] = event.path

    def _streams(self, position: int) -> int:
        """Number of first tensors in a unit's output that are new, have as many dimensions, and are read later."""
        outputs = self._outputs[position] if position < len(self.units) - 1 else ()
        count = 0
        for tensor in outputs:
            written = self._written.get(storage(tensor), (-1, tensor))[0]
            later = any(reader > position for reader in self._read[storage(tensor)])
            if not (tensor.dim() == outputs[0].dim() and later and written == position):
                break
            count += 1
        return max(count, 1)

    def _last(self) -> str:
        """Path of the module that returned the largest tensor of the output after the last unit."""
        largest = max(self._output, key=lambda tensor: tensor.numel())
        path, position = self._returned.get(storage(largest), ("", len(self.units)))
        return path if position == len(self.units) or path == self.units[-1].path else ""

    def _beside(self) -> Iterator[tuple[int, set[int]]]:
        """Tensors made up to the first unit that are no hidden state, with the later units that read them."""
        states = (outputs[: self._streams(at)] for at, outputs in enumerate(self._outputs))
        hidden = {storage(tensor) for of in states for tensor in of}
        final = len(self.units) - 1
        for one, (written, _) in self._written.items():
            later = {min(position, final) for position in self._read[one] if position > 0} - {0}
            if written <= 0 and later and one in self._made and one not in hidden:
                yield one, later

    def _is_carried(self, one: int, later: set[int]) -> bool:
        """Return whether every unit is given a tensor; else those up to its only reader become one."""
        size = tensor_bytes([self._written[one][1]])
        hidden = tensor_bytes(self._outputs[0][: self._streams(0)])
        small = size * SMALL < hidden or (size < hidden and max(later) > NEAR_UNITS)
        return len(later) > 1 or len(self.units) - 1 in later or small
