"""Counting: parameters, work and bytes of every layer, from one forward pass of the real module.

The pass runs on torch's meta device in half precision: shapes and operators are real, numbers are not.
"""

from contextlib import ExitStack
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
from torch import nn
from torch.autograd.graph import saved_tensors_hooks
from torch.utils._pytree import tree_leaves
from torch.utils.flop_counter import FlopCounterMode

from profiles.errors import InputError
from validate.architectures import DTYPE, Architecture, ComponentSpec
from validate.attention import OpaqueAttention
from validate.layering import LayerSpec
from validate.tally import Tally, Work, tensor_bytes


@dataclass(frozen=True, slots=True)
class ComponentCount:
    """One component, counted: ``layers[i]`` does ``work[i]``; skips are pairs of layer indices."""

    spec: ComponentSpec
    image_tokens: int
    layers: tuple[LayerSpec, ...]
    work: tuple[Work, ...]
    skips: tuple[tuple[int, int], ...]
    carried_bytes: int

    @property
    def parameters(self) -> int:
        """Parameters of all layers."""
        return sum(work.parameters for work in self.work)

    @property
    def flop(self) -> int:
        """FLOP of one sample's forward pass."""
        return sum(work.flop for work in self.work)


@dataclass(frozen=True, slots=True)
class ModelCount:
    """All components of an architecture, counted at one resolution in pixels."""

    architecture: Architecture
    height: int
    width: int
    components: tuple[ComponentCount, ...]


def count(architecture: Architecture, height: int | None = None, width: int | None = None) -> ModelCount:
    """Count every component of an architecture.

    Args:
        architecture: what to build.
        height: pixels; the architecture's own by default.
        width: pixels; the architecture's own by default.

    Raises:
        InputError: a side is not a multiple of the architecture's granularity.
    """
    height = architecture.height if height is None else height
    width = architecture.width if width is None else width
    for side, pixels in (("height", height), ("width", width)):
        if pixels < 1 or pixels % architecture.granularity:
            rule = f"a positive multiple of {architecture.granularity} pixels for {architecture.title}"
            raise InputError(f"{side} is {pixels}, must be {rule}")
    components = tuple(count_component(spec, height, width) for spec in architecture.components)
    return ModelCount(architecture, height, width, components)


def count_component(spec: ComponentSpec, height: int, width: int) -> ComponentCount:
    """Count one component at a resolution in pixels."""
    with torch.device("meta"):
        module = spec.build().eval().requires_grad_(spec.trainable)
    nn.Module.to(module, DTYPE)  # diffusers' own `to` warns that some modules might want float32
    layers = spec.layers(module)
    sample = spec.sample(height, width)
    carried = _watch_carried(module, spec.carried, sample)
    tally = Tally(module, layers)
    flop = _run(module, sample, tally, spec.trainable)

    counted = ComponentCount(
        spec=spec,
        image_tokens=height * width // spec.token_pixels if spec.token_pixels else 0,
        layers=tuple(layers),
        work=tuple(tally.work),
        skips=tuple(sorted(tally.skips)),
        carried_bytes=sum(carried.values()),
    )
    tally.check_complete()
    assert counted.flop == flop, f"{spec.name}: layers have {counted.flop} FLOP, the whole {flop}"
    assert counted.parameters == sum(p.numel() for p in module.parameters())
    return counted


def _run(module: nn.Module, sample: dict[str, Any], tally: Tally, trainable: bool) -> int:
    """Run one forward pass under the tally; return the FLOP that torch's own counter sees."""
    counter = FlopCounterMode(display=False)
    with ExitStack() as stack:
        stack.enter_context(torch.set_grad_enabled(trainable))
        stack.enter_context(saved_tensors_hooks(tally.save, lambda tensor: tensor))
        stack.enter_context(OpaqueAttention())
        stack.enter_context(counter)
        stack.enter_context(tally)
        module(**sample)
    return int(counter.get_total_flops())


def _watch_carried(module: nn.Module, names: tuple[str, ...], sample: dict[str, Any]) -> dict[str, int]:
    """Return a mapping from name to bytes that fills, for submodules, as they run."""
    carried = {name: tensor_bytes([sample[name]]) for name in names if name in sample}
    for name in names:
        if name not in sample:
            module.get_submodule(name).register_forward_hook(partial(_measure, carried, name))
    return carried


def _measure(carried: dict[str, int], name: str, module: nn.Module, args: object, output: object) -> None:
    carried[name] = tensor_bytes(leaf for leaf in tree_leaves(output) if isinstance(leaf, torch.Tensor))
