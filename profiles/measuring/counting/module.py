"""Counting any ``torch.nn.Module`` as the backbone of a model: work, bytes and exchanges of its layers."""

import re
from collections.abc import Mapping
from copy import deepcopy
from dataclasses import replace
from functools import partial
from typing import Any, Final

import torch
from torch import Tensor, nn
from torch.utils._pytree import tree_map_only

from profiles.errors import InputError, shown
from profiles.measuring.counting.component import ModelCount, count_model
from profiles.measuring.counting.dataflow import attended, parts_of, parts_run, summed, units_of
from profiles.measuring.counting.specs import Architecture, ComponentSpec, LayerSpec
from profiles.measuring.counting.trace import Trace, blamed, record

MOST_SIDE: Final = 64
"""Pixels along the largest tokens: latents of 1/32 in patches of 2 (HunyuanImage 2.1 and Sana have 32 pixels)."""


def count_backbone(
    module: nn.Module, sample: Mapping[str, Any], name: str, height: int, width: int, *, guidance: str
) -> ModelCount:
    """Count a module as the only component of a model, which is trained; ``sample`` is one, of that many pixels."""
    if not isinstance(module, nn.Module) or next(module.parameters(), None) is None:
        raise InputError(f"module is {shown(module)}, must be an nn.Module with parameters, not its class")
    if not isinstance(sample, Mapping):
        raise InputError(f"inputs is a {type(sample).__name__}, must be a dict of the arguments of forward")
    for key, value in sample.items():
        if isinstance(value, Tensor) and value.is_floating_point() and value.ndim and value.shape[0] != 1:
            raise InputError(f"{key} is of {value.shape[0]} samples, must be of one: its first dimension 1")
    trace, parts = pass_of(module, sample)
    layers = tuple(LayerSpec(part.name, number, part.end, part.streams) for number, part in enumerate(parts))
    build, arguments = partial(without_weights, module), lambda *_: on_meta(sample)
    spec = ComponentSpec("backbone", build, arguments, layers, trainable=True, resizes=False)
    side = token_side(attended(trace), height, width)
    if side:
        sums = "|".join(map(re.escape, summed(trace, parts)))
        spec = replace(spec, token_pixels=side**2, sums=sums)
    remark = f"{type(module).__name__}, counted in Python"
    architecture = Architecture(name, "", (spec,), height, width, side or 1, remark, guidance=guidance)
    return count_model(architecture)


def token_side(tokens: int, height: int, width: int) -> int:
    """Pixels along a token, where an image is so many, or text stands beside those of the image; 0 where neither fits.

    What stands beside leaves the image's own in doubt: sides are then powers of two, of which the smallest counts.
    """
    sides = [side for side in range(1, MOST_SIDE + 1) if not (height % side or width % side)]
    whole = [side for side in sides if height * width == tokens * side**2]
    powers = (side for side in sides if side.bit_count() == 1 and height * width <= tokens * side**2)
    side = next(iter([*whole, *powers]), 0)
    return side if tokens * side**2 < 4 * height * width else 0


def pass_of(module: nn.Module, sample: Mapping[str, Any]) -> tuple[Trace, list[LayerSpec]]:
    """Run one pass of a copy without weights on the meta device; return it with the parts that are layers.

    Parts are the blocks that the structure of the module shows, else its children.
    """
    name = type(module).__name__
    with blamed(f"{name} cannot run on the meta device"):
        twin = without_weights(module)
        trained = any(parameter.requires_grad for parameter in twin.parameters())
        trace = record(twin, on_meta(sample), grad=trained)
    whole = [LayerSpec(name, 0, "")]
    return trace, parts_run(trace, units_of(twin) or parts_of(twin)) or whole


def on_meta(arguments: Mapping[str, Any]) -> dict[str, Any]:
    """Arguments whose tensors have no contents, but for those that hold integers."""
    emptied: dict[str, Any] = tree_map_only(
        Tensor, lambda one: one.to("meta") if one.is_floating_point() else one, dict(arguments)
    )
    return emptied


def without_weights(module: nn.Module) -> nn.Module:
    """A copy of a module on the meta device, made without copying its weights."""
    known = dict[int, object]()
    for one in (*module.parameters(), *module.buffers()):
        empty = torch.empty_like(one, device="meta", requires_grad=one.requires_grad)
        known[id(one)] = nn.Parameter(empty, one.requires_grad) if isinstance(one, nn.Parameter) else empty
    return deepcopy(module, known)
