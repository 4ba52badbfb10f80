"""Steps of patches: how long devices take at least that each compute their own rows, and gather those of all."""

from strategies.bounds.stopwatch import Courses, Stopwatch
from strategies.patching.builder import GroupCollectives
from strategies.patching.patch_parallel import Kind, Patches
from strategies.plans.actions import PatchAction


def least_patch_steps_s(patches: Patches) -> float:
    """Seconds below which no run of patches can take: of its first device, on ports of its own."""
    warmup, steps = patches.warmup_steps or 0, patches.num_steps
    parts = (Kind.SYNCHRONOUS, warmup), (patches.kind, steps - warmup)
    return sum(times * _least_step_s(patches, kind) for kind, times in parts if times)


def _least_step_s(patches: Patches, kind: Kind) -> float:
    """Seconds below which no step of a kind can take; its host dispatches before the last gathering, if not between."""
    scenario, positions = patches.scenario, patches.grid.positions
    courses = scenario.remember(("courses", positions, False), lambda: Courses(patches.network, shared=False))
    devices, action = patches.grid.team(0, 0).devices, PatchAction(0, 0, 0)
    watch = Stopwatch(courses, devices, scenario.calls)
    for seconds, sent in patches.pieces(kind):
        what = GroupCollectives("all_gather", (devices,), (sent,), wait=kind is Kind.SYNCHRONOUS)
        if sent and what.wait:
            watch.exchange(what, action)
        watch.compute_together(devices, action, seconds)
        if sent and not what.wait:
            watch.exchange(what, action)
    output = GroupCollectives("all_gather", (tuple(range(positions)),), (patches.output_bytes(),))
    watch.exchange(output, action)
    gathering_s = sum(courses[output].times_s[0])
    return max(watch.free_s, patches.host_s + scenario.solver_s + gathering_s)
