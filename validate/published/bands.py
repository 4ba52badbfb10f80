"""The errors that published numbers show, as the package ships them: bands of times, and trust in predictions.

Bands come from numbers that set nothing, by device, stack and method. The error of compute is that of one-GPU latencies
without anchors, and of training within one node. What a method adds is the error on several GPUs where one GPU's
published latency is the anchor, of speedups over another method, and of training on several nodes over that on one.
Trust is the errors of independent numbers, by task, family of devices and kind of method.
"""

import tomllib
from collections.abc import Iterable, Iterator
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from statistics import geometric_mean, median
from typing import Final, NamedTuple

from profiles.architectures.components import Anchor
from profiles.architectures.models import model_names
from profiles.costs import bands as shipped
from profiles.costs.bands import Band, Bands, Evidence, Spread, load_bands
from profiles.costs.trust import COLUMNS, Trust
from profiles.files import read_text
from profiles.machines.clusters import cluster_names
from profiles.measuring.tables import grouped
from profiles.measuring.writing import csv_text, toml_text, write_file
from profiles.software.stacks import DEFAULT_STACK
from validate.fitting.anchors import attention_share, factor
from validate.points import cluster_of, model_of
from validate.published.clusters import SETS, ClusterRun, read_runs
from validate.published.ledger import Ledger
from validate.published.records import METHODS_OF_KIND, OTHER, TASKS, TIMES, Record, Standing
from validate.published.runs import Run

COMMAND: Final = "python -m validate published --bands"
PRIORS: Final = tomllib.loads(read_text(Path(__file__).with_name("priors.toml")))
"""The head of the file of bands, and the bands of methods with too few numbers."""
TWICE: Final = 0.002
"""Relative difference below which two numbers of one run count as one measurement, rounded in two ways."""
LITTLE: Final = 0.1
"""Share of the time in which data are awaited, below which the error is the method's, not that of the links."""


@dataclass(frozen=True, slots=True)
class Miss:
    """Measured over estimated seconds of one published number, with its device, stack, method and source.

    ``exposed`` is the share of the estimated time in which GPUs wait for data on the wire.
    """

    device: str
    stack: str
    method: str
    ratio: float
    source: str
    exposed: float = 0.0


def anchored() -> Iterator[Miss]:
    """Published latencies of one GPU over estimates without them, and over others' numbers of the same run."""
    for name, one in ((model, anchor) for model in model_names() for anchor in model_of(model).anchors):
        if attention_share(name, one) is None:  # else it set what attention reaches
            yield Miss(one.device, DEFAULT_STACK, shipped.ONE_GPU, factor(name, one), "anchors.csv")
        step_s = one.latency_s / one.steps
        others = [
            other.latency_s / other.steps
            for other in model_of(name).anchors
            if _place(other) == _place(one)
            and _paper(other) != _paper(one)
            and abs(other.latency_s / other.steps / step_s - 1) >= TWICE
        ]
        if others:
            ratio = step_s / geometric_mean(others)
            yield Miss(one.device, DEFAULT_STACK, shipped.ANCHORED, ratio, "anchors.csv")


def _place(anchor: Anchor) -> tuple[str, int, int, int]:
    return anchor.device, anchor.height, anchor.width, anchor.batch


def _paper(anchor: Anchor) -> str:
    return anchor.source.partition(",")[0]


def sampled(runs: Iterable[Run]) -> Iterator[Miss]:
    """Independent published latencies over predicted ones; those of several GPUs where one GPU's is the anchor."""
    for run in runs:
        place, outcome, error = run.place, run.outcome, run.error
        judged = run.record.standing is Standing.INDEPENDENT
        if place is None or outcome is None or error is None or not judged:
            continue
        device, stack, several = place.cluster.device.name, place.stack.name.split()[0], place.num_gpus > 1
        known = any(anchor.device == device for anchor in model_of(place.model).anchors)
        if several and not known:
            continue
        alone = shipped.ANCHORED if known and stack == DEFAULT_STACK else shipped.ONE_GPU
        exposed = outcome.expected.exposed_communication_s / outcome.latency_s if several else 0.0
        kind = shipped.PATCHES if several else alone
        yield Miss(device, stack, kind, 1 / (1 + error), run.row.published.paper, exposed)


def trainings(runs: Iterable[ClusterRun]) -> Iterator[Miss]:
    """Predicted over published throughput within one node; that ratio on several nodes over that on one."""
    within: dict[tuple[str, object, str], float] = {}
    for run in sorted(runs, key=lambda run: int(run.options["gpus"])):
        predicted = run.predicted()
        if predicted is None:
            continue
        cluster, ratio = cluster_of(run.cluster), predicted / run.samples_per_s
        device, stack = run.device or cluster.device.name, run.stack.name.split()[0]
        key = run.name, run.options["resolution"], run.stack.name
        if int(run.options["gpus"]) <= cluster.devices_per_node:
            within[key] = ratio
            if run.role != SETS:
                yield Miss(device, stack, shipped.ONE_GPU, ratio, run.name)
        elif key in within:
            yield Miss(device, stack, shipped.DATA_PARALLEL, ratio / within[key], run.name)


