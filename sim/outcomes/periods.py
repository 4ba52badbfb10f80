"""Periods: where the passes of a long pipeline come to repeat one another, only some of them are replayed.

The engine knows no absolute time, and of the past only what still matters: what runs, what is on the wire, and what
each device does next. If all of this is, one period after some moment, the same as at that moment for earlier
micro-batches, the pipeline repeats that period. An excerpt, which leaves micro-batches in the middle out, then gives
the whole iteration: the period comes once more for each period left out.
"""

from collections.abc import Hashable, Sequence
from dataclasses import dataclass, replace
from itertools import chain
from operator import itemgetter
from typing import Final, cast

import numpy as np

from profiles.checks import sum_in_order
from sim.outcomes.measures import Measures
from sim.outcomes.steady import FIRST_MICRO_BATCHES, grown, piece
from sim.outcomes.unrefined import unrefined, unrefined_trace
from sim.replay.engine import simulate
from sim.replay.memory import FloatArray, IntArray, repeated_peak_memory_bytes
from sim.replay.metrics import wire_spans
from strategies.orders.excerpts import SHORT_PERIOD, Excerpt
from strategies.pipelining.frozen import FROZEN
from strategies.plans.actions import OPTIMIZER, StageAction
from strategies.plans.network import Network, network_of
from strategies.plans.plan import Filling
from strategies.plans.traces import Trace
from strategies.scenario import Scenario
from strategies.strategy import BubbleFilling, Refining, Repeating, Strategy

MULTIPLES: Final = (1, 2, 3, 4, 6, 8)
"""Periods of the order after which times may repeat: they may do so less often than the order."""
LEAST_MICRO_BATCHES: Final = 96
"""Iterations of fewer are replayed whole: looking for periods there takes longer than it saves."""
FIRST_ROUNDS: Final = 2
"""Micro-batches for each position, beyond the fewest that show the order and a few more, that are replayed."""
FIRST_ROUNDS_OF_LONG_PERIODS: Final = 4
"""The same where an order repeats itself in rounds of micro-batches, of which an excerpt has only few."""
TOLERANCE: Final = 1e-12
"""Share of an iteration by which times may differ: sums in another order differ in their last digits."""
TIE: Final = 1e-9
"""Share of an excerpt within which two events of the whole iteration might come in either order."""


@dataclass(frozen=True, slots=True)
class Period:
    """A period of an excerpt that the whole iteration repeats.

    Attributes:
        start_s: when it starts.
        period_s: how long it takes.
        times: how often more it comes in the whole iteration.
        ops: for each device the ops that start in it.
    """

    start_s: float
    period_s: float
    times: int
    ops: tuple[range, ...]

    @property
    def end_s(self) -> float:
        """When it ends."""
        return self.start_s + self.period_s

    @property
    def left_out_s(self) -> float:
        """Seconds that the whole iteration takes beyond the excerpt."""
        return self.times * self.period_s


def period_of(trace: Trace, excerpt: Excerpt, network: Network) -> Period | None:
    """The last period of an excerpt that repeats the one before it; None where none does.

    Also None where receives are posted, ops write before they end, or hosts dispatch: these cases are not handled.
    """
    wiring = trace.wiring
    if trace.nearest_s <= TIE * trace.end_s:  # in the whole iteration another might come first
        return None
    if any(wiring.posted) or any(wiring.early) or any(op.host_s for ops in trace.plan.ops for op in ops):
        return None
    times = _Times.of(trace, excerpt, network)
    for multiple in MULTIPLES:
        if excerpt.left_out % (multiple * excerpt.period) == 0:
            period = times.period(multiple * excerpt.period)
            if period is not None:
                return period
    return None


