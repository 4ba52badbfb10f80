"""The executor: one rank goes through its script, and a pass of its member answers each event."""

from dataclasses import dataclass

import torch
from torch import Tensor
from torch import distributed as dist

from profiles.errors import DiffusimError
from profiles.synthetic import HALF
from strategies.actions import PatchAction
from strategies.plan import Plan
from strategies.wiring import Transfer
from validate.sampling_runs.faults import die_in_time, faulty_plan
from validate.sampling_runs.member import COMPUTED, Computed, Member, Offer, Pass, Seen
from validate.sampling_runs.messages import Messages, Pending
from validate.sampling_runs.passes import make_member
from validate.sampling_runs.script import Compute, Event, Post, Receive, Send, Start, Wait, script
from validate.sampling_runs.settings import WIDENING, Settings


class PlanMismatchError(DiffusimError):
    """The plan lets a rank do something else than its pass does next."""


@dataclass(frozen=True, slots=True)
class Outcome:
    """What one rank ended with.

    Attributes:
        latents: the image, as far as this rank has it.
        sent: bytes that it sent, by denoising step.
        passes: the passes it finished.
        seen: how old the kept keys and values were that it read.
    """

    latents: Tensor
    sent: dict[int, int]
    passes: list[PatchAction]
    seen: list[Seen]


@torch.no_grad()
def run_rank(settings: Settings, rank: int) -> Outcome:
    """Run one rank of settings; a process group of all ranks must be there.

    Raises:
        DiffusimError: the plan does not fit what the passes need.
    """
    plan = faulty_plan(settings)
    device = torch.device(settings.device, rank) if settings.device == "cuda" else torch.device("cpu")
    messages = Messages(rank, len(plan.tensors), _pairs(plan, settings))
    member = make_member(settings, rank, device)
    executor = _Executor(plan, member, messages)
    for event in script(plan, rank):
        executor.handle(event)
    executor.end()
    messages.finish()
    return Outcome(member.latents.cpu(), dict(messages.sent), member.passes, member.seen)


def _pairs(plan: Plan, settings: Settings) -> dict[tuple[int, int], dist.ProcessGroup]:
    """Return a process group for each direction of messages; NCCL runs what one group sends and receives in line."""
    if settings.device != "cuda":
        return {}
    writers = {tensor: device for device, ops in enumerate(plan.ops) for op in ops for tensor in op.writes}
    pairs = {
        (writers[tensor], device)
        for device, ops in enumerate(plan.ops)
        for op in ops
        for tensor in op.reads
        if writers.get(tensor, device) != device
    }
    return {pair: dist.new_group(list(pair)) for pair in sorted(pairs)}


class _Executor:
    def __init__(self, plan: Plan, member: Member, messages: Messages) -> None:
        self.plan, self.member, self.messages = plan, member, messages
        self.under_way: dict[int, tuple[str, Pending]] = {}
        self.action: PatchAction | None = None
        self.passing: Pass = iter(())

    def handle(self, event: Event) -> None:
        """Do what an event says."""
        match event:
            case Compute(action):
                die_in_time(self.member.settings, self.member.rank, action.step)
                self._compute(action)
            case Send(transfer, action):
                self._send(transfer, self._offer(action))
            case Post(transfer):
                size = round(transfer.size_bytes / HALF)
                self.messages.post(transfer, self.member.latents.new_empty(size))
            case Receive(transfer):
                role = self.plan.tensors[transfer.tensor].role
                self.member.inbox[role].append([self.messages.receive(transfer)])
            case Start(number, collective, action):
                offer = self._offer(action)
                pending = self.messages.start(
                    number, collective.operation, collective.devices, offer.parts, offer.step
                )
                self.under_way[number] = (offer.kind, pending)
            case Wait(number):
                kind, pending = self.under_way.pop(number)
                self.member.inbox[kind].append(pending.wait())

    def end(self) -> None:
        """Let the last pass finish.

        Raises:
            PlanMismatchError: it has more to do than the plan lets it.
        """
        if (left := self._next()) is not None:
            self._refuse(left, "nothing more")

    def _send(self, transfer: Transfer, offer: Offer) -> None:
        tensor, planned = offer.parts[0].contiguous(), round(WIDENING * transfer.size_bytes)
        if tensor.nbytes != planned:
            raise PlanMismatchError(
                f"the plan lets rank {self.member.rank} send {planned} bytes of"
                f" {self.plan.tensors[transfer.tensor]}, but its pass {self.action} made {tensor.nbytes}"
            )
        self.messages.send(transfer, tensor, offer.step)

    def _compute(self, action: PatchAction) -> None:
        if (step := self._advance(action)) is not COMPUTED:
            self._refuse(step, f"compute {action}")

    def _offer(self, action: PatchAction) -> Offer:
        step = self._advance(action)
        if not isinstance(step, Offer):
            self._refuse(step, f"send beside {action}")
        assert isinstance(step, Offer)
        return step

    def _advance(self, action: PatchAction) -> Computed | Offer | None:
        """Return the next step of the pass under way, or, where it has ended, the first of the next one."""
        step = self._next()
        if step is None and action != self.action:
            self.action, self.passing = action, self.member.begin(action)
            return self._next()
        return step

    def _next(self) -> Computed | Offer | None:
        step = next(self.passing, None)
        if step is None and self.action and self.action not in self.member.passes[-1:]:
            self.member.passes.append(self.action)
        return step

    def _refuse(self, step: Computed | Offer | None, asked: str) -> None:
        done = "ends" if step is None else "computes" if step is COMPUTED else f"sends {step.kind}"
        raise PlanMismatchError(
            f"the plan lets rank {self.member.rank} {asked}, but its pass {self.action} {done} here"
        )
