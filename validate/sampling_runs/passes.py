"""The passes of each kind of sampler, cut where the ops of its plans end."""

import torch
from torch import Tensor

from strategies.plans.actions import PatchAction
from validate.sampling_runs.keys_values import WHOLE
from validate.sampling_runs.member import COMPUTED, Member, Offer, Pass
from validate.sampling_runs.settings import HIDDEN, LAYERS, PATCHED, PIPELINES, ROWS, TENSORED, Settings
from validate.sampling_runs.transformer import TOKEN, Blockwise, attend, tokens


class StageMember(Member):
    """A stage of PipeFusion: each pass is one op."""

    def begin(self, action: PatchAction) -> Pass:
        """Return the pass of a patch, or of the whole image, through the layers of this stage."""
        stage = self.settings.plan.stages[action.stage]
        rows = self._rows(action)
        hidden = self._arrived(action, rows)
        for layer in range(stage.first_layer, stage.last_layer + 1):
            block, by = self.model.block(layer), self.modulate(layer, action.step)
            projected = block.project(hidden, by)
            self.kept[layer].write(rows, projected[1:], action.step)
            both = self.attended_rows(action, layer, rows)
            hidden = block.finish(hidden, attend(projected[0], both[0], both[1]), by)
        if stage.last_layer == LAYERS - 1 and stage.first_layer < LAYERS:
            hidden = self.model.predict(hidden)  # of the last layer; a stage after it holds none
        if action.stage < len(self.settings.plan.stages) - 1:
            yield COMPUTED
            yield Offer("hidden", action.step, [hidden])
            return
        self._move(action, rows, hidden)
        yield COMPUTED
        if action.step < self.settings.steps - 1:
            yield Offer("latents", action.step + 1, [self.latents[:, tokens(rows)].clone()])

    def arriving(self, role: str, action: PatchAction) -> tuple[int, ...]:
        """Return the shape of a hidden state, a prediction behind the last layer, or latents."""
        if role == "latents":
            rows = WHOLE if action.step == self.settings.warmup_steps else self._rows(action)
            return 1, ROWS * (rows.stop - rows.start), TOKEN
        rows = self._rows(action)
        width = HIDDEN if self.settings.plan.stages[action.stage].first_layer < LAYERS else TOKEN
        return self.settings.batch, ROWS * (rows.stop - rows.start), width

    def _rows(self, action: PatchAction) -> slice:
        """Return the rows of a pass."""
        if action.step < self.settings.warmup_steps:
            return WHOLE
        return self.settings.patch_rows(action.patch)

    def _arrived(self, action: PatchAction, rows: slice) -> Tensor:
        """Return the hidden state that this stage starts from."""
        at = tokens(rows)
        if action.stage:
            (arrived,) = self.take("hidden", action)
            return arrived
        if action.step:
            first = action.step == self.settings.warmup_steps  # the step before moved the whole image
            if not first or action.patch == 0:
                (arrived,) = self.take("latents", action)
                self.latents[:, tokens(WHOLE) if first else at] = arrived
        return self.model.embed(self.latents[:, at], rows, self.settings.batch)

    def _move(self, action: PatchAction, rows: slice, predicted: Tensor) -> None:
        at = tokens(rows)
        self.latents[:, at] = self.scheduler.move(self.latents[:, at], predicted, action.step)


class SharingMember(Member):
    """A rank that computes its own rows through all layers; the prediction is gathered at the end of a step."""

    def embed(self) -> Tensor:
        """Return the hidden state of the own rows."""
        rows = self.own_rows()
        return self.model.embed(self.latents[:, tokens(rows)], rows, self.settings.batch)

    def finish(self, action: PatchAction, hidden: Tensor) -> Pass:
        """Offer the prediction for the own rows, and move the latents when those of all have arrived."""
        yield Offer("prediction", action.step, [self.model.predict(hidden)])
        predicted = torch.cat(self.take("prediction", action), dim=1)
        self.latents = self.scheduler.move(self.latents, predicted, action.step)


