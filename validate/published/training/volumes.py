"""Bytes per sample that PULSE publishes, beside those on the simulator's wire.

The paper counts some cells in one direction and some in both, and does not give every pipeline degree; each cell is
compared with every convention, and the nearest is named.

Source: PULSE, Table III and section VII-C2; its MB is MiB.
"""

from collections.abc import Iterator, Sequence
from functools import cache
from typing import Any, Final, NamedTuple

from profiles.checks import sum_in_order
from profiles.units import MIB
from validate.points import forward_bytes, replayed, scenario
from validate.published.ledger import error_words
from validate.published.records import Published, Record, published
from validate.published.training.experiment import Found, experiment
from validate.published.training.throughput import Task, base_of

DEGREES: Final = (4, 8)
PIPELINES: Final = ("pulse", "wave", "1f1b")
WAYS: Final = ("forwards", "both ways")
"""What the paper may count: what is sent forwards, or gradients too."""


@cache
def volume(task: Task, strategy: str, degree: int) -> dict[str, float]:
    """MiB that one iteration of a pipeline sends per sample in its replayed messages, by way of counting.

    Hidden states, skips and what is carried with them go forwards, the gradients of the first two backwards.
    """
    batch = task.num_gpus
    point = scenario(task.model, task.cluster, task.num_gpus, batch, self_conditioning=0.0)
    trace = replayed(strategy, point, pipeline_degree=degree, micro_batches=degree)
    sizes = (forward_bytes(trace), trace.p2p_bytes)
    return {way: size / batch / MIB for way, size in zip(WAYS, sizes, strict=True)}


class Reading(NamedTuple):
    """One way to count a cell, with its value in MiB per sample."""

    degree: int
    way: str
    value: float

    def __str__(self) -> str:
        return f"P = {self.degree}, {self.way}"


def readings(row: Published, degrees: Sequence[int] = DEGREES) -> list[Reading]:
    """The values of a pipeline's cell, counted every way."""
    task, strategy = Task.of(row), row.method.split()[0]
    return [Reading(degree, way, volume(task, strategy, degree)[way]) for degree in degrees for way in WAYS]


def nearest(row: Published, found: Sequence[Reading]) -> tuple[Reading, Record]:
    """The reading that comes closest to the printed number, and its record."""
    best = min(found, key=lambda reading: abs(reading.value - row.value))
    return best, Record.of(row, best.value, f"nearest of {len(found)} conventions: {best}")


@experiment
def pipeline_volumes() -> Found:
    """The cells of Table III that are messages of pipelines."""
    for row in _cells(PIPELINES):
        found = readings(row)
        best, record = nearest(row, found)
        yield record
        cells = [f"{row.value:.2f}", *(f"{reading.value:.2f}" for reading in found), f"{best}"]
        yield [_name(row), *cells, error_words(record)]


@experiment
def messages() -> Found:
    """Section VII-C2: MiB per sample in messages, by degree."""
    for row in published("VII-C2", quantity="p2p_MB_per_sample"):
        found = readings(row, [int(row.method.split("=")[1])])
        _, record = nearest(row, found)
        yield record
        values = [f"{reading.value:.2f}" for reading in found]
        yield [f"{row.model}, {row.method}", f"{row.value:g}", *values, error_words(record)]


@experiment
def reduction_volumes() -> Found:
    """The cells of Table III that are ZeRO-2's gradients: what one device sends in reduce-scatters."""
    for row in _cells(["zero2"]):
        task = Task.of(row)
        samples = base_of(task).micro_batch
        found = reduced(task, samples)
        record = Record.of(row, found, f"{samples} samples per device, fp16 gradients")
        yield record
        yield [_name(row), f"{row.value:.2f}", f"{samples}", f"{found:.2f}", error_words(record)]


def _cells(methods: Sequence[str]) -> Iterator[Published]:
    return (row for of in methods for row in published("Table III", method=of))


def _name(row: Published) -> str:
    return f"{row.method}, {row.model}, {row.machine}"


def reduced(task: Task, samples: int) -> float:
    """MiB per sample that one device of ZeRO-2 sends in reduce-scatters."""
    batch = samples * task.num_gpus
    how: dict[str, Any] = {"self_conditioning": 0.0, "memory_recipe": "mixed-fp16-gradient"}
    point = scenario(task.model, task.cluster, task.num_gpus, batch, **how)
    trace = replayed("zero2", point, overlap="none")
    collectives = trace.plan.collectives
    scattered = sum_in_order(one.size_bytes for one in collectives if one.operation == "reduce_scatter")
    share = scattered / sum_in_order(one.size_bytes for one in collectives)
    return share * trace.collective_bytes / batch / MIB
