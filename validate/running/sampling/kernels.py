"""Kernels of a sampler: one device's passes, advanced as the ops, messages and collectives of a plan let them.

A pass goes on until it offers something or needs something, so that an op need not know where in it work was done. In
a pipeline one exchange of the plan stands for as many calls as its stage has layers. Layers run one after the other, so
all these calls of a pass are made where the first exchange starts.
"""

from collections import defaultdict, deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch import distributed as dist

from profiles.errors import DiffusimError
from profiles.machines.collectives import sent_bytes
from strategies.plans.actions import PatchAction
from strategies.plans.plan import Collective, Op
from strategies.plans.wiring import Wiring
from validate.running.executor import Kernels, Mark
from validate.running.sampling.passes import Need, Offer, Pass, make_member
from validate.running.sampling.settings import WIDENING, Settings


@dataclass(slots=True)
class Sent:
    """Bytes that one rank sent in one message of a plan, or as its part of a collective, in a denoising step.

    ``planned_bytes`` are those of the plan, in the precision of the run.
    """

    kind: str
    step: int
    planned_bytes: float
    size_bytes: int = 0


Pending = Callable[[], list[Tensor]]  # an exchange under way; when called, it waits for what it brings


def _start_exchange(
    collective: Collective, rank: int, parts: Sequence[Tensor], sent: Sent, group: dist.ProcessGroup
) -> Pending:
    """Start a collective; ``all_gather`` and ``all_to_all`` bring one tensor of each member, all others one tensor.

    ``all_to_all`` takes one part for each member, all others one part. The bytes are added to ``sent``.
    """
    operation, members = collective.operation, collective.devices
    size, place = len(members), members.index(rank)
    order = sorted(range(size), key=members.__getitem__)  # of the members in the process group
    first, works = parts[0].contiguous(), list[dist.Work | None]()
    arriving, leaving = [torch.empty_like(first) for _ in members], [first]
    match operation:
        case "send_recv":
            arriving, sent_bytes = arriving[:1], first.nbytes
            sending = dist.P2POp(dist.isend, first, members[(place + 1) % size], group)
            receiving = dist.P2POp(dist.irecv, arriving[0], members[place - 1], group)
            works += dist.batch_isend_irecv([sending, receiving])
        case "all_gather":
            sent_bytes = (size - 1) * first.nbytes
            works.append(dist.all_gather([arriving[at] for at in order], first, group=group, async_op=True))
        case "all_to_all":
            leaving = [parts[at].contiguous() for at in order]
            sent_bytes = sum(part.nbytes for part in parts) - parts[place].nbytes
            works.append(dist.all_to_all([arriving[at] for at in order], leaving, group=group, async_op=True))
        case "all_reduce":
            arriving, sent_bytes = [first.clone()], 2 * (size - 1) * first.nbytes // size
            works.append(dist.all_reduce(arriving[0], group=group, async_op=True))
        case _:
            raise ValueError(f"no such operation: {operation}")
    sent.size_bytes += sent_bytes

    def finish() -> list[Tensor]:
        for work in works:
            assert work is not None
            work.wait()
        leaving.clear()  # they had to live until now
        return arriving

    return finish


@dataclass(frozen=True, slots=True)
class SampledPart:
    """The end of one rank: the image as far as it has it, and its messages."""

    latents: Tensor
    sent: list[Sent]


