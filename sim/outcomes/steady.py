"""Steady runs: where the steps of a long run of the sampler repeat one another, only the first of them are replayed.

The same holds for the successive micro-batches of a training iteration, and for the alike layers of a large step.

The engine knows no absolute time. Once every op, message and collective begins one and the same time after its
counterpart in the step before, and no host falls behind, all later steps repeat that one. From then on each step adds
the same seconds and the same bytes to the run.
"""

from collections.abc import Hashable, Iterable, Iterator, Sequence
from dataclasses import fields, replace
from itertools import chain, starmap
from typing import Final, NamedTuple, Self

import numpy as np

from profiles.checks import sum_in_order
from sim.outcomes.measures import Measures
from sim.replay.memory import held_bytes
from sim.replay.metrics import collective_s, waited_s, wire_spans
from strategies.patching.alike_layers import KeptLayers, Stretch
from strategies.patching.patch_pipeline import written_before
from strategies.plans.network import Network
from strategies.plans.plan import Collective, Op, Plan
from strategies.plans.traces import Span, Trace

LONG_STEPS: Final = 40
"""Runs of at most so many steps are replayed whole where cards share switches or no bound says when they are steady."""
FIRST_MICRO_BATCHES: Final = 6
"""Micro-batches that are replayed of an iteration with at least twice as many: the fewest that can be compared."""
FIRST_STEPS: Final = 4
"""Steps beyond the warm-up that are replayed first; twice as many where these do not come to repeat one another."""
SETTLED: Final = 9 / 8
"""Steps after which a run is steady over those of its bound, which knows no shared ports."""
LEAST_TIMES: Final = 4 / 3
"""A run is at least so many times as long as what is replayed of it; else all of it is."""
LEAST_TIMES_AGAIN: Final = 2
"""The same where fewer steps did not come to repeat one another: then more do in less than half of all cases."""
ALIKE: Final = 1
"""Successive steps that have to repeat the one before: what a step does follows from the one before it alone."""
ALIKE_MICRO_BATCHES: Final = 3
"""The same for micro-batches."""
TOLERANCE: Final = 1e-9
"""Share of the run by which times may differ: sums in another order differ in their last digits."""

HOST_LEAD: Final = 1e-3
"""Share of the time of a layer by which its host has to be done sooner, so that it never holds up the device."""


class _Items(NamedTuple):
    """Ops of a device, collectives or tensors, of which each step, or micro-batch, has equally many.

    Attributes:
        each: how many.
        end: the first that is not compared with its like in the next step, as the last step may end differently.
    """

    each: int
    end: int

    def of_last(self, steps: int) -> range:
        """Indices of those in the last ``steps`` steps that are compared."""
        return range(max(0, self.end - steps * self.each), self.end)

    def later(self) -> Self:
        """Their likes in the next step."""
        return self._replace(end=self.end + self.each)


class _Cycle(NamedTuple):
    """What comes again with each step, or micro-batch."""

    ops: tuple[_Items, ...]
    collectives: _Items
    tensors: _Items

    @classmethod
    def of_steps(cls, plan: Plan) -> Self:
        """The cycle of a run whose last steps are displaced."""
        pairs = zip(written_before(plan, 1), written_before(plan, 0), strict=True)
        *ops, collectives, tensors = [_Items(last - first, first) for first, last in pairs]
        return cls(tuple(ops), collectives, tensors)

    @classmethod
    def of_micro_batches(cls, shorter: Plan, longer: Plan) -> Self:
        """The cycle of an iteration that has one micro-batch more than another."""
        pairs = zip(_sizes(shorter), _sizes(longer), strict=True)
        *ops, collectives, tensors = [_Items(more - less, 2 * less - more) for less, more in pairs]
        return cls(tuple(ops), collectives, tensors)

    def later(self) -> Self:
        """The same one step later."""
        return type(self)(
            tuple([of.later() for of in self.ops]), self.collectives.later(), self.tensors.later()
        )


def _sizes(plan: Plan) -> list[int]:
    return [*map(len, plan.ops), len(plan.collectives), len(plan.tensors)]


def with_all_steps(trace: Trace, steps: int, network: Network) -> Measures | None:
    """Measures of a run with some more steps than a trace has; None where its last ones do not repeat one another.

    Args:
        trace: of the run.
        steps: how many more.
        network: its routes.
    """
    cycle = _Cycle.of_steps(trace.plan)
    period_s = _step_s(cycle, trace)
    if period_s is None:
        return None
    return grown(Measures.of(trace), steps, period_s, _step(cycle, trace, network))


