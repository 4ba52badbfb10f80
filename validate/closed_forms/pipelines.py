"""Closed forms of pipelines: how long an iteration takes, which share of it is idle, what a device holds.

P positions, M micro-batches, f and b seconds of the forward and the backward of one stage on one micro-batch
(b = 2 f), v chunks per position; equal stages, free links.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache
from typing import Final

from profiles.synthetic import equal_layers_model
from sim.replay.memory import peak_memory_bytes, resident_bytes
from sim.replay.metrics import idle_s
from strategies.plans.traces import Trace
from validate.closed_forms.forms import Form, trained

DEGREES: Final = (2, 4, 8)
ROUNDS: Final = (1, 2, 4)
CHUNKS: Final = (2, 4)
FORWARD_S: Final = 1.0
SOURCE: Final = "longest paths of the named order"


@dataclass(frozen=True, slots=True)
class Case:
    """One pipeline: strategy, degree, micro-batches, stages per position."""

    strategy: str
    degree: int
    count: int
    chunks: int = 1

    def __str__(self) -> str:
        chunks = f", v = {self.chunks}" if self.strategy == "interleaved" else ""
        return f"P = {self.degree}, M = {self.count}{chunks}"

    @property
    def work_s(self) -> float:
        """Seconds in which one device computes."""
        return 3 * FORWARD_S * self.chunks * self.count

    def form(self, what: str, formula: str, expected: float, simulated: float, source: str = SOURCE) -> Form:
        """Return one value of this pipeline."""
        return Form(f"{self.strategy}: {what}", str(self), formula, expected, simulated, source)


@cache
def _replayed(case: Case) -> Trace:
    """Return the replay of a pipeline whose stages are one layer each."""
    model = equal_layers_model(case.degree * case.chunks, FORWARD_S, saved_bytes=1.0)
    asked = {"micro_batches": case.count}
    if case.strategy == "interleaved":
        asked["chunks"] = case.chunks
    return trained(model, case.strategy, case.degree, case.count, **asked)


def _timed(case: Case, formula: str, bubble_s: float) -> Iterator[Form]:
    """Yield the iteration's time, which is the work and a bubble, and the bubble's share of it."""
    trace = _replayed(case)
    whole_s = case.work_s + bubble_s
    yield case.form("seconds", formula, whole_s, trace.end_s)
    yield case.form(
        "bubble ratio", "1 - M v (f + b) / seconds", bubble_s / whole_s, idle_s(trace) / trace.end_s
    )


def _held(case: Case, formula: str, expected: float) -> Form:
    """Return the activations that the fullest device holds, in those of one stage and micro-batch."""
    trace = _replayed(case)
    held = float((peak_memory_bytes(trace) - resident_bytes(trace)).max())
    return case.form("activations held", formula, expected, held)


def linear() -> Iterator[Form]:
    """Yield GPipe and 1F1B: the same time, not the same activations."""
    for degree in DEGREES:
        for count in (rounds * degree for rounds in ROUNDS):
            for name in ("gpipe", "1f1b"):
                case = Case(name, degree, count)
                yield from _timed(case, "(M + P - 1) (f + b)", 3 * FORWARD_S * (degree - 1))
                most = count if name == "gpipe" else min(count, degree)
                yield _held(case, "M" if name == "gpipe" else "min(M, P)", most)


def interleaved() -> Iterator[Form]:
    """Yield the interleaved schedule; f and b are of one chunk."""
    for degree in DEGREES:
        for count in (rounds * degree for rounds in ROUNDS):
            for chunks in CHUNKS:
                case = Case("interleaved", degree, count, chunks)
                yield from _timed(case, "(M v + P - 1) (f + b)", 3 * FORWARD_S * (degree - 1))
                most = min(count * chunks, 2 * (degree - 1) + (chunks - 1) * degree + 1)
                yield _held(case, "min(M v, 2 (P - 1) + (v - 1) P + 1)", most)


def zero_bubble() -> Iterator[Form]:
    """Yield ZB-H1, whose backward is an input part B and a weight part W, here of f each."""
    for degree in DEGREES:
        for count in (rounds * degree for rounds in ROUNDS):
            case = Case("zero-bubble", degree, count)
            yield from _timed(case, "M (f + B + W) + (P - 1) (f + B - W)", (degree - 1) * FORWARD_S)
            yield _held(case, "P", degree)


def chimera() -> Iterator[Form]:
    """Yield Chimera, concatenated from K units of P micro-batches."""
    for degree in DEGREES:
        for units in (1, 2, 3):
            case = Case("bidirectional", degree, units * degree)
            bubble_s = (degree - 2) * (2 + (units - 1)) * FORWARD_S
            yield from _timed(case, "M (f + b) + (P - 2) (b + (K - 1) (b - f))", bubble_s)
            yield _held(case, "P / 2 + 1 + (P / 2 - 1)", degree)


def wave() -> Iterator[Form]:
    """Yield one wave of as many micro-batches as positions, on stages half as long (f and b are of one)."""
    for degree in DEGREES:
        case = Case("wave", degree, degree, 2)
        yield from _timed(case, "2 P (f + b) + 2 (P - 1) b", 2 * (degree - 1) * 2 * FORWARD_S)
        yield _held(case, "2 P", 2 * degree)


def pulse() -> Iterator[Form]:
    """Yield PULSE's own order of such a wave on free links."""
    for degree in DEGREES:
        case = Case("pulse", degree, degree, 2)
        yield from _timed(case, "(10 P - 4) f", 2 * (degree - 1) * 2 * FORWARD_S)
