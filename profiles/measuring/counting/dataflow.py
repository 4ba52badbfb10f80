"""Data flow: the units of any network that can be its layers, and in which order one pass ran them.

Layers are what a partitioner may separate; blocks are the coarser units that published baselines count.

A list of blocks (``nn.ModuleList``) that is not inside another gives one unit per block; single operators, such as
norms or the output of an attention, are no blocks. The levels of a U-Net are taken apart further, into ResNets,
attentions, resamplings and outer convolutions. Its blocks are those whose outputs the input half hands to the output
half: each ResNet with its attention, and each downsampling; an upsampling belongs to the block before it, ``conv_out``
(with its norm) to the last. The time embedding is part of ``conv_in``, joining a skip part of the ResNet that reads it.
"""

from collections import Counter
from collections.abc import Iterator, Sequence
from typing import Final, NamedTuple

import torch
from torch import nn

from profiles.architectures.kernels import FEW_ROWS
from profiles.measuring.counting.specs import CLASSES, LayerSpec
from profiles.measuring.counting.trace import Ran, Returned, Trace, aten, storage

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
        elif name not in MODULES["undivided"]:
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


def parts_of(module: nn.Module) -> list[Unit]:
    """Units of a network without lists of blocks: its children, and for each ``nn.Sequential`` those of that."""
    units: list[Unit] = []
    for name, child in module.named_children():
        if isinstance(child, nn.Sequential):
            units += [Unit(f"{name}.{unit.path}", f"{name}.{unit.name}") for unit in parts_of(child)]
        elif not isinstance(child, nn.ModuleList | nn.ModuleDict):
            units.append(Unit(name, name))
    return units


def parts_run(trace: Trace, units: Sequence[Unit]) -> list[LayerSpec]:
    """Layers of one pass, a unit each, in execution order; a unit that runs several times is merged with what holds it.

    ``block`` says whether the unit opens one. The last layer ends with the whole. Streams are the hidden state: the
    first tensors in an output that have as many dimensions and are read later.
    """
    known = {unit.path: unit for unit in units}
    ran = [event for event in trace.events if isinstance(event, Returned) and event.path in known]
    paths = [event.path for event in ran]
    for path, times in Counter(paths).items():
        if times > 1:
            return parts_run(trace, _coarser(trace.module, units, path))
    ends = [*paths[:-1], ""][: len(paths)]
    streams = _streams(trace, ran)
    return [
        LayerSpec(known[path].name, known[path].opens, end, count, path)
        for path, end, count in zip(paths, ends, streams, strict=True)
    ]


def _coarser(module: nn.Module, units: Sequence[Unit], path: str) -> list[Unit]:
    """Units, in which the module that holds and runs the unit at ``path`` replaces all units inside it.

    Weights that one pass reads several times cannot be cut apart, so all of these passes are one layer.
    """
    path = path.rpartition(".")[0]
    while path and isinstance(module.get_submodule(path), nn.ModuleList):
        path = path.rpartition(".")[0]
    inside = f"{path}." if path else ""
    kept = [unit for unit in units if not unit.path.startswith(inside) and unit.path != path]
    return [*kept, Unit(path, path or WHOLE)]


def _streams(trace: Trace, ran: Sequence[Returned]) -> Iterator[int]:
    last_read = dict[int, int]()
    for event, position in zip(trace.events, trace.positions([one.path for one in ran]), strict=True):
        if isinstance(event, Ran) and not event.func.is_view:
            last_read |= dict.fromkeys(map(storage, event.reads), position)
    for number, event in enumerate(ran, start=1):
        out = event.outputs if number < len(ran) else ()
        hidden = [one.dim() == out[0].dim() and last_read.get(storage(one), 0) >= number for one in out]
        yield max([*hidden, False].index(False), 1)


def summed(trace: Trace, parts: Sequence[LayerSpec]) -> Iterator[str]:
    """Yield the paths of the modules whose outputs tensor parallelism sums: after self-attention, and feed-forward.

    Devices divide the outputs of a linear of a block's tokens, what is made of them, and the inputs of the linear that
    reads that; cross-attention runs whole on all of them. None of a network that convolves neighbouring rows.
    """
    names = {storage(one): name.rpartition(".")[0] for name, one in trace.module.named_parameters()}
    returned, divided = trace.returned(), dict[int, bool]()
    if any(event.is_flat and event.args[4][0] for event in trace.events if isinstance(event, Ran)):
        return
    for event, layer in trace.by_layer(parts):
        if isinstance(event, Returned) and event.path == parts[layer].end:
            divided.clear()
        if not isinstance(event, Ran) or not event.launches:
            continue
        reads, operator = [storage(one) for one in event.reads], event.func.overloadpacket
        path = next((names[one] for one in reads if one in names), "")
        states = [divided[one] for one in reads if one in divided]
        of_tokens = path.startswith(f"{parts[layer].path}.") and event.writes[0].shape[-2:][0] > FEW_ROWS
        if operator in (aten.mm, aten.addmm) and of_tokens:
            while all(states) and states and path not in returned:
                path = path.rpartition(".")[0]
            if states and all(states):
                yield path
            states = [] if states else [True]
        elif operator is torch.ops.diffusim.attention and not event.attends_to_itself:
            states = [False] if states else []
        for one in map(storage, event.writes):
            divided.pop(one, None)
            divided |= {one: all(states)} if states else {}


def attended(trace: Trace) -> int:
    """Tokens that the longest self-attention reads."""
    runs = (event for event in trace.events if isinstance(event, Ran) and event.attends_to_itself)
    return max((run.args[1].shape[-2] for run in runs), default=0)
