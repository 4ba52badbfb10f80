"""Bands from published numbers: what is left of them where nothing was set by them, by device, stack and method.

The error of compute is that of one GPU's latencies without what was published of it, and of training within one node.
What a method adds is the error of several GPUs where the model starts from one GPU's published latency, of speedups
over another method, and of training on several nodes over that on one.
"""

import json
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from statistics import geometric_mean
from typing import Final

from profiles.architectures.anchors import Anchor
from profiles.architectures.models import model_names
from profiles.costs.bands import (
    ANCHORED,
    ANY,
    DATA_PARALLEL,
    FAMILIES,
    FEWEST,
    METHODS,
    ONE_GPU,
    PATCHES,
    PIPELINE,
    Band,
    Bands,
    Evidence,
    Spread,
    load_bands,
)
from profiles.machines.clusters import cluster_names
from profiles.software.stacks import DEFAULT_STACK
from validate.fitting.anchors import attention_share, factor
from validate.points import cluster_of, model_of
from validate.published.clusters import SETS, ClusterRun, read_runs
from validate.published.ledger import Ledger
from validate.published.records import Record
from validate.published.sampling.runs import Run, same_number
from validate.published.standings import Standing
from validate.writing import write_file

COMMAND: Final = "python -m validate published --bands"
PRIORS: Final = {
    ONE_GPU: (
        0.8,
        1.35,
        "ten published runs of training within a node, on three stacks, lie between 0.84 and 1.13",
    ),
    ANCHORED: (
        0.87,
        1.15,
        "Stable Diffusion 3 and Hunyuan-DiT on one A100, published twice each, 14 and 11 % apart",
    ),
    DATA_PARALLEL: (
        0.96,
        1.04,
        "DiffusionPipe, Table 2, on 8 GPUs, where little is awaited: synchronisation is up to 4 points of the iteration"
        " off; what more GPUs await is of exposed",
    ),
    PIPELINE: (
        0.76,
        1.35,
        "the worst of DiffusionPipe's and PULSE's speedups: 1.28 over 1.06, and 1.1 over 1.48",
    ),
    PATCHES: (0.66, 1.35, "10 and 90 % quantiles of published runs on several GPUs under eager"),
}
"""Low, high and source of the bands of methods of which too few numbers are known."""
LITTLE: Final = 0.1
"""Share of the time in which data are awaited, below which the error is the method's, not that of what is awaited."""


@dataclass(frozen=True, slots=True)
class Miss:
    """Measured over estimated seconds of one published number, and what it is of.

    ``exposed`` is the share of the estimated time in which GPUs wait for data on the wire.
    """

    device: str
    stack: str
    method: str
    ratio: float
    source: str
    exposed: float = 0.0


def alone() -> Iterator[Miss]:
    """Published latencies of one GPU over estimates that nothing was scaled by."""
    for name in model_names():
        for anchor in model_of(name).anchors:
            if attention_share(name, anchor) is not None:  # set what attention reaches
                continue
            yield Miss(anchor.device, DEFAULT_STACK, ONE_GPU, factor(name, anchor), "anchors.csv")


def elsewhere() -> Iterator[Miss]:
    """Published latencies of one GPU over those of the same that other sources print."""
    for name in model_names():
        anchors = model_of(name).anchors
        for one in anchors:
            others = [
                other.latency_s / other.steps
                for other in anchors
                if _place(other) == _place(one)
                and _paper(other) != _paper(one)
                and not same_number(other.latency_s / other.steps, one.latency_s / one.steps)
            ]
            if others:
                ratio = one.latency_s / one.steps / geometric_mean(others)
                yield Miss(one.device, DEFAULT_STACK, ANCHORED, ratio, "anchors.csv")


def _place(anchor: Anchor) -> tuple[str, int, int, int]:
    return anchor.device, anchor.height, anchor.width, anchor.batch


def _paper(anchor: Anchor) -> str:
    return anchor.source.partition(",")[0]


def on_one(runs: Iterable[Run]) -> Iterator[Miss]:
    """Published latencies of one GPU that set nothing over those predicted."""
    for run in runs:
        place, error = run.place, run.error
        if place is None or error is None or place.num_gpus != 1:
            continue
        if run.record.standing is not Standing.INDEPENDENT:
            continue
        device, stack = place.cluster.device.name, place.stack.name.split()[0]
        scaled = stack == DEFAULT_STACK and any(a.device == device for a in model_of(place.model).anchors)
        kind = ANCHORED if scaled else ONE_GPU
        yield Miss(device, stack, kind, 1 / (1 + error), run.row.published.paper)


def together(runs: Iterable[Run]) -> Iterator[Miss]:
    """Published latencies of several GPUs over those predicted from one GPU's."""
    for run in runs:
        place, outcome, error = run.place, run.outcome, run.error
        if (
            place is None
            or outcome is None
            or error is None
            or run.record.standing is not Standing.INDEPENDENT
        ):
            continue
        device = place.cluster.device.name
        if place.num_gpus > 1 and any(a.device == device for a in model_of(place.model).anchors):
            exposed = outcome.expected.exposed_communication_s / outcome.latency_s
            stack = place.stack.name.split()[0]
            yield Miss(device, stack, PATCHES, 1 / (1 + error), run.row.published.paper, exposed)


