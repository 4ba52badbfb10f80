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
    """

    wiring: Wiring
    starts: list[list[float]]
    ends: list[list[float]]
    arrived: list[float]
    put: Callable[[int, float], object]
    pending: list[tuple[float, int, int]] = field(default_factory=list)
    begun: list[float] = field(default_factory=list)

    def run(self) -> None:  # noqa: PLR0912  a call for each op would cost more than the op
        """Run ahead as far as no collective can have started.

        A device starts its next op once all that it reads was sent; else it sleeps until that is. When an op ends, its
        device goes on, then those that slept until what it wrote was sent: at once or, where other events are due at
        this very time, after these. All of it stands in one loop, for a replay is made of it.
        """
        reach = reaches(self.wiring)
        if reach is None:
            return
        pending, begun, starts, ends = self.pending, self.begun, self.starts, self.ends
        arrived, put, rows = self.arrived, self.put, self._rows()
        begun += [NEVER] * len(reach)
        sleeping: dict[int, int] = {}
        going, now, scheduled = tuple(range(len(reach))), 0.0, 0
        while True:
            for device in going:
                own = ends[device]
                index = len(own)
                if index == len(rows[device]):
                    continue
                duration_s, waits, _ = rows[device][index]
                start = own[-1] if index else 0.0
                for slot in waits:
                    at = arrived[slot]
                    if at == inf:
                        sleeping[slot] = device
                        break
                    if at > start:
                        start = at
                else:
                    begun[device] = start
                    scheduled += 1
                    heappush(pending, (now + (start - now + duration_s), scheduled, device))
            if not pending:
                return
            now, _, device = pending[0]
            going = (device,)
            if begun[device] >= 0:
                index = len(ends[device])
                if index == reach[device]:
                    return
                starts[device].append(begun[device])
                ends[device].append(now)
                begun[device] = NEVER
                for slot in rows[device][index][2]:
                    put(slot, now)
                    if slot in sleeping:
                        going += (sleeping.pop(slot),)
            heappop(pending)
            if len(going) > 1:
                woken, first = going[1:], scheduled + 1
                scheduled += len(woken)
                if pending and pending[0][0] == now:
                    going = (device,)
                    for number, other in enumerate(woken, first):
                        heappush(pending, (now, number, other))

    def _rows(self) -> list[list[tuple[float, Slots, Slots]]]:
        """For each device and op its duration, the slots that it waits for and those that it sends."""
        wiring = self.wiring
        return [
            [*zip([op.duration_s for op in ops], waits, sends, strict=True)]
            for ops, waits, sends in zip(wiring.plan.ops, wiring.waits, wiring.sends, strict=True)
        ]


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
