"""Evaluation: a given order is replayed for its times, on ports that nobody shares."""

from collections.abc import Sequence

from profiles.errors import DeadlockError
from strategies.orders.list_scheduling import Ordering
from strategies.orders.problem import Problem, lanes_of
from strategies.plans.actions import BACKWARD, FORWARD, StageAction


def evaluate(problem: Problem, rows: Sequence[Sequence[StageAction]]) -> Ordering:
    """The times of a given order: each pass starts as soon as its device and its input are there.

    Whether it stays within the caps is not asked; see ``peak_held_bytes``.

    Raises:
        DeadlockError: the order can never be carried out.
    """
    return _Replay(problem, rows).run()


class _Replay:
    """Walks the rows of all devices as far as their inputs are there, again and again."""

    def __init__(self, problem: Problem, rows: Sequence[Sequence[StageAction]]) -> None:
        lanes = lanes_of(problem)
        _check_rows(problem, rows)
        self.rows = rows
        self.lanes = {(lane.stage, lane.kind): lane for lane in lanes}
        self.following = {
            (lane.stage, lane.kind): (lanes[lane.following].stage, lanes[lane.following].kind)
            for lane in lanes
            if lane.following is not None
        }
        self.ready = {
            StageAction(chain.stages[0], FORWARD, micro_batch): 0.0
            for chain in problem.chains
            for micro_batch in chain.micro_batches
        }
        self.starts: list[list[float]] = [[] for _ in rows]
        self.free_s = [0.0 for _ in rows]

    def run(self) -> Ordering:
        while sum(self._walk(device) for device in range(len(self.rows))):
            pass
        self._check_end()
        return Ordering(tuple(map(tuple, self.rows)), tuple(map(tuple, self.starts)), max(self.free_s))

    def _walk(self, device: int) -> int:
        row, starts = self.rows[device], self.starts[device]
        before = len(starts)
        while len(starts) < len(row) and row[len(starts)] in self.ready:
            action = row[len(starts)]
            lane = self.lanes[action.stage, action.kind]
            starts.append(max(self.free_s[device], self.ready[action]))
            self.free_s[device] = starts[-1] + lane.duration_s
            if lane.following is not None:
                following = self.following[action.stage, action.kind]
                self.ready[StageAction(*following, action.micro_batch)] = self.free_s[device] + lane.lag_s
        return len(starts) - before

    def _check_end(self) -> None:
        inputs = {after: before for before, after in self.following.items()}
        stuck = []
        for device, (row, starts) in enumerate(zip(self.rows, self.starts, strict=True)):
            if len(starts) < len(row):
                action = row[len(starts)]
                missing = StageAction(*inputs[action.stage, action.kind], action.micro_batch)
                stuck.append(f"device {device} waits in {action} for {missing}")
        if stuck:
            raise DeadlockError("deadlock: " + "; ".join(stuck))


def _check_rows(problem: Problem, rows: Sequence[Sequence[StageAction]]) -> None:
    """Refuse rows that do not hold every pass once, on the device of its stage."""
    due = sorted(
        (problem.positions[stage], StageAction(stage, kind, micro_batch))
        for chain in problem.chains
        for stage in chain.stages
        for kind in (FORWARD, BACKWARD)
        for micro_batch in chain.micro_batches
    )
    if len(rows) != problem.num_devices or due != sorted((d, a) for d, row in enumerate(rows) for a in row):
        raise ValueError("rows must hold every forward and backward once, on the device of its stage")
