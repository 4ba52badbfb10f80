"""Results: what is predicted and measured of each schedule, as a table and as files written whole or not at all.

Partitions share memory and its cache, so an op takes longer beside others, and how many others run depends on the
schedule. The prediction therefore takes each op as long as alone, plus what all others busy add to it, times the share
of the others that are busy meanwhile; as the simulation says, over and over until it says the same again. Nothing is
fitted: both durations are measured without the schedule. The two extremes are predicted as well.
"""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from statistics import mean
from typing import Final, NamedTuple

import torch

from sim.replay.engine import simulate
from sim.replay.metrics import idle_s
from strategies.plans.plan import Op, Plan
from strategies.plans.traces import Trace
from validate.green.iteration import Durations, Span
from validate.measuring.environment import environment, toml_lines
from validate.printing import show, table
from validate.writing import csv_text, write_files

ROUNDS: Final = 50
SETTLED: Final = 1e-6
"""An iteration that changes by a smaller share than this between two simulations changes no more."""


class Prediction(NamedTuple):
    """What the simulator says of one iteration; ``alone_s`` and ``busy_s`` where every op takes as long as so."""

    end_s: float
    bubble_ratio: float
    alone_s: float
    busy_s: float


def predict(plan: Plan, alone: Durations, busy: Durations) -> Prediction:
    """The prediction of an iteration from the seconds of each op while all others are idle, and while they are busy."""
    trace = _shared(plan, alone, busy)
    extremes = [simulate(with_durations(plan, durations)).end_s for durations in (alone, busy)]
    return Prediction(trace.end_s, idle_s(trace) / trace.end_s, *extremes)


def with_durations(plan: Plan, durations: Durations) -> Plan:
    """A plan whose ops take so long, and whose tensors are there when their op ends."""
    rows = (
        tuple(_timed(op, seconds) for op, seconds in zip(row, own, strict=True))
        for row, own in zip(plan.ops, durations, strict=True)
    )
    return replace(plan, ops=tuple(rows))


def _timed(op: Op, seconds: float) -> Op:
    writes = op.writes + tuple(tensor for _, tensor in op.early)
    return replace(op, duration_s=seconds, writes=writes, early=())


def _shared(plan: Plan, alone: Durations, busy: Durations) -> Trace:
    """The trace in which each op takes as long as the others that run beside it let it."""
    shares = [[1.0] * len(row) for row in alone]
    end_s = 0.0
    for _ in range(ROUNDS):
        durations = [
            [a + (b - a) * share for a, b, share in zip(*rows, strict=True)]
            for rows in zip(alone, busy, shares, strict=True)
        ]
        trace = simulate(with_durations(plan, durations))
        if abs(trace.end_s - end_s) <= SETTLED * trace.end_s:
            break
        end_s = trace.end_s
        found = busy_shares([list(trace.busy(device)) for device in range(plan.num_devices)])
        shares = [
            [(x + y) / 2 for x, y in zip(*pair, strict=True)] for pair in zip(shares, found, strict=True)
        ]
    return trace


def busy_shares(rows: Sequence[Sequence[Span]]) -> list[list[float]]:
    """For each op of each device the share of the other devices that are busy while it runs, in the mean."""
    return [
        [_share(span, [other for number, other in enumerate(rows) if number != device]) for span in row]
        for device, row in enumerate(rows)
    ]


def _share(span: Span, others: Sequence[Sequence[Span]]) -> float:
    start, end = span
    if end <= start or not others:
        return 0.0
    overlap = sum(max(0.0, min(end, b) - max(start, a)) for row in others for a, b in row)
    return overlap / (end - start) / len(others)


BOUND, WORST_BOUND = 0.05, 0.10
REHEARSAL: Final = "rehearsal, threads of one CPU: the times say nothing of a GPU"
SHOWN: Final = ("schedule", "measured", "predicted", "error", "alone", "busy", "bubbles", "predicted", "note")


@dataclass(frozen=True, slots=True)
class Measured:
    """What was measured of a schedule, and predicted, in seconds; medians over rounds.

    ``late_s`` is by how much the slowest message took longer than the link it stands for; ``gradient_error`` is of the
    same plan, from those of a single process.
    """

    rounds: int
    measured_s: float
    least_s: float
    most_s: float
    bubble_ratio: float
    prediction: Prediction
    gradient_error: float
    late_s: float
    enqueue_s: float

    @property
    def error(self) -> float:
        """Predicted over measured makespan, less one."""
        return self.prediction.end_s / self.measured_s - 1


