"""Counting: parameters, work and bytes of every layer, from one forward pass of the real module.

The pass runs on torch's meta device: shapes and operators are real, numbers are not.
"""

from contextlib import ExitStack
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, Final

import torch
from torch import nn
from torch.autograd.graph import saved_tensors_hooks
from torch.utils._pytree import tree_leaves, tree_map_only
from torch.utils.flop_counter import FlopCounterMode

from profiles.errors import InputError
from validate.attention import OpaqueAttention
from validate.exchanges import ExchangeCount, Exchanges
from validate.layering import LayerSpec
from validate.mixing import mixing
from validate.specs import Architecture, ComponentSpec
from validate.tally import Tally, Work, tensor_bytes, together

LATENTS: Final = ("hidden_states", "sample", "x")
"""The arguments of a backbone that are to be denoised, of which each takes one."""
DTYPES: Final = {"float16": torch.float16, "float32": torch.float32}


@dataclass(frozen=True, slots=True)
class ComponentCount:
    """One component, counted: ``layers[i]`` does ``work[i]``; skips are pairs of layer indices.

    ``reads`` are (name of an input, layer that reads it, bytes that it reads); ``latent_bytes`` what a backbone
    denoises.
    """

    spec: ComponentSpec
    image_tokens: int
    layers: tuple[LayerSpec, ...]
    work: tuple[Work, ...]
    skips: tuple[tuple[int, int], ...]
    reads: tuple[tuple[str, int, int], ...]
    exchanges: tuple[ExchangeCount, ...]
    carried_bytes: int
    latent_bytes: int = 0

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
        InputError: a side is not a multiple of the architecture's granularity, or too large.
    """
    height = architecture.height if height is None else height
    width = architecture.width if width is None else width
    for side, pixels in (("height", height), ("width", width)):
        _check_side(architecture, side, pixels)
    components = tuple(
        count_component(spec, height, width, architecture.dtype) for spec in architecture.components
    )
    return ModelCount(architecture, height, width, components)


def count_component(spec: ComponentSpec, height: int, width: int, dtype: str = "float16") -> ComponentCount:
    """Count one component at a resolution in pixels, its weights and activations of one precision."""
    if spec.again:
        return _count_passes(spec, height, width, dtype)
    module = build(spec, DTYPES[dtype])
    layers = spec.layers(module)
    sample = cast(spec.sample(height, width), DTYPES[dtype])
    carried = _watch_carried(module, spec.carried, sample)
    inputs = {name: tree_leaves(sample[argument]) for argument, name in spec.reads.items()}
    tally = Tally(module, layers, inputs)
    image_tokens = spec.frames * (height * width // spec.token_pixels) if spec.token_pixels else 0
    exchanges = Exchanges(module, spec.sums, image_tokens, spec.text_tokens, tally)
    flop = _run(module, sample, tally, exchanges, spec.trainable)

    counted = ComponentCount(
        spec=spec,
        image_tokens=image_tokens,
        layers=tuple(layers),
        work=tuple(tally.work),
        skips=tuple(sorted(tally.skips)),
        reads=tuple((name, layer, size) for (name, layer), size in sorted(tally.reads.items())),
        exchanges=tuple(exchanges.found),
        carried_bytes=sum(carried.values()),
        latent_bytes=tensor_bytes(tree_leaves([sample[name] for name in LATENTS if name in sample]))
        if spec.trainable
        else 0,
    )
    tally.check_complete()
    assert counted.flop == flop, f"{spec.name}: layers have {counted.flop} FLOP, the whole {flop}"
    assert counted.parameters == sum(p.numel() for p in module.parameters())
    return counted


def _count_passes(spec: ComponentSpec, height: int, width: int, dtype: str) -> ComponentCount:
    """Count a component that takes several passes for one sample."""
    samples = (spec.sample, *spec.again)
    passes = [
        count_component(replace(spec, sample=sample, again=()), height, width, dtype) for sample in samples
    ]
    work = (together(layer) for layer in zip(*(found.work for found in passes), strict=True))
    return replace(passes[0], spec=spec, work=tuple(work))


def _check_side(architecture: Architecture, side: str, pixels: int) -> None:
    largest = architecture.largest
    if pixels < 1 or pixels % architecture.granularity or (largest is not None and pixels > largest):
        limit = "" if largest is None else f", up to {largest},"
        rule = f"a positive multiple of {architecture.granularity} pixels{limit} for {architecture.title}"
        raise InputError(f"{side} is {pixels}, must be {rule}")


def build(spec: ComponentSpec, dtype: torch.dtype) -> nn.Module:
    """Build a component on the meta device, its weights of one precision."""
    with torch.device("meta"):
        module = spec.build().eval().requires_grad_(spec.trainable)
    for path in spec.locked:
        module.get_submodule(path).requires_grad_(False)
    nn.Module.to(module, dtype)  # diffusers' own `to` warns that some modules might want float32
    return module


def cast(sample: dict[str, Any], dtype: torch.dtype) -> dict[str, Any]:
    """Return a sample with its floating point tensors in another precision."""
    found: dict[str, Any] = tree_map_only(
        torch.Tensor, lambda tensor: tensor.to(dtype) if tensor.is_floating_point() else tensor, sample
    )
    return found


def _run(
    module: nn.Module, sample: dict[str, Any], tally: Tally, exchanges: Exchanges, trainable: bool
) -> int:
    """Run one forward pass under both watches; return the FLOP that torch's own counter sees."""
    counter = FlopCounterMode(display=False)
    with ExitStack() as stack:
        stack.enter_context(torch.set_grad_enabled(trainable))
        stack.enter_context(saved_tensors_hooks(tally.save, lambda tensor: tensor))
        stack.enter_context(OpaqueAttention())
        stack.enter_context(counter)
        stack.enter_context(exchanges)
        stack.enter_context(tally)
        stack.enter_context(mixing())
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
