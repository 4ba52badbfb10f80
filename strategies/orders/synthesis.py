"""Schedule synthesis: the shortest order of a pipeline's passes, with proof where there is time for one.

Where list scheduling meets the lower bound, that is the proof. Else an integer programme answers, for one horizon
after another from the bound up, whether any order ends in time. Source: PULSE, section V, Eq. 6-13; the
stage-to-device map (Eq. 8 and 9) is fixed.

PuLP and HiGHS are imported when the first programme is written; without them list scheduling still works.
"""

import math
import warnings
from collections.abc import Iterable, Iterator
from fractions import Fraction
from itertools import chain
from time import monotonic
from typing import Any, Final, NamedTuple

from profiles.errors import InputError
from strategies.orders.list_scheduling import list_schedule, lower_bound_s
from strategies.orders.problem import Ordering, Problem, evaluate, fits, heads, lanes_of, limits_of, tails
from strategies.plans.actions import BACKWARD, FORWARD, Rows, StageAction

CERTIFICATE: Final = "certificate"
PROGRAMME: Final = "programme"
LIST: Final = "list"

TIME_LIMIT_S: Final = 30.0
EQUAL: Final = 1e-9
"""Share by which two times may differ and still count as one."""
FORGIVEN: Final = 1e-11
"""Share of a slot or of a time by which sums of floats may be wrong; it is below ``EQUAL``."""
MAX_BINARIES: Final = 20_000
"""HiGHS gets nowhere with larger programmes in minutes."""
EXACT_SLOTS: Final = 16
"""A grid on which every time falls is taken if the shortest pass has at most this many slots."""
COARSE_SLOTS: Final = (1, 2, 4, 8)
"""Else times are rounded down to grids on which the shortest pass has this many slots."""


class Synthesis(NamedTuple):
    """An order and how good it is.

    Attributes:
        bound_s: No order of the problem is shorter, in seconds.
        proven: Bound and order agree.
        method: What the answer rests on: ``certificate`` (list scheduling meets the lower bound), ``programme``
            (the integer programme found the order or proved that none is shorter), or ``list`` (list
            scheduling; no programme could better or prove it).
    """

    bound_s: float
    ordering: Ordering
    proven: bool
    method: str


def synthesize(problem: Problem, time_limit_s: float = TIME_LIMIT_S) -> Synthesis:
    """Return the shortest order that can be found in some seconds.

    Args:
        problem: What is to be ordered.
        time_limit_s: After how many seconds the programme gives up.

    Raises:
        InfeasibleError: a device cannot even hold one micro-batch.
        InputError: a programme is needed, and PuLP or HiGHS is not installed.
    """
    listed, bound_s = list_schedule(problem), lower_bound_s(problem)
    if agree(bound_s, listed.makespan_s):
        return Synthesis(bound_s, listed, True, CERTIFICATE)
    bound_s, best = _search(problem, bound_s, listed, monotonic() + time_limit_s)
    proven = agree(bound_s, best.makespan_s)
    method = PROGRAMME if proven or best is not listed else LIST
    return Synthesis(min(bound_s, best.makespan_s), best, proven, method)


def agree(bound_s: float, makespan_s: float) -> bool:
    """True if a bound proves an order to be the shortest."""
    return makespan_s <= bound_s * (1 + EQUAL)


def _search(problem: Problem, bound_s: float, best: Ordering, deadline: float) -> tuple[float, Ordering]:
    """Return a bound and the best order: step the horizon up until the programme finds an order that ends in time.

    On a grid on which every time falls that order is the shortest. On a coarser grid times are rounded down:
    what is refuted there is refuted, but an order found there may in truth be longer; then a finer grid is next.
    """
    for unit_s, exact in _grids(problem):
        if exact:
            bound_s = -_slots(-bound_s, unit_s) * unit_s
        while not agree(bound_s, best.makespan_s) and monotonic() < deadline:
            below_s = best.makespan_s * (1 - EQUAL / 2)
            horizon_s = min(bound_s if exact else bound_s + unit_s, below_s)
            programme = _Programme(problem, unit_s, horizon_s)
            if programme.num_binaries > MAX_BINARIES:
                break
            rows = programme.solve(deadline - monotonic())
            if programme.refuted:
                bound_s = horizon_s + (unit_s if exact else 0.0)
                continue
            if rows is None or not fits(problem, rows):  # by less than what the solver calls nothing
                break
            ordering = evaluate(problem, rows)
            if ordering.makespan_s >= below_s:
                break
            best = ordering
    return bound_s, best


