"""Attention over tokens that lie on several ranks, as training needs it: Ulysses and a ring, forwards and backwards."""

from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final

import torch
from torch import Tensor, nn
from torch import distributed as dist


class Context:
    """The ranks that hold different tokens of the same samples, in order; it notes what this one sends.

    Attributes:
        group: their process group.
        ranks: all of them.
        sent: (operation, numbers) of each exchange, one after the other.
    """

    def __init__(self, group: dist.ProcessGroup, ranks: Sequence[int]) -> None:
        self.group, self.ranks = group, tuple(ranks)
        self.place = self.ranks.index(dist.get_rank())
        self.sent: list[tuple[str, int]] = []

    @property
    def size(self) -> int:
        """How many they are."""
        return len(self.ranks)

    def exchange(self, values: Tensor, divided: int, joined: int) -> Tensor:
        """Each rank's part of one dimension, with all of another."""
        parts = [part.contiguous() for part in values.chunk(self.size, divided)]
        found = [torch.empty_like(part) for part in parts]
        self.sent.append(("all_to_all", values.numel()))
        dist.all_to_all(found, parts, group=self.group)
        return torch.cat(found, joined)

    def pass_on(self, values: Tensor) -> Tensor:
        """What the rank before holds, while the one after gets what this one does."""
        found = torch.empty_like(values)
        after, before = (self.ranks[(self.place + step) % self.size] for step in (1, -1))
        self.sent.append(("send_recv", values.numel()))
        work = [
            dist.P2POp(dist.isend, values.contiguous(), after, self.group),
            dist.P2POp(dist.irecv, found, before, self.group),
        ]
        for request in dist.batch_isend_irecv(work):
            request.wait()
        return found


class _ToHeads(torch.autograd.Function):
    """Tokens for heads: (samples, tokens, heads, channels) of some tokens to that of some heads."""

    @staticmethod
    def forward(ctx: Any, values: Tensor, context: Context, divided: int, joined: int) -> Tensor:  # noqa: ANN401
        ctx.of = context, divided, joined
        return context.exchange(values, divided, joined)

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor, None, None, None]:  # noqa: ANN401
        context, divided, joined = ctx.of
        return context.exchange(gradients[0], joined, divided), None, None, None


def ulysses(queries: Tensor, keys: Tensor, values: Tensor, context: Context) -> Tensor:
    """Attention on heads of their own, on all tokens (Jacobs et al., 2023)."""

    def exchanged(part: Tensor, divided: int, joined: int) -> Tensor:
        result: Tensor = _ToHeads.apply(part, context, divided, joined)  # type: ignore[no-untyped-call]
        return result

    own = [exchanged(part, 2, 1).transpose(1, 2) for part in (queries, keys, values)]
    seen = nn.functional.scaled_dot_product_attention(own[0], own[1], own[2])
    return exchanged(seen.transpose(1, 2), 1, 2)


class _Ring(torch.autograd.Function):
    """Attention of a rank's queries to the keys and values of one rank after another (Liu et al., 2023)."""

    @staticmethod
    def forward(ctx: Any, queries: Tensor, both: Tensor, context: Context) -> Tensor:  # noqa: ANN401
        seen, weight, held = torch.zeros_like(queries), torch.full(queries.shape[:-1], -torch.inf), both
        weight = weight.to(queries)
        for number in range(context.size):
            following = context.pass_on(held) if number < context.size - 1 else held
            scores = _scores(queries, held[0])
            block = scores.logsumexp(-1)
            total = torch.logaddexp(weight, block)
            seen = seen * (weight - total).exp()[..., None] + (scores - total[..., None]).exp() @ held[1]
            weight, held = total, following
        ctx.context = context
        ctx.save_for_backward(queries, both, seen, weight)
        return seen

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor, Tensor, None]:  # noqa: ANN401
        (gradient,), context = gradients, ctx.context
        queries, held, seen, weight = ctx.saved_tensors
        of_queries, home = torch.zeros_like(queries), torch.zeros_like(held)
        whole = (gradient * seen).sum(-1, keepdim=True)
        for number in range(context.size):
            following = context.pass_on(held) if number < context.size - 1 else held
            shares = (_scores(queries, held[0]) - weight[..., None]).exp()
            of_scores = shares * (gradient @ held[1].transpose(-1, -2) - whole) / queries.shape[-1] ** 0.5
            of_queries = of_queries + of_scores @ held[0]
            own = of_scores.transpose(-1, -2) @ queries, shares.transpose(-1, -2) @ gradient
            home = context.pass_on(home + torch.stack(own))
            held = following
        return of_queries, home, None


def _scores(queries: Tensor, keys: Tensor) -> Tensor:
    scores: Tensor = queries @ keys.transpose(-1, -2) / queries.shape[-1] ** 0.5
    return scores


def ring(queries: Tensor, keys: Tensor, values: Tensor, context: Context) -> Tensor:
    """Attention of a rank's tokens to all tokens, which pass by."""
    own = [part.transpose(1, 2) for part in (queries, keys, values)]
    both = torch.stack(own[1:])
    seen: Tensor = _Ring.apply(own[0], both, context)  # type: ignore[no-untyped-call]
    return seen.transpose(1, 2)


WAYS: Final[Mapping[str, Callable[[Tensor, Tensor, Tensor, Context], Tensor]]] = {
    "ulysses": ulysses,
    "ring": ring,
}