def _step_s(cycle: _Cycle, trace: Trace) -> float | None:
    """Seconds from the ops, messages and collectives of a step to those of the next; None where they differ.

    Nor may hosts take longer than that for what they dispatch in a step.
    """
    period_s = _one_lag_s(trace, [*_lags_s(cycle, trace, ALIKE), *_message_lags_s(cycle, trace)])
    hosts_s = max(_hosts_s(cycle, trace.plan), default=0.0)
    return None if period_s is None or hosts_s > period_s + TOLERANCE * trace.end_s else period_s


def _one_lag_s(trace: Trace, lags_s: Sequence[float]) -> float | None:
    """The seconds that all lags are; None where they differ, or there are none."""
    return lags_s[0] if lags_s and all(_same(trace, lag_s, lags_s[0]) for lag_s in lags_s) else None


def _step(cycle: _Cycle, trace: Trace, network: Network) -> Measures:
    """Measures of the last step of a trace, without its duration.

    Its ops wait for messages of the step before, and collectives of that may still run in it. These two steps were
    compared, none before them.
    """
    tensors = cycle.tensors.of_last(1)
    sent = (of.size_bytes for of in trace.wiring.transfers if of is not None and of.tensor in tensors)
    p2p_bytes = sum_in_order(sent) * trace.plan.placement.copies
    return replace(_work(cycle.later(), trace, network, 2), p2p_bytes=p2p_bytes)


def _work(cycle: _Cycle, trace: Trace, network: Network, alike: int) -> Measures:
    """Measures of the ops and collectives of one step, the last of a cycle, beside what is left of others."""
    ops = enumerate(items.of_last(1) for items in cycle.ops)
    window, last = (cycle.collectives.of_last(steps) for steps in (alike, 1))
    added_s = collective_s(trace, window) - collective_s(trace, window[: len(window) - len(last)])
    return replace(piece(trace, wire_spans(trace), ops, last, network), collective_s=added_s)


def with_all_micro_batches(shorter: Plan, trace: Trace, count: int, network: Network) -> Measures | None:
    """Measures of an iteration with some more micro-batches than a trace has; None where its last ones do not repeat.

    Also None where devices send one another messages, or hosts dispatch: these cases are not handled.

    Args:
        shorter: the plan of an iteration with one less, which tells them apart.
        trace: of the iteration.
        count: how many more.
        network: its routes.
    """
    cycle = _Cycle.of_micro_batches(shorter, trace.plan)
    if any(trace.wiring.transfers) or any(_hosts_s(cycle, trace.plan)):
        return None
    period_s = _one_lag_s(trace, [*_lags_s(cycle, trace, ALIKE_MICRO_BATCHES)])
    if period_s is None or not _hold_alike(cycle, trace):
        return None
    return grown(Measures.of(trace), count, period_s, _work(cycle, trace, network, ALIKE_MICRO_BATCHES))


def grows_in_one_place(shorter: Plan, longer: Plan) -> bool:
    """Whether a plan with one more micro-batch is the shorter one with more ops, and collectives, in one place."""
    ops = zip(map(_looks_of_ops, shorter.ops), map(_looks_of_ops, longer.ops), strict=True)
    collectives = _looks_of_collectives(shorter.collectives), _looks_of_collectives(longer.collectives)
    beside = (shorter.resident, shorter.prologue_s) == (longer.resident, longer.prologue_s)
    return beside and all(starmap(_is_inserted, [*ops, collectives]))


Looks = list[tuple[Hashable, ...]]
"""What ops, or collectives, that do the same for different micro-batches have in common."""


def _is_inserted(shorter: Looks, longer: Looks) -> bool:
    """Whether the longer is the shorter with something inserted in one place."""
    pairs = enumerate(zip(shorter, longer, strict=False))
    same = next((number for number, (one, other) in pairs if one != other), len(shorter))
    return longer[len(longer) - len(shorter) + same :] == shorter[same:]


def _looks_of_ops(ops: Iterable[Op]) -> Looks:
    return [
        (*op.action[:2], op.duration_s, op.host_s, len(op.reads), len(op.writes), *(at for at, _ in op.early))
        for op in ops
    ]


def _looks_of_collectives(collectives: Iterable[Collective]) -> Looks:
    return [
        (of.operation, of.devices, of.size_bytes, of.group, of.calls, of.subgroup, of.stream, len(of.reads))
        for of in collectives
    ]


