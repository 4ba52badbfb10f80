"""Planted faults: plans that are wrong and a rank that dies, to show that they are noticed.

Another one, keys and values of the wrong version, is in ``validate.sampling_runs.keys_values``.
"""

import os
import signal
from dataclasses import replace
from typing import Final

from strategies.plans.actions import PatchAction
from strategies.plans.plan import Op, Plan, Tensor
from strategies.plans.wiring import wire
from validate.sampling_runs.settings import KILLED_RANK, LOST_PATCH, WRONG_SIZE, Settings

WRONG: Final = 1.5
"""A wrong size over the right one."""


def stated_plan(settings: Settings) -> Plan:
    """Return the plan that the simulator judges: its first message has the wrong size, if that is asked for."""
    return with_wrong_size(settings.plan) if settings.fault == WRONG_SIZE else settings.plan


def faulty_plan(settings: Settings) -> Plan:
    """Return the plan that is carried out: without a patch, if that is asked for."""
    plan = stated_plan(settings)
    if settings.fault != LOST_PATCH:
        return plan
    return without_patch(plan, settings.num_patches - 1, settings.steps - 1)


def die_in_time(settings: Settings, rank: int, step: int) -> None:
    """Kill the last rank in the middle of a run, if that is the fault asked for."""
    if settings.fault == KILLED_RANK and rank == settings.ranks - 1 and step == settings.steps // 2:
        os.kill(os.getpid(), signal.SIGKILL)


def with_wrong_size(plan: Plan) -> Plan:
    """Return a plan that says half as much again of the first message between devices, or else the first collective."""
    moved = [transfer.tensor for transfer in wire(plan).transfers if transfer is not None]
    if moved:
        tensors = list(plan.tensors)
        tensors[min(moved)] = Tensor(*tensors[min(moved)][:3], WRONG * tensors[min(moved)].size_bytes)
        return replace(plan, tensors=tuple(tensors))
    first, *others = plan.collectives
    return replace(plan, collectives=(replace(first, size_bytes=WRONG * first.size_bytes), *others))


def without_patch(plan: Plan, patch: int, step: int) -> Plan:
    """Return a plan that forgets a patch of the last step on all devices; every message still finds its reader."""

    def kept(op: Op) -> bool:
        return not (isinstance(op.action, PatchAction) and op.action[1:] == (patch, step))

    ops = tuple(tuple(op for op in row if kept(op)) for row in plan.ops)
    read = {tensor for row in ops for op in row for tensor in op.reads}
    written = tuple(
        tuple(replace(op, writes=tuple(t for t in op.writes if t in read)) for op in row) for row in ops
    )
    posted = {key: index for key, index in plan.posted_after.items() if key[0] in read}
    return replace(plan, ops=written, posted_after=posted)
