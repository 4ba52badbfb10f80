"""Building: a component with random weights and inputs, never zeros, and its optimizer.

On zeros a GPU draws less power and clocks higher, so products of zeros are faster than those of a model.
"""

from collections.abc import Callable, Sequence
from math import prod
from typing import Any, Final

import torch
from torch import Tensor, nn
from torch.distributed.tensor import DTensor, distribute_tensor
from torch.utils._pytree import tree_map_only

from profiles.measuring.counting import component
from profiles.measuring.counting.specs import ComponentSpec

COUNTED_AS: Final = {"float32": "float32", "bfloat16": "float16", "float16": "float16"}
"""The precision of as many bytes in which each is counted."""
RECIPES: Final = {"float32": "fp32", "bfloat16": "mixed", "float16": "mixed"}
"""The memory recipe whose optimizer runs in each precision."""
SMALL: Final = 0.02
LARGEST_INTEGER: Final = 1000
"""Token numbers, classes and time steps are drawn below this, and below the rows of a component's smallest table."""


def build(spec: ComponentSpec, dtype: torch.dtype, generator: torch.Generator) -> nn.Module:
    """A component as it is counted, with random weights, on the generator's device."""
    return fill(component.build(spec, dtype, generator.device), generator)


@torch.no_grad()
def fill(module: nn.Module, generator: torch.Generator) -> nn.Module:
    """A module, once its weights have random numbers, of which a shard has its part."""
    for name, parameter in module.named_parameters():
        whole = torch.empty(parameter.shape, dtype=parameter.dtype, device=generator.device)
        if whole.ndim > 1:  # of unit gain, so that nothing grows out of half precision
            gain = SMALL if "lora_B" in name else 1.0  # adapters begin near no change
            whole.normal_(0.0, gain * prod(whole.shape[1:]) ** -0.5, generator=generator)
        elif name.endswith("weight"):
            whole.uniform_(0.5, 1.5, generator=generator)
        else:
            whole.normal_(0.0, SMALL, generator=generator)
        if isinstance(parameter, DTensor):
            whole = distribute_tensor(whole, parameter.device_mesh, parameter.placements, src_data_rank=None)
        parameter.copy_(whole)
    return module


def inputs(
    sample: dict[str, Any], batch: int, dtype: torch.dtype, below: int, generator: torch.Generator
) -> dict[str, Any]:
    """Inputs of a batch with random contents, integers ``below`` a number, from those of one sample on the meta device.

    A leading dimension of one is the batch. Tensors with contents keep them. A list of one element lists samples,
    unless that element is a batch.
    """

    def draw(tensor: Tensor) -> Tensor:
        shape = list(tensor.shape)
        if tensor.device.type != "meta":
            return _kept(tensor, batch, dtype, generator.device)
        if shape and shape[0] == 1:
            shape[0] = batch
        if tensor.is_floating_point() or tensor.is_complex():
            kind = dtype if tensor.is_floating_point() else tensor.dtype
            return torch.randn(shape, dtype=kind, device=generator.device, generator=generator)
        return torch.randint(1, below, shape, device=generator.device, generator=generator)

    each = dict(sample)
    for name, value in sample.items():
        if isinstance(value, list) and len(value) == 1:
            (one,) = value
            shared = isinstance(one, int) or (isinstance(one, Tensor) and one.shape[0] == 1)
            each[name] = value if shared else value * batch  # which lists its samples one by one
    drawn: dict[str, Any] = tree_map_only(Tensor, draw, each)
    return drawn


def largest_integer(module: nn.Module) -> int:
    """Bound below which every integer input must stay: the rows of the smallest table that it may look up."""
    rows = [table.num_embeddings for table in module.modules() if isinstance(table, nn.Embedding)]
    return max(2, min([LARGEST_INTEGER, *rows]))


def draws(tensor: Tensor, generator: torch.Generator) -> Tensor:
    """Random tensor of the shape and precision of another."""
    return torch.randn(tensor.shape, dtype=tensor.dtype, device=tensor.device, generator=generator)


def _kept(tensor: Tensor, batch: int, dtype: torch.dtype, device: torch.device) -> Tensor:
    """Tensor with contents for a batch; a first dimension of one, of two or more, is that of the samples."""
    tensor = tensor.to(device, dtype if tensor.is_floating_point() else tensor.dtype)
    if tensor.ndim > 1 and tensor.shape[0] == 1:
        return tensor.repeat(batch, *[1] * (tensor.ndim - 1))
    return tensor


class MasterAdamW:
    """AdamW on single-precision masters of half-precision weights, as mixed precision trains."""

    def __init__(self, weights: Sequence[Tensor]) -> None:
        self._weights = list(weights)
        self._masters = [weight.detach().float() for weight in weights]
        self._gradients = [torch.empty_like(master) for master in self._masters]
        for master, gradient in zip(self._masters, self._gradients, strict=True):
            master.grad = gradient
        self._adam = torch.optim.AdamW(self._masters, fused=True)

    @torch.no_grad()
    def step(self) -> None:
        """Copy the gradients, update the masters, and copy these to the weights."""
        gradients = [weight.grad for weight in self._weights if weight.grad is not None]
        torch._foreach_copy_(self._gradients, gradients)
        self._adam.step()
        torch._foreach_copy_(self._weights, self._masters)


def update_of(weights: Sequence[Tensor]) -> Callable[[], object]:
    """The optimizer's step of weights that are all of one precision."""
    if weights[0].dtype == torch.float32:
        return torch.optim.AdamW(weights, fused=True).step
    return MasterAdamW(weights).step
