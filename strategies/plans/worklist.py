"""The worklist evaluator: when ops end on links that nobody shares, without an event queue.

It walks rows of steps as far as their inputs are there (Kahn's algorithm), for plans as for orders of passes, and is
the oracle of the engine wherever no port is shared and no compute runs beside a collective.
"""

from collections.abc import Iterator, Sequence
from math import inf

from profiles.checks import sum_in_order
from profiles.errors import DeadlockError
from strategies.plans.network import CollectiveRoute, Network
from strategies.plans.plan import Plan
from strategies.plans.traces import Trace
from strategies.plans.wiring import Slots, Wiring, describe_deadlock, wire

Outputs = tuple[tuple[int, float], ...]
"""Slots and seconds: a slot is filled that long after a step ends, or, of early ones, starts."""
Step = tuple[Slots, float, Outputs, Outputs]
"""The slots that a step waits for, its seconds, and the slots that it fills by its end, and before it."""


def walk(
    rows: Sequence[Sequence[Step]], filled_s: list[float], begins_s: Sequence[float]
) -> list[list[float]]:
    """Return the start of each step of each row: as soon as the one before it has ended and its inputs are there.

    A row that waits for what never comes ends there. When each slot is filled is written into ``filled_s``, infinite
    where that is not known yet.
    """
    starts: list[list[float]] = [[] for _ in rows]
    free_s, waiting, open_rows = [*begins_s], dict[int, list[int]](), [*range(len(rows))][::-1]
    while open_rows:
        row = open_rows.pop()
        done, now = starts[row], free_s[row]
        for waits, duration_s, outputs, early in rows[row][len(done) :] if done else rows[row]:
            start = now
            for slot in waits:
                if (at := filled_s[slot]) > start:
                    start = at
                    if at == inf:
                        break
            if start == inf:
                waiting.setdefault(slot, []).append(row)
                break
            done.append(start)
            now = start + duration_s
            for base_s, slots in ((start, early), (now, outputs)) if early else ((now, outputs),):
                for slot, lag_s in slots:
                    filled_s[slot] = base_s + lag_s
                    if slot in waiting:
                        open_rows += waiting.pop(slot)
        free_s[row] = now
    return starts


def evaluate(plan: Plan, network: Network, routes: Sequence[CollectiveRoute] | None = None) -> Trace:
    """Return the trace of a plan on ports that nobody shares; the routes of collectives are the network's by default.

    Raises:
        DeadlockError: the order can never be carried out.
    """
    if routes is None:
        routes = [network.collective(collective) for collective in plan.collectives]
    wiring, num_devices = wire(plan), plan.num_devices
    seconds, num_slots = [route.wire_s + route.fixed_s for route in routes], len(wiring.sources)
    # arrivals, writes and postings of all slots, then ends of collectives
    postings = [inf if by_op else 0.0 for by_op in wiring.posted]
    filled_s = [inf] * (2 * num_slots) + postings + [inf] * len(routes)
    rows = [_row(wiring, device) for device in range(num_devices)]
    rows += [*_messages(wiring, network), *_collectives(wiring, seconds)]
    starts = walk(rows, filled_s, [0.0] * len(rows))
    ops, arrived, done = starts[:num_devices], filled_s[:num_slots], filled_s[3 * num_slots :]
    if any(len(of) < len(row) for of, row in zip(ops, rows, strict=False)) or inf in done:
        raise DeadlockError(describe_deadlock(wiring, [*map(len, ops)], arrived))
    paired = [[*zip(*of, strict=True)] for of in zip(ops, plan.ops, strict=True)]
    ends = [[at + op.duration_s for at, op in of] for of in paired]
    early = [[at + offset for at, op in of for offset, _ in op.early] for of in paired]
    sent, collectives = starts[num_devices : num_devices + num_slots], starts[num_devices + num_slots :]
    return Trace.of(
        wiring,
        (ops, ends, early),
        ([at[0] if at else inf for at in sent], arrived),
        [*zip([at[0] for at in collectives], done, strict=True)],
        p2p_bytes=sum_in_order(of.size_bytes * plan.placement.copies for of in wiring.transfers if of),
        collective_bytes=sum_in_order(route.sent_bytes for route in routes),
    )


def _row(wiring: Wiring, device: int) -> list[Step]:
    """The ops of a device; the wiring's slots follow when they are written, or their receive is posted."""
    num_slots, sends = len(wiring.sources), wiring.sends[device]
    early, receives = wiring.early[device], wiring.receives[device]
    steps: list[Step] = []
    for index, (op, waits) in enumerate(zip(wiring.plan.ops[device], wiring.waits[device], strict=True)):
        outputs = [num_slots + slot for slot in sends[index]]
        outputs += [2 * num_slots + slot for slot in receives.get(index, ())]
        before = [(num_slots + slot, offset) for offset, slots in early.get(index, ()) for slot in slots]
        steps.append((waits, op.duration_s, tuple([(slot, 0.0) for slot in outputs]), tuple(before)))
    return steps


def _messages(wiring: Wiring, network: Network) -> Iterator[list[Step]]:
    """The message of each slot: it starts when it is written and its receive is posted."""
    num_slots = len(wiring.sources)
    for slot, transfer in enumerate(wiring.transfers):
        seconds = 0.0
        if transfer is not None:
            route = network.route(transfer.source, transfer.target)
            seconds = transfer.size_bytes * route.wire_s_per_byte + route.delay_s
        yield [((num_slots + slot, 2 * num_slots + slot), seconds, ((slot, 0.0),), ())]


def _collectives(wiring: Wiring, seconds: Sequence[float]) -> Iterator[list[Step]]:
    """Each collective; it follows those before it on the streams of its devices."""
    num_slots = len(wiring.sources)
    for number, duration_s in enumerate(seconds):
        waits = wiring.collective_waits[number] + tuple(3 * num_slots + of for of in wiring.before[number])
        outputs = [num_slots + slot for slot in wiring.collective_sends[number]] + [3 * num_slots + number]
        yield [(waits, duration_s, tuple((slot, 0.0) for slot in outputs), ())]
