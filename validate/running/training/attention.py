"""Attention over tokens that lie on several ranks, as training needs it: Ulysses and a ring, forwards and backwards.

The ring is torch's own (``context_parallel``). Its context manager knows only the three fused kernels of GPUs, so that
on a CPU each rank would attend to its own tokens alone; the functions behind it take any kernel.
"""

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any, Final

import torch
from torch import Tensor, nn
from torch import distributed as dist

KERNEL: Final = torch.ops.aten._scaled_dot_product_flash_attention_for_cpu
BACKWARD: Final = torch.ops.aten._scaled_dot_product_flash_attention_for_cpu_backward
TOKENS: Final = 2
"""Dimension of the tokens in a kernel's arguments: (samples, heads, tokens, channels)."""


def _exchange(values: Tensor, group: dist.ProcessGroup, divided: int, joined: int) -> Tensor:
    """Each rank's part of one dimension, with all of another."""
    parts = [part.contiguous() for part in values.chunk(group.size(), divided)]
    found = [torch.empty_like(part) for part in parts]
    dist.all_to_all(found, parts, group=group)
    return torch.cat(found, joined)


class _ToHeads(torch.autograd.Function):
    """Tokens for heads: (samples, tokens, heads, channels) of some tokens to that of some heads."""

    @staticmethod
    def forward(ctx: Any, values: Tensor, group: dist.ProcessGroup, divided: int, joined: int) -> Tensor:  # noqa: ANN401
        ctx.of = group, divided, joined
        return _exchange(values, group, divided, joined)

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor, None, None, None]:  # noqa: ANN401
        group, divided, joined = ctx.of
        return _exchange(gradients[0], group, joined, divided), None, None, None


def ulysses(queries: Tensor, keys: Tensor, values: Tensor, group: dist.ProcessGroup) -> Tensor:
    """Attention on heads of their own, on all tokens (Jacobs et al., 2023)."""

    def exchanged(part: Tensor, divided: int, joined: int) -> Tensor:
        result: Tensor = _ToHeads.apply(part, group, divided, joined)  # type: ignore[no-untyped-call]
        return result

    own = [exchanged(part, 2, 1).transpose(1, 2) for part in (queries, keys, values)]
    seen = nn.functional.scaled_dot_product_attention(own[0], own[1], own[2])
    return exchanged(seen.transpose(1, 2), 1, 2)


@contextmanager
def _passing(dtype: torch.dtype) -> Iterator[Any]:
    """Torch's ring with keys and values that pass around, sums in single precision, or in double of such."""
    from torch.distributed.tensor.experimental._context_parallel import _attention as of  # noqa: PLC0415  takes a while

    options = of._cp_options
    kept = vars(options).copy()
    options.enable_load_balance, options.rotate_method = False, of._RotateMethod.ALL_TO_ALL
    options.convert_to_f32 = dtype is not torch.float64
    try:
        yield of
    finally:
        vars(options).update(kept)


class _Ring(torch.autograd.Function):
    """Attention of a rank's queries to the keys and values of one rank after another (Liu et al., 2023)."""

    @staticmethod
    def forward(ctx: Any, group: dist.ProcessGroup, *own: Tensor) -> Tensor:  # noqa: ANN401
        with _passing(own[0].dtype) as of:
            seen, weight = of._templated_ring_attention(group, TOKENS, KERNEL, *own)
        ctx.group = group
        ctx.save_for_backward(*own, seen, weight)
        result: Tensor = seen
        return result

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[None, *tuple[Tensor, ...]]:  # noqa: ANN401
        given = ctx.saved_tensors
        with _passing(given[0].dtype) as of:
            found = of._templated_ring_attention_backward(
                ctx.group, TOKENS, BACKWARD, gradients[0].contiguous(), "grad_out", *given, is_causal=False,
                dropout_p=0.0,
            )  # fmt: skip
        return None, *found


def ring(queries: Tensor, keys: Tensor, values: Tensor, group: dist.ProcessGroup) -> Tensor:
    """Attention of a rank's tokens to all tokens, which pass by."""
    own = [part.transpose(1, 2) for part in (queries, keys, values)]
    seen: Tensor = _Ring.apply(group, *own)  # type: ignore[no-untyped-call]
    return seen.transpose(1, 2)


WAYS: Final[Mapping[str, Callable[[Tensor, Tensor, Tensor, dist.ProcessGroup], Tensor]]] = {
    "ulysses": ulysses,
    "ring": ring,
}
