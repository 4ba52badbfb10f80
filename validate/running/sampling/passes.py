"""Passes: the work of one rank of a sampler, interrupted where it sends something or needs something.

The pass of a patch is a generator. It offers tensors that the plan lets the device send next (``Offer``), or names the
kind of what must arrive before it goes on, which is then sent in: a message, or a tensor of each member of a group.
"""

from collections.abc import Generator, Sequence
from typing import NamedTuple

import torch
from torch import Tensor

from strategies.plans.actions import PatchAction
from validate.running.model import heads_of
from validate.running.sampling.settings import HIDDEN, LAYERS, PATCHED, ROWS, Settings
from validate.running.sampling.transformer import (
    Scheduler,
    SmallTransformer,
    attend_wide,
    first_latents,
    patches_of,
)


class Offer(NamedTuple):
    """Tensors for others: their kind, the step their bytes count to, one for all members or one for each."""

    kind: str
    step: int
    parts: Sequence[Tensor]


Pass = Generator[Offer | str, list[Tensor], None]
Computed = Generator[Offer | str, list[Tensor], Tensor]  # a part of a pass, and its result


def attend_part(queries: Tensor, keys: Tensor, values: Tensor) -> tuple[Tensor, Tensor]:
    """Attention on the keys and values of some tokens, and its log-sum-exps in double precision: twice its bytes."""
    parts = [heads_of(part).transpose(1, 2) for part in (queries, keys, values)]
    seen, log_sums = torch.ops.aten._scaled_dot_product_flash_attention_for_cpu(*parts)
    return seen.transpose(1, 2).flatten(2), log_sums.transpose(1, 2).double()


def merged(parts: Sequence[Tensor], log_sums: Sequence[Tensor]) -> Tensor:
    """Attention on all keys and values, from that on several parts of them with the log-sum-exps of these."""
    shares = torch.stack(list(log_sums)).softmax(0).to(parts[0].dtype)[..., None]
    return (shares * torch.stack([heads_of(part) for part in parts])).sum(0).flatten(2)


def exchanged(
    kind: str, action: PatchAction, parts: Sequence[Tensor]
) -> Generator[Offer | str, list[Tensor], list[Tensor]]:
    """Offer tensors and wait for what comes back."""
    yield Offer(kind, action.step, parts)
    return (yield kind)


