"""Attention as one opaque operator, as a fused kernel runs it.

On the meta device torch decomposes ``scaled_dot_product_attention`` into two matrix products and a softmax;
the N x N scores then pass for memory traffic and for tensors that the backward pass keeps. A fused kernel has
neither: it keeps queries, keys, values, the output and one log-sum-exp per query.
"""

from collections.abc import Callable
from functools import partial
from typing import Any, Final

import torch
from torch import Tensor
from torch.autograd.function import FunctionCtx
from torch.nn.functional import scaled_dot_product_attention
from torch.overrides import TorchFunctionMode
from torch.utils.flop_counter import register_flop_formula, sdpa_flop_count


@torch.library.custom_op("diffusim::attention", mutates_args=())
def attention(query: Tensor, key: Tensor, value: Tensor) -> tuple[Tensor, Tensor]:
    """Stand for a fused attention kernel; it exists on the meta device only.

    Args:
        query: (batch, heads, queries, head dimension).
        key: (batch, heads, keys, head dimension).
        value: (batch, heads, keys, value dimension).

    Returns:
        The output and the log-sum-exp of each query's scores.
    """
    raise NotImplementedError("diffusim::attention counts work on the meta device; it computes nothing")


@attention.register_fake
def _(query: Tensor, key: Tensor, value: Tensor) -> tuple[Tensor, Tensor]:
    batch, heads, queries, _ = query.shape
    kernel_layout = query.new_empty(batch, queries, heads, value.shape[-1])
    return kernel_layout.transpose(1, 2), query.new_empty(batch, heads, queries, dtype=torch.float32)


def _save(ctx: FunctionCtx, inputs: tuple[Tensor, ...], output: tuple[Tensor, Tensor]) -> None:
    ctx.save_for_backward(*inputs, *output)


def _backward(ctx: FunctionCtx, *gradients: Tensor) -> None:
    raise NotImplementedError("only forward passes are counted")


attention.register_autograd(_backward, setup_context=_save)


@register_flop_formula(torch.ops.diffusim.attention)
def attention_flop(
    query: tuple[int, ...], key: tuple[int, ...], value: tuple[int, ...], *_: object, **__: object
) -> int:
    """The FLOP of the two matrix products, in full, also where a causal mask would halve them."""
    return int(sdpa_flop_count(query, key, value))  # type: ignore[no-untyped-call]


class Instead(TorchFunctionMode):
    """Within this context one function stands for another.

    Args:
        func: of torch.
        instead: what is called with its arguments.
    """

    def __init__(self, func: Callable[..., Any], instead: Callable[..., object]) -> None:
        super().__init__()
        self._func, self._instead = func, instead

    def __torch_function__(
        self,
        func: Callable[..., object],
        types: object,
        args: tuple[Any, ...] = (),
        kwargs: dict[str, Any] | None = None,
    ) -> object:
        """Replace one function, leave everything else."""
        return (self._instead if func is self._func else func)(*args, **(kwargs or {}))


def _unmasked(query: Tensor, key: Tensor, value: Tensor, *_: object, **__: object) -> Tensor:
    """Call the operator without mask, dropout and scale, which cost a fused kernel next to nothing."""
    output: Tensor = torch.ops.diffusim.attention(query, key, value)[0]
    return output


OpaqueAttention: Final = partial(Instead, scaled_dot_product_attention, _unmasked)
"""Within this context every ``scaled_dot_product_attention`` is the opaque operator."""
