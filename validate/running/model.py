"""The small transformer of all real runs: its blocks are trained stage by stage, sharded by torch, or run in parts.

No linear has a bias, so that parts of a divided product add up, and ranks own equal shares of the parameters.
"""

from collections.abc import Callable
from typing import Final, NamedTuple

import torch
from torch import Tensor, nn
from torch.nn.functional import scaled_dot_product_attention

from validate.running.sampling.settings import HEADS, HIDDEN

HEAD: Final = HIDDEN // HEADS
WIDER: Final = 4  # inner width of a feed-forward over the outer
SHARPNESS: Final = 2.0
"""Factor on queries of parts: with random weights attention would be uniform, and stale tokens would not matter."""


def linear(inputs: int, outputs: int) -> nn.Linear:
    """A linear without bias."""
    return nn.Linear(inputs, outputs, bias=False)


def attend(queries: Tensor, keys: Tensor, values: Tensor) -> Tensor:
    """Attention of (samples, tokens, heads, channels) on one rank."""
    parts = [part.transpose(1, 2) for part in (queries, keys, values)]
    return scaled_dot_product_attention(parts[0], parts[1], parts[2]).transpose(1, 2)


def heads_of(tensor: Tensor) -> Tensor:
    """Channels of several heads side by side, as (..., heads, channels)."""
    return tensor.reshape(*tensor.shape[:-1], -1, HEAD)


class Attention(nn.Module):
    """Attention, of which each rank of tensor parallelism has some heads."""

    def __init__(self, attend: Callable[..., Tensor]) -> None:
        super().__init__()
        self.query, self.key, self.value, self.out = (linear(HIDDEN, HIDDEN) for _ in range(4))
        self.attend = attend

    def forward(self, hidden: Tensor) -> Tensor:
        """Attention of the tokens, shape (samples, tokens, hidden)."""
        parts = (heads_of(of(hidden)) for of in (self.query, self.key, self.value))
        result: Tensor = self.out(self.attend(*parts).flatten(2))
        return result


class Modulation(NamedTuple):
    """Modulation of a block by timestep and prompt (DiT: Peebles and Xie, 2023), each (batch, 1, hidden)."""

    shift: Tensor
    scale: Tensor
    gate: Tensor
    inner_shift: Tensor
    inner_scale: Tensor
    inner_gate: Tensor


class Block(nn.Module):
    """Self-attention and feed-forward; for its backward, the norm at its end needs all before it.

    ``forward`` runs it whole and without modulation, all other methods run modulated parts of it.
    """

    def __init__(self, inner: int = WIDER * HIDDEN, attend: Callable[..., Tensor] = attend) -> None:
        super().__init__()
        self.before, self.between, self.after = (nn.LayerNorm(HIDDEN) for _ in range(3))
        self.attention = Attention(attend)
        self.inner = nn.Sequential(linear(HIDDEN, inner), nn.GELU(), linear(inner, HIDDEN))

    def forward(self, hidden: Tensor) -> Tensor:
        """The hidden state after the block, (samples, tokens, hidden)."""
        hidden = hidden + self.attention(self.before(hidden))
        result: Tensor = hidden + self.after(self.inner(self.between(hidden)))
        return result

    def divide(self, part: int, parts: int) -> None:
        """Keep one of several equal parts of the heads and of the feed-forward; what the parts put out adds up."""
        of = self.attention
        rows, columns = (of.query, of.key, of.value, self.inner[0]), (of.out, self.inner[2])
        for axis, product in [*((0, one) for one in rows), *((1, one) for one in columns)]:
            assert isinstance(product, nn.Linear)
            product.weight = nn.Parameter(product.weight.chunk(parts, axis)[part], requires_grad=False)

    def project(self, hidden: Tensor, by: Modulation) -> Tensor:
        """Queries, keys and values of some tokens, stacked: (3, batch, tokens, hidden)."""
        normed = self.before(hidden) * (1 + by.scale) + by.shift
        of = self.attention
        return torch.stack([SHARPNESS * of.query(normed), of.key(normed), of.value(normed)])

    def feed(self, hidden: Tensor, by: Modulation) -> Tensor:
        """The feed-forward of the hidden state before its norm."""
        result: Tensor = self.inner(self.between(hidden) * (1 + by.inner_scale) + by.inner_shift)
        return result

    def add_fed(self, hidden: Tensor, fed: Tensor, by: Modulation) -> Tensor:
        """The hidden state after the feed-forward."""
        result: Tensor = hidden + by.inner_gate * self.after(fed)
        return result

    def finish(self, hidden: Tensor, attended: Tensor, by: Modulation) -> Tensor:
        """The hidden state after the block."""
        hidden = hidden + by.gate * self.attention.out(attended)
        return self.add_fed(hidden, self.feed(hidden, by), by)
