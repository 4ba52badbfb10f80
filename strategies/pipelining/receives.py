"""Rendezvous: when a device that waits for its messages posts the receives of any order, so that none is stuck.

With one stage per position a receive is posted after the op before its reader. Where a position holds several
stages the reader may come many ops later, and the sender would wait for it in vain. There, both meet at the first
pause of the receiver after the tensor is written, as if nobody had to wait: every wait is then for an op that
starts earlier in an order that exists, so they form no circle.
"""

from bisect import bisect_left

from strategies.plans.network import Network
from strategies.plans.plan import Plan
from strategies.plans.worklist import evaluate


def posted_in_time(plan: Plan) -> dict[tuple[int, int], int]:
    """For each (tensor, device) that is sent the op of the receiver after which it is posted.

    Raises:
        DeadlockError: the order can never be carried out, even if nobody waits.
    """
    trace = evaluate(plan, Network(plan.placement))
    wiring, posted = trace.wiring, {}
    for (tensor, device), slot in wiring.slots.items():
        if wiring.sources[slot] is not None:
            source, index = wiring.writers[tensor]
            posted[tensor, device] = bisect_left(trace.starts[device], trace.ends[source][index]) - 1
    return posted


def posted_at_once(plan: Plan) -> dict[tuple[int, int], int]:
    """Receives that do not wait for their turn: each side of a pipeline would wait for the other.

    Frozen activations are exchanged among all positions, as in a gather; what the extra forwards feed back meets a
    first stage that is still at its own.
    """
    roles = plan.roles
    return {
        (tensor, position): -1
        for position, ops in enumerate(plan.ops)
        for op in ops
        for tensor in op.reads
        if roles[tensor] in ("frozen", "feedback")
    }
