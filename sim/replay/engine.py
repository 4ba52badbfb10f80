"""The engine: SimPy replays a plan on shared ports.

One process per device walks its list of ops, one per collective moves its chunks. Ports are first-come-first-served
clocks; an event exists only where somebody really waits. SimPy orders events of the same time by one insertion
counter, so two runs of a plan are identical to the bit.
"""

import gc
from collections.abc import Generator, Iterator, Sequence
from contextlib import contextmanager
from math import ceil, inf, ulp
from typing import Final, NamedTuple

import simpy

from profiles.errors import DeadlockError
from strategies.plans.network import CollectiveRoute, Network, Ports
from strategies.plans.plan import Plan
from strategies.plans.traces import Span, Trace
from strategies.plans.wiring import Wiring, describe_deadlock, wire


class Stream:
    """Busy spans of a device's communication streams, for the slowdown of compute beside them.

    Attributes:
        slowdown: factor on the seconds of compute beside a collective.
        until: for each running collective the earliest time at which it can end.
        last_s: when the last collective ended; infinite while one runs.
    """

    __slots__ = ("_spans", "last_s", "slowdown", "until")

    def __init__(self, slowdown: float) -> None:
        self.slowdown = slowdown
        self.until: dict[int, float] = {}
        self.last_s = -inf
        self._spans: list[list[float]] = []

    def begin(self, number: int, now: float, at_least_s: float) -> None:
        """Note that a collective begins, and takes at least ``at_least_s``."""
        if not self.until:
            self._spans.append([now, inf])
            self.last_s = inf
        self.until[number] = now + at_least_s

    def end(self, number: int, now: float) -> None:
        """Note that a collective ends."""
        del self.until[number]
        if not self.until:
            self._spans[-1][1] = self.last_s = now

    def done_s(self, start: float, now: float) -> float:
        """Return the seconds of work that compute has done from ``start`` to ``now``."""
        overlap = 0.0
        for begun, ended in reversed(self._spans):
            if ended <= start:
                break
            overlap += min(ended, now) - max(begun, start)
        return now - start - overlap * (1 - 1 / self.slowdown)

    def estimate_s(self, work_s: float, now: float) -> float:
        """Return the seconds until work is done if no other collective begins; never too long."""
        if not self.until:
            return work_s
        until = next(iter(self.until.values())) if len(self.until) == 1 else max(self.until.values())
        if until <= now:
            return work_s
        beside = min(work_s * self.slowdown, until - now)
        return beside + max(0.0, work_s - beside / self.slowdown)


ROUNDING_S: Final = 1e-12
"""Work below this counts as done, as the last digits of a sum of times."""

CHUNK_S: Final = 1e-3
"""Collectives move in chunks of at most this long, so that point-to-point traffic gets its turn."""
MAX_CHUNKS: Final = 64
"""More chunks than this are not worth their events; longer collectives move in larger ones."""

Process = Generator[simpy.Event, None, None]

Leg = tuple[Ports, float]
"""(port, seconds held) pairs of a delivery, and the seconds for which it travels."""
SIGNAL: Final[Leg] = ((), 0.0)


class Chunks(NamedTuple):
    """The chunks of a collective, the seconds of each, and the (port, seconds) pairs that each holds."""

    number: int
    each_s: float
    ports: Ports
    shared: Ports

    @classmethod
    def of(cls, route: CollectiveRoute) -> "Chunks":
        """Return the chunks in which a collective moves on its route."""
        count = max(1, min(MAX_CHUNKS, ceil(route.wire_s / CHUNK_S)))
        ports, shared = (
            tuple([(port, hold / count) for port, hold in holds]) for holds in (route.ports, route.shared)
        )
        return cls(count, route.wire_s / count, ports, shared)


def simulate(plan: Plan, network: Network | None = None) -> Trace:
    """Return the trace of one replayed iteration; its ports are by default those of the plan's placement.

    Raises:
        DeadlockError: the order can never be carried out; the text names what each device was waiting for.
    """
    return _Replay(wire(plan), network or Network(plan.placement)).run()


@contextmanager
def no_collection() -> Iterator[None]:
    """Keep the garbage collector from walking a plan's many small objects again and again; none refer in cycles."""
    enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if enabled:
            gc.enable()


