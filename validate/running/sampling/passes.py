"""Passes: the work of one rank of a sampler, interrupted where it sends something or needs something.

The pass of a patch is a generator. It offers tensors that the plan lets the device send next (``Offer``), or names
its need (``Need``), which is then sent in.
"""

from abc import ABC, abstractmethod
from collections.abc import Generator, Sequence
from typing import NamedTuple

import torch
from torch import Tensor

from strategies.plans.actions import PatchAction
from validate.running.model import WIDER, Block, Modulation
from validate.running.sampling import transformer
from validate.running.sampling.settings import HIDDEN, LAYERS, PATCHED, ROWS, Settings
from validate.running.sampling.transformer import attend


class Offer(NamedTuple):
    """Tensors for others: their kind, the step their bytes count to, one for all members or one for each."""

    kind: str
    step: int
    parts: Sequence[Tensor]


class Need(NamedTuple):
    """Something of a kind must arrive before the pass goes on: a message, or a tensor of each member of a group."""

    kind: str


Pass = Generator[Offer | Need, list[Tensor], None]
Computed = Generator[Offer | Need, list[Tensor], Tensor]  # a part of a pass, and its result


class Member(ABC):
    """One rank of a sampler, with the latents, and the keys and values of each layer, as far as it knows them."""

    def __init__(self, settings: Settings, rank: int, *, batch: int, width: int) -> None:
        self.settings, self.rank, self.batch = settings, rank, batch
        self.model = transformer.SmallTransformer()
        self.scheduler = transformer.Scheduler(settings.steps)
        self.latents = transformer.first_latents()
        self.kept = torch.full((LAYERS, 2, batch, ROWS**2, width), torch.nan)

    @abstractmethod
    def begin(self, action: PatchAction) -> Pass:
        """The pass of a patch."""

    def block(self, layer: int, step: int) -> tuple[Block, Modulation]:
        """A block, and its modulation by timestep and prompt."""
        condition = self.model.condition(self.scheduler.time(step))
        return self.model.block(layer), self.model.modulate(layer, condition[self.prompts()])

    def prompts(self) -> slice:
        """Which predictions this rank makes: with the prompt, without it, or both."""
        return slice(0, self.batch)

    def move(self, tokens: Tensor, predicted: Tensor, step: int) -> None:
        """Move some tokens of the latents by a step."""
        self.latents[:, tokens] = self.scheduler.move(self.latents[:, tokens], predicted, step)


