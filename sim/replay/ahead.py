"""Ahead: the stretch of a replay in which devices only compute and pass messages, without a SimPy process for each.

Until the first collective can start, the only events of a replay are the end of an op and the waking of a device whose
message was sent. They are taken here in the order in which SimPy would take them, by time and then as they were
scheduled, and every time is computed by the same operations: the engine goes on from there as if it had come so far
itself, to the last bit.
"""

from collections.abc import Iterator
from dataclasses import dataclass, field
from heapq import heappop, heappush, heapreplace
from math import inf
from operator import attrgetter
from typing import Final

from sim.replay.ways import Leg
from strategies.plans.wiring import NONE, Slots, Wiring

NEVER: Final = -1.0
"""Start of the op of an event at which none ends."""

Due = tuple[float, int, int, float, Slots | None]
"""An event: its time and its number, its device, when the op began that ends then, and what that sends.

None where a collective may start then, which is the engine's; where a device only wakes, no op ends.
"""


@dataclass(slots=True)
class Ahead:
    """Devices that run ahead of the engine.

    Attributes:
        wiring: of the plan.
        starts: for each device the start of each op that has ended.
        ends: for each device the end of each of these.
        sent: for each slot when it goes on the wire.
        arrived: for each slot when it arrives; infinite while it was not sent.
        legs: for each slot its ports and the seconds for which it travels.
        clocks: for each port the time until which it is held.
        pending: all events to come.
    """

    wiring: Wiring
    starts: list[list[float]]
    ends: list[list[float]]
    sent: list[float]
    arrived: list[float]
    legs: list[Leg]
    clocks: list[float]
    pending: list[Due] = field(default_factory=list)

    def run(self) -> None:  # noqa: PLR0912, PLR0915  calls for each op cost more than the op
        """Run ahead for as long as no collective can have started.

        A device starts its next op once all that it reads was sent; else it sleeps until that is. When an op ends, its
        device goes on, then those that slept until what it wrote was sent: at once or, where other events are due at
        this very time, after these. Messages hold their ports as in the engine. All of it stands in one loop, as most
        of a replay's time is spent in it. An event leaves once its device has its next, which then takes its place.
        """
        reach = reaches(self.wiring)
        if reach is None:
            return
        pending, starts, ends, sent, arrived = self.pending, self.starts, self.ends, self.sent, self.arrived
        legs, clocks, rows = self.legs, self.clocks, self._rows(reach)
        following, free_s, sleeping = [next(row, None) for row in rows], [0.0] * len(rows), dict[int, int]()
        going, now, scheduled, taken = tuple(range(len(rows))), 0.0, 0, False
        while True:
            for device in going:
                if (op := following[device]) is None:
                    continue
                duration_s, waits, sends = op
                start = free_s[device]
                for slot in waits:
                    at = arrived[slot]
                    if at == inf:
                        sleeping[slot] = device
                        break
                    if at > start:
                        start = at
                else:
                    following[device] = next(rows[device], None)
                    scheduled += 1
                    event = (now + (start - now + duration_s), scheduled, device, start, sends)
                    if taken:
                        heapreplace(pending, event)
                        taken = False
                    else:
                        heappush(pending, event)
            if taken:
                heappop(pending)
            if not pending:
                return
            now, _, device, start, sends = pending[0]
            going, taken = (device,), True
            if start != NEVER:
                if sends is None:
                    return
                starts[device].append(start)
                ends[device].append(now)
                free_s[device] = now
                for slot in sends:
                    ports, travel_s = legs[slot]
                    begin = now
                    if len(ports) == 2:  # most often; a loop over them takes longer
                        (out, out_s), (into, into_s) = ports
                        if clocks[out] > begin:
                            begin = clocks[out]
                        if clocks[into] > begin:
                            begin = clocks[into]
                        clocks[out], clocks[into] = begin + out_s, begin + into_s
                    else:
                        for port, _ in ports:
                            if clocks[port] > begin:
                                begin = clocks[port]
                        for port, hold_s in ports:
                            clocks[port] = begin + hold_s
                    sent[slot] = begin
                    arrived[slot] = begin + travel_s
                    if slot in sleeping:
                        going += (sleeping.pop(slot),)
                if len(going) > 1:
                    heappop(pending)
                    taken, first = False, scheduled + 1
                    scheduled += len(going) - 1
                    if pending and pending[0][0] == now:
                        for number, other in enumerate(going[1:], first):
                            heappush(pending, (now, number, other, NEVER, NONE))
                        going = (device,)

    def _rows(self, reach: list[int]) -> list[Iterator[tuple[float, Slots, Slots | None]]]:
        """For each device and op its duration, the slots that it waits for and those that it sends.

        Args:
            reach: for each device the ops that may end; the next sends what a collective may start with.
        """
        of = zip(self.wiring.plan.ops, self.wiring.waits, self.wiring.sends, reach, strict=True)
        return [
            zip(map(attrgetter("duration_s"), ops), waits, [*sends[:count], None], strict=False)
            for ops, waits, sends, count in of
        ]


def reaches(wiring: Wiring) -> list[int] | None:
    """For each device the ops that may end before any collective can start; None where the engine must do it all.

    It must where receives are posted, as by messages that block, hosts dispatch, or a collective waits for nothing.
    """
    plan = wiring.plan
    if any(wiring.posted) or not all(wiring.collective_waits):
        return None
    read = {slot for slots in wiring.collective_waits for slot in slots}
    found = []
    for ops, sends, early in zip(plan.ops, wiring.sends, wiring.early, strict=True):
        if any(map(attrgetter("host_s"), ops)) or 0 in early:
            return None
        reach = min(early, default=len(ops) + 1) - 1
        own = (i for i, slots in enumerate(sends[:reach]) if not read.isdisjoint(slots)) if read else ()
        found.append(next(iter(own), reach))
    return found