@dataclass(frozen=True, slots=True)
class _Times:
    """When everything of an excerpt happens.

    Attributes:
        trace: of the excerpt.
        excerpt: its order.
        starts: for each device the start of each op.
        ends: for each device the end of each op.
        passes: for each device which of its ops are passes.
        messages: the slots of messages.
        arrived: for each slot when it arrives.
        moments: when anything happens, ascending.
        network: its routes.
    """

    trace: Trace
    excerpt: Excerpt
    starts: tuple[FloatArray, ...]
    ends: tuple[FloatArray, ...]
    passes: tuple[IntArray, ...]
    messages: IntArray
    arrived: FloatArray
    moments: FloatArray
    network: Network

    @classmethod
    def of(cls, trace: Trace, excerpt: Excerpt, network: Network) -> "_Times":
        starts, ends = (tuple([np.array(own) for own in times]) for times in (trace.starts, trace.ends))
        passes = tuple(
            [
                np.flatnonzero([type(op.action) is StageAction and op.action.kind != OPTIMIZER for op in ops])
                for ops in trace.plan.ops
            ]
        )
        messages = np.flatnonzero([source is not None for source in trace.wiring.sources])
        sent, arrived = np.array(trace.sent), np.array(trace.arrived)
        moments = np.sort(np.concatenate([*starts, *ends, sent[messages], arrived[messages]]))
        for array in (*starts, *ends, *passes, messages, arrived, moments):
            array.flags.writeable = False
        return cls(trace, excerpt, starts, ends, passes, messages, arrived, moments, network)

    def period(self, count: int) -> Period | None:
        """The last period of so many micro-batches of each chain; None where it does not repeat the one before."""
        each = [count // self.excerpt.period * passes for passes in self.excerpt.each]
        rows = zip(self.ends, self.passes, self.excerpt.repeating, strict=True)
        first = int(np.argmin([ends[passes[of.stop - 1]] for ends, passes, of in rows]))
        of = self.excerpt.repeating[first]
        if len(of) < 2 * each[first]:
            return None
        before_s, last_s = self.ends[first][self.passes[first][[of.stop - 1 - each[first], of.stop - 1]]]
        period_s = float(last_s - before_s)
        end_s = self._still_s(before_s, last_s)
        ops = [range(*np.searchsorted(own, (end_s - period_s, end_s), "right")) for own in self.starts]
        if any(start <= end_s for start, _ in self.trace.collectives):
            return None
        if not (self._repeat(ops, each, period_s) and self._messages_repeat(end_s, period_s, count)):
            return None
        return Period(end_s - period_s, period_s, self.excerpt.left_out // count, tuple(ops))

    def _still_s(self, since_s: float, until_s: float) -> float:
        """The moment between two around which nothing happens for longest."""
        within = self.moments[slice(*np.searchsorted(self.moments, (since_s, until_s)))]
        moments = np.concatenate([[since_s], within, [until_s]])
        longest = int(np.argmax(np.diff(moments)))
        return float(moments[longest] + moments[longest + 1]) / 2

    def _repeat(self, ops: Sequence[range], each: Sequence[int], period_s: float) -> bool:
        """Whether the ops of a period are passes within which all rows repeat themselves, as do their times."""
        for device, (own, count) in enumerate(zip(ops, each, strict=True)):
            before = own.start - count
            if len(own) != count or before < 0:
                return False
            place = int(np.searchsorted(self.passes[device], before))
            passes = self.passes[device][place : place + 2 * count]
            of = self.excerpt.repeating[device]
            if not of.start <= place <= of.stop - 2 * count or {*passes[[0, -1]]} != {before, own.stop - 1}:
                return False
            for times in (self.starts[device], self.ends[device]):
                if not self._same(times[own.start : own.stop] - times[before : own.start], period_s):
                    return False
        return True

    def _same(self, lags_s: FloatArray, period_s: float) -> bool:
        return bool(np.all(np.abs(lags_s - period_s) <= TOLERANCE * self.trace.end_s))

    def _messages_repeat(self, end_s: float, period_s: float, count: int) -> bool:
        """Whether the messages on the wire, or there in the period before, were so one period earlier too.

        False where messages of several devices come to a port at once, as last digits then decide which goes first.
        """
        wiring, start_s = self.trace.wiring, end_s - period_s
        slots = self.messages[self.arrived[self.messages] > start_s - period_s]
        keys = [*wiring.slots]
        writers = [wiring.writers[keys[slot][0]] for slot in slots.tolist()]
        written_s = np.array([self.trace.ends[device][op] for device, op in writers])
        if self._tied(slots[written_s > start_s], written_s[written_s > start_s]):
            return False
        recent = self.arrived[slots] > end_s - period_s, self.arrived[slots] > start_s - period_s
        now = self._by_name(slots[recent[0] & (written_s <= end_s)], count)
        before = self._by_name(slots[recent[1] & (written_s <= start_s)], 0)
        if now.keys() != before.keys():
            return False
        pairs = np.array([(before[name], now[name]) for name in now], np.int64).reshape(-1, 2)
        sent = np.array(self.trace.sent)
        return all(
            self._same(times[pairs[:, 1]] - times[pairs[:, 0]], period_s) for times in (sent, self.arrived)
        )

    def _by_name(self, slots: IntArray, later: int) -> dict[Hashable, int]:
        """Messages by role, stage, micro-batch less ``later``, and target; frozen outputs, of none, by slot."""
        keys, tensors = [*self.trace.wiring.slots], self.trace.plan.tensors
        found: dict[Hashable, int] = {}
        for slot in slots.tolist():
            tensor, target = keys[slot]
            role, stage, number, _ = tensors[tensor]
            found[slot if role == FROZEN else (role, stage, number - later, target)] = slot
        return found

    def _tied(self, slots: IntArray, written_s: FloatArray) -> bool:
        """Whether messages of several devices come to a port at once."""
        wiring = self.trace.wiring
        targets = np.fromiter(map(itemgetter(1), wiring.slots), np.int64, len(wiring.slots))[slots]
        sources = np.array([wiring.sources[slot] for slot in slots.tolist()], np.int64)
        ports: dict[int, list[IntArray]] = {}
        for source, target in {*zip(sources.tolist(), targets.tolist(), strict=True)}:
            own = np.flatnonzero((sources == source) & (targets == target))
            for port, hold_s in self.network.route(source, target).ports:
                if hold_s:
                    ports.setdefault(port, []).append(own)
        return any(self._meet(written_s[own], sources[own]) for own in map(np.concatenate, ports.values()))

    def _meet(self, times_s: FloatArray, sources: IntArray) -> bool:
        """Whether two devices do something at once."""
        order = np.argsort(times_s)
        at_once = np.diff(times_s[order]) <= TIE * self.trace.end_s
        return bool(np.any(at_once & (np.diff(sources[order]) != 0)))


def _measures(trace: Trace, period: Period, network: Network) -> Measures:
    """Measures of a whole iteration, from the trace of its excerpt."""
    ops, copies = enumerate(period.ops), trace.plan.placement.copies
    sizes_bytes, tensors = trace.plan.sizes_bytes, [tensor for tensor, _ in trace.wiring.slots]
    sends = (trace.wiring.sends[device][own.start : own.stop] for device, own in enumerate(period.ops))
    sent = (slot for slots in chain.from_iterable(sends) for slot in slots)
    sizes = (sizes_bytes[tensors[slot]] for slot in sent if trace.wiring.sources[slot] is not None)
    added = replace(piece(trace, wire_spans(trace), ops, (), network), p2p_bytes=sum_in_order(sizes) * copies)
    peaks_bytes = repeated_peak_memory_bytes(trace, period.start_s, period.end_s, period.times)
    return grown(Measures.of(trace, peaks_bytes), period.times, period.period_s, added)


Unrefined = tuple[Excerpt, Trace, Period]
"""An excerpt of an iteration before any refinement, its trace, and the period that is left out of it."""


def _unrefined(strategy: Repeating, scenario: Scenario) -> Unrefined | None:
    """The excerpt of an iteration that stands for all of it; None where none does, or little can be left out.

    Also None with extra forwards, which all come first. Points that refine the same plan share it.
    """
    if getattr(strategy, "micro_batches", 1) < LEAST_MICRO_BATCHES or scenario.workload.extra_forward:
        return None

    def make() -> Unrefined | None:
        repeats = strategy.repeats(scenario)
        if repeats is None:
            return None
        rounds = FIRST_ROUNDS if repeats.shortest.period <= SHORT_PERIOD else FIRST_ROUNDS_OF_LONG_PERIODS
        excerpt = repeats.excerpt(rounds * len(repeats.shortest.rows) + FIRST_MICRO_BATCHES)
        if excerpt is None:
            return None
        trace = unrefined_trace(cast(Strategy, strategy), scenario, excerpt)
        period = period_of(trace, excerpt, network_of(scenario, trace.plan.placement))
        return None if period is None else (excerpt, trace, period)

    if not issubclass(type(strategy), Refining):
        return make()
    return scenario.remember_last("unrefined period", unrefined(cast(Strategy, strategy)), make)


def with_all_periods(strategy: Repeating, scenario: Scenario) -> tuple[Trace, Measures] | None:
    """The trace of an excerpt of an iteration and the measures of all of it; None where these do not follow from it."""
    found = _unrefined(strategy, scenario)
    return None if found is None else _refined(strategy, scenario, *found)


def _refined(
    strategy: Repeating, scenario: Scenario, excerpt: Excerpt, trace: Trace, period: Period
) -> tuple[Trace, Measures] | None:
    """The trace of an excerpt and the measures of the whole iteration; of its refinements, the fastest.

    None where bubbles that are left out might be filled, or a refinement does not repeat itself.
    """
    network, first = network_of(scenario, trace.plan.placement), period
    if isinstance(strategy, BubbleFilling):  # spares a plan that the loop would refuse for the same reason
        filling = strategy.filling(scenario, trace, trace.end_s + period.left_out_s)
        if filling is not None and is_filled(filling, period):
            return None
    found: list[tuple[float, Trace, Period]] = []
    while issubclass(type(strategy), Refining):  # asked of a class, as in ``jobs``
        end_s = trace.end_s + period.left_out_s
        plan = cast(Refining, strategy).refine(scenario, trace, excerpt, end_s)
        if plan is trace.plan:
            break
        if plan.filling is None or is_filled(plan.filling, first):
            return None
        trace = simulate(plan, network)
        if (again := period_of(trace, excerpt, network)) is None:
            return None
        period = again
        found.append((trace.end_s + period.left_out_s, trace, period))
    _, trace, period = min(found, key=itemgetter(0), default=(0.0, trace, period))
    return trace, _measures(trace, period, network)


def filled_s(strategy: BubbleFilling, scenario: Scenario) -> float:
    """Seconds that no iteration can undercut once its frozen work is placed; 0 where none is to be placed."""
    filling, found = None, None
    if issubclass(type(strategy), Repeating):
        found = _unrefined(cast(Repeating, strategy), scenario)
    if found is not None:
        _, trace, period = found
        filling = strategy.filling(scenario, trace, trace.end_s + period.left_out_s)
    if found is None or (filling is not None and is_filled(filling, period)):
        filling = strategy.filling(scenario, unrefined_trace(cast(Strategy, strategy), scenario))
    return 0.0 if filling is None else strategy.filled_s(scenario, filling)


def is_filled(filling: Filling, period: Period) -> bool:
    """Whether a bubble of a period is filled: its likes, which are left out, might then be filled too."""
    starts_s = (filling.bubbles[layer.bubble].start_s for layer in filling.layers if layer.bubble is not None)
    return any(period.start_s < start_s <= period.end_s for start_s in starts_s)
