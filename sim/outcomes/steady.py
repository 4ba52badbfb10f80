"""Steady runs: where the steps of a long run of the sampler repeat one another, only the first of them are replayed.

Likewise, where the layers of a large step are alike, only the first of them are.

The engine knows no absolute time. Once every op, message and collective begins one and the same time after its
counterpart in the step before, and no host falls behind, all later steps repeat that one. From then on each step adds
the same seconds and the same bytes to the run.
"""

from collections.abc import Iterator, Sequence
from dataclasses import fields, replace
from typing import Final

from profiles.checks import sum_in_order
from sim.outcomes.measures import Measures
from sim.replay.metrics import waited_s, wire_spans
from strategies.patching.alike_layers import KeptLayers, Stretch
from strategies.plans.network import Network
from strategies.plans.traces import Span, Trace

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

HOST_LEAD: Final = 1e-3
"""Share of the time of a layer by which its host has to be done sooner, so that it never holds up the device."""


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
        yield sum_in_order(ops[index].host_s for index in window[-each:]) if each else 0.0


def with_all_layers(trace: Trace, stretches: Sequence[Stretch], network: Network) -> Measures | None:
    """Measures of a step of which a trace has the first of alike layers; None where these do not repeat one another.

    Args:
        trace: of the shortened step.
        stretches: what was left out of it.
        network: its routes.
    """
    found, wire = Measures.of(trace), wire_spans(trace)
    for stretch in stretches:
        periods_s = [_layer_s(trace, window) for window in stretch.windows]
        period_s = periods_s[0]
        if period_s is None or any(p is None or not _same(trace, p, period_s) for p in periods_s):
            return None
        found = _grown(found, stretch.omitted, period_s, _layer(trace, wire, stretch.windows, network))
    return found


def _same(trace: Trace, one_s: float, other_s: float) -> bool:
    return abs(one_s - other_s) <= TOLERANCE * trace.end_s


def _layer_s(trace: Trace, window: KeptLayers) -> float | None:
    """Seconds from each op of a layer to its like in the next; None where they differ, or hosts might fall behind.

    A host that is busy for less than that does not hold up the device now, and leads by more in every further layer,
    nor does the limit of its lead, where that is longer than any op keeps it.
    """
    _, *inner, last = window.ops
    first, each = inner[0], inner[1] - inner[0]
    period_s = trace.ends[window.devices[0]][inner[-1] - 1] - trace.ends[window.devices[0]][inner[-2] - 1]
    for device in window.devices:
        for times in (trace.starts[device], trace.ends[device]):
            lags_s = (times[index + each] - times[index] for index in range(first, last - each))
            if not all(_same(trace, lag_s, period_s) for lag_s in lags_s):
                return None
        ops = trace.plan.ops[device][inner[-2] : inner[-1]]
        hosts_s = [op.host_s for op in ops]
        if sum_in_order(hosts_s) > (1 - HOST_LEAD) * period_s or max(hosts_s) > trace.plan.host_ahead_s:
            return None
    return period_s


def _layer(trace: Trace, wire: Sequence[Span], windows: Sequence[KeptLayers], network: Network) -> Measures:
    """Measures of one layer, the last but one that was kept; of its seconds those with compute alone."""
    busy_s = exposed_s = collective_s = sent_bytes = 0.0
    for window in windows:
        ops = range(*window.ops[-3:-1])
        for device in window.devices:
            busy_s += sum_in_order(trace.ends[device][i] - trace.starts[device][i] for i in ops)
            exposed_s += sum_in_order(waited_s(trace, wire, device, ops))
        for number in window.collectives:
            collective, (start, end) = trace.plan.collectives[number], trace.collectives[number]
            collective_s += (end - start) * len(collective.devices)
            sent_bytes += network.collective(collective).sent_bytes
    devices = trace.plan.num_devices
    return Measures(
        0.0, 0.0, -busy_s / devices, exposed_s / devices, collective_s / devices, 0.0, sent_bytes, 0.0
    )


def _grown(found: Measures, layers: int, period_s: float, layer: Measures) -> Measures:
    """Measures with some more layers, each of which takes as long."""
    added = replace(layer, duration_s=period_s, first_s=period_s, idle_s=period_s + layer.idle_s)
    return Measures(
        **{of.name: getattr(found, of.name) + layers * getattr(added, of.name) for of in fields(Measures)}
    )
