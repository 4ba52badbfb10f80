"""A small transformer whose blocks grow wider, to be sharded block by block, and its training data."""

from collections.abc import Callable
from typing import Final

import torch
from torch import Tensor, nn

ROWS, WIDTH, HEADS, BLOCKS = 4, 64, 8, 4
TOKENS: Final = ROWS**2


class Attention(nn.Module):
    """Attention, of which each rank of tensor parallelism has some heads."""

    def __init__(self, attend: Callable[..., Tensor]) -> None:
        super().__init__()
        self.query, self.key, self.value, self.out = (linear(WIDTH, WIDTH) for _ in range(4))
        self.attend = attend

    def forward(self, hidden: Tensor) -> Tensor:
        """Attention of the tokens, shape (samples, tokens, WIDTH)."""
        parts = (of(hidden).unflatten(-1, (-1, WIDTH // HEADS)) for of in (self.query, self.key, self.value))
        result: Tensor = self.out(self.attend(*parts).flatten(2))
        return result


class WideningBlock(nn.Module):
    """A block of a transformer, wider the later it comes; for its backward, the norm at its end needs all before it."""

    def __init__(self, number: int, attend: Callable[..., Tensor]) -> None:
        super().__init__()
        self.before, self.between, self.after = (nn.LayerNorm(WIDTH) for _ in range(3))
        self.attention, inner = Attention(attend), width_of(number)
        self.inner = nn.Sequential(linear(WIDTH, inner), nn.GELU(), linear(inner, WIDTH))

    def forward(self, hidden: Tensor) -> Tensor:
        """The hidden state after the block, (samples, tokens, WIDTH)."""
        hidden = hidden + self.attention(self.before(hidden))
        result: Tensor = hidden + self.after(self.inner(self.between(hidden)))
        return result


def linear(inputs: int, outputs: int) -> nn.Linear:
    """A linear without bias, as the parameter count of a profile could not say that a bias is whole on every rank."""
    return nn.Linear(inputs, outputs, bias=False)


def width_of(number: int) -> int:
    """Inner width of a block's feed-forward."""
    return WIDTH * (number + 2)


def attend(queries: Tensor, keys: Tensor, values: Tensor) -> Tensor:
    """Attention on one rank."""
    own = [part.transpose(1, 2) for part in (queries, keys, values)]
    return nn.functional.scaled_dot_product_attention(own[0], own[1], own[2]).transpose(1, 2)


def transformer(attention: Callable[..., Tensor]) -> nn.Sequential:
    """The blocks; the same in every process."""
    torch.manual_seed(1)
    return nn.Sequential(*(WideningBlock(number, attention) for number in range(BLOCKS))).double()


def batch_of(samples: int) -> tuple[Tensor, Tensor]:
    """Inputs and targets; the same in every process."""
    generator = torch.Generator().manual_seed(2)
    inputs, targets = torch.randn((2, samples, TOKENS, WIDTH), generator=generator, dtype=torch.float64)
    return inputs, targets
