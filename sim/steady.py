"""Steady runs: of a long run of the sampler only its first steps are replayed, where the others repeat them.

The engine knows no absolute time: once every op, message and collective of some steps comes as long after its like in
the step before as all others do, and no host falls behind, so does everything after them. What a run takes and sends
then grows by the same amount with each step.
"""

from collections.abc import Iterator
from dataclasses import fields
from typing import Final

from sim.measures import Measures
from strategies.plans.traces import Trace

LONG_STEPS: Final = 40
"""Runs of no more steps than this are replayed whole."""
FIRST_STEPS: Final = 8
"""Steps beyond the warm-up that are replayed first; twice as many where these do not come to repeat one another."""
LEAST_TIMES: Final = 4
"""A run is at least so many times as long as what is replayed of it, twice and a step apart; else all of it is."""
ALIKE: Final = 3
"""Successive steps that have to repeat the one before."""
LAST: Final = 2
"""Steps at the end that are not looked at: nothing follows them."""
TOLERANCE: Final = 1e-9
"""Share of the run by which times may differ: sums in another order differ in their last digits."""


def continued(shorter: Measures, longer: Measures, steps: int) -> Measures:
    """Measures of a run of more steps, from those of two runs of which one is a step longer.

    Args:
        shorter: of the one.
        longer: of the other.
        steps: how many more than the longer.
    """
    grown = {
        of.name: (last := getattr(longer, of.name)) + steps * (last - getattr(shorter, of.name))
        for of in fields(Measures)
    }
    return Measures(**grown | {"peak_memory_bytes": longer.peak_memory_bytes})


def repeats(shorter: Trace, longer: Trace) -> bool:
    """Whether the last steps of a run repeat one another, as a run of one step less tells them apart."""
    period_s, late_s = longer.end_s - shorter.end_s, TOLERANCE * longer.end_s
    hosts_s = max(_hosts_s(shorter, longer), default=0.0)
    lags_s = [*_lags_s(shorter, longer)]
    return (
        bool(lags_s)
        and hosts_s <= period_s + late_s
        and all(abs(lag_s - period_s) <= late_s for lag_s in lags_s)
    )


def _window(shorter: int, longer: int) -> tuple[int, range]:
    """How many items a step has of those that runs count, and the items whose likes in the next step are compared."""
    each = longer - shorter
    end = longer - LAST * each
    return each, range(max(0, end - ALIKE * each), end)


def _lags_s(shorter: Trace, longer: Trace) -> Iterator[float]:
    """Seconds from ops, messages and collectives to their likes in the next step; infinite where they have none."""
    for device, (before, ops) in enumerate(zip(shorter.plan.ops, longer.plan.ops, strict=True)):
        each, window = _window(len(before), len(ops))
        for times in (longer.starts[device], longer.ends[device]):
            yield from (times[index + each] - times[index] for index in window)
        if any(ops[index][1:2] != ops[index + each][1:2] for index in window):
            yield float("inf")
    each, window = _window(len(shorter.collectives), len(longer.collectives))
    for index in window:
        yield from (
            b - a for a, b in zip(longer.collectives[index], longer.collectives[index + each], strict=True)
        )
    each, window = _window(len(shorter.plan.tensors), len(longer.plan.tensors))
    slots = longer.wiring.slots
    for (tensor, device), slot in slots.items():
        if tensor in window:
            like = slots.get((tensor + each, device))
            if like is None:
                yield float("inf")
            else:
                yield longer.sent[like] - longer.sent[slot]
                yield longer.arrived[like] - longer.arrived[slot]


def _hosts_s(shorter: Trace, longer: Trace) -> Iterator[float]:
    """Seconds in which the host of each device dispatches a step."""
    for before, ops in zip(shorter.plan.ops, longer.plan.ops, strict=True):
        each, window = _window(len(before), len(ops))
        yield sum(ops[index].host_s for index in window[-each:]) if each else 0.0