class PatchMember(SharingMember):
    """A patch of DistriFusion: keys and values of others are gathered before a layer, or are one step old."""

    def begin(self, action: PatchAction) -> Pass:
        """Return the pass of the own patch, in a synchronous or a displaced step."""
        synchronous = action.step < self.settings.warmup_steps
        return self._synchronous(action) if synchronous else self._displaced(action)

    def _synchronous(self, action: PatchAction) -> Pass:
        hidden = self.embed()
        for layer in range(LAYERS):
            block, by = self.model.block(layer), self.modulate(layer, action.step)
            projected = block.project(hidden, by)
            yield Offer("keys and values", action.step, [projected[1:]])
            gathered = torch.cat(self.take("keys and values", action), dim=2)
            self.kept[layer].write(WHOLE, gathered, action.step)
            both = self.attended_rows(action, layer, self.own_rows())
            hidden = block.finish(hidden, attend(projected[0], both[0], both[1]), by)
            yield COMPUTED
        yield from self.finish(action, hidden)

    def _displaced(self, action: PatchAction) -> Pass:
        hidden, bundle = self.embed(), int(getattr(self.settings.sampler, "gather_layers", 1))
        for first in range(0, LAYERS + 1, bundle):
            layers = range(first, min(first + bundle, LAYERS))
            if action.step > self.settings.warmup_steps and layers:
                self._land(action, layers)
            queued = []
            for layer in layers:
                block, by = self.model.block(layer), self.modulate(layer, action.step)
                projected = block.project(hidden, by)
                self.kept[layer].write(self.own_rows(), projected[1:], action.step)
                both = self.attended_rows(action, layer, self.own_rows())
                hidden = block.finish(hidden, attend(projected[0], both[0], both[1]), by)
                queued.append(projected[1:])
            yield COMPUTED
            if queued:
                yield Offer("keys and values", action.step, [torch.stack(queued)])
        yield from self.finish(action, hidden)

    def _land(self, action: PatchAction, layers: range) -> None:
        """Overwrite the rows of others with what was gathered in the step before."""
        gathered = self.take("keys and values", action)
        for rank, theirs in enumerate(gathered):
            if rank != self.rank:
                rows = self.settings.patch_rows(rank)
                for layer, tensor in zip(layers, theirs, strict=True):
                    self.kept[layer].write(rows, tensor, action.step - 1)


class SequenceMember(SharingMember):
    """A part of the tokens under Ulysses, ring attention, or both."""

    def __init__(self, settings: Settings, rank: int, device: torch.device) -> None:
        super().__init__(settings, rank, device)
        degrees = {"ulysses": (settings.ranks, 1), "ring": (1, settings.ranks)}
        given = (
            int(getattr(settings.sampler, "ulysses_degree", 1)),
            int(getattr(settings.sampler, "ring_degree", 1)),
        )
        self.ulysses, self.ring = degrees.get(settings.strategy, given)

    def begin(self, action: PatchAction) -> Pass:
        """Return the pass of the own tokens."""
        hidden = self.embed()
        for layer in range(LAYERS):
            block, by = self.model.block(layer), self.modulate(layer, action.step)
            projected = block.project(hidden, by)
            yield COMPUTED
            if self.ulysses > 1:
                yield Offer("heads", action.step, projected.chunk(self.ulysses, dim=3))
                projected = torch.cat(self.take("heads", action), dim=2)
            attention, both = Blockwise(projected[0]), projected[1:]
            for number in range(self.ring):
                if number < self.ring - 1:
                    yield Offer("block", action.step, [both])
                attention.attend(both[0], both[1])
                yield COMPUTED
                if number < self.ring - 1:
                    (both,) = self.take("block", action)
            attended = attention.result()
            if self.ulysses > 1:
                yield Offer("tokens", action.step, attended.chunk(self.ulysses, dim=1))
                attended = torch.cat(self.take("tokens", action), dim=2)
            hidden = block.finish(hidden, attended, by)
            yield COMPUTED
        yield from self.finish(action, hidden)


class TensorMember(Member):
    """A part of every matrix, with the heads that belong to it."""

    def begin(self, action: PatchAction) -> Pass:
        """Return the pass of the whole image through the own parts."""
        hidden = self.model.embed(self.latents, WHOLE, self.settings.batch)
        heads, inner = self._part(HIDDEN), self._part(4 * HIDDEN)
        for layer in range(LAYERS):
            block, by = self.model.block(layer), self.modulate(layer, action.step)
            queries, keys, values = block.project(hidden, by, heads)
            yield COMPUTED
            mixed = block.mix(attend(queries, keys, values), heads)
            yield COMPUTED
            yield Offer("sum", action.step, [mixed])
            (mixed,) = self.take("sum", action)
            hidden = block.add_mixed(hidden, mixed, by)
            fed = block.feed(hidden, by, inner)
            yield COMPUTED
            yield Offer("sum", action.step, [fed])
            (fed,) = self.take("sum", action)
            hidden = block.add_fed(hidden, fed, by)
        self.latents = self.scheduler.move(self.latents, self.model.predict(hidden), action.step)

    def _part(self, width: int) -> slice:
        size = width // self.settings.ranks
        return slice(self.rank * size, (self.rank + 1) * size)


def make_member(settings: Settings, rank: int, device: torch.device) -> Member:
    """Return what a rank of a sampler is."""
    if settings.strategy in PIPELINES:
        return StageMember(settings, rank, device)
    if settings.strategy in PATCHED:
        return PatchMember(settings, rank, device)
    kind = TensorMember if settings.strategy in TENSORED else SequenceMember
    return kind(settings, rank, device)