def _lags_s(cycle: _Cycle, trace: Trace, alike: int) -> Iterator[float]:
    """Seconds from ops and collectives to their likes in the next step; infinite where they have none."""
    for device, (items, ops) in enumerate(zip(cycle.ops, trace.plan.ops, strict=True)):
        each, window = items.each, items.of_last(alike)
        for times in (trace.starts[device], trace.ends[device]):
            yield from (times[index + each] - times[index] for index in window)
        if any(ops[index][1:2] != ops[index + each][1:2] for index in window):
            yield float("inf")
    for index in cycle.collectives.of_last(alike):
        like = trace.collectives[index + cycle.collectives.each]
        yield from (b - a for a, b in zip(trace.collectives[index], like, strict=True))


def _message_lags_s(cycle: _Cycle, trace: Trace) -> Iterator[float]:
    """Seconds from messages to their likes in the next step; infinite where they have none."""
    each, window = cycle.tensors.each, cycle.tensors.of_last(ALIKE)
    slots = trace.wiring.slots
    for (tensor, device), slot in slots.items():
        if tensor in window:
            like = slots.get((tensor + each, device))
            if like is None:
                yield float("inf")
            else:
                yield trace.sent[like] - trace.sent[slot]
                yield trace.arrived[like] - trace.arrived[slot]


def _hosts_s(cycle: _Cycle, plan: Plan) -> Iterator[float]:
    """Seconds in which the host of each device dispatches a step."""
    for items, ops in zip(cycle.ops, plan.ops, strict=True):
        yield sum_in_order(ops[index].host_s for index in items.of_last(1))


def _hold_alike(cycle: _Cycle, trace: Trace) -> bool:
    """Whether each device holds as many bytes in the middle of an op as in that of its like in the next step."""
    for device, items in enumerate(cycle.ops):
        each, window = items.each, items.of_last(ALIKE_MICRO_BATCHES)
        starts, ends = (
            np.array(times[device][window.start : window.stop + each]) for times in (trace.starts, trace.ends)
        )
        held = held_bytes(trace, device, (starts + ends) / 2)
        if not np.allclose(held[: len(window)], held[each:], rtol=TOLERANCE, atol=0.0):
            return False
    return True


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
        found = grown(found, stretch.omitted, period_s, _layer(trace, wire, stretch.windows, network))
    return found


def _same(trace: Trace, one_s: float, other_s: float) -> bool:
    return abs(one_s - other_s) <= TOLERANCE * trace.end_s


def _layer_s(trace: Trace, window: KeptLayers) -> float | None:
    """Seconds from each op of a layer to its like in the next; None where they differ, or hosts might fall behind.

    A host that is busy for less than that does not hold up the device, and leads by more in every further layer; nor
    does the limit of its lead hold it up, where that is longer than the host takes for any op.
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
    """Measures of one layer, the last but one that was kept, without its duration."""
    ops = [(device, range(*window.ops[-3:-1])) for window in windows for device in window.devices]
    return piece(trace, wire, ops, chain.from_iterable(of.collectives for of in windows), network)


def piece(
    trace: Trace,
    wire: Sequence[Span],
    ops: Iterable[tuple[int, range]],
    collectives: Iterable[int],
    network: Network,
) -> Measures:
    """Measures of some ops of devices, and of some collectives, without a duration: ``idle_s`` is minus the compute."""
    busy_s = exposed_s = collective_s = sent_bytes = 0.0
    for device, own in ops:
        busy_s += sum_in_order(trace.ends[device][i] - trace.starts[device][i] for i in own)
        exposed_s += sum_in_order(waited_s(trace, wire, device, own))
    for number in collectives:
        collective, (start, end) = trace.plan.collectives[number], trace.collectives[number]
        collective_s += (end - start) * len(collective.devices)
        sent_bytes += network.collective(collective).sent_bytes
    devices = trace.plan.num_devices
    return Measures(
        0.0, 0.0, -busy_s / devices, exposed_s / devices, collective_s / devices, 0.0, sent_bytes, 0.0
    )


def grown(found: Measures, times: int, period_s: float, piece: Measures) -> Measures:
    """Measures with ``times`` more layers or steps, each of which takes ``period_s`` and adds ``piece``."""
    added = replace(piece, duration_s=period_s, first_s=period_s, idle_s=period_s + piece.idle_s)
    return Measures(
        **{of.name: getattr(found, of.name) + times * getattr(added, of.name) for of in fields(Measures)}
    )
