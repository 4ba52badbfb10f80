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

    A row that waits for what never comes ends there.

    Args:
        rows: steps that run one after the other.
        filled_s: when each slot is filled, infinite where that is not known yet; it is filled in.
        begins_s: when each row may begin.
    """
    starts: list[list[float]] = [[] for _ in rows]
    free_s, waiting, open_rows = [*begins_s], dict[int, list[int]](), [*range(len(rows))][::-1]
    while open_rows:
        row = open_rows.pop()
        own, now = starts[row], free_s[row]
        for waits, duration_s, outputs, early in rows[row][len(own) :] if own else rows[row]:
            start = now
            for slot in waits:
                if (at := filled_s[slot]) > start:
                    start = at
                    if at == inf:
                        break
            if start == inf:
                waiting.setdefault(slot, []).append(row)
                break
            own.append(start)
            now = start + duration_s
            for base_s, slots in ((start, early), (now, outputs)) if early else ((now, outputs),):
                for slot, lag_s in slots:
                    filled_s[slot] = base_s + lag_s
                    if slot in waiting:
                        open_rows += waiting.pop(slot)
        free_s[row] = now
    return starts


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
    wiring = wire(plan)
    num_slots, seconds = len(wiring.sources), [route.wire_s + route.fixed_s for route in routes]
    # arrivals, writes and postings of all slots, then ends of collectives
    filled_s = [inf] * (3 * num_slots + len(routes))
    for slot, by_op in enumerate(wiring.posted):
        filled_s[2 * num_slots + slot] = inf if by_op else 0.0
    messages = [*_messages(wiring, network)]
    rows = [_row(wiring, device) for device in range(plan.num_devices)]
    collectives = [*_collectives(wiring, seconds)]
    starts = walk([*rows, *messages, *collectives], filled_s, [0.0] * len(rows + messages + collectives))
    ops, sent = starts[: plan.num_devices], starts[plan.num_devices : -len(routes) or None]
    arrived = filled_s[:num_slots]
    if (
        any(len(own) < len(row) for own, row in zip(starts, rows, strict=False))
        or inf in filled_s[3 * num_slots :]
    ):
        raise DeadlockError(describe_deadlock(wiring, [*map(len, ops)], arrived))
    ends = [
        [at + op.duration_s for at, op in zip(*of, strict=True)] for of in zip(ops, plan.ops, strict=True)
    ]
    early = [
        [at + offset for at, op in zip(*of, strict=True) for offset, _ in op.early]
        for of in zip(ops, plan.ops, strict=True)
    ]
    p2p_bytes = sum_in_order(t.size_bytes * plan.placement.copies for t in wiring.transfers if t is not None)
    return Trace.of(
        wiring,
        (ops, ends, early),
        ([at[0] if at else inf for at in sent], arrived),
        [*zip([at[0] for at in starts[len(starts) - len(routes) :]], filled_s[3 * num_slots :], strict=True)],
        p2p_bytes=p2p_bytes,
        collective_bytes=sum_in_order(route.sent_bytes for route in routes),
    )


def _row(wiring: Wiring, device: int) -> list[Step]:
    """The ops of a device; the wiring's slots follow when they are written, or their receive is posted."""
    num_slots, early = len(wiring.sources), wiring.early[device]
    receives = wiring.receives[device]
    return [
        (
            wiring.waits[device][index],
            op.duration_s,
            tuple(
                [(num_slots + slot, 0.0) for slot in wiring.sends[device][index]]
                + [(2 * num_slots + slot, 0.0) for slot in receives.get(index, ())]
            ),
            tuple((num_slots + slot, offset) for offset, slots in early.get(index, ()) for slot in slots),
        )
        for index, op in enumerate(wiring.plan.ops[device])
    ]


def _messages(wiring: Wiring, network: Network) -> Iterator[list[Step]]:
    """For each slot what brings it: it starts when it is written and its receive is posted."""
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
