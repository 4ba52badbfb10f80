"""Units: the modules of any network that can be its layers, found by structure.

A list of blocks (``nn.ModuleList``) that is not inside another gives one unit per block; single operators, such as
norms or the output of an attention, are no blocks. The levels of a U-Net are
taken apart further, as ``validate.layering.unet_layers`` does: into ResNets, attentions, resamplings and outer
convolutions.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Final

from torch import nn

from validate.unets import SUMS

LEVELS: Final = {"down_blocks": "down", "up_blocks": "up"}
MIDDLES: Final = ("mid_block", "middle_block")
OUTER: Final = ("conv_in", "conv_out", "quant_conv", "post_quant_conv")
OPENING: Final = (
    "resnets",
    "resnets_in",
    "downsamplers",
    "conv_in",
    "quant_conv",
    "post_quant_conv",
    "mid_block",
    "middle_block",
)
"""Lists and modules each of which opens a block of a U-Net; what follows belongs to the same block."""
NAMES: Final = {
    "resnets": "resnet",
    "resnets_in": "resnet_in",
    "resnets_out": "resnet_out",
    "attentions": "attention",
    "downsamplers": "downsample",
    "upsamplers": "upsample",
}
WHOLE: Final = "whole"
"""Name of the only layer of a network that runs a block of its own several times."""
ATTENTIONS: Final = ("attn1", "attn", "self_attn", "attention")
FEED_FORWARDS: Final = ("ff", "mlp", "ffn", "feed_forward")


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
    """Return all units of a network, in the order of its definition.

    Args:
        module: the network.
        word: for a block where there is one list of them; of several, each names its own.
    """
    found = list(_units(module, ""))
    lists = {unit.path.rpartition(".")[0] for unit in found if unit.name.startswith("#")}
    return [_named(unit, word if len(lists) == 1 else "") for unit in found]


def coarser(module: nn.Module, units: Sequence[Unit], repeated: Unit) -> list[Unit]:
    """Return units of which one gives way to the module that holds and runs it, with all others in there.

    Weights that one pass reads several times cannot be cut apart, so all of these passes are one layer.
    """
    path = repeated.path
    while path:
        path = path.rpartition(".")[0]
        if not isinstance(module.get_submodule(path), nn.ModuleList):
            break
    inside = f"{path}." if path else ""
    kept = [unit for unit in units if not unit.path.startswith(inside) and unit.path != path]
    return [*kept, Unit(path, path or WHOLE)]


def _named(unit: Unit, word: str) -> Unit:
    """Return a unit of a plain list with its name: ``word`` and number, or that of its list and number."""
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
        elif name in MIDDLES:
            yield from _middle(child, path, f"{prefix}middle")
        elif name in OUTER and (leveled or "quant" in name):
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
    lists = _lists(level)
    if not lists:
        yield Unit(path, name)
    for kind, members in lists:
        for number in members:
            numbered = len(members) > 1 or kind in ("resnets", "attentions")
            word = NAMES.get(kind, kind.removesuffix("s"))
            yield Unit(
                f"{path}.{kind}.{number}", f"{name}.{word}{number if numbered else ''}", kind in OPENING
            )


def _middle(middle: nn.Module, path: str, name: str) -> Iterator[Unit]:
    """Yield the members of the lists between the halves: one block, which the first that runs opens."""
    lists = _lists(middle)
    if not lists:
        yield Unit(path, name)
    for kind, members in lists:
        for number in members:
            word = NAMES.get(kind, kind.removesuffix("s"))
            plain = kind != "resnets" and len(members) == 1
            opens = kind == "resnets" and number == 0
            yield Unit(f"{path}.{kind}.{number}", f"{name}.{word}{'' if plain else number}", opens)


def _lists(module: nn.Module) -> list[tuple[str, Sequence[int]]]:
    """Return the lists of a level by name, each with the numbers of those members that are modules."""
    lists = [(name, child) for name, child in module.named_children() if isinstance(child, nn.ModuleList)]
    return [
        (name, [i for i, member in enumerate(child) if isinstance(member, nn.Module)])
        for name, child in lists
        if any(isinstance(member, nn.Module) for member in child)
    ]


def sums_of(module: nn.Module, units: Sequence[Unit]) -> str:
    """Return the expression of the submodules whose output tensor parallelism sums up.

    Of a U-Net, those of the shipped ones; of a block, its self-attention and feed-forward where it has both under
    names that are known, else its output.
    """
    if any(name in dict(module.named_children()) for name in LEVELS):
        return SUMS
    parts: dict[str, None] = {}
    for unit in units:
        path = unit.path.rpartition(".")[0].replace(".", r"\.")
        children = dict(module.get_submodule(unit.path).named_children())
        attention = next((name for name in ATTENTIONS if name in children), None)
        feed_forward = next((name for name in FEED_FORWARDS if name in children), None)
        both = rf"\.({attention}|{feed_forward})" if attention and feed_forward else ""
        parts[rf"{path}\.\d+{both}"] = None
    return "|".join(parts)