def _grids(problem: Problem) -> Iterator[tuple[float, bool]]:
    """The lengths of a slot to try, in seconds, and whether every time is a multiple of it."""
    passes = [one for chain in problem.chains for one in chain.passes]
    durations_s = [one.duration_s for one in passes]
    shortest_s = min(durations_s)
    if shortest_s <= 0:
        return
    unit_s = common_unit_s([*durations_s, *(one.lag_s for one in passes)])
    if unit_s is not None and shortest_s <= EXACT_SLOTS * unit_s * (1 + EQUAL):
        yield unit_s, True
    else:
        for slots in COARSE_SLOTS:
            yield shortest_s / slots, False


def common_unit_s(times_s: Iterable[float]) -> float | None:
    """The longest time of which all are multiples; None where it would be very short."""
    times_s = [time_s for time_s in times_s if time_s > 0]
    shortest_s = min(times_s)
    ratios = [Fraction(time_s / shortest_s).limit_denominator(EXACT_SLOTS) for time_s in times_s]
    below = math.lcm(*(ratio.denominator for ratio in ratios))
    unit_s = shortest_s * math.gcd(*(int(ratio * below) for ratio in ratios)) / below
    fine = all(abs(round(t / unit_s) * unit_s - t) <= EQUAL * t for t in times_s)
    return unit_s if fine else None


def _slots(time_s: float, unit_s: float) -> int:
    """Whole slots in a time, allowing for rounding in sums of floats."""
    slots = time_s / unit_s
    return math.floor(slots + FORGIVEN * max(1.0, abs(slots)))


_Turn = tuple[int, int]
"""A pass of a micro-batch: its lane, and its place among those that take the lane."""


