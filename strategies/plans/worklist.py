"""The worklist evaluator: the times of a plan on links that nobody shares, without an event queue.

It walks the device lists as far as their inputs are there, again and again (Kahn's algorithm), and is the oracle
of the engine wherever no port is shared and no compute runs beside a collective.
"""

from collections.abc import Sequence

from profiles.errors import DeadlockError
from strategies.plans.network import CollectiveRoute, Network
from strategies.plans.plan import Plan
from strategies.plans.traces import Span, Trace
from strategies.plans.wiring import UNKNOWN, Wiring, describe_deadlock, wire


class _Worklist:
    def __init__(self, wiring: Wiring, network: Network, routes: Sequence[CollectiveRoute]) -> None:
        self.wiring, self.routes = wiring, routes
        self.plan, self.transfers = wiring.plan, wiring.transfers
        self.network = network
        self.written = [UNKNOWN] * len(wiring.sources)
        self.posted = [UNKNOWN if waits else 0.0 for waits in wiring.posted]
        self.sent = [UNKNOWN] * len(wiring.sources)
        self.arrived = [UNKNOWN] * len(wiring.sources)
        self.starts: list[list[float]] = [[] for _ in self.plan.ops]
        self.ends: list[list[float]] = [[] for _ in self.plan.ops]
        self.early: list[list[float]] = [[] for _ in self.plan.ops]
        self.spans: dict[int, Span] = {}
        self.before = self.wiring.before
        self.p2p_bytes = 0.0
        self.collective_bytes = 0.0

    def run(self) -> Trace:
        while any([self._walk(device) for device in range(len(self.plan.ops))] + [self._collect()]):
            pass
        if any(len(ends) < len(ops) for ends, ops in zip(self.ends, self.plan.ops, strict=True)):
            raise DeadlockError(describe_deadlock(self.wiring, [len(e) for e in self.ends], self.arrived))
        spans = [self.spans[number] for number in range(len(self.plan.collectives))]
        return Trace.of(
            self.wiring,
            (self.starts, self.ends, self.early),
            (self.sent, self.arrived),
            spans,
            p2p_bytes=self.p2p_bytes,
            collective_bytes=self.collective_bytes,
        )

    def _walk(self, device: int) -> bool:
        ops, waits = self.plan.ops[device], self.wiring.waits[device]
        starts, ends = self.starts[device], self.ends[device]
        before = len(ends)
        while len(ends) < len(ops):
            index = len(ends)
            ready = max((self.arrived[slot] for slot in waits[index]), default=0.0)
            if ready == UNKNOWN:
                break
            start = max(ready, ends[-1] if ends else 0.0)
            starts.append(start)
            ends.append(start + ops[index].duration_s)
            for offset, slots in self.wiring.early[device].get(index, ()):
                self.early[device].append(start + offset)
                self._write(slots, start + offset)
            self._write(self.wiring.sends[device][index], ends[-1])
            for slot in self.wiring.receives[device].get(index, ()):
                self.posted[slot] = ends[-1]
                self._send(slot)
        return len(ends) > before

    def _write(self, slots: tuple[int, ...], at: float) -> None:
        for slot in slots:
            self.written[slot] = at
            self._send(slot)

    def _send(self, slot: int) -> None:
        at = max(self.written[slot], self.posted[slot])
        if at == UNKNOWN:
            return
        transfer = self.transfers[slot]
        self.sent[slot] = self.arrived[slot] = at
        if transfer is not None:
            route = self.network.route(transfer.source, transfer.target)
            self.arrived[slot] = at + (transfer.size_bytes * route.wire_s_per_byte + route.delay_s)
            self.p2p_bytes += transfer.size_bytes * self.plan.placement.copies

    def _collect(self) -> bool:
        progress = False
        for number, route in enumerate(self.routes):
            if number in self.spans or any(other not in self.spans for other in self.before[number]):
                continue
            waits = [self.arrived[slot] for slot in self.wiring.collective_waits[number]]
            start = max(waits + [self.spans[other][1] for other in self.before[number]], default=0.0)
            if start < UNKNOWN:
                self.spans[number] = (start, start + (route.wire_s + route.fixed_s))
                self.collective_bytes += route.sent_bytes
                self._write(self.wiring.collective_sends[number], self.spans[number][1])
                progress = True
        return progress


def evaluate(plan: Plan, network: Network, routes: Sequence[CollectiveRoute] | None = None) -> Trace:
    """The trace of a plan on ports that nobody shares.

    Args:
        plan: what every device does.
        network: the routes of its messages.
        routes: of its collectives; by default those of the network.

    Raises:
        DeadlockError: the order can never be carried out.
    """
    if routes is None:
        routes = [network.collective(collective) for collective in plan.collectives]
    return _Worklist(wire(plan), network, routes).run()