class _Replay:
    """State of one replay: the clocks of all ports, and what was sent and has arrived."""

    def __init__(self, wiring: Wiring, network: Network) -> None:
        self.env = simpy.Environment()
        self.wiring = wiring
        self.plan = plan = wiring.plan
        count = len(wiring.sources)
        self.sent = [inf] * count
        self.arrived = [inf] * count
        self.written = [False] * count
        self.unposted = list(wiring.posted)
        self.late = any(wiring.posted)
        self.waiting: list[simpy.Event | None] = [None] * count
        self.starts: list[list[float]] = [[] for _ in plan.ops]
        self.ends: list[list[float]] = [[] for _ in plan.ops]
        self.early: list[list[float]] = [[] for _ in plan.ops]
        sizes_bytes = plan.sizes_bytes
        self.sizes_bytes = [sizes_bytes[tensor] for tensor, _ in wiring.slots]
        self.legs = _legs(wiring, self.sizes_bytes, network)
        self.collective_routes = [network.collective(collective) for collective in plan.collectives]
        self.chunks = {
            key: Chunks.of(route)
            for key, route in {id(route): route for route in self.collective_routes}.items()
        }
        self.clocks = [0.0] * len(network.ports)
        self.spans: list[Span | None] = [None] * len(plan.collectives)
        self.done = [self.env.event() for _ in plan.collectives]
        self.before = wiring.before
        self.beside: list[Stream | None] = [None] * len(plan.ops)  # where they slow down compute
        if (slowdown := plan.placement.cluster.overlap_slowdown) > 1:
            for device in {device for collective in plan.collectives for device in collective.devices}:
                self.beside[device] = Stream(slowdown)

    def run(self) -> Trace:
        """Replay the plan to its end."""
        for number in range(len(self.plan.collectives)):
            self._try_collective(number)
        for device in range(len(self.plan.ops)):
            self.env.process(self._device(device))
        self.env.run()
        if any(len(ends) < len(ops) for ends, ops in zip(self.ends, self.plan.ops, strict=True)):
            raise DeadlockError(describe_deadlock(self.wiring, [len(e) for e in self.ends], self.arrived))
        spans = [span for span in self.spans if span is not None]
        sizes = zip(self.wiring.sources, self.sizes_bytes, strict=True)
        sent = sum([size for source, size in sizes if source is not None])
        return Trace.of(
            self.wiring,
            (self.starts, self.ends, self.early),
            (self.sent, self.arrived),
            spans,
            p2p_bytes=sent * self.plan.placement.copies,
            collective_bytes=sum(route.sent_bytes for route in self.collective_routes),
        )

    def _device(self, device: int) -> Process:
        """Walk one device's list: wait for what an op reads, run it, put what it wrote on the wire."""
        env, arrived, waiting, beside = self.env, self.arrived, self.waiting, self.beside[device]
        timeout, send = env.timeout, self._write if self.late else self._send
        hosts, ahead_s = any(op.host_s for op in self.plan.ops[device]), self.plan.host_ahead_s
        host_s = 0.0
        began, ended = self.starts[device].append, self.ends[device].append
        early, receives = self.wiring.early[device], self.wiring.receives[device]
        rows = zip(self.plan.ops[device], self.wiring.waits[device], self.wiring.sends[device], strict=True)
        now = start = 0.0
        for index, (op, waits, sends) in enumerate(rows):
            for slot in waits:
                if arrived[slot] == inf:
                    event = waiting[slot] = waiting[slot] or env.event()
                    yield event
                    now = env.now
                if arrived[slot] > start:
                    start = arrived[slot]
            start = host_s if host_s > start else start
            if index in early:
                yield from self._run_early(device, start - now, index, beside)
            else:
                work_s = op.duration_s
                work_s = beside.estimate_s(work_s, start) if beside is not None and beside.until else work_s
                yield timeout(start - now + work_s)
            if beside is not None and beside.last_s > start and index not in early:
                yield from self._finish(op.duration_s, start, beside)
            now = env.now
            if hosts:  # which dispatch ahead of their devices, up to a limit
                host_s = max(host_s, start - ahead_s) + op.host_s
                if host_s > now:
                    yield timeout(host_s - now)
                    now = env.now
            began(start)
            ended(now)
            for slot in sends:
                send(slot, now)
            if index in receives:
                self._post(receives[index], now)
            start = now

    def _run_early(self, device: int, wait_s: float, index: int, beside: Stream | None) -> Process:
        """Run one op that writes tensors before it ends: piece by piece, from one write to the next."""
        duration_s, early = self.plan.ops[device][index].duration_s, self.wiring.early[device][index]
        yield self.env.timeout(wait_s)
        done = 0.0
        for offset, slots in [*early, (duration_s, ())]:
            start = self.env.now
            yield self.env.timeout(offset - done)
            if beside is not None:
                yield from self._finish(offset - done, start, beside)
            done = offset
            for slot in slots:
                self._write(slot, self.env.now)
            self.early[device].append(self.env.now)
        self.early[device].pop()  # the end of the op

    def _finish(self, work_s: float, start: float, beside: Stream) -> Process:
        """Run until ``work_s`` of work since ``start`` is done, slowed down by the collectives beside it."""
        env = self.env
        while (left_s := work_s - beside.done_s(start, env.now)) > max(ROUNDING_S, 4 * ulp(env.now)):
            yield env.timeout(beside.estimate_s(left_s, env.now))

    def _write(self, slot: int, now: float) -> None:
        """Note that a delivery is written; it goes on the wire unless its receive is still to be posted."""
        if self.unposted[slot]:
            self.written[slot] = True
        else:
            self._send(slot, now)

    def _post(self, slots: Sequence[int], now: float) -> None:
        for slot in slots:
            self.unposted[slot] = False
            if self.written[slot]:
                self._send(slot, now)

    def _send(self, slot: int, now: float) -> None:
        """Put a delivery on the wire: it holds its ports, then arrives after its delay."""
        ports, travel_s = self.legs[slot]
        begin = now
        if ports:
            clocks = self.clocks
            for port, _ in ports:
                if clocks[port] > begin:
                    begin = clocks[port]
            for port, hold_s in ports:
                clocks[port] = begin + hold_s
        self.sent[slot] = begin
        self.arrived[slot] = begin + travel_s
        event = self.waiting[slot]
        if event is not None:
            event.succeed()  # who waits learns when it arrives, and sleeps until then

    def _try_collective(self, number: int) -> None:
        """Start a collective if its predecessors are done and all that it reads is written; else try again later."""
        for other in self.before[number]:
            if self.done[other].callbacks is not None:  # it is still to come
                self._retry(self.done[other], number)
                return
        for slot in self.wiring.collective_waits[number]:
            if self.arrived[slot] == inf:
                event = self.waiting[slot] = self.waiting[slot] or self.env.event()
                self._retry(event, number)
                return
        devices = self.plan.collectives[number].devices
        streams = [stream for device in devices if (stream := self.beside[device]) is not None]
        _Move(self, number, streams).begin()

    def _retry(self, event: simpy.Event, number: int) -> None:
        assert event.callbacks is not None, "it is still to come"
        event.callbacks.append(lambda _: self._try_collective(number))

    def end_collective(self, number: int, start: float) -> None:
        """Note when a collective ran, and that what it writes is written."""
        now = self.env.now
        self.spans[number] = (start, now)
        for slot in self.wiring.collective_sends[number]:
            self._write(slot, now)
        self.done[number].succeed()


