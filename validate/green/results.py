"""Results: what came of each schedule, as a table and as files that are written whole or not at all."""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import mean
from typing import Final

import torch

from validate.green.predicting import Prediction
from validate.measuring.environment import environment, toml_lines
from validate.printing import show, table
from validate.writing import csv_text, write_files

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
