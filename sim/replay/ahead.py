"""Ahead: the stretch of a replay in which devices only compute and pass messages, walked without a process each.

Until the first collective can start, a replay knows no events but the end of an op and the waking of a device whose
message was sent. They are taken here in the order in which SimPy would take them, by time and then as they were
scheduled, and every time is computed by the same operations: the engine goes on from there as if it had come so far
itself, to the last bit.
"""

from collections.abc import Callable
from dataclasses import dataclass, field
from heapq import heappop, heappush
from math import inf
from typing import Final

from strategies.plans.wiring import Slots, Wiring

NEVER: Final = -1


@dataclass(slots=True)
class Ahead:
    """Devices that run ahead of the engine.

    Attributes:
        wiring: of the plan.
        starts: for each device the start of each op that has ended.
        ends: for each device the end of each of these.
        arrived: for each slot when it arrives; infinite while it was not sent.
        put: puts a delivery on the wire at some time.
        pending: (time, number, device) of all events to come.
        begun: for each device when the op began that it is running; negative where it runs none.
        wanted: for each slot the device that sleeps until it is sent.
    """

    wiring: Wiring
    starts: list[list[float]]
    ends: list[list[float]]
    arrived: list[float]
    put: Callable[[int, float], object]
    pending: list[tuple[float, int, int]] = field(default_factory=list)
    begun: list[float] = field(default_factory=list)
    wanted: dict[int, int] = field(default_factory=dict)
    _events: int = 0
    _rows: list[list[tuple[float, Slots, Slots]]] = field(default_factory=list)

    def run(self) -> None:
        """Run ahead as far as no collective can have started."""
        reach = reaches(self.wiring)
        if reach is None:
            return
        pending, begun, ends = self.pending, self.begun, self.ends
        begun += [NEVER] * len(reach)
        self._rows = [
            [*zip([op.duration_s for op in ops], waits, sends, strict=True)]
            for ops, waits, sends in zip(
                self.wiring.plan.ops, self.wiring.waits, self.wiring.sends, strict=True
            )
        ]
        for device in range(len(reach)):
            self._start(device, 0.0)
        while pending:
            now, _, device = pending[0]
            if begun[device] < 0:
                heappop(pending)
                self._start(device, now)
            elif len(ends[device]) < reach[device]:
                heappop(pending)
                self._end(device, now)
            else:
                return

    def _start(self, device: int, now: float) -> None:
        """Start a device's next op once all that it reads was sent; else let it sleep until that is."""
        ends, row = self.ends[device], self._rows[device]
        index = len(ends)
        if index == len(row):
            return
        duration_s, waits, _ = row[index]
        start = ends[-1] if index else 0.0
        for slot in waits:
            at = self.arrived[slot]
            if at == inf:
                self.wanted[slot] = device
                return
            if at > start:
                start = at
        self.begun[device] = start
        self._events += 1
        heappush(self.pending, (now + (start - now + duration_s), self._events, device))

    def _end(self, device: int, now: float) -> None:
        """End the op that a device runs, wake who sleeps until what it wrote is sent, and start its next op."""
        ends, put, wanted = self.ends[device], self.put, self.wanted
        sends = self._rows[device][len(ends)][2]
        self.starts[device].append(self.begun[device])
        ends.append(now)
        self.begun[device] = NEVER
        woken = []
        for slot in sends:
            put(slot, now)
            if slot in wanted:
                woken.append(wanted.pop(slot))
        if not woken:
            self._start(device, now)
            return
        first = self._events + 1
        self._events += len(woken)
        soon = self.pending and self.pending[0][0] == now  # others come first that are due at this very time
        self._start(device, now)
        for number, other in enumerate(woken, first):
            if soon:
                heappush(self.pending, (now, number, other))
            else:
                self._start(other, now)


def reaches(wiring: Wiring) -> list[int] | None:
    """For each device the ops that may end before any collective can start; None where the engine must do it all.

    It must where messages block, receives are posted, hosts dispatch, or a collective waits for nothing.
    """
    plan = wiring.plan
    if plan.blocking or any(wiring.posted) or not all(wiring.collective_waits):
        return None
    read = {slot for slots in wiring.collective_waits for slot in slots}
    found = []
    for ops, sends, early in zip(plan.ops, wiring.sends, wiring.early, strict=True):
        if any(op.host_s for op in ops) or 0 in early:
            return None
        reach = min(early, default=len(ops) + 1) - 1
        own = (i for i, slots in enumerate(sends[:reach]) if not read.isdisjoint(slots)) if read else ()
        found.append(next(iter(own), reach))
    return found
