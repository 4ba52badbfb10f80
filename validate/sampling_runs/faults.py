"""Planted faults: a plan that is wrong and a rank that dies, to show that both are noticed.

A third one, keys and values of the wrong version, is in ``validate.sampling_runs.keys_values``.
"""

import os
import signal
from dataclasses import replace

from strategies.actions import PatchAction
from strategies.plan import Op, Plan
from validate.sampling_runs.settings import KILLED_RANK, LOST_PATCH, Settings


def faulty_plan(settings: Settings) -> Plan:
    """Return the plan of settings with its fault, if one is asked for."""
    if settings.fault != LOST_PATCH:
        return settings.plan
    return without_patch(settings.plan, settings.num_patches - 1, settings.steps - 1)


def die_in_time(settings: Settings, rank: int, step: int) -> None:
    """Kill the last rank in the middle of a run, if that is the fault asked for."""
    if settings.fault == KILLED_RANK and rank == settings.ranks - 1 and step == settings.steps // 2:
        os.kill(os.getpid(), signal.SIGKILL)


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