class GridMember(Member):
    """A place in a grid of guidance, pipeline, sequence and tensor parallelism.

    A patch of a stage is divided among the devices of a sequence group; all devices hold the same part of every patch,
    also while the image passes whole.
    """

    def __init__(self, settings: Settings, rank: int) -> None:
        grid = self.grid = settings.grid
        place, self.tensor = divmod(rank, grid.tensor)
        place, self.part = divmod(place, grid.sequence)
        self.guided, self.stage = divmod(place, grid.pipeline)
        width = HIDDEN // grid.tensor // grid.ulysses
        super().__init__(settings, rank, batch=settings.batch // grid.guidance, width=width)
        self.heads, self.inner = self._share(HIDDEN), self._share(WIDER * HIDDEN)
        ring = self.part // grid.ulysses
        self.circle = range(ring * grid.ulysses, (ring + 1) * grid.ulysses)
        """Parts whose keys and values this device holds for its heads."""
        of = settings.plan.stages[self.stage]
        self.layers = range(of.first_layer, of.last_layer + 1)

    def _share(self, width: int) -> slice:
        size = width // self.grid.tensor
        return slice(self.tensor * size, (self.tensor + 1) * size)

    def prompts(self) -> slice:
        """Which predictions this rank makes: with the prompt, without it, or both."""
        return slice(self.guided * self.batch, (self.guided + 1) * self.batch)

    def _tokens(self, parts: Sequence[int], patch: int | None) -> Tensor:
        patches = range(self.settings.num_patches) if patch is None else [patch]
        divided = [
            transformer.tokens_of(self.settings.patch_rows(p)).chunk(self.grid.sequence) for p in patches
        ]
        return torch.cat([pieces[part] for part in parts for pieces in divided])

    def _patch(self, action: PatchAction) -> int | None:
        return None if action.step < self.settings.warmup_steps else action.patch

    def begin(self, action: PatchAction) -> Pass:
        """The pass of a patch, or of the whole image, through the layers of this stage."""
        patch, stages = self._patch(action), self.grid.pipeline
        hidden = yield from self._arrived(action)
        for layer in self.layers:
            hidden = yield from self._block(action, layer, hidden)
        if LAYERS - 1 in self.layers:
            hidden = self.model.predict(hidden)  # of the last layer; a stage after it holds none
        if self.stage < stages - 1:
            yield Offer("hidden", action.step, [hidden])
            return
        yield from self._move(action, patch, hidden)
        if stages > 1 and action.step < self.settings.steps - 1:
            yield Offer("latents", action.step + 1, [self.latents[:, self._tokens([self.part], patch)]])

    def _arrived(self, action: PatchAction) -> Computed:
        patch, first = self._patch(action), action.step == self.settings.warmup_steps
        if self.stage:
            return (yield Need("hidden"))[0]
        if action.step and self.grid.pipeline > 1 and (not first or action.patch == 0):
            arrived = (yield Need("latents"))[0]
            self.latents[:, self._tokens([self.part], None if first else patch)] = arrived
        tokens = self._tokens([self.part], patch)
        return self.model.embed(self.latents[:, tokens], tokens, self.batch)

    def _block(self, action: PatchAction, layer: int, hidden: Tensor) -> Computed:
        block, by = self.block(layer, action.step)
        attended = yield from self._attention(action, layer, block.project(hidden, by, self.heads))
        if self.grid.tensor == 1:
            return block.finish(hidden, attended, by)
        yield Offer("sum", action.step, [block.mix(attended, self.heads)])
        hidden = block.add_mixed(hidden, (yield Need("sum"))[0], by)
        yield Offer("sum", action.step, [block.feed(hidden, by, self.inner)])
        return block.add_fed(hidden, (yield Need("sum"))[0], by)

    def _attention(self, action: PatchAction, layer: int, projected: Tensor) -> Computed:
        """Attention of the own tokens: tokens are exchanged for heads, and keys and values pass around the ring."""
        ulysses, patch = self.grid.ulysses, self._patch(action)
        if ulysses > 1:
            yield Offer("heads", action.step, projected.chunk(ulysses, dim=3))
            projected = torch.cat((yield Need("heads")), dim=2)
        tokens = self._tokens(self.circle, patch)
        self.kept[layer][:, :, tokens] = projected[1:]
        both = self.kept[layer][:, :, self._tokens(self.circle, None)]
        attend = self._attend_around if self.grid.rows * self.grid.columns == 1 else self._attend_in_rows
        attended = yield from attend(action, projected[0], both)
        if ulysses > 1:
            yield Offer("tokens", action.step, attended.chunk(ulysses, dim=1))
            attended = torch.cat((yield Need("tokens")), dim=2)
        return attended

    def _attend_around(self, action: PatchAction, queries: Tensor, both: Tensor) -> Computed:
        """Attention on the keys and values of one member of the ring after another."""
        parts = [transformer.attend_part(queries, *both)]
        for _ in range(self.grid.ring - 1):
            yield Offer("block", action.step, [both])
            (both,) = yield Need("block")
            parts.append(transformer.attend_part(queries, *both))
        return transformer.merged(*zip(*parts, strict=True))

    def _attend_in_rows(self, action: PatchAction, queries: Tensor, both: Tensor) -> Computed:
        """Attention of the row's queries on the column's keys and values; the row merges its parts of each query."""
        rows, columns = self.grid.rows, self.grid.columns
        if rows > 1:
            yield Offer("keys and values", action.step, [both])
        if columns > 1:
            yield Offer("queries", action.step, [queries])
        if rows > 1:
            both = torch.cat((yield Need("keys and values")), dim=2)
        if columns == 1:
            return attend(queries, both[0], both[1])
        seen, log_sums = transformer.attend_part(torch.cat((yield Need("queries")), dim=1), *both)
        yield Offer("partial outputs", action.step, seen.chunk(columns, dim=1))
        yield Offer("log-sum-exps", action.step, log_sums.chunk(columns, dim=1))
        parts = yield Need("partial outputs")
        return transformer.merged(parts, (yield Need("log-sum-exps")))

    def _move(self, action: PatchAction, patch: int | None, predicted: Tensor) -> Pass:
        """Gather the prediction inside each team, then between them, and move the latents of the patch."""
        parts: Sequence[int] = [self.part]
        if self.grid.sequence > 1:
            yield Offer("prediction", action.step, [predicted])
            predicted, parts = torch.cat((yield Need("prediction")), dim=1), range(self.grid.sequence)
        if self.grid.guidance > 1:
            yield Offer("guidance", action.step, [predicted])
            predicted = torch.cat((yield Need("guidance")))
        self.move(self._tokens(parts, patch), predicted, action.step)


class PatchMember(Member):
    """A patch of DistriFusion: keys and values of others are gathered before a layer, or are one step old."""

    def __init__(self, settings: Settings, rank: int) -> None:
        super().__init__(settings, rank, batch=settings.batch, width=HIDDEN)
        self.tokens, self.all = transformer.tokens_of(settings.patch_rows(rank)), torch.arange(ROWS**2)

    def begin(self, action: PatchAction) -> Pass:
        """The pass of the own patch, in a synchronous or a displaced step."""
        synchronous = action.step < self.settings.warmup_steps
        hidden = self.model.embed(self.latents[:, self.tokens], self.tokens, self.batch)
        hidden = yield from (self._synchronous if synchronous else self._displaced)(action, hidden)
        yield Offer("prediction", action.step, [self.model.predict(hidden)])
        self.move(self.all, torch.cat((yield Need("prediction")), dim=1), action.step)

    def _synchronous(self, action: PatchAction, hidden: Tensor) -> Computed:
        for layer in range(LAYERS):
            block, by = self.block(layer, action.step)
            projected = block.project(hidden, by)
            yield Offer("keys and values", action.step, [projected[1:]])
            gathered = torch.cat((yield Need("keys and values")), dim=2)
            self.kept[layer] = gathered
            hidden = block.finish(hidden, attend(projected[0], gathered[0], gathered[1]), by)
        return hidden

    def _displaced(self, action: PatchAction, hidden: Tensor) -> Computed:
        bundle = int(getattr(self.settings.sampler, "gather_layers", 1))
        for first in range(0, LAYERS, bundle):
            layers = range(first, min(first + bundle, LAYERS))
            if action.step > self.settings.warmup_steps:
                self._land(layers, (yield Need("keys and values")))
            queued = []
            for layer in layers:
                block, by = self.block(layer, action.step)
                projected = block.project(hidden, by)
                both = self.kept[layer]
                both[:, :, self.tokens] = projected[1:]
                hidden = block.finish(hidden, attend(projected[0], both[0], both[1]), by)
                queued.append(projected[1:])
            yield Offer("keys and values", action.step, [torch.stack(queued)])
        return hidden

    def _land(self, layers: Sequence[int], gathered: Sequence[Tensor]) -> None:
        """Overwrite the rows of others with those gathered in the step before."""
        for rank, theirs in enumerate(gathered):
            if rank != self.rank:
                tokens = transformer.tokens_of(self.settings.patch_rows(rank))
                for layer, tensor in zip(layers, theirs, strict=True):
                    self.kept[layer][:, :, tokens] = tensor


def make_member(settings: Settings, rank: int) -> Member:
    """The member that a rank of a sampler is."""
    kind = PatchMember if settings.strategy in PATCHED else GridMember
    return kind(settings, rank)
