"""Building: a component with weights, buffers and inputs of random numbers, never of zeros.

A GPU draws less power on zeros and clocks higher, so products of zeros are faster than those of a model.
"""

from math import prod
from typing import Any, Final

import torch
from torch import Tensor, nn
from torch.utils._pytree import tree_map_only

from validate.specs import ComponentSpec

DTYPES: Final = {"float32": torch.float32, "bfloat16": torch.bfloat16, "float16": torch.float16}
COUNTED_AS: Final = {"float32": "float32", "bfloat16": "float16", "float16": "float16"}
"""The precision that the counter knows, of as many bytes."""
SMALL: Final = 0.02
LARGEST_INTEGER: Final = 1000
"""Token numbers, classes and time steps are drawn below this, and below the smallest table that a component has."""


def build(spec: ComponentSpec, dtype: torch.dtype, generator: torch.Generator) -> nn.Module:
    """Build a component on the generator's device with random weights and buffers.

    Args:
        spec: what to build; its locked parts need no gradient.
        dtype: of weights and floating point buffers.
        generator: draws the weights.
    """
    with torch.device("meta"):
        module = spec.build().eval().requires_grad_(spec.trainable)
    for path in spec.locked:
        module.get_submodule(path).requires_grad_(False)
    nn.Module.to(module, dtype)  # diffusers' own `to` warns that some modules might want float32
    nn.Module.to_empty(module, device=generator.device)
    with torch.no_grad():
        for name, parameter in module.named_parameters():
            _fill_parameter(name, parameter, generator)
        for name, buffer in module.named_buffers():
            _fill_buffer(name, buffer, generator)
    return module


def samples(spec: ComponentSpec, height: int, width: int) -> list[dict[str, Any]]:
    """Return the inputs of each pass that one sample takes, on the meta device."""
    return [make(height, width) for make in (spec.sample, *spec.again)]


def inputs(
    sample: dict[str, Any], batch: int, dtype: torch.dtype, below: int, generator: torch.Generator
) -> dict[str, Any]:
    """Return the inputs of a batch with random contents.

    Args:
        sample: those of one sample on the meta device; a leading dimension of one is the batch.
        batch: samples.
        dtype: of floating point tensors.
        below: integers are drawn below this.
        generator: draws the contents.
    """

    def draw(tensor: Tensor) -> Tensor:
        shape = list(tensor.shape)
        if shape and shape[0] == 1:
            shape[0] = batch
        if tensor.is_floating_point():
            return torch.randn(shape, dtype=dtype, device=generator.device, generator=generator)
        return torch.randint(1, below, shape, device=generator.device, generator=generator)

    drawn: dict[str, Any] = tree_map_only(Tensor, draw, sample)
    return drawn


def largest_integer(module: nn.Module) -> int:
    """Return a number that every integer input must stay below: the rows of the smallest table that it may look up."""
    rows = [table.num_embeddings for table in module.modules() if isinstance(table, nn.Embedding)]
    return max(2, min([LARGEST_INTEGER, *rows]))


def draws(tensor: Tensor, generator: torch.Generator) -> Tensor:
    """Return a tensor of random numbers of the shape and precision of another."""
    return torch.randn(tensor.shape, dtype=tensor.dtype, device=tensor.device, generator=generator)


def _fill_parameter(name: str, parameter: Tensor, generator: torch.Generator) -> None:
    if parameter.ndim > 1:  # of unit gain, so that nothing grows out of half precision
        parameter.normal_(0.0, prod(parameter.shape[1:]) ** -0.5, generator=generator)
    elif name.endswith("weight"):
        parameter.uniform_(0.5, 1.5, generator=generator)
    else:
        parameter.normal_(0.0, SMALL, generator=generator)


def _fill_buffer(name: str, buffer: Tensor, generator: torch.Generator) -> None:
    if buffer.is_floating_point():
        buffer.uniform_(0.5, 1.5, generator=generator)  # a variance must be positive
    elif name.endswith("position_ids"):
        buffer.copy_(torch.arange(buffer.shape[-1], device=buffer.device).expand(buffer.shape))
    else:
        buffer.random_(0, 2, generator=generator)