class SamplerKernels(Kernels):
    """Samples one device's part of an image."""

    sleeping = False

    def __init__(self, settings: Settings, wiring: Wiring, rank: int) -> None:
        self._settings, self._plan, self._rank = settings, wiring.plan, rank
        self._ops = wiring.plan.ops[rank]
        self._bundles = _bundles(wiring, rank) if settings.grid.pipeline > 1 else {}
        made: dict[tuple[int, ...], Any] = {}
        for of in wiring.plan.collectives:  # other groups than those that agree on when members are ready
            made[of.devices] = made.get(of.devices) or dist.new_group(list(of.devices))
        self._groups = [made[of.devices] for of in wiring.plan.collectives]

    def begin(self, iteration: int) -> None:
        torch.set_grad_enabled(False)
        self._member = make_member(self._settings, self._rank)
        self._inbox: dict[str, deque[list[Tensor]]] = defaultdict(deque)
        self._sent: list[Sent] = []
        self._under_way: dict[int, tuple[str, Pending]] = {}
        self._action: PatchAction | None = None
        self._pass: Pass | None = None
        self._step: Offer | Need | None = None

    def run(self, index: int, op: Op, mark: Mark) -> None:
        assert isinstance(op.action, PatchAction)
        self._go_on(op.action, f"compute {op.action}")

    def pack(self, tensor: int) -> Any:  # noqa: ANN401  an array
        """Return the payload of a tensor's message: the next offer of the pass."""
        planned = self._plan.tensors[tensor]
        assert self._action is not None
        offer = self._hand_over(self._action, f"send {planned.role}")
        if offer.kind != planned.role:
            raise self._stuck(f"send {planned.role}", offer)
        message = offer.parts[0].contiguous()
        self._sent.append(Sent(offer.kind, offer.step, WIDENING * planned.size_bytes, message.nbytes))
        return message.numpy()

    def unpack(self, tensor: int, payload: Any) -> None:  # noqa: ANN401  as above
        self._inbox[self._plan.tensors[tensor].role].append([torch.from_numpy(payload)])

    def start(self, collective: int, index: int) -> None:
        """Start an exchange with the next offer of the pass, or make all exchanges of a pass through several layers."""
        action = self._ops[min(index, len(self._ops) - 1)].action
        assert isinstance(action, PatchAction)
        layers, bundle = self._bundles.get(collective, (1, ()))
        if len(bundle) == 0:
            kind, pending = self._exchange(collective, action)
            self._under_way[collective] = kind, pending
        elif collective == bundle[0]:
            assert self._action is not None
            done: dict[int, Sent] = {}
            for number in bundle * layers:
                kind, pending = self._exchange(number, self._action, done.get(number))
                done.setdefault(number, self._sent[-1])
                self._inbox[kind].append(pending())

    def _exchange(self, number: int, action: PatchAction, sent: Sent | None = None) -> tuple[str, Pending]:
        collective = self._plan.collectives[number]
        offer = self._hand_over(action, f"start {collective.operation}")
        if sent is None:
            planned = sent_bytes(collective.operation, collective.size_bytes, len(collective.devices))
            sent = Sent(collective.operation, offer.step, WIDENING * planned)
            self._sent.append(sent)
        return offer.kind, _start_exchange(collective, self._rank, offer.parts, sent, self._groups[number])

    def land(self, collective: int) -> None:
        if collective in self._under_way:
            kind, pending = self._under_way.pop(collective)
            self._inbox[kind].append(pending())

    def end(self) -> None:
        """Let the last pass finish."""
        assert self._action is not None
        self._go_on(self._action, "end")
        if self._step is not None:
            raise self._stuck("end", self._step)

    def result(self) -> SampledPart:
        return SampledPart(self._member.latents, self._sent)

    def _go_on(self, action: PatchAction, order: str) -> None:
        """Advance a pass, begun if the last one has ended, until it offers something or has to wait."""
        self._feed()
        if action != self._action:
            if self._step is not None:
                raise self._stuck(order, self._step)
            self._action, self._pass = action, self._member.begin(action)
            self._step = next(self._pass, None)
            self._feed()

    def _feed(self) -> None:
        while isinstance(self._step, Need) and self._inbox[self._step.kind]:
            self._resume(self._inbox[self._step.kind].popleft())

    def _resume(self, brought: list[Tensor]) -> None:
        assert self._pass is not None
        try:
            self._step = self._pass.send(brought)
        except StopIteration:
            self._step = None

    def _hand_over(self, action: PatchAction, order: str) -> Offer:
        """Return the next offer of the pass, or of the one that an action begins, and let the pass go on."""
        self._feed()
        if self._step is None:
            self._go_on(action, order)
        if not isinstance(self._step, Offer):
            raise self._stuck(order, self._step)
        offer = self._step
        self._resume([])
        return offer

    def _stuck(self, order: str, step: Offer | Need | None) -> DiffusimError:
        """Return the error of a plan whose next step is not that of the pass."""
        does = "ends" if step is None else f"{'needs' if isinstance(step, Need) else 'sends'} {step.kind}"
        plan = f"the plan lets rank {self._rank} {order}"
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
