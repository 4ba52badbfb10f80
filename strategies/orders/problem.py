"""The problem: passes to be ordered on the devices of a pipeline, the least seconds around each, and an order's times.

Every micro-batch walks the *lanes* of its chain: the forward of each stage, then the backward of each stage in
reverse. A lane serves its micro-batches in order. Source: PULSE, section V, Eq. 6-13, on a fixed device map.
"""

from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import accumulate, groupby, repeat, starmap
from math import inf
from operator import attrgetter
from typing import Final, NamedTuple

from profiles.errors import DeadlockError
from strategies.plans.actions import BACKWARD, BACKWARD_WEIGHT, FORWARD, Rows, StageAction, passes_of
from strategies.plans.worklist import Step, walk


class Pass(NamedTuple):
    """One kind of pass of a stage: its seconds, and those from its end to the micro-batch's next pass."""

    stage: int
    kind: str
    duration_s: float
    lag_s: float


class Chain(NamedTuple):
    """One pipeline through the devices: the passes of a micro-batch, and the numbers of those that take them."""

    passes: Sequence[Pass]
    micro_batches: Sequence[int]


@dataclass(frozen=True, slots=True)
class Problem:
    """The passes to be ordered.

    Attributes:
        chains: The pipelines; each stage belongs to one of them.
        positions: The device of each stage.
        in_flight: Most micro-batches that each stage may hold between its forward's start and its backward's end.
    """

    chains: tuple[Chain, ...]
    positions: tuple[int, ...]
    in_flight: tuple[int, ...] | None = None

    @property
    def num_devices(self) -> int:
        """Devices that the stages live on."""
        return max(self.positions) + 1


class Ordering(NamedTuple):
    """An order and its times.

    Attributes:
        rows: The actions of each device, in order.
        starts_s: When each of them starts, in seconds.
        makespan_s: When the last of them ends, in seconds.
    """

    rows: Rows
    starts_s: tuple[tuple[float, ...], ...]
    makespan_s: float


class Lane(NamedTuple):
    """One pass of a stage, which the micro-batches of its chain take one after the other.

    Attributes:
        tail_s: What a micro-batch needs from its end to the end of the chain, in seconds.
        following: Number of the next lane of its chain; None at the end.
    """

    stage: int
    kind: str
    duration_s: float
    lag_s: float
    device: int
    chain: int
    tail_s: float
    following: int | None


def wave_positions(degree: int, waves: int = 1) -> tuple[int, ...]:
    """The device of each of the 2 x waves x degree stages, laid out down and up again."""
    return (*range(degree), *reversed(range(degree))) * waves


def wave_problem(
    degree: int, micro_batches: int, waves: int = 1, forward_s: float = 1.0, backward_s: float = 2.0
) -> Problem:
    """The problem of one chain of equal stages laid out in waves, on free links."""
    positions = wave_positions(degree, waves)
    count = len(positions)
    passes = there_and_back(range(count), [forward_s] * count, [backward_s] * count, [0.0] * (count - 1))
    return Problem((Chain(passes, range(micro_batches)),), positions)


def there_and_back(
    stages: Sequence[int],
    forward_s: Sequence[float],
    backward_s: Sequence[float],
    hops_s: Sequence[float],
) -> list[Pass]:
    """The forwards of stages and, in reverse, their backwards; ``hops_s`` are between neighbours, both ways."""
    lags_s = (0.0, *hops_s, 0.0)
    forwards = zip(stages, repeat(FORWARD), forward_s, lags_s[1:], strict=False)
    backwards = zip(stages, repeat(BACKWARD), backward_s, lags_s, strict=False)
    return [*starmap(Pass, forwards), *reversed([*starmap(Pass, backwards)])]


def lanes_of(problem: Problem) -> list[Lane]:
    """The lanes, chain after chain, each in the order in which a micro-batch takes them."""
    lanes: list[Lane] = []
    for number, chain in enumerate(problem.chains):
        of_chain: list[Lane] = []
        tail_s, following = 0.0, None
        for index, one in reversed([*enumerate(chain.passes, len(lanes))]):
            tail_s += one.lag_s
            of_chain.append(Lane(*one, problem.positions[one.stage], number, tail_s, following))
            tail_s += one.duration_s
            following = index
        lanes += reversed(of_chain)
    return lanes


def heads(problem: Problem, lanes: Sequence[Lane]) -> list[list[float]]:
    """For each lane and micro-batch of its chain the seconds before which it cannot start.

    The micro-batch comes from lane to lane, those before it take their turn in each, and where a stage may hold
    only so many, an earlier one must have ended there.
    """
    result: list[list[float]] = []
    for walked in _walks(lanes):
        result += _before_s(problem, walked, [0.0, *(lane.lag_s for lane in walked[:-1])])
    return result


def tails(problem: Problem, lanes: Sequence[Lane]) -> list[list[float]]:
    """For each lane and micro-batch of its chain the seconds that must follow its end: heads, from the end on."""
    result: list[list[float]] = []
    for walked in _walks(lanes):
        backwards = walked[::-1]
        rows = _before_s(problem, backwards, [lane.lag_s for lane in backwards])
        result += [row[::-1] for row in rows[::-1]]
    return result


