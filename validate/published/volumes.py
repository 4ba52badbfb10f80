"""Bytes per sample that PULSE prints, beside those on the simulator's wire.

The paper counts some cells one way and some both, and does not print every pipeline degree; each cell is put beside
every convention, and the nearest is named.

Source: PULSE, Table III; its MB is MiB.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cache
from typing import Final

from profiles.units import MIB
from sim.runs import replay
from strategies.plans.traces import Trace
from strategies.registry import make_strategy
from validate.published.rows import Prediction, Published, Section, published
from validate.published.scenes import scenario
from validate.published.settings import Task, base_of

DEGREES: Final = (4, 8)
PIPELINES: Final = ("pulse", "wave", "1f1b")
WAYS: Final = ("forwards", "both ways")
"""What the paper may count: what is sent forwards, gradients too."""
CHOSEN: Final = "chooses how it is counted"
"""What a cell does whose convention is the one that comes nearest to it."""
SAMPLES_FROM: Final = "v100-2node"
"""The machine whose cells of ZeRO-2 set the samples per device."""
EXACT: Final = 5e-4
"""Relative error below which a printed number is met: its rounding."""
REASONS: Final = {
    (
        "pulse",
        "sdv2-4.6b",
    ): "the printed cuts lie deeper in the U-Net than those that balance its estimated times",
    (
        "wave",
        "uvit-2.7b",
    ): "146 a; relayed over 8 stages it is 156 a both ways; no convention tried gives 146",
    (
        "wave",
        "sdv2-4.6b",
    ): "the U-Net's shape is a guess: here as in 1F1B's V100 cell 1.37 times as much is printed",
    ("wave", "hunyuan-3b"): "no convention tried gives either; the 910A's number stands under ZeRO-2 again",
    (
        "1f1b",
        "uvit-2.7b",
    ): "200 a; relayed it is 206 a, or 198 a if the tensor after a skip's source is sent once",
    ("1f1b", "sdv2-4.6b"): "the U-Net's shape is a guess",
    ("1f1b", "hunyuan-3b"): "one skip of 5.5 MiB less is printed, 165 a and 7 times what is carried",
}
"""What is known of a missed cell, by method and model; a is the size of a hidden state."""


@cache
def volume(task: Task, strategy: str, degree: int) -> dict[str, float]:
    """Return the MiB that one iteration of a pipeline sends per sample, read off its replayed messages, by way.

    Forwards go hidden states, skips and what is carried with them, backwards the gradients of the first two.
    """
    batch = task.num_gpus
    point = scenario(task.model, task.cluster, task.num_gpus, batch, self_conditioning=0.0)
    asked = {"pipeline_degree": degree, "micro_batches": degree}
    trace = replay(make_strategy(strategy, asked), point)
    both_ways = trace.p2p_bytes / batch / MIB
    return dict(zip(WAYS, ((1 - _gradient_share(trace)) * both_ways, both_ways), strict=True))


def _gradient_share(trace: Trace) -> float:
    """Return the share of gradients in the bytes of all messages."""
    messages = [transfer for transfer in trace.wiring.transfers if transfer is not None]
    sizes = [(m.size_bytes, "gradient" in trace.plan.tensors[m.tensor].role) for m in messages]
    return sum(size for size, back in sizes if back) / sum(size for size, _ in sizes)


@dataclass(frozen=True, slots=True)
class Reading:
    """One way to count a cell, and what comes out."""

    degree: int
    way: str
    value: float

    def __str__(self) -> str:
        return f"P = {self.degree}, {self.way}"


def readings(row: Published, degrees: Sequence[int] = DEGREES) -> list[Reading]:
    """Return what a cell of a pipeline comes out as, counted every way."""
    strategy = row.method.split()[0]
    return [
        Reading(degree, way, volume(Task.of(row), strategy, degree)[way])
        for degree in degrees
        for way in WAYS
    ]


def nearest(row: Published, found: Sequence[Reading]) -> Reading:
    """Return the reading that comes closest to the printed number."""
    return min(found, key=lambda reading: abs(reading.value - row.value))


def pipeline_volumes() -> Section:
    """Return the cells of Table III that are messages of pipelines."""
    rows: list[list[str]] = []
    predictions: list[Prediction] = []
    for row in _cells(PIPELINES):
        found = readings(row)
        best = nearest(row, found)
        prediction = Prediction(row, best.value, f"nearest of {len(found)} conventions: {best}", CHOSEN)
        predictions.append(prediction)
        values = [f"{reading.value:.2f}" for reading in found]
        rows.append(
            [_name(row), f"{row.value:.2f}", *values, f"{best}", prediction.error, _reason(prediction)]
        )
    header = [f"P = {degree}, {way}" for degree in DEGREES for way in WAYS]
    return Section(
        "PULSE, Table III: MiB per sample in messages between devices",
        ("method, model, machine", "published", *header, "nearest", "error", "why"),
        rows,
        predictions=predictions,
    )


def _cells(methods: Sequence[str]) -> Iterator[Published]:
    return (row for of in methods for row in published("Table III", method=of))


def _name(row: Published) -> str:
    return f"{row.method}, {row.model}, {row.cluster}"


def _reason(prediction: Prediction) -> str:
    assert prediction.relative_error is not None
    if abs(prediction.relative_error) < EXACT:
        return "exact"
    return REASONS[prediction.row.method, prediction.row.model]


def reduction_volumes() -> Section:
    """Return the cells of Table III that are ZeRO-2's gradients: what one device sends in reduce-scatters."""
    rows: list[list[str]] = []
    predictions: list[Prediction] = []
    for row in _cells(["zero2"]):
        task = Task.of(row)
        samples = base_of(task).micro_batch
        setting = f"{samples} samples per device, fp16 gradients"
        sets = "sets the samples per device" if row.cluster == SAMPLES_FROM else ""
        prediction = Prediction(row, reduced(task, samples), setting, sets)
        predictions.append(prediction)
        rows.append(
            [_name(row), f"{row.value:.2f}", f"{samples}", f"{prediction.simulated:.2f}", prediction.error]
        )
    return Section(
        "PULSE, Table III: MiB per sample that ZeRO-2 sends in reduce-scatters of half-precision gradients",
        ("method, model, machine", "published", "samples per device", "simulated", "error"),
        rows,
        "The samples are the power of two that the V100's cell asks for, so only the error within a factor of 1.4 is a"
        " prediction. The V100's cells of U-ViT and SDv2 come out without the factor (N - 1) / N, which the replay has."
        " The 910A's are 0.78 of the V100's, for which no convention was found; Hunyuan's stands under Hanayo again.",
        predictions,
    )


def reduced(task: Task, samples: int) -> float:
    """Return the MiB per sample that one device of ZeRO-2 sends in reduce-scatters."""
    batch = samples * task.num_gpus
    point = scenario(
        task.model, task.cluster, task.num_gpus, batch,
        self_conditioning=0.0, memory_recipe="mixed-fp16-gradient",
    )  # fmt: skip
    trace = replay(make_strategy("zero2", {"overlap": "none"}), point)
    sizes = {of.operation: 0.0 for of in trace.plan.collectives}
    for of in trace.plan.collectives:
        sizes[of.operation] += of.size_bytes
    share = sizes["reduce_scatter"] / sum(sizes.values())
    return share * trace.collective_bytes / batch / MIB
