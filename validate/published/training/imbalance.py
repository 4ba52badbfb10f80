"""The gain of PULSE's skip-aware partition: longest stages and throughput against block-wise stages.

Source: PULSE, sections IV and VII-C1, Figs. 6, 7 and 13.
"""

from collections.abc import Iterator
from typing import Any, Final, NamedTuple

from profiles.checks import sum_in_order
from sim.explore.pulse_equations import schedule_s
from sim.outcomes.results import Result
from strategies.training.pulse import Pulse
from validate.points import scenario, trained
from validate.published.records import Record, the_published
from validate.published.training.experiment import Found, experiment
from validate.published.training.models import Costs, costs_of
from validate.tables import percent

DEGREES: Final = (2, 4, 8)
MICRO_BATCH: Final = 32
"""Samples of a micro-batch in Fig. 7."""
BASE_DEGREE: Final = 4
PARTITIONS: Final = ("symmetric", "blocks")


class Gain(NamedTuple):
    """One pipeline of ``degree`` positions and micro-batches, with the skip-aware partition and with block-wise stages.

    ``by_equation`` is the throughput of the first over the second if every step took as long as the slowest (Eq. 15).
    """

    degree: int
    aware: Result
    blocks: Result
    by_equation: float

    @property
    def imbalance(self) -> float:
        """Longest over mean forward time of the block-wise stages."""
        times = _forwards_s(self.blocks)
        return max(times) * len(times) / sum_in_order(times)

    @property
    def shorter(self) -> float:
        """Share by which the longest forward of a stage is shorter than with block-wise stages."""
        return 1 - max(_forwards_s(self.aware)) / max(_forwards_s(self.blocks))

    @property
    def faster(self) -> float:
        """Throughput over that of block-wise stages."""
        return self.aware.samples_per_s / self.blocks.samples_per_s


def _forwards_s(of: Result) -> list[float]:
    """Seconds of the forward of each stage."""
    return [float(stage["forward_s"]) for stage in of.stages]


def gains(costs: Costs, num_gpus: int, p2p: str) -> Iterator[Gain]:
    """The gain at each degree, with as many micro-batches, of ``MICRO_BATCH`` samples, as positions."""
    for degree in DEGREES:
        how: dict[str, Any] = {"memory_recipe": "pulse", "placement": "data-inner", "stack": costs.stack}
        batch = MICRO_BATCH * num_gpus
        point = scenario(costs.model, "v100-2node", num_gpus, batch, self_conditioning=0.0, **how)
        asked = {"pipeline_degree": degree, "micro_batches": degree, "p2p": p2p}
        aware, blocks = (trained("pulse", point, partition=of, **asked) for of in PARTITIONS)
        layouts = (Pulse(degree, degree, partition=of, p2p=p2p).layout(point) for of in PARTITIONS)
        aware_s, blocks_s = (schedule_s(point, layout) for layout in layouts)
        yield Gain(degree, aware, blocks, blocks_s / aware_s)


def _base_first(found: list[Gain]) -> list[Gain]:
    return sorted(found, key=lambda gain: gain.degree != BASE_DEGREE)


@experiment
def longest_stages() -> Found:
    """Section IV-B: the longest stage, and the imbalance of Fig. 6."""
    row, imbalance = the_published("IV-B"), the_published("IV-A")
    yield ["published", *([f"up to {imbalance.value:g}, {percent(-row.value)}"] * len(DEGREES))]
    for words, costs in costs_of(row.model).items():
        found = list(gains(costs, 8, "overlapped"))
        yield [words, *(f"{gain.imbalance:.1f}, {percent(-gain.shorter)}" for gain in found)]
        for gain in _base_first(found):
            setting = f"{words}; P = {gain.degree}"
            yield Record.of(row, gain.shorter, setting)
            yield Record.of(imbalance, gain.imbalance, setting)


@experiment
def partition_speed_ups() -> Found:
    """Section VII-C1: throughput with the skip-aware partition over that with block-wise stages."""
    row = the_published("VII-C1")
    yield ["published", *([f"up to {row.value:g}"] * len(DEGREES))]
    for words, costs in costs_of(row.model).items():
        waiting, overlapped = (list(gains(costs, 16, p2p)) for p2p in ("blocking", "overlapped"))
        overlapping = {gain.degree: gain.faster for gain in overlapped}
        cells = (f"{w.faster:.2f}, {overlapping[w.degree]:.2f}, {w.by_equation:.2f}" for w in waiting)
        yield [words, *cells]
        for wait in _base_first(waiting):
            ratios = (wait.faster, overlapping[wait.degree], wait.by_equation)
            for how, ratio in zip(("blocking", "overlapped", "by Eq. 15"), ratios, strict=True):
                yield Record.of(row, ratio, f"{words}; P = {wait.degree}; {how}")