class Member:
    """One rank in a grid of guidance, pipeline, sequence and tensor parallelism.

    It has the latents, and the keys and values of each layer, as far as it knows them. A patch of a stage is divided
    among the devices of a sequence group; all devices hold the same part of every patch, also while the image passes
    whole. A patch of DistriFusion is a part that sees the others as they were one step ago.
    """

    def __init__(self, settings: Settings, rank: int) -> None:
        self.settings, grid = settings, settings.grid
        self.grid, self.model, self.latents = grid, SmallTransformer(), first_latents()
        self.scheduler = Scheduler(settings.steps)
        place, tensor = divmod(rank, grid.tensor)
        place, self.part = divmod(place, grid.sequence)
        guided, self.stage = divmod(place, grid.pipeline)
        for layer in range(LAYERS):
            self.model.block(layer, 0.0, slice(1))[0].divide(tensor, grid.tensor)
        self.batch = settings.batch // grid.guidance
        self.prompts = slice(guided * self.batch, (guided + 1) * self.batch)
        width = HIDDEN // grid.tensor // grid.ulysses
        self.kept = torch.full((LAYERS, 2, self.batch, ROWS**2, width), torch.nan)
        self.queued: list[Tensor] = []
        ring = self.part // grid.ulysses
        self.circle = range(ring * grid.ulysses, (ring + 1) * grid.ulysses)
        """Parts whose keys and values this device holds for its heads."""
        of = settings.plan.stages[self.stage]
        self.layers = range(of.first_layer, of.last_layer + 1)
        self.patches = patches_of(settings.num_patches if grid.pipeline > 1 else 1)
        self.last = self.stage == grid.pipeline - 1

    def tokens(self, parts: Sequence[int], patch: int | None = None) -> Tensor:
        """The tokens of some parts of a patch, or of the whole image."""
        patches = self.patches if patch is None else [self.patches[patch]]
        divided = [tokens.chunk(self.grid.sequence) for tokens in patches]
        return torch.cat([pieces[part] for part in parts for pieces in divided])

    def _patch(self, action: PatchAction) -> int | None:
        whole = action.step < self.settings.warmup_steps or self.grid.pipeline == 1
        return None if whole else action.patch

    def begin(self, action: PatchAction) -> Pass:
        """The pass of a patch, or of the whole image, through the layers of this stage."""
        patch, hidden = self._patch(action), (yield from self._arrived(action))
        for layer in self.layers:
            hidden = yield from self._block(action, layer, hidden)
        if LAYERS - 1 in self.layers:
            hidden = self.model.predict(hidden)  # of the last layer; a stage after it holds none
        if not self.last:
            yield Offer("hidden", action.step, [hidden])
            return
        yield from self._move(action, patch, hidden)
        if self.grid.pipeline > 1 and action.step < self.settings.steps - 1:
            yield Offer("latents", action.step + 1, [self.latents[:, self.tokens([self.part], patch)]])

    def _arrived(self, action: PatchAction) -> Computed:
        patch, first = self._patch(action), action.step == self.settings.warmup_steps
        if self.stage:
            return (yield "hidden")[0]
        if action.step and self.grid.pipeline > 1 and (not first or action.patch == 0):
            self.latents[:, self.tokens([self.part], None if first else patch)] = (yield "latents")[0]
        return self.model.embed(self.latents, self.tokens([self.part], patch), self.batch)

    def _block(self, action: PatchAction, layer: int, hidden: Tensor) -> Computed:
        block, by = self.model.block(layer, self.scheduler.times[action.step], self.prompts)
        displaced = self.settings.strategy in PATCHED and action.step >= self.settings.warmup_steps
        attention = self._attend_to_stale if displaced else self._attention
        attended = yield from attention(action, layer, block.project(hidden, by))
        if self.grid.tensor == 1:
            return block.finish(hidden, attended, by)
        (mixed,) = yield from exchanged("sum", action, [block.attention.out(attended)])
        hidden = hidden + by.gate * mixed
        (fed,) = yield from exchanged("sum", action, [block.feed(hidden, by)])
        return block.add_fed(hidden, fed, by)

    def _attention(self, action: PatchAction, layer: int, projected: Tensor) -> Computed:
        """Attention of the own tokens: tokens are exchanged for heads, and keys and values pass around the ring."""
        ulysses, patch = self.grid.ulysses, self._patch(action)
        if ulysses > 1:
            parts = yield from exchanged("heads", action, projected.chunk(ulysses, dim=3))
            projected = torch.cat(parts, dim=2)
        self.kept[layer][:, :, self.tokens(self.circle, patch)] = projected[1:]
        both = self.kept[layer][:, :, self.tokens(self.circle)]
        in_rows = self.grid.rows * self.grid.columns > 1
        attended = yield from (self._attend_in_rows if in_rows else self._attend_around)(
            action, layer, projected[0], both
        )
        if ulysses > 1:
            parts = yield from exchanged("tokens", action, attended.chunk(ulysses, dim=1))
            attended = torch.cat(parts, dim=2)
        return attended

    def _attend_around(self, action: PatchAction, layer: int, queries: Tensor, both: Tensor) -> Computed:
        """Attention on the keys and values of one member of the ring after another."""
        parts = [attend_part(queries, both[0], both[1])]
        for _ in range(self.grid.ring - 1):
            (both,) = yield from exchanged("block", action, [both])
            parts.append(attend_part(queries, both[0], both[1]))
        return merged(*zip(*parts, strict=True))

    def _attend_in_rows(self, action: PatchAction, layer: int, queries: Tensor, both: Tensor) -> Computed:
        """Attention of the row's queries on the column's keys and values; the row merges its parts of each query."""
        rows, columns = self.grid.rows, self.grid.columns
        if rows > 1:
            yield Offer("keys and values", action.step, [both])
        if columns > 1:
            yield Offer("queries", action.step, [queries])
        if rows > 1:
            both = torch.cat((yield "keys and values"), dim=2)
        if columns == 1:
            self.kept[layer] = both
            return attend_wide(queries, both[0], both[1])
        seen, log_sums = attend_part(torch.cat((yield "queries"), dim=1), both[0], both[1])
        yield Offer("partial outputs", action.step, seen.chunk(columns, dim=1))
        yield Offer("log-sum-exps", action.step, log_sums.chunk(columns, dim=1))
        parts = yield "partial outputs"
        return merged(parts, (yield "log-sum-exps"))

    def _attend_to_stale(self, action: PatchAction, layer: int, projected: Tensor) -> Computed:
        """Attention on fresh keys and values of this part and those of the step before of all others."""
        bundle, both = int(getattr(self.settings.sampler, "gather_layers", 1)), self.kept[layer]
        if layer % bundle == 0 and action.step > self.settings.warmup_steps:
            for part, theirs in enumerate((yield "keys and values")):
                if part != self.part:
                    self.kept[layer : layer + bundle, :, :, self.tokens([part])] = theirs
        both[:, :, self.tokens([self.part])] = projected[1:]
        attended = attend_wide(projected[0], both[0], both[1])
        self.queued.append(projected[1:])
        if len(self.queued) == bundle or layer == LAYERS - 1:
            yield Offer("keys and values", action.step, [torch.stack(self.queued)])
            self.queued.clear()
        return attended

    def _move(self, action: PatchAction, patch: int | None, predicted: Tensor) -> Pass:
        """Gather the prediction inside each team, then between them, and move the latents of the patch."""
        parts: Sequence[int] = [self.part]
        if self.grid.sequence > 1:
            predicted = torch.cat((yield from exchanged("prediction", action, [predicted])), dim=1)
            parts = range(self.grid.sequence)
        if self.grid.guidance > 1:
            predicted = torch.cat((yield from exchanged("guidance", action, [predicted])))
        tokens = self.tokens(parts, patch)
        self.latents[:, tokens] = self.scheduler.move(self.latents[:, tokens], predicted, action.step)