class _Programme:
    """The integer programme of whether an order ends within a horizon: binaries say by which slot a pass has begun.

    ``z(lane, micro-batch, t)`` is 1 if the pass has begun by slot t. Before its head it has not, from the
    horizon less its tail on it has; only in between there is a binary. Times are rounded down to whole slots:
    then so can be the starts of any real order, and it still keeps every rule below.

    Attributes:
        refuted: No order ends within the horizon.
    """

    def __init__(self, problem: Problem, unit_s: float, horizon_s: float) -> None:
        self.problem = problem
        self.lanes = lanes_of(problem)
        self.num_slots = _slots(horizon_s, unit_s) + 1
        self.duration = [_slots(lane.duration_s, unit_s) for lane in self.lanes]
        self.reach = [_slots(lane.duration_s + lane.lag_s, unit_s) for lane in self.lanes]
        around_s = zip(self.lanes, heads(problem, self.lanes), tails(problem, self.lanes), strict=True)
        self.windows = {
            (number, index): (_slots(head, unit_s), _slots(horizon_s - tail - lane.duration_s, unit_s))
            for number, (lane, *times_s) in enumerate(around_s)
            for index, (head, tail) in enumerate(zip(*times_s, strict=True))
        }
        self.refuted = any(first > last for first, last in self.windows.values())
        self.num_binaries = sum(last - first for first, last in self.windows.values())

    def solve(self, limit_s: float) -> Rows | None:
        """Rows that end in time, or None: refuted, or not answered within the limit."""
        if self.refuted:
            return None
        self.pulp = _load_pulp()
        with warnings.catch_warnings():
            # PuLP 3.3 announces how 4 will want models written, which this project does not allow yet
            warnings.simplefilter("ignore", DeprecationWarning)
            self._write()
            if self.refuted:
                return None
            self.model.solve(self.pulp.HiGHS(msg=False, timeLimit=max(limit_s, 0.1)))
        # at its time limit HiGHS through PuLP is "Optimal" by status, by sol_status it is not
        self.refuted = self.model.sol_status == self.pulp.LpSolutionInfeasible
        return self._rows() if self.model.sol_status == self.pulp.LpSolutionOptimal else None

    def _z(self, turn: _Turn, slot: int) -> Any:  # noqa: ANN401
        first, last = self.windows[turn]
        if first <= slot < last:
            return self.binaries[turn][slot - first]
        return int(slot >= last)

    def _at_most(self, terms: Iterable[tuple[float, Any]], limit: float) -> None:
        """Add the constraint that a sum is at most a limit, unless it always is."""
        free = []
        for factor, z in terms:
            if isinstance(z, int):
                limit -= factor * z
            else:
                free.append((z, factor))
        if sum(min(factor, 0.0) for _, factor in free) > limit:
            self.refuted = True
        elif sum(max(factor, 0.0) for _, factor in free) > limit:
            pulp = self.pulp
            self.model.addConstraint(
                pulp.LpConstraint(pulp.LpAffineExpression(free), pulp.LpConstraintLE, rhs=limit)
            )

    def _write(self) -> None:
        self.model = self.pulp.LpProblem("order")
        self.binaries = {
            turn: [
                self.pulp.LpVariable(f"z_{turn[0]}_{turn[1]}_{t}", 0, 1, "Integer") for t in range(*window)
            ]
            for turn, window in self.windows.items()
        }
        self.model.addVariables(list(chain.from_iterable(self.binaries.values())))
        backward = {lane.stage: number for number, lane in enumerate(self.lanes) if lane.kind == BACKWARD}
        limits = limits_of(self.problem)
        for number, index in self.windows:
            lane = self.lanes[number]
            self._follow((number, index), (number, index), -1)
            if index:
                self._follow((number, index - 1), (number, index), self.duration[number])
            if lane.following is not None:
                self._follow((number, index), (lane.following, index), self.reach[number])
            if lane.kind == FORWARD and index >= (limit := limits[lane.stage]):
                freeing = backward[lane.stage]  # it makes room
                self._follow((freeing, index - limit), (number, index), self.duration[freeing])
        for device in range(self.problem.num_devices):
            self._write_device(device)

    def _follow(self, before: _Turn, after: _Turn, slots: int) -> None:
        """Let one pass begin at least so many slots after another (Eq. 10 and 11)."""
        for slot in range(self.windows[after][0], self.windows[before][1] + slots):
            self._at_most([(1, self._z(after, slot)), (-1, self._z(before, slot - slots))], 0)

    def _write_device(self, device: int) -> None:
        """Let a device run one pass at a time (Eq. 7)."""
        turns = [turn for turn in self.windows if self.lanes[turn[0]].device == device]
        for slot in range(self.num_slots):
            begun = [(1.0, self._z(turn, slot)) for turn in turns]
            ended = [(-1.0, self._z(turn, slot - self.duration[turn[0]])) for turn in turns]
            self._at_most(begun + ended, 1.0)

    def _rows(self) -> Rows:
        begun: list[list[tuple[int, StageAction]]] = [[] for _ in range(self.problem.num_devices)]
        for (number, index), (_, last) in self.windows.items():
            lane = self.lanes[number]
            slot = last - sum(z.varValue > 0.5 for z in self.binaries[number, index])
            micro_batch = self.problem.chains[lane.chain].micro_batches[index]
            begun[lane.device].append((slot, StageAction(lane.stage, lane.kind, micro_batch)))
        return tuple(tuple(action for _, action in sorted(row)) for row in begun)


def _load_pulp() -> Any:  # noqa: ANN401
    """PuLP once it can call HiGHS."""
    try:
        import pulp  # noqa: PLC0415

        there = pulp.HiGHS(msg=False).available()
    except (ImportError, AttributeError):  # PuLP before 2.7 has no HiGHS
        there = False
    if not there:
        raise InputError("schedule synthesis needs PuLP and HiGHS: pip install 'pulp<4' highspy")
    return pulp