@dataclass(frozen=True, slots=True)
class Result:
    """A schedule and what came of it; ``note`` says why nothing was measured, or what is wrong with it."""

    schedule: str
    partitions: int
    sms: int
    micro_batches: int
    measured: Measured | None = None
    note: str = ""


def _ms(seconds: float) -> str:
    return f"{1e3 * seconds:.4f}"


ASKED: Final = ("schedule", "partitions", "sms", "micro_batches")
FOUND: Final[dict[str, Callable[[Measured], str]]] = {
    "rounds": lambda found: str(found.rounds),
    "measured_ms": lambda found: _ms(found.measured_s),
    "least_ms": lambda found: _ms(found.least_s),
    "most_ms": lambda found: _ms(found.most_s),
    "predicted_ms": lambda found: _ms(found.prediction.end_s),
    "alone_ms": lambda found: _ms(found.prediction.alone_s),
    "busy_ms": lambda found: _ms(found.prediction.busy_s),
    "bubble_ratio": lambda found: f"{found.bubble_ratio:.4f}",
    "predicted_bubble_ratio": lambda found: f"{found.prediction.bubble_ratio:.4f}",
    "gradient_error": lambda found: f"{found.gradient_error:.1e}",
    "late_ms": lambda found: _ms(found.late_s),
    "enqueue_ms": lambda found: f"{1e3 * found.enqueue_s:.3f}",
}
COLUMNS: Final = (*ASKED, *FOUND, "note")


def write_results(
    folder: Path, name: str, results: Sequence[Result], device: torch.device, rehearsal: bool
) -> None:
    """Write ``green-<name>.csv`` and, beside it, what it was measured with."""
    header = {"what": REHEARSAL} if rehearsal else {}
    lines = toml_lines({**header, **environment(device)})
    text = csv_text(COLUMNS, map(_cells, results))
    write_files(
        folder, {Path(f"green-{name}.csv"): text, Path(f"green-{name}.toml"): "\n".join(lines) + "\n"}
    )


def _cells(result: Result) -> list[str]:
    found = result.measured
    cells = ["-" if found is None else text(found) for text in FOUND.values()]
    return [*(str(getattr(result, name)) for name in ASKED), *cells, result.note]


def print_results(name: str, results: Sequence[Result], *, rehearsal: bool) -> None:
    """Print the schedules, measured and predicted, in milliseconds, and the errors."""
    title = f"{name}: pipelines on parts of one device" + (f" ({REHEARSAL})" if rehearsal else "")
    rows = [(result.schedule, *_row(result.measured), result.note) for result in results]
    show(150, table(title, SHOWN, rows, left=("schedule", "note")))
    for line in summary(results, rehearsal=rehearsal):
        print(line)


def _row(found: Measured | None) -> Iterator[str]:
    if found is None:
        yield from [""] * 7
        return
    predicted = found.prediction
    yield f"{1e3 * found.measured_s:.2f}"
    yield f"{1e3 * predicted.end_s:.2f}"
    yield f"{100 * found.error:+.1f} %"
    yield f"{100 * (predicted.alone_s / found.measured_s - 1):+.1f} %"
    yield f"{100 * (predicted.busy_s / found.measured_s - 1):+.1f} %"
    yield f"{found.bubble_ratio:.3f}"
    yield f"{predicted.bubble_ratio:.3f}"


def summary(results: Sequence[Result], *, rehearsal: bool) -> Iterator[str]:
    """Yield mean and worst error, beside the bounds where it is a GPU that was measured."""
    errors = [abs(result.measured.error) for result in results if result.measured is not None]
    if errors:
        bounds = "" if rehearsal else f" (to reach: {BOUND:.0%} and {WORST_BOUND:.0%})"
        counted = f"of {len(errors)} of {len(results)} schedules"
        yield f"makespan: mean error {mean(errors):.1%}, worst {max(errors):.1%}, {counted}{bounds}"
    if rehearsal:
        yield REHEARSAL
