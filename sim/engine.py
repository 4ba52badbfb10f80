"""The engine: SimPy replays a plan on shared ports.

One process per device walks its list of ops, one per collective moves its chunks. Ports are first-come-first-served
clocks; an event exists only where somebody really waits. SimPy orders events of the same time by one insertion
counter, so two runs of a plan are identical to the bit.
"""

from collections.abc import Generator
from math import ceil, inf
from typing import Final

import simpy

from profiles.errors import DeadlockError
from strategies.network import CollectiveRoute, Network
from strategies.plan import Plan
from strategies.traces import Span, Trace
from strategies.wiring import Slots, Wiring, previous_collectives, wire
from strategies.worklist import describe_deadlock

CHUNK_S: Final = 1e-3
MAX_CHUNKS: Final = 64

Process = Generator[simpy.Event, None, None]


def simulate(plan: Plan, network: Network | None = None) -> Trace:
    """Return the trace of one replayed iteration.

    Args:
        plan: what every device does.
        network: its ports; by default those of the plan's placement.

    Raises:
        DeadlockError: the order can never be carried out; the text names what each device was waiting for.
    """
    return _Replay(wire(plan), network or Network(plan.placement)).run()


class _Replay:
    """State of one replay: the clocks of all ports, and what was sent and has arrived."""

    def __init__(self, wiring: Wiring, network: Network) -> None:
        self.env = simpy.Environment()
        self.wiring = wiring
        self.network = network
        self.plan = plan = wiring.plan
        count = len(wiring.transfers)
        self.sent = [inf] * count
        self.arrived = [inf] * count
        self.written = [False] * count
        self.unposted = list(wiring.posted)
        self.waiting: dict[int, list[simpy.Event]] = {}
        self.starts: list[list[float]] = [[] for _ in plan.ops]
        self.ends: list[list[float]] = [[] for _ in plan.ops]
        self.routes = [
            None if transfer is None else network.route(transfer.source, transfer.target)
            for transfer in wiring.transfers
        ]
        self.collective_routes = [network.collective(collective) for collective in plan.collectives]
        self.clocks = [0.0] * network.num_ports
        self.spans: list[Span | None] = [None] * len(plan.collectives)
        self.done = [self.env.event() for _ in plan.collectives]
        self.beside = _streams(plan)

    def run(self) -> Trace:
        for number, before in enumerate(previous_collectives(self.plan.collectives)):
            self.env.process(self._collective(number, before))
        for device in range(len(self.plan.ops)):
            self.env.process(self._device(device))
        self.env.run()
        if any(len(ends) < len(ops) for ends, ops in zip(self.ends, self.plan.ops, strict=True)):
            raise DeadlockError(describe_deadlock(self.wiring, [len(e) for e in self.ends], self.arrived))
        return self._trace()

    def _trace(self) -> Trace:
        spans = [span for span in self.spans if span is not None]
        kept = [self.arrived[self.wiring.slots[key]] for key in self.plan.kept if key in self.wiring.slots]
        last = [ends[-1] for ends in self.ends if ends] + [end for _, end in spans] + kept
        sent = sum(transfer.size_bytes for transfer in self.wiring.transfers if transfer is not None)
        return Trace(
            self.wiring,
            self.starts,
            self.ends,
            self.sent,
            self.arrived,
            spans,
            max(last, default=0.0),
            sent * self.plan.placement.copies,
            sum(route.sent_bytes for route in self.collective_routes),
        )

    def _device(self, device: int) -> Process:
        env, arrived, beside = self.env, self.arrived, self.beside[device]
        starts, ends = self.starts[device], self.ends[device]
        waits, sends = self.wiring.waits[device], self.wiring.sends[device]
        early, receives = self.wiring.early[device], self.wiring.receives[device]
        for index, op in enumerate(self.plan.ops[device]):
            start = env.now
            for slot in waits[index]:
                if arrived[slot] == inf:
                    event = env.event()
                    self.waiting.setdefault(slot, []).append(event)
                    yield event
                start = max(start, arrived[slot])
            if beside is not None or index in early:
                if start > env.now:
                    yield env.timeout(start - env.now)
                start = env.now
                yield from self._compute(op.duration_s, early.get(index, ()), beside)
            elif (delay := start - env.now + op.duration_s) > 0:
                yield env.timeout(delay)
            starts.append(start)
            ends.append(env.now)
            for slot in sends[index]:
                self._write(slot)
            if index in receives:
                for slot in receives[index]:
                    self.unposted[slot] = False
                    if self.written[slot]:
                        self._send(slot)

    def _compute(
        self, duration_s: float, early: tuple[()] | list[tuple[float, Slots]], beside: "_Stream | None"
    ) -> Process:
        """Run one op that writes early or runs beside collectives."""
        done = 0.0
        for offset, slots in early:
            yield from self._work(offset - done, beside)
            done = offset
            for slot in slots:
                self._write(slot)
        yield from self._work(duration_s - done, beside)

    def _work(self, work_s: float, beside: "_Stream | None") -> Process:
        """Run for ``work_s``, lengthened by what overlaps with the device's communication stream."""
        env = self.env
        if beside is None:
            if work_s > 0:
                yield env.timeout(work_s)
            return
        slowdown = self.plan.placement.cluster.overlap_slowdown
        while work_s > 1e-12:
            start, active_before = env.now, beside.active_s(env.now)
            yield env.timeout(beside.estimate_s(work_s, start, slowdown))
            overlap = beside.active_s(env.now) - active_before
            work_s -= (env.now - start) - overlap * (1 - 1 / slowdown)

    def _write(self, slot: int) -> None:
        if self.unposted[slot]:
            self.written[slot] = True
        else:
            self._send(slot)

    def _send(self, slot: int) -> None:
        """Put a delivery on the wire: it holds its ports, then arrives after its delay."""
        now = begin = self.env.now
        route = self.routes[slot]
        if route is not None:
            clocks, size = self.clocks, self.wiring.transfers[slot].size_bytes  # type: ignore[union-attr]
            for port, _ in route.ports:
                begin = max(begin, clocks[port])
            for port, hold in route.ports:
                clocks[port] = begin + size * hold
            self.arrived[slot] = begin + (size * route.wire_s_per_byte + route.delay_s)
        else:
            self.arrived[slot] = now
        self.sent[slot] = begin
        for event in self.waiting.pop(slot, ()):
            event.succeed()  # who waits learns when it arrives, and sleeps until then

    def _collective(self, number: int, before: list[int]) -> Process:
        env, route = self.env, self.collective_routes[number]
        for other in before:
            yield self.done[other]
        for slot in self.wiring.collective_waits[number]:
            if self.arrived[slot] == inf:
                event = env.event()
                self.waiting.setdefault(slot, []).append(event)
                yield event
        start = env.now
        streams = [
            s for s in (self.beside[d] for d in self.plan.collectives[number].devices) if s is not None
        ]
        for stream in streams:
            stream.begin(start, route.wire_s + route.fixed_s)
        if route.fixed_s > 0:
            yield env.timeout(route.fixed_s)
        yield from self._move(route, streams)
        for stream in streams:
            stream.end(env.now)
        self.spans[number] = (start, env.now)
        for slot in self.wiring.collective_sends[number]:
            self._write(slot)
        self.done[number].succeed()

    def _move(self, route: CollectiveRoute, streams: "list[_Stream]") -> Process:
        """Move a collective chunk by chunk, so that point-to-point traffic gets its turn at the ports."""
        chunks = min(MAX_CHUNKS, ceil(route.wire_s / CHUNK_S))
        for chunk in range(chunks):
            begin = self.env.now
            for port, _hold in route.ports:
                begin = max(begin, self.clocks[port])
            for port, hold in route.ports:
                self.clocks[port] = begin + hold / chunks
            for stream in streams:
                stream.until = begin + route.wire_s * (chunks - chunk) / chunks
            yield self.env.timeout(begin + route.wire_s / chunks - self.env.now)


