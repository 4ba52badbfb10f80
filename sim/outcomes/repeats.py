"""Repeats: the addition of each further step to a run whose steps are alike, from a replay of the first ones.

If everything in a step happens one period after the same in the step before, so it does in the next: a replay is
deterministic, and no port or host falls further behind.
"""

from bisect import bisect_left
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from profiles.checks import sum_in_order
from sim.outcomes.measures import Measures
from sim.replay.metrics import collective_s, dispatch_s, waited_s
from strategies.plans.actions import PatchAction
from strategies.plans.network import Network
from strategies.plans.traces import Trace

ROUNDING: Final = 1e-12
"""Share of a run by which the times of two steps may differ besides their period."""


@dataclass(frozen=True, slots=True)
class _Step:
    """One step of a trace: for each device its ops, then messages by slot and collectives by number."""

    ops: list[range]
    slots: list[int]
    collectives: range

    def times(self, trace: Trace) -> list[float]:
        """Return when each op, message and collective began and ended."""
        spans = [
            (starts[op], ends[op])
            for ops, starts, ends in zip(self.ops, trace.starts, trace.ends, strict=True)
            for op in ops
        ]
        spans += [(trace.sent[slot], trace.arrived[slot]) for slot in self.slots]
        spans += [trace.collectives[number] for number in self.collectives]
        return [time for span in spans for time in span]


def repeated_step(trace: Trace, network: Network) -> Measures | None:
    """Return what the last step but one adds, but for memory, or None where it does not repeat the step before it."""
    before, step = _steps(trace)
    shifts = [b - a for a, b in zip(before.times(trace), step.times(trace), strict=False)]
    period_s = sum_in_order(shifts) / len(shifts)
    plan, most_s = trace.plan, ROUNDING * trace.end_s
    rows = [ops[part.start : part.stop] for ops, part in zip(plan.ops, step.ops, strict=True)]
    if (
        [*map(len, before.ops)] != [*map(len, step.ops)]
        or (len(before.slots), len(before.collectives)) != (len(step.slots), len(step.collectives))
        or any(abs(shift - period_s) > most_s for shift in shifts)
        or any(sum_in_order(op.host_s for op in row) > period_s + most_s for row in rows)
    ):
        return None
    count, messages = plan.num_devices, trace.wiring.transfers
    pairs = [(trace.starts[at][op], trace.ends[at][op]) for at, ops in enumerate(step.ops) for op in ops]
    sent = [message.size_bytes for slot in step.slots if (message := messages[slot])]
    routes = [network.collective(plan.collectives[number]) for number in step.collectives]
    return Measures(
        duration_s=period_s,
        first_s=period_s,
        idle_s=period_s - sum_in_order(end - start for start, end in pairs) / count,
        exposed_communication_s=sum_in_order(waited_s(trace, step.ops)) / count,
        collective_s=collective_s(trace, step.collectives),
        dispatch_s=dispatch_s(rows),
        p2p_bytes=sum_in_order(sent) * plan.placement.copies,
        collective_bytes=sum_in_order(route.sent_bytes for route in routes),
        peak_memory_bytes=0.0,
    )


def _steps(trace: Trace) -> Sequence[_Step]:
    """Return the last two steps of a run but the very last."""
    plan, wiring = trace.plan, trace.wiring
    steps = [[op.action.step for op in row if isinstance(op.action, PatchAction)] for row in plan.ops]
    of_tensor = {tensor: steps[device][op] for tensor, (device, op) in wiring.writers.items()}
    of_collective = [of_tensor[collective.reads[0]] for collective in plan.collectives]
    last = max(row[-1] for row in steps)
    return [
        _Step(
            [range(bisect_left(row, step), bisect_left(row, step + 1)) for row in steps],
            [slot for (tensor, _), slot in wiring.slots.items() if of_tensor.get(tensor) == step],
            range(bisect_left(of_collective, step), bisect_left(of_collective, step + 1)),
        )
        for step in (last - 2, last - 1)
    ]
