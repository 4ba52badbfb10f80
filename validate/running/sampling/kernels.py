"""Kernels of a sampler: one rank's passes, advanced as the ops, messages and collectives of a plan let them.

The pass of a patch is a generator. It offers tensors that the plan lets the device send next (``Offer``), or names the
kind of what must arrive before it goes on, which is then sent in: a message, or a tensor of each member of a group. So
an op need not know where in it work was done. In a pipeline one exchange of the plan stands for as many calls as its
stage has layers. Layers run one after the other, so all these calls of a pass are made where the first exchange starts.
"""

from collections import defaultdict, deque
from collections.abc import Generator, Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch import distributed as dist

from profiles.errors import DiffusimError
from profiles.machines.collectives import sent_bytes
from strategies.plans.actions import PatchAction
from strategies.plans.plan import Collective, Op
from strategies.plans.wiring import Wiring
from validate.running.executor import Kernels, Mark, RankSeat
from validate.running.model import (
    Scheduler,
    SmallTransformer,
    attend_wide,
    first_latents,
    heads_of,
    patches_of,
)
from validate.running.sampling.settings import HIDDEN, LAYERS, PATCHED, ROWS, WIDENING, Settings


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
        stage = settings.plan.stages[self.stage]
        self.layers = range(stage.first_layer, stage.last_layer + 1)
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
        attend = self._attend_in_rows if self.grid.rows * self.grid.columns > 1 else self._attend_around
        attended = yield from attend(action, layer, projected[0], both)
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


class Sent(NamedTuple):
    """Bytes that a rank sent in a message or collective of a denoising step, and those of the plan in its precision."""

    kind: str
    step: int
    planned_bytes: float
    size_bytes: int


def exchange(
    collective: Collective, rank: int, parts: Sequence[Tensor], group: dist.ProcessGroup
) -> tuple[list[Tensor], int]:
    """Carry out a collective; return what it brings, and the bytes that this rank sent.

    ``all_gather`` and ``all_to_all`` bring one tensor of each member, all others one tensor. ``all_to_all`` takes one
    part for each member, all others one part.
    """
    members, size, place = collective.devices, len(collective.devices), collective.devices.index(rank)
    order = sorted(range(size), key=members.__getitem__)  # of the members in the process group
    first = parts[0].contiguous()
    arriving = [torch.empty_like(first) for _ in members]
    match collective.operation:
        case "send_recv":
            sending = dist.P2POp(dist.isend, first, members[(place + 1) % size], group)
            receiving = dist.P2POp(dist.irecv, arriving[0], members[place - 1], group)
            for work in dist.batch_isend_irecv([sending, receiving]):
                work.wait()
            return arriving[:1], first.nbytes
        case "all_gather":
            dist.all_gather([arriving[at] for at in order], first, group=group)
            return arriving, (size - 1) * first.nbytes
        case "all_to_all":
            leaving = [parts[at].contiguous() for at in order]
            dist.all_to_all([arriving[at] for at in order], leaving, group=group)
            return arriving, sum(part.nbytes for part in parts) - parts[place].nbytes
        case _:
            summed = first.clone()
            dist.all_reduce(summed, group=group)
            return [summed], 2 * (size - 1) * first.nbytes // size


class SampledPart(NamedTuple):
    """The end of one rank: the image, if its stage is the last one, and its messages."""

    latents: Tensor | None
    sent: list[Sent]


