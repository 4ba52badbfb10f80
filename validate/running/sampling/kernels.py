"""Kernels of a sampler: one device's passes, advanced as the ops, messages and collectives of a plan let them.

A pass goes on until it offers something or needs something, so that an op need not know where in it work was done. In
a pipeline one exchange of the plan stands for as many calls as its stage has layers. Layers run one after the other, so
all these calls of a pass are made where the first exchange starts.
"""

from collections import defaultdict, deque
from collections.abc import Sequence
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
from validate.running.sampling.passes import Member, Offer, Pass
from validate.running.sampling.settings import WIDENING, Settings


class Sent(NamedTuple):
    """Bytes that one rank sent in a message, or as its part of a collective, in a denoising step.

    ``planned_bytes`` are those of the plan, in the precision of the run.
    """

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

    sleeping = False

    def __init__(self, settings: Settings, wiring: Wiring, seat: RankSeat) -> None:
        self._settings, self._plan, self._rank = settings, wiring.plan, seat.device
        self._ops = wiring.plan.ops[seat.device]
        self._bundles = _bundles(wiring, seat.device) if settings.grid.pipeline > 1 else {}
        made: dict[tuple[int, ...], Any] = {}
        for of in wiring.plan.collectives:  # other groups than those that agree on when members are ready
            made[of.devices] = made.get(of.devices) or dist.new_group(list(of.devices))
        self._groups = [made[of.devices] for of in wiring.plan.collectives]

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
        self._go_on(op.action, f"compute {op.action}")

    def pack(self, tensor: int) -> Any:  # noqa: ANN401  an array
        """Return the payload of a tensor's message: the next offer of the pass."""
        planned = self._plan.tensors[tensor]
        assert self._action is not None
        offer = self._hand_over(self._action, f"send {planned.role}", planned.role)
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
        of = self._plan.collectives[number]
        offer = self._hand_over(action, f"start {of.operation}")
        arrived, size_bytes = exchange(of, self._rank, offer.parts, self._groups[number])
        planned = WIDENING * sent_bytes(of.operation, of.size_bytes, len(of.devices)) / calls
        self._sent.append(Sent(of.operation, offer.step, planned, size_bytes))
        return offer.kind, arrived

    def land(self, collective: int) -> None:
        if collective in self._landing:
            kind, arrived = self._landing.pop(collective)
            self._inbox[kind].append(arrived)

    def end(self) -> None:
        """Let the last pass finish."""
        assert self._action is not None
        self._go_on(self._action, "end")
        if self._step is not None:
            raise self._stuck("end")

    def result(self) -> SampledPart:
        return SampledPart(self._member.latents if self._member.last else None, self._sent)

    def _go_on(self, action: PatchAction, order: str) -> None:
        """Advance a pass, begun if the last one has ended, until it offers something or has to wait."""
        self._feed()
        if action != self._action:
            if self._step is not None:
                raise self._stuck(order)
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

    def _hand_over(self, action: PatchAction, order: str, kind: str = "") -> Offer:
        """Return the next offer of the pass, or of the one that an action begins, and let the pass go on."""
        self._feed()
        if self._step is None:
            self._go_on(action, order)
        offer = self._step
        if not isinstance(offer, Offer) or kind not in ("", offer.kind):
            raise self._stuck(order)
        self._resume([])
        return offer

    def _stuck(self, order: str) -> DiffusimError:
        """Return the error of a plan whose next step is not that of the pass."""
        step = self._step
        does = "ends" if step is None else f"needs {step}" if isinstance(step, str) else f"sends {step.kind}"
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