class _Move:
    """One collective under way, chunk by chunk; a chunk ends when the ports above the cards have carried it too."""

    __slots__ = ("_chunk", "_chunks", "_clocks", "_env", "_number", "_replay", "_route", "_start", "_streams")

    def __init__(self, replay: _Replay, number: int, streams: list[Stream]) -> None:
        self._replay, self._number, self._streams = replay, number, streams
        self._clocks, self._env = replay.clocks, replay.env
        self._route = replay.collective_routes[number]
        self._chunks = replay.chunks[id(self._route)]
        self._start = replay.env.now
        self._chunk = 0

    def begin(self) -> None:
        """Occupy the streams, and go on the wire after the fixed seconds."""
        route = self._route
        for stream in self._streams:
            stream.begin(self._number, self._start, route.fixed_s + route.wire_s)
        self._go_on_after(route.fixed_s)

    def _go_on_after(self, delay_s: float) -> None:
        callbacks = self._env.timeout(delay_s).callbacks
        assert callbacks is not None, "it is still to come"
        callbacks.append(self._go_on)

    def _go_on(self, _: simpy.Event) -> None:
        """Move the next chunks, or end where all have moved."""
        env = self._env
        if self._chunk < self._chunks.number:
            self._go_on_after(self._carry(env.now, env.peek()) - env.now)
            return
        for stream in self._streams:
            stream.end(self._number, env.now)
        self._replay.end_collective(self._number, self._start)

    def _carry(self, now: float, following: float) -> float:
        """Put the next chunk on its ports, and those after it up to when something else can happen.

        Returns the seconds at which all ports have carried the last of these chunks; ``following`` are those of the
        next event.
        """
        (chunks, chunk_s, ports, shared), clocks, chunk = self._chunks, self._clocks, self._chunk
        while True:
            begin = now
            for port, _ in ports:
                if clocks[port] > begin:
                    begin = clocks[port]
            end = begin + chunk_s
            for port, hold in ports:
                clocks[port] = begin + hold
            for port, hold in shared:
                free = clocks[port]
                clocks[port] = free = (free if free > begin else begin) + hold
                if free > end:
                    end = free
            chunk += 1
            now += end - now
            if chunk == chunks or now >= following:
                break
        for stream in self._streams:
            stream.until[self._number] = begin + self._route.wire_s * (chunks - chunk + 1) / chunks
        self._chunk = chunk
        return now


def _legs(wiring: Wiring, sizes_bytes: Sequence[float], network: Network) -> list[Leg]:
    """Return for each delivery its (port, seconds held) pairs and its travel time; a signal has none."""
    deliveries = [*zip(wiring.sources, (target for _, target in wiring.slots), sizes_bytes, strict=True)]
    legs = dict.fromkeys(deliveries, SIGNAL)
    for source, target, size_bytes in legs:
        if source is not None:
            route = network.route(source, target)
            ports = tuple([(port, size_bytes * hold) for port, hold in route.ports])
            legs[source, target, size_bytes] = ports, size_bytes * route.wire_s_per_byte + route.delay_s
    return [legs[delivery] for delivery in deliveries]