def _walks(lanes: Sequence[Lane]) -> Iterator[list[Lane]]:
    """The lanes of each chain."""
    return (list(walked) for _, walked in groupby(lanes, attrgetter("chain")))


def _before_s(problem: Problem, walked: Sequence[Lane], lags_s: Sequence[float]) -> list[list[float]]:
    """For each lane of a walk, with the lag before it, and each micro-batch the least seconds before it."""
    count = len(problem.chains[walked[0].chain].micro_batches)
    limits = limits_of(problem)
    half = len(walked) // 2
    rows = [[0.0] * count for _ in walked]
    # micro-batches by which the first half may lead the other pass of the same stage: one more waits for it
    leads = [limits[lane.stage] if place < half else count for place, lane in enumerate(walked)]
    durations_s = [lane.duration_s for lane in walked]
    steps = [*zip(rows, lags_s, durations_s, leads, rows[::-1], durations_s[::-1], strict=True)]
    for index in range(count):
        reach_s = 0.0
        for row, lag_s, duration_s, lead, freeing, freeing_s in steps:
            reach_s += lag_s
            if index and (queued_s := row[index - 1] + duration_s) > reach_s:
                reach_s = queued_s
            if index >= lead and (freed_s := freeing[index - lead] + freeing_s) > reach_s:
                reach_s = freed_s
            row[index] = reach_s
            reach_s += duration_s
    return rows


def limits_of(problem: Problem) -> list[int]:
    """For each stage the most micro-batches that it may ever hold at once, at least 1."""
    most = max(len(chain.micro_batches) for chain in problem.chains)
    limits = problem.in_flight or (most,) * len(problem.positions)
    return [max(1, limit) for limit in limits]


def follow(
    chains: Iterable[Chain],
    rows: Sequence[Sequence[StageAction]],
    begins_s: Sequence[float],
) -> list[list[tuple[StageAction, float, float]]]:
    """Return each device's passes with their starts and ends, as far as they get."""
    known: dict[StageAction, Step] = {}
    filled_s: list[float] = []
    for passes, numbers in chains:
        for place, one in enumerate(passes):
            first, ahead = len(filled_s), len(numbers) if place < len(passes) - 1 else 0
            for slot, action in enumerate(passes_of(one.stage, one.kind, numbers), first):
                known[action] = (slot,), one.duration_s, ((slot + ahead, one.lag_s),) if ahead else ()
            filled_s += [inf if place else 0.0] * len(numbers)
    steps = [[known[action] for action in row] for row in rows]
    starts = walk(steps, filled_s, begins_s)
    return [
        [(action, at, at + step[1]) for action, at, step in zip(row, row_starts, row_steps, strict=False)]
        for row, row_starts, row_steps in zip(rows, starts, steps, strict=True)
    ]


def evaluate(problem: Problem, rows: Sequence[Sequence[StageAction]]) -> Ordering:
    """Return the times of an order: each pass starts as soon as its device and its input are there.

    Whether it stays within the limits is not asked; see ``fits``.

    Raises:
        DeadlockError: the order can never be carried out.
    """
    spans = follow(problem.chains, rows, [0.0] * len(rows))
    stuck = [
        f"device {device} waits in {row[len(done)]}"
        for device, (row, done) in enumerate(zip(rows, spans, strict=True))
        if len(done) < len(row)
    ]
    if stuck:
        raise DeadlockError("deadlock: " + "; ".join(stuck))
    starts_s = tuple(tuple(start for _, start, _ in done) for done in spans)
    return Ordering(tuple(map(tuple, rows)), starts_s, max(done[-1][-1] for done in spans if done))


def fits(problem: Problem, rows: Sequence[Sequence[StageAction]]) -> bool:
    """Return whether an order keeps within the limits of a problem."""
    stages = enumerate(problem.positions)
    of_stages = ([action for action in rows[at] if action.stage == stage] for stage, at in stages)
    return all(held <= limit for held, limit in zip(peak_held(of_stages), limits_of(problem), strict=True))


def peak_held(rows: Iterable[Sequence[StageAction]]) -> list[int]:
    """Return the most activations of stages that each device holds at once in an order."""
    steps = ((1 if action.kind == FORWARD else -1 for action in row) for row in rows)
    return [max(accumulate(of_row), default=0) for of_row in steps]


def most_in_flight(rows: Rows) -> list[int]:
    """Return for each stage the micro-batches that it holds when its position is fullest."""
    counts: Counter[int] = Counter()
    for row in rows:
        changes = [_ACTIVATIONS.get(action.kind, 0) for action in row]
        held = list(accumulate(changes))
        full = held.index(max(held))
        for action, change in zip(row[: full + 1], changes, strict=False):
            counts[action.stage] += change
    return [counts[stage] for stage in range(max(counts) + 1)]


_ACTIVATIONS: Final = {FORWARD: 1, BACKWARD: -1, BACKWARD_WEIGHT: -1}
"""The activations that a pass adds to those its position holds."""