def speedups(records: Iterable[Record]) -> Iterator[Miss]:
    """Predicted over published speedups of a pipeline over another method: the seconds of one over the other's."""
    for record in records:
        row, error = record.row, record.independent_error
        wanted = row.quantity == "speedup" and "partition" not in row.method
        if wanted and error is not None and row.machine in cluster_names():
            device = cluster_of(row.machine).device.name
            yield Miss(device, DEFAULT_STACK, shipped.PIPELINE, 1 + error, row.paper)


def waits(records: Iterable[Record]) -> list[float]:
    """Published over predicted seconds of exposed synchronisation, each relative to the compute of its run."""
    ratios = []
    for record in records:
        published, share = record.row.value, record.predicted
        wanted = record.row.quantity == "synchronisation_ratio" and record.standing is Standing.INDEPENDENT
        if wanted and share:
            ratios.append(published / (1 - published) / (share / (1 - share)))
    return ratios


def bands_of(misses: Iterable[Miss], waits: list[float], known: Bands) -> Bands:
    """Bands made anew from published numbers, with the devices and repeats of the known ones."""
    exposed = known.exposed
    if len(waits) >= shipped.FEWEST:
        words = f"{COMMAND}: exposed synchronisation, DiffusionPipe, Table 2"
        exposed = Spread(Band.of_ratios(waits).spread, len(waits), words)
    groups = grouped(misses, lambda miss: (known.family(miss.device), miss.stack, miss.method))
    made = [_evidence(key, group) for key, group in groups.items() if len(group) >= shipped.FEWEST]
    anything = [_of_any(family, method, made) for family in shipped.FAMILIES for method in shipped.METHODS]
    ordered = sorted(
        (*anything, *made),
        key=lambda one: (shipped.FAMILIES.index(one.family), shipped.METHODS.index(one.method), one.stack),
    )
    return replace(known, exposed=exposed, evidence=tuple(ordered))


def _of_any(family: str, method: str, made: list[Evidence]) -> Evidence:
    """The band under an unknown stack: the span of the family's bands, else of all families'; else the prior."""
    there = [one for one in made if one.method == method]
    known = [one for one in there if one.family == family] or there
    if not known:
        low, high, words = PRIORS["methods"][method].values()
        return Evidence(family, shipped.ANY, method, Band(low, high), 0, f"prior: {words}")
    band = Band(min(one.band.low for one in known), max(one.band.high for one in known))
    words = f"{COMMAND}: what the bands of other stacks span"
    return Evidence(family, shipped.ANY, method, band, sum(one.rows for one in known), words)


def _evidence(key: tuple[str, str, str], misses: list[Miss]) -> Evidence:
    """The band of some misses; only of those in which little is awaited, if there are enough of them."""
    quiet = [miss for miss in misses if miss.exposed < LITTLE]
    chosen = quiet if len(quiet) >= shipped.FEWEST else misses
    words = f"{COMMAND}: {', '.join(sorted({miss.source for miss in chosen}))}"
    return Evidence(*key, Band.of_ratios(miss.ratio for miss in chosen), len(chosen), words)


def write_bands(path: Path, ledger: Ledger, runs: Iterable[Run]) -> None:
    """Write the bands of the published numbers, with the priors, and the devices of the shipped bands."""
    misses = [*anchored(), *trainings(read_runs()), *sampled(runs)]
    misses += speedups(ledger.records)
    write_file(path, text_of(bands_of(misses, waits(ledger.records), shipped.load_bands())))


def text_of(bands: Bands) -> str:
    """The text of a file of bands."""
    values: dict[str, object] = {"devices": {"measured": bands.measured, "exact": bands.exact}}
    values |= {"repeat": asdict(bands.repeat), "exposed": asdict(bands.exposed)}
    values["band"] = [
        {"family": one.family, "stack": one.stack, "method": one.method}
        | {"low": one.band.low, "high": one.band.high, "rows": one.rows, "source": one.source}
        for one in bands.evidence
    ]
    return f"{PRIORS['head']}{toml_text(values, '.4g')}"


PIPELINE: Final = "pipeline"


class Error(NamedTuple):
    """The absolute relative error of one prediction, with its task, family and kind."""

    task: str
    family: str
    kind: str
    error: float


def errors(records: Iterable[Record]) -> Iterator[Error]:
    """The errors of independent times and throughputs, and of pipelines' speedups over other methods."""
    records, bands = list(records), load_bands()
    for one in records:
        error, conditions = one.independent_error, one.conditions
        if error is not None and conditions is not None and one.row.quantity in TIMES:
            family = bands.family(conditions.device, timed=one.provenance == "measured")
            yield Error(one.row.task, family, conditions.kind, abs(error))
    for miss in speedups(records):
        yield Error(TASKS[0], bands.family(miss.device), PIPELINE, abs(miss.ratio - 1))


def trusts(records: Iterable[Record]) -> list[Trust]:
    """Trust by task, family and kind, in that order; strategies that do not ship have none."""
    groups = grouped((one for one in errors(records) if one.kind != OTHER), lambda one: one[:3])
    sizes = {key: [one.error for one in group] for key, group in sorted(groups.items())}
    return [
        Trust(task, family, kind, tuple(METHODS_OF_KIND[kind]), len(each), median(each), max(each))
        for (task, family, kind), each in sizes.items()
    ]


def write_trust(path: Path, ledger: Ledger) -> None:
    """Write the trust that follows from a ledger."""
    lines = [trust.cells for trust in trusts(ledger.records)]
    write_file(path, csv_text(COLUMNS, lines))