def trainings(runs: Iterable[ClusterRun]) -> Iterator[Miss]:
    """Predicted over published throughput within one node, and that on several over that of the same run on one."""
    within: dict[tuple[str, object, str], float] = {}
    for run in sorted(runs, key=lambda run: int(run.asked["gpus"])):
        predicted = run.predicted()
        if predicted is None:
            continue
        cluster, ratio = cluster_of(run.cluster), predicted / run.samples_per_s
        device, stack = run.device or cluster.device.name, run.stack.name.split()[0]
        key = run.name, run.asked["resolution"], run.stack.name
        if int(run.asked["gpus"]) <= cluster.devices_per_node:
            within[key] = ratio
            if run.role != SETS:
                yield Miss(device, stack, ONE_GPU, ratio, run.name)
        elif key in within:
            yield Miss(device, stack, DATA_PARALLEL, ratio / within[key], run.name)


def speedups(records: Iterable[Record]) -> Iterator[Miss]:
    """Predicted over published speedups of a pipeline over another method: the seconds of one over the other's."""
    for record in records:
        row, error = record.row, record.error
        if row.quantity != "speedup" or record.standing is not Standing.INDEPENDENT or error is None:
            continue
        if row.machine in cluster_names() and "partition" not in row.method:
            device = cluster_of(row.machine).device.name
            yield Miss(device, DEFAULT_STACK, PIPELINE, 1 + error, row.paper)


def waits(records: Iterable[Record]) -> list[float]:
    """Published over predicted seconds of exposed synchronisation, in units of the compute beside it."""
    found = []
    for record in records:
        share = record.predicted
        if (
            record.row.quantity == "synchronisation_ratio"
            and record.standing is Standing.INDEPENDENT
            and share
        ):
            published = record.row.value
            found.append(published / (1 - published) / (share / (1 - share)))
    return found


def bands_of(misses: Iterable[Miss], waits: list[float], known: Bands) -> Bands:
    """The bands with those that published numbers make in place of the ones they made before."""
    exposed = known.exposed
    if len(waits) >= FEWEST:
        words = f"{COMMAND}: exposed synchronisation, DiffusionPipe, Table 2"
        exposed = Spread(Band.of_ratios(waits).spread, len(waits), words)
    groups: dict[tuple[str, str, str], list[Miss]] = {}
    for miss in misses:
        key = known.family(miss.device), miss.stack, miss.method
        groups.setdefault(key, []).append(miss)
    made = [_evidence(key, own) for key, own in groups.items() if len(own) >= FEWEST]
    anything = [_of_any(family, method, made) for family in FAMILIES for method in METHODS]
    return replace(known, exposed=exposed, evidence=tuple(sorted((*anything, *made), key=_order)))


def _of_any(family: str, method: str, made: list[Evidence]) -> Evidence:
    """The band under a stack of which nothing is known: what those of the family, else of all, span; else the prior."""
    there = [one for one in made if one.method == method]
    own = [one for one in there if one.family == family] or there
    if not own:
        low, high, words = PRIORS[method]
        return Evidence(family, ANY, method, Band(low, high), 0, f"prior: {words}")
    band = Band(min(one.band.low for one in own), max(one.band.high for one in own))
    words = f"{COMMAND}: what the bands of other stacks span"
    return Evidence(family, ANY, method, band, sum(one.rows for one in own), words)


def _evidence(key: tuple[str, str, str], misses: list[Miss]) -> Evidence:
    """The band of some misses; of those in which little is awaited, where there are enough of them."""
    quiet = [miss for miss in misses if miss.exposed < LITTLE]
    chosen = quiet if len(quiet) >= FEWEST else misses
    words = f"{COMMAND}: {', '.join(sorted({miss.source for miss in chosen}))}"
    return Evidence(*key, Band.of_ratios(miss.ratio for miss in chosen), len(chosen), words)


def _order(one: Evidence) -> tuple[int, int, str]:
    return FAMILIES.index(one.family), METHODS.index(one.method), one.stack


def write_bands(path: Path, ledger: Ledger, runs: Iterable[Run]) -> None:
    """Write the bands that the published numbers make, with the priors and devices of those that are shipped."""
    runs = list(runs)
    misses = [*alone(), *elsewhere(), *trainings(read_runs()), *on_one(runs), *together(runs)]
    misses += speedups(ledger.records)
    write_file(path, text_of(bands_of(misses, waits(ledger.records), load_bands())), "--bands")


HEAD: Final = """\
# Measured over estimated seconds: 10 and 90 % quantiles of published numbers that set nothing they are held against.
# "one GPU" is the error of compute, also where it starts from published latencies ("anchored"); the other methods are
# what they add to it; exposed is the error of the seconds in
# which data are awaited. Tables with rows are written by `python -m validate published --bands profiles/bands.toml`;
# those without are priors. devices.measured: products and attention have laws fitted to kernels measured on that chip.
"""


def text_of(bands: Bands) -> str:
    """The text of a file of bands."""
    devices = f"measured = {json.dumps(bands.measured)}\nexact = {json.dumps(bands.exact)}\n"
    parts = [HEAD, f"[devices]\n{devices}"]
    parts += [_spread_text(name, of) for name, of in (("repeat", bands.repeat), ("exposed", bands.exposed))]
    return "\n".join([*parts, *map(_band_text, bands.evidence)])


def _spread_text(name: str, of: Spread) -> str:
    return f"[{name}]\nspread = {of.spread:.4g}\nrows = {of.rows}\nsource = {_quoted(of.source)}\n"


def _band_text(one: Evidence) -> str:
    said = "\n".join(f"{key} = {_quoted(getattr(one, key))}" for key in ("family", "stack", "method"))
    numbers = f"low = {one.band.low:.4g}\nhigh = {one.band.high:.4g}\nrows = {one.rows}"
    return f"[[band]]\n{said}\n{numbers}\nsource = {_quoted(one.source)}\n"


_quoted: Final[Callable[[str], str]] = json.dumps
