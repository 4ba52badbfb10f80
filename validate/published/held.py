"""Published latencies of several GPUs, held against bands that their source did not make.

A source is all numbers of the same authors, who share boxes. Each row is predicted without the anchors of its source,
and once more with compute scaled to the same source's latency of one GPU, as ``--measured`` does.
"""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from math import log
from statistics import mean
from typing import Any, Final, NamedTuple

from profiles.costs.bands import SAMPLING, Band, Bands, Circumstances, Uncertainty
from sim.inputs.calibrating import Number, measure
from sim.outcomes.runs import run_point
from validate.published.records import Record, Standing
from validate.published.runs import FREE_LINK, Run, outcome_of, scenario_of
from validate.tables import Section, percent

INSIDE: Final = 0.8
"""Share of measured values within a band."""
ENOUGH: Final = 12
"""Rows from which on a group is judged."""
BOUNDS: Final = (0.75, 0.90)
"""Shares between which the rows inside a band of eight in ten may lie."""


@dataclass(frozen=True, slots=True)
class Held:
    """A published latency of several GPUs, and logarithms of it over the predicted ones.

    Attributes:
        before: error of the prediction without the source's anchors.
        after: error of that with compute scaled to the source's latency of one GPU.
    """

    record: Record
    model: str
    run: Circumstances
    before: float
    after: float

    @property
    def source(self) -> str:
        """Its authors."""
        return self.record.row.authors


def held_rows(runs: Iterable[Run]) -> Iterator[Held]:
    """The rows of several GPUs whose source printed the same run on one GPU, each number once."""
    timed = [run for run in runs if run.row.latency_s and run.record.standing is not Standing.APART]
    alone = {_same(run): run for run in reversed(timed) if run.place.num_gpus == 1}
    factors = dict[tuple[object, ...], Any]()
    for run in timed:
        place, key = run.place, _same(run)
        if key not in alone or place.num_gpus == 1 or place.cluster.intra_node == FREE_LINK:
            continue
        if key not in factors:
            one = alone[key]
            number = Number("latency_s", one.row.latency_s or 0.0)
            factors[key] = measure(one.sampler, scenario_of(one.left_out), number, {})
        there = run.left_out
        before = outcome_of(there, run.sampler)
        after = run_point(run.sampler, replace(scenario_of(there), measured=factors[key]))
        errors = (log((run.row.latency_s or 0.0) / latency_s.latency_s) for latency_s in (before, after))
        known, device = before.uncertainty, there.cluster.device.name
        circumstances = Circumstances(
            device, known.alike, known.exposed, anchored=there.anchored, gpus=there.num_gpus,
            link=there.cluster.intra_node.kind, step_s=before.latency_s / there.steps,
            pixels=there.height * there.width, ranges=(known.ranges,),
        )  # fmt: skip
        yield Held(run.record, place.model, circumstances, *errors)


def _same(run: Run) -> tuple[object, ...]:
    """What a run shares with that on one GPU."""
    place = run.place
    question = (place.model, place.cluster.name, place.height, place.width, place.steps, place.stack.name)
    return run.row.published.authors, question


class Score(NamedTuple):
    """A row held against its bands: whether they hold it, and interval scores, before and after calibration.

    The interval score is the width of a band, with ten times the distance by which a number misses it, in logarithms
    (Gneiting and Raftery, Strictly Proper Scoring Rules, 2007, equation 43, at 80 %).
    """

    row: Held
    inside: tuple[bool, bool]
    scores: tuple[float, float]


def scored(row: Held, bands: Bands) -> Score:
    """A row held against the bands."""
    uncertainty = bands.uncertainty(SAMPLING, row.run)
    after = uncertainty.after(
        Uncertainty(shared=uncertainty.shared, repeat=uncertainty.repeat, alike=("single",))
    )
    both = [(row.before, uncertainty.band), (row.after, after.band)]
    inside, scores = zip(*(_against(error, band) for error, band in both), strict=True)
    return Score(row, inside, scores)


def _against(error: float, band: Band) -> tuple[bool, float]:
    """Whether a band holds an error, and its interval score."""
    low, high = log(band.low), log(band.high)
    missed = max(low - error, error - high, 0.0)
    return missed == 0, high - low + 2 / (1 - INSIDE) * missed


LINKS: Final = {"nvswitch": "NVLink", "pcie": "PCIe"}
GROUPS: Final = ("all", "2 GPUs", "4 GPUs", "8 GPUs", "1024 px", "2048 px", "4096 px", *LINKS.values())
"""The groups of rows that bands are to hold, beside those of each source."""


def groups_of(row: Held) -> tuple[str, ...]:
    """The groups of a row."""
    pixels = row.record.row.resolution_px
    return "all", f"{row.run.gpus} GPUs", f"{pixels} px", LINKS.get(row.run.link, ""), row.source


def coverage_table(scores: Sequence[Score]) -> Section:
    """How many rows lie in the bands that the other sources made, by group and by source."""
    rows = []
    for name in (*GROUPS, *sorted({one.row.source for one in scores})):
        if group := [one for one in scores if name in groups_of(one.row)]:
            shares = [mean(inside) for inside in zip(*(one.inside for one in group), strict=True)]
            widths = (f"{mean(scores):.3f}" for scores in zip(*(one.scores for one in group), strict=True))
            held = all(BOUNDS[0] <= one <= BOUNDS[1] for one in shares)
            words = "too few to judge" if len(group) < ENOUGH else "" if held else "outside 75 to 90 %"
            rows.append([name, f"{len(group)}", *map(percent, shares), *widths, words])
    header = ("rows", "how many", "inside", "after `--measured`", "interval score", "after `--measured`", "")
    remark = (
        "Sampling on several GPUs. Bands of eight in ten, each made without the authors of the rows that it holds;"
        " their anchors are left out of the prediction too; `--measured` is the same authors' latency of one GPU. The"
        " interval score (Gneiting and Raftery, 2007) is the width in logarithms, and ten times what a number lies"
        " outside."
    )
    return Section("Bands held against sources that did not make them", header, rows, remark)