class _Stream:
    """How long a device's communication stream has been busy, for the slowdown of compute beside it."""

    __slots__ = ("_active_s", "_since", "until")

    def __init__(self) -> None:
        self._active_s = 0.0
        self._since: float | None = None
        self.until = 0.0

    def begin(self, now: float, at_least_s: float) -> None:
        self._since, self.until = now, now + at_least_s

    def end(self, now: float) -> None:
        assert self._since is not None
        self._active_s += now - self._since
        self._since = None

    def active_s(self, now: float) -> float:
        """Seconds of collectives up to now."""
        return self._active_s + (0.0 if self._since is None else now - self._since)

    def estimate_s(self, work_s: float, now: float, slowdown: float) -> float:
        """Seconds until the work is done if no other collective begins; never too long."""
        if self._since is None or self.until <= now:
            return work_s
        beside = min(work_s * slowdown, self.until - now)
        return beside + max(0.0, work_s - beside / slowdown)


def _streams(plan: Plan) -> list[_Stream | None]:
    """Return the communication streams of the devices that have one and whose compute it slows down."""
    streams: list[_Stream | None] = [None] * len(plan.ops)
    if plan.placement.cluster.overlap_slowdown > 1:
        for device in {device for collective in plan.collectives for device in collective.devices}:
            streams[device] = _Stream()
    return streams
