"""Planted faults: plans that are wrong, to show that they are noticed.

Another one, keys and values of the wrong version, is in ``validate.running.sampling.keys_values``; a rank that dies is
the executor's.
"""

from dataclasses import replace
from typing import Final

from strategies.plans.actions import PatchAction
from strategies.plans.plan import Op, Plan
from strategies.plans.wiring import wire
from validate.running.job import Job
from validate.running.sampling.settings import KILLED_RANK, LOST_PATCH, WRONG_SIZE, Settings

WRONG: Final = 1.5
"""A wrong size over the right one."""


def job_of(settings: Settings) -> Job:
    """The job of some settings, with the fault that they ask for."""
    plan = stated_plan(settings)
    if settings.fault == LOST_PATCH:
        plan = without_patch(plan, settings.num_patches - 1, settings.steps - 1)
    wire(plan)  # what cannot be is said before processes start
    dying = settings.ranks - 1 if settings.fault == KILLED_RANK else None
    return Job(settings.strategy, "replay", plan, task=settings, device=settings.device, die=dying)


def stated_plan(settings: Settings) -> Plan:
    """The plan that the simulator judges: its first message has the wrong size, if that is asked for."""
    return with_wrong_size(settings.plan) if settings.fault == WRONG_SIZE else settings.plan


def with_wrong_size(plan: Plan) -> Plan:
    """A plan that says half as much again of the first message between devices, or else the first collective."""
    moved = [transfer.tensor for transfer in wire(plan).transfers if transfer is not None]
    if moved:
        tensors = list(plan.tensors)
        wrong = tensors[min(moved)]
        tensors[min(moved)] = wrong._replace(size_bytes=WRONG * wrong.size_bytes)
        return replace(plan, tensors=tuple(tensors))
    first, *others = plan.collectives
    return replace(plan, collectives=(replace(first, size_bytes=WRONG * first.size_bytes), *others))


def without_patch(plan: Plan, patch: int, step: int) -> Plan:
    """A plan that forgets a patch of the last step on all devices; every message still finds its reader."""

    def kept(op: Op) -> bool:
        return not (isinstance(op.action, PatchAction) and op.action[1:] == (patch, step))

    ops = tuple(tuple(op for op in row if kept(op)) for row in plan.ops)
    read = {tensor for row in ops for op in row for tensor in op.reads}
    written = tuple(
        tuple(replace(op, writes=tuple(t for t in op.writes if t in read)) for op in row) for row in ops
    )
    posted = {key: index for key, index in plan.posted_after.items() if key[0] in read}
    return replace(plan, ops=written, posted_after=posted)