class SamplerKernels(Kernels):
    """Samples one device's part of an image."""

    def __init__(self, settings: Settings, wiring: Wiring, seat: RankSeat) -> None:
        self._settings, self._plan, self._rank = settings, wiring.plan, seat.device
        self._ops = wiring.plan.ops[seat.device]
        self._bundles = _bundles(wiring, seat.device) if settings.grid.pipeline > 1 else {}
        made: dict[tuple[int, ...], Any] = {}
        for (
            collective
        ) in wiring.plan.collectives:  # other groups than those that agree on when members are ready
            made[collective.devices] = made.get(collective.devices) or dist.new_group(
                list(collective.devices)
            )
        self._groups = [made[collective.devices] for collective in wiring.plan.collectives]

    def begin(self, iteration: int) -> None:
        torch.set_grad_enabled(False)
        self._member = Member(self._settings, self._rank)
        self._inbox: dict[str, deque[list[Tensor]]] = defaultdict(deque)
        self._sent: list[Sent] = []
        self._landing: dict[int, tuple[str, list[Tensor]]] = {}
        self._action: PatchAction | None = None
        self._pass: Pass | None = None
        self._step: Offer | str | None = None

    def run(self, index: int, op: Op, mark: Mark) -> None:
        assert isinstance(op.action, PatchAction)
        self._go_on(op.action)

    def pack(self, tensor: int) -> Any:  # noqa: ANN401  an array
        """Return the payload of a tensor's message: the next offer of the pass."""
        planned = self._plan.tensors[tensor]
        assert self._action is not None
        offer = self._hand_over(self._action, planned.role)
        message = offer.parts[0].contiguous()
        self._sent.append(Sent(offer.kind, offer.step, WIDENING * planned.size_bytes, message.nbytes))
        return message.numpy()

    def unpack(self, tensor: int, payload: Any) -> None:  # noqa: ANN401  as above
        self._inbox[self._plan.tensors[tensor].role].append([torch.from_numpy(payload)])

    def start(self, collective: int, index: int) -> None:
        """Exchange the next offer of the pass, or all offers of a pass through several layers."""
        action = self._ops[min(index, len(self._ops) - 1)].action
        assert isinstance(action, PatchAction)
        layers, bundle = self._bundles.get(collective, (1, ()))
        if not bundle:
            self._landing[collective] = self._exchange(collective, action)
        elif collective == bundle[0]:
            for number in bundle * layers:
                kind, arrived = self._exchange(number, action, layers)
                self._inbox[kind].append(arrived)

    def _exchange(self, number: int, action: PatchAction, calls: int = 1) -> tuple[str, list[Tensor]]:
        collective = self._plan.collectives[number]
        offer = self._hand_over(action)
        arrived, size_bytes = exchange(collective, self._rank, offer.parts, self._groups[number])
        planned = (
            WIDENING
            * sent_bytes(collective.operation, collective.size_bytes, len(collective.devices))
            / calls
        )
        self._sent.append(Sent(collective.operation, offer.step, planned, size_bytes))
        return offer.kind, arrived

    def land(self, collective: int) -> None:
        if collective in self._landing:
            kind, arrived = self._landing.pop(collective)
            self._inbox[kind].append(arrived)

    def end(self) -> None:
        """Let the last pass finish."""
        self._feed()
        if self._step is not None:
            raise self._stuck(None)

    def result(self) -> SampledPart:
        return SampledPart(self._member.latents if self._member.last else None, self._sent)

    def _go_on(self, action: PatchAction) -> None:
        """Advance a pass, begun if the last one has ended, until it offers something or has to wait."""
        self._feed()
        if action != self._action:
            if self._step is not None:
                raise self._stuck(action)
            self._action, self._pass = action, self._member.begin(action)
            self._step = next(self._pass, None)
            self._feed()

    def _feed(self) -> None:
        while isinstance(self._step, str) and self._inbox[self._step]:
            self._resume(self._inbox[self._step].popleft())

    def _resume(self, arrived: list[Tensor]) -> None:
        assert self._pass is not None
        try:
            self._step = self._pass.send(arrived)
        except StopIteration:
            self._step = None

    def _hand_over(self, action: PatchAction, kind: str = "") -> Offer:
        """Return the next offer of the pass, or of the one that an action begins, and let the pass go on."""
        self._feed()
        if self._step is None:
            self._go_on(action)
        offer = self._step
        if not isinstance(offer, Offer) or kind not in ("", offer.kind):
            raise self._stuck(action)
        self._resume([])
        return offer

    def _stuck(self, action: PatchAction | None) -> DiffusimError:
        """Return the error of a plan whose next step is not that of the pass."""
        step = self._step
        does = "ends" if step is None else f"needs {step}" if isinstance(step, str) else f"sends {step.kind}"
        plan = f"the plan lets rank {self._rank} go on with {action or 'nothing'}"
        return DiffusimError(f"{plan}, but its pass {self._action} {does} here")


def _bundles(wiring: Wiring, rank: int) -> dict[int, tuple[int, tuple[int, ...]]]:
    """For each collective that stands for calls of several layers, how many, and all such of its pass, in order."""
    plan, passes = wiring.plan, defaultdict(list)
    for number, collective in enumerate(plan.collectives):
        writers = [wiring.writers[tensor] for tensor in collective.reads]
        actions = [plan.ops[device][index].action for device, index in writers if device == rank]
        if collective.operation != "all_gather" and actions:
            passes[actions[0]].append(number)
    bundles = {}
    for action, numbers in passes.items():
        assert isinstance(action, PatchAction)
        stage = plan.stages[action.stage]
        layers = stage.last_layer - stage.first_layer + 1
        bundles.update({number: (layers, tuple(numbers)) for number in numbers if layers > 1})
    return bundles
