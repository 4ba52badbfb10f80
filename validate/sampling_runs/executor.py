"""The executor: one rank goes through its script, and a pass of its member answers each event."""

from dataclasses import dataclass

import torch
from torch import Tensor

from profiles.errors import DiffusimError
from strategies.plans.actions import PatchAction
from strategies.plans.plan import Plan
from validate.sampling_runs.faults import die_in_time, faulty_plan
from validate.sampling_runs.member import COMPUTED, Computed, Member, Offer, Pass, Seen
from validate.sampling_runs.messages import Messages, Pending, Sent
from validate.sampling_runs.passes import make_member
from validate.sampling_runs.script import Compute, Event, Open, Post, Receive, Send, Start, Wait, script
from validate.sampling_runs.settings import Settings


class PlanMismatchError(DiffusimError):
    """The plan lets a rank do something else than its pass does next."""


@dataclass(frozen=True, slots=True)
class Outcome:
    """What one rank ended with.

    Attributes:
        latents: the image, as far as this rank has it.
        sent: what it sent, in order.
        passes: the passes it finished.
        seen: how old the kept keys and values were that it read.
    """

    latents: Tensor
    sent: list[Sent]
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
    messages = Messages(rank, len(plan.tensors), device)
    member = make_member(settings, rank, device)
    executor = _Executor(plan, member, messages)
    for event in script(plan, rank):
        executor.handle(event)
    executor.end()
    messages.finish()
    return Outcome(member.latents.cpu(), messages.sent, member.passes, member.seen)


class _Executor:
    def __init__(self, plan: Plan, member: Member, messages: Messages) -> None:
        self.plan, self.member, self.messages = plan, member, messages
        self.under_way: dict[int, tuple[str, Pending]] = {}
        self.action: PatchAction | None = None
        self.passing: Pass = iter(())

    def handle(self, event: Event) -> None:
        """Do what an event says."""
        match event:
            case Open(direction):
                self.messages.open(direction)
            case Compute(action):
                die_in_time(self.member.settings, self.member.rank, action.step)
                self._compute(action)
            case Send(transfer, action):
                offer = self._offer(action)
                if offer.kind != (role := self.plan.tensors[transfer.tensor].role):
                    self._refuse(offer, f"send {role}")
                self.messages.send(transfer, offer.parts[0].contiguous(), offer.kind, offer.step)
            case Post(transfer, action):
                shape = self.member.arriving(self.plan.tensors[transfer.tensor].role, action)
                self.messages.post(transfer, self.member.latents.new_empty(shape))
            case Receive(transfer):
                role = self.plan.tensors[transfer.tensor].role
                self.member.inbox[role].append([self.messages.receive(transfer)])
            case Start(number, collective, action):
                offer = self._offer(action)
                pending = self.messages.start(number, collective, offer.parts, offer.step)
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
