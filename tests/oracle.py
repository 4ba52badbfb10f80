"""The oracle of the engine wherever no port is shared and no compute runs beside a collective: a worklist.

Messages and collectives are steps of rows of their own, beside the ops of each device.
"""

from math import inf

from profiles.errors import DeadlockError
from strategies.plans.traces import Trace
from strategies.plans.wiring import describe_deadlock, wire
from strategies.plans.worklist import walk


def evaluate(plan, network):
    """Return the trace of a plan on ports that nobody shares."""
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
        p2p_bytes=sum(of.size_bytes * plan.placement.copies for of in wiring.transfers if of),
        collective_bytes=sum(route.sent_bytes for route in routes),
    )


def _row(wiring, device):
    """The ops of a device; the wiring's slots follow when they are written, or their receive is posted."""
    num_slots, sends = len(wiring.sources), wiring.sends[device]
    early, receives = wiring.early[device], wiring.receives[device]
    steps = []
    for index, (op, waits) in enumerate(zip(wiring.plan.ops[device], wiring.waits[device], strict=True)):
        outputs = [num_slots + slot for slot in sends[index]]
        outputs += [2 * num_slots + slot for slot in receives.get(index, ())]
        written = [(offset, num_slots + slot) for offset, slots in early.get(index, ()) for slot in slots]
        before = [(slot, offset - op.duration_s) for offset, slot in written]
        steps.append((waits, op.duration_s, (*before, *((slot, 0.0) for slot in outputs))))
    return steps


def _messages(wiring, network):
    """The message of each slot: it starts when it is written and its receive is posted."""
    num_slots = len(wiring.sources)
    for slot, transfer in enumerate(wiring.transfers):
        seconds = 0.0
        if transfer is not None:
            route = network.route(transfer.source, transfer.target)
            seconds = transfer.size_bytes * route.wire_s_per_byte + route.delay_s
        yield [((num_slots + slot, 2 * num_slots + slot), seconds, ((slot, 0.0),))]


def _collectives(wiring, seconds):
    """Each collective; it follows those before it on the streams of its devices."""
    num_slots = len(wiring.sources)
    for number, duration_s in enumerate(seconds):
        waits = wiring.collective_waits[number] + tuple(3 * num_slots + of for of in wiring.before[number])
        outputs = [num_slots + slot for slot in wiring.collective_sends[number]] + [3 * num_slots + number]
        yield [(waits, duration_s, tuple((slot, 0.0) for slot in outputs))]
