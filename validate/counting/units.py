"""Units: the modules of any network that can be its layers, found by structure.

Layers are what a partitioner may separate; blocks are the coarser units that published baselines count.

A list of blocks (``nn.ModuleList``) that is not inside another gives one unit per block; single operators, such as
norms or the output of an attention, are no blocks. The levels of a U-Net are taken apart further, into ResNets,
attentions, resamplings and outer convolutions. Its blocks are those whose outputs the input half hands to the output
half: each ResNet with its attention, and each downsampling; an upsampling belongs to the block before it, ``conv_out``
(with its norm) to the last. The time embedding is part of ``conv_in``, joining a skip part of the ResNet that reads it.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Final

from torch import nn

from validate.counting.specs import CLASSES

SUMS: Final = r"conv_out|.+\.((resnets|downsamplers|upsamplers)\.\d+|attn1|attn2|ff)"
"""What DistriFusion's tensor-parallel baseline sums up of a U-Net; with the first convolution it would send 1.4 % more
than printed."""
MODULES: Final = CLASSES["modules"]
LEVELS: Final[dict[str, str]] = MODULES["levels"]
NAMES: Final[dict[str, str]] = MODULES["names"]
OPENING: Final = MODULES["opening"]
WHOLE: Final = "whole"
"""Name of the only layer of a network that runs a block of its own several times."""


@dataclass(frozen=True, slots=True)
class Unit:
    """A module that can be a layer.

    Attributes:
        path: of the module.
        name: of the layer.
        opens: whether it opens a block of its own.
    """

    path: str
    name: str
    opens: bool = True


def units_of(module: nn.Module, word: str = "block") -> list[Unit]:
    """All units of a network, in the order of its definition.

    Args:
        module: the network.
        word: for a block where there is one list of them; of several, each names its own.
    """
    found = list(_units(module, ""))
    lists = {unit.path.rpartition(".")[0] for unit in found if unit.name.startswith("#")}
    return [_named(unit, word if len(lists) == 1 else "") for unit in found]


def coarser(module: nn.Module, units: Sequence[Unit], path: str) -> list[Unit]:
    """Units of which that at ``path`` gives way to the module that holds and runs it, with all others in there.

    Weights that one pass reads several times cannot be cut apart, so all of these passes are one layer.
    """
    while path:
        path = path.rpartition(".")[0]
        if not isinstance(module.get_submodule(path), nn.ModuleList):
            break
    inside = f"{path}." if path else ""
    kept = [unit for unit in units if not unit.path.startswith(inside) and unit.path != path]
    return [*kept, Unit(path, path or WHOLE)]


def _named(unit: Unit, word: str) -> Unit:
    """A unit of a plain list with its name: ``word`` and number, or that of its list and number."""
    if not unit.name.startswith("#"):
        return unit
    path, _, number = unit.path.rpartition(".")
    return Unit(unit.path, f"{word or path.rpartition('.')[2].removesuffix('s')}{number}")


def _units(module: nn.Module, prefix: str) -> Iterator[Unit]:
    names = dict(module.named_children())
    leveled = any(name in names for name in LEVELS)
    for name, child in names.items():
        path = f"{prefix}{name}"
        if name in LEVELS and isinstance(child, nn.ModuleList):
            for number, level in enumerate(child):
                yield from _level(level, f"{path}.{number}", f"{prefix}{LEVELS[name]}{number}")
        elif name in MODULES["middles"]:
            yield from _middle(child, path, f"{prefix}middle")
        elif name in MODULES["outer"] and (leveled or "quant" in name):
            yield Unit(path, path, name in OPENING)
        elif isinstance(child, nn.ModuleList):
            if all(member is not None and any(member.children()) for member in child):
                yield from (Unit(f"{path}.{i}", "#") for i in range(len(child)))
        else:
            yield from _units(child, f"{path}.")


def _level(level: nn.Module, path: str, name: str) -> Iterator[Unit]:
    """Yield the members of a level of a U-Net, or of its lists; a level without lists is a unit itself."""
    if isinstance(level, nn.ModuleList):
        yield from (Unit(f"{path}.{number}", f"{name}.block{number}") for number in range(len(level)))
        return
    for kind, numbers in _lists(level):
        numbered = len(numbers) > 1 or kind in ("resnets", "attentions")
        for number, member in _members(kind, numbers, numbered):
            yield Unit(f"{path}.{kind}.{number}", f"{name}.{member}", kind in OPENING)
    if not _lists(level):
        yield Unit(path, name)


def _middle(middle: nn.Module, path: str, name: str) -> Iterator[Unit]:
    """Yield the members of the lists between the halves: one block, which the first that runs opens."""
    for kind, numbers in _lists(middle):
        for number, member in _members(kind, numbers, len(numbers) > 1 or kind == "resnets"):
            yield Unit(f"{path}.{kind}.{number}", f"{name}.{member}", kind == "resnets" and number == 0)
    if not _lists(middle):
        yield Unit(path, name)


def _members(kind: str, numbers: Sequence[int], numbered: bool) -> Iterator[tuple[int, str]]:
    """Yield number and name of each member of a list."""
    word = NAMES.get(kind, kind.removesuffix("s"))
    for number in numbers:
        yield number, f"{word}{number if numbered else ''}"


def _lists(module: nn.Module) -> list[tuple[str, Sequence[int]]]:
    """The lists of a level by name, each with the numbers of those members that are modules."""
    lists = [(name, child) for name, child in module.named_children() if isinstance(child, nn.ModuleList)]
    return [
        (name, [i for i, member in enumerate(child) if isinstance(member, nn.Module)])
        for name, child in lists
        if any(isinstance(member, nn.Module) for member in child)
    ]


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
    found: list[Unit] = []
    for name, child in module.named_children():
        if isinstance(child, nn.Sequential):
            found += [Unit(f"{name}.{unit.path}", f"{name}.{unit.name}") for unit in parts_of(child)]
        elif not isinstance(child, nn.ModuleList | nn.ModuleDict):
            found.append(Unit(name, name))
    return found
