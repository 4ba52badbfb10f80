"""Optimizers: what follows the backward passes, in single precision or with single-precision masters."""

from collections.abc import Sequence
from typing import Final, Protocol

import torch
from torch import Tensor

RECIPES: Final = {"float32": "fp32", "bfloat16": "mixed", "float16": "mixed"}
"""The memory recipe whose optimizer runs in each precision."""
STATE_BYTES: Final = {"float32": 8, "bfloat16": 16, "float16": 16}
"""Bytes per trained parameter beside weight and gradient: both moments; with masters these and their gradients."""


class Optimizer(Protocol):
    """What follows the backward passes."""

    def step(self) -> None:
        """Update the weights."""


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
        """Take the gradients over, update the masters, copy them to the weights."""
        given = [weight.grad for weight in self._weights if weight.grad is not None]
        torch._foreach_copy_(self._gradients, given)
        self._adam.step()
        torch._foreach_copy_(self._weights, self._masters)


def optimizer_of(weights: Sequence[Tensor]) -> Optimizer:
    """Optimizer of some weights, which must all be of one precision."""
    if weights[0].dtype == torch.float32:
        adam: Optimizer = torch.optim.AdamW(weights, fused=True)
        return adam
    return MasterAdamW(weights)
