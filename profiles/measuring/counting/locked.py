"""Bytes that a frozen backbone keeps for its backward beside adapters, read off a second pass of torch.

A frozen linear keeps only its weight, but its adapter keeps its input; a product with a factor that nothing trains,
such as a modulation by the time step, keeps only that factor.
"""

from copy import deepcopy
from functools import partial

import torch
from torch import Tensor, nn
from torch.autograd.function import FunctionCtx

from profiles.architectures.kernels import FEW_ROWS
from profiles.measuring.counting.component import ComponentCount
from profiles.measuring.counting.tally import Tally
from profiles.measuring.counting.trace import record


class _Beside(torch.autograd.Function):
    """An adapter that keeps the input of its linear, and nothing of its own."""

    @staticmethod
    def forward(ctx: FunctionCtx, linear_input: Tensor, output: Tensor, trained: Tensor) -> Tensor:
        ctx.save_for_backward(linear_input)
        return output


def adapted_bytes(count: ComponentCount) -> tuple[int, ...]:
    """Bytes that each layer of a backbone keeps per sample, without the inputs of the adapters' second products."""
    saved = [0] * len(count.layers)
    for known in count.traces:
        module = deepcopy(known.module)
        for path in count.spec.locked:
            module.get_submodule(path).requires_grad_(False)
        _adapt(module)
        tally = Tally(
            record(module, known.sample, grad=True), count.ends, [of.streams for of in count.layers], {}
        )
        saved = [max(size, work.saved_bytes) for size, work in zip(saved, tally.work, strict=True)]
    return tuple(saved)


def _adapt(module: nn.Module) -> None:
    """Freeze all weights, with an adapter beside each trained linear through which tokens pass."""
    trained = torch.empty(1, device="meta", requires_grad=True)
    for part in module.modules():
        if isinstance(part, nn.Linear) and part.weight.requires_grad:
            part.register_forward_hook(partial(_beside, trained), with_kwargs=True)
    module.requires_grad_(False)


def _beside(
    trained: Tensor, linear: nn.Linear, inputs: tuple[Tensor, ...], named: dict[str, Tensor], output: Tensor
) -> Tensor:
    tokens = inputs[0] if inputs else named["input"]
    if tokens.numel() <= FEW_ROWS * linear.in_features:
        return output
    result: Tensor = _Beside.apply(tokens, output, trained)  # type: ignore[no-untyped-call]
    return result
