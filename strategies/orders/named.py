"""Named orders: GPipe and FIFO-1F1B."""

from strategies.plans.actions import BACKWARD, FORWARD, Rows, StageAction


def gpipe_order(degree: int, micro_batches: int) -> Rows:
    """All forwards, then all backwards. Source: GPipe, section 2.3."""
    return tuple(
        tuple(StageAction(p, kind, m) for kind in (FORWARD, BACKWARD) for m in range(micro_batches))
        for p in range(degree)
    )


def one_forward_one_backward_order(degree: int, micro_batches: int) -> Rows:
    """The FIFO-1F1B order: fill the pipeline, alternate, drain it. Source: DiffusionPipe, Fig. 2."""
    rows = []
    for position in range(degree):
        ahead = min(degree - 1 - position, micro_batches)
        row = [StageAction(position, FORWARD, m) for m in range(ahead)]
        for m in range(micro_batches):
            if m + ahead < micro_batches:
                row.append(StageAction(position, FORWARD, m + ahead))
            row.append(StageAction(position, BACKWARD, m))
        rows.append(tuple(row))
    return tuple(rows)
