"""The errors that published numbers show, as the package ships them: the spreads that bands are made of.

The error of compute is that of one-GPU latencies, each without the anchors of its own source; where others' anchors are
left, it is that of anchored compute; in training, which runs other kernels too, that of runs within one node. What
sampling on several GPUs adds is the error left when the same source's latency of one GPU sets the pace; of training on
several nodes that over one; of pipelines that of speedups over another method. A spread is the value that eight of ten
errors do not exceed. Where it holds only for one family of devices, or one kind of link, it is drawn toward that of all
rows, which counts as twelve rows more; that of small passes toward twice that of all, however few they are. A kind of
link that no row is of has the widest spread of those that are known.
"""

import tomllib
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import asdict, replace
from functools import cache
from itertools import chain
from math import expm1, log, sqrt
from pathlib import Path
from statistics import median
from typing import Final, NamedTuple

import numpy as np

from profiles.architectures.models import model_names
from profiles.costs import bands as parts
from profiles.costs.bands import Bands, Circumstances, Shape, Spread, load_bands
from profiles.costs.trust import COLUMNS, MISSES, OWN, Errors, Trust
from profiles.files import read_text
from profiles.machines.clusters import IDEAL, INTER_NODE, INTRA_NODE, cluster_names
from profiles.measuring.writing import csv_text, grouped, toml_text
from profiles.names import known_name
from validate.points import cluster_of
from validate.published.clusters import SETS, SETS_HOST, ClusterRun, read_runs
from validate.published.held import ENOUGH, INSIDE, Held, Score, held_rows, scored
from validate.published.ledger import Ledger
from validate.published.records import (
    METHODS_OF_KIND,
    TASKS,
    TIMES,
    UNSAID,
    Record,
    Standing,
    authors_of,
)
from validate.published.runs import Run, all_runs, outcome_of, scenario_of
from validate.tables import write_file

COMMAND: Final = "python -m validate published --bands"
PRIORS: Final = tomllib.loads(read_text(Path(__file__).with_name("priors.toml")))
"""The head of the file of bands, and the spreads of parts with too few numbers."""
SHAPE: Final = Shape(**PRIORS["shape"])
"""How the error of scaling grows: fixed, as too few sources could choose it."""


class Miss(NamedTuple):
    """Logarithm of measured over estimated seconds of a published number: one part of the error, and its source.

    That of scaling is on ``gpus`` GPUs over ``base``.
    """

    part: str
    where: str
    source: str
    error: float
    gpus: int = 1
    base: int = 1


class Misses(NamedTuple):
    """Errors of published numbers, and latencies of several GPUs that bands hold; devices and repeats as shipped."""

    misses: tuple[Miss, ...]
    held: tuple[Held, ...]
    known: Bands = load_bands()

    def without(self, source: str) -> "Misses":
        """The errors of all other sources."""
        misses = tuple(one for one in self.misses if one.source != source)
        return self._replace(misses=misses, held=tuple(one for one in self.held if one.source != source))

    def bands(self) -> Bands:
        """The bands that follow."""
        scaled = [
            Miss(parts.SAMPLING, row.run.link, row.source, at_one(SHAPE, row.after, row.run))
            for row in self.held
        ]
        for miss in self.misses:
            between = (SHAPE.of(1.0, miss.gpus) ** 2 - SHAPE.of(1.0, miss.base) ** 2) ** 0.5
            scaled.append(miss._replace(error=miss.error / between) if between else miss)
        by_part = grouped(scaled, lambda miss: miss.part)
        spreads = [spread for part in parts.PARTS[:-1] for spread in pooled(part, by_part.get(part, []))]
        repeat = next(one for one in self.known.spreads if one.part == parts.PARTS[-1])
        unknown = unmeasured([one for one in spreads if one.part == parts.SAMPLING])
        return replace(self.known, shape=SHAPE, spreads=(*spreads, *unknown, repeat))


def at_one(shape: Shape, error: float, run: Circumstances) -> float:
    """The error of scaling at one doubling, from that of a run, less what fixed seconds make of it."""
    return sqrt(max(0.0, error**2 - (shape.fixed_s / run.step_s) ** 2)) / shape.doublings(run.gpus)


def spread_of(errors: Iterable[float]) -> float:
    """Spread of some errors in logarithms: the absolute value that eight of ten do not exceed.

    The quantile is that of Weibull, i / (n + 1), which does not make few values look alike.
    """
    return float(np.quantile(np.abs(list(errors)), INSIDE, method="weibull"))


def unmeasured(spreads: Sequence[Spread]) -> Iterator[Spread]:
    """The spreads of sampling over kinds of links that no row is of."""
    widest = max(spreads, key=lambda one: one.spread)
    for kind in dict.fromkeys((*INTRA_NODE, *INTER_NODE)):
        if kind not in (IDEAL, *(one.where for one in spreads)):
            words = f"prior: no row is of such links; the widest of those measured, {widest.where}"
            yield replace(widest, where=kind, rows=0, sources=0, source=words)


def pooled(part: str, misses: Sequence[Miss]) -> Iterator[Spread]:
    """The spread of a part anywhere, and where it is known of enough rows; the prior where there are too few rows."""
    if len(misses) < parts.FEWEST:
        spread, words = PRIORS["parts"][part].values()
        yield Spread(part, parts.ANY, spread, 0, 0, f"prior: {words}")
        return
    everywhere = spread_of(one.error for one in misses)
    small = [family + parts.SMALL for family in parts.FAMILIES[:2]] if part == parts.COMPUTE else []
    places = {parts.ANY: misses} | dict.fromkeys(small, ()) | grouped(misses, lambda miss: miss.where)
    for where, there in sorted(places.items(), key=lambda item: (item[0] != parts.ANY, item[0])):
        if len(there) >= parts.FEWEST or where in small:
            sources = sorted({one.source for one in there})
            prior = everywhere * (PRIORS["small"]["times"] if where in small else 1.0)
            own = spread_of(one.error for one in there) if there else prior
            spread = (len(there) * own + ENOUGH * prior) / (len(there) + ENOUGH)
            words = f"{COMMAND}: {', '.join(sources)}" if there else "prior: twice that of all"
            yield Spread(part, where, spread, len(there), len(sources), words)


def sampled(runs: Iterable[Run], known: Bands) -> Iterator[Miss]:
    """Published latencies of one GPU over those predicted without the anchors of their source."""
    for run in runs:
        published_s, apart = run.row.latency_s, run.record.standing is Standing.APART
        if not published_s or run.place.num_gpus > 1 or apart:
            continue
        there = run.left_out
        family = known.family(there.cluster.device.name)
        part = parts.ANCHORED if there.anchored else parts.COMPUTE
        small = there.height * there.width * scenario_of(there).backbone.frames <= parts.SMALL_PIXELS
        error = log(published_s / outcome_of(there, run.sampler).latency_s)
        yield Miss(part, family + parts.SMALL * small, run.row.published.authors, error)


class Trained(NamedTuple):
    """A published training run and the logarithm of its error; ``base`` is that within one node of the same run."""

    run: ClusterRun
    error: float
    base: "Trained | None" = None


def trainings() -> Iterator[Trained]:
    """Predicted over published throughput of training: of all runs within one node, and of others with one there."""
    within: dict[tuple[object, ...], Trained] = {}
    for run in sorted(read_runs(), key=lambda run: run.gpus):
        one = Trained(run, log(1 + run.error()), within.get(run.task))
        if run.gpus <= cluster_of(run.cluster).devices_per_node:
            within[run.task] = one = one._replace(base=None)
        elif one.base is None:
            continue
        yield one


def trained_misses(known: Bands) -> Iterator[Miss]:
    """Errors of training within one node that set nothing, and of several nodes over one."""
    for one in trainings():
        base, where = one.base, (known.family(one.run.device_name), authors_of(one.run.source))
        if base is not None:
            if one.run.why != SETS_HOST:  # it sets the host's time together with its base
                gpus = one.run.gpus, base.run.gpus
                yield Miss(parts.DATA_PARALLEL, *where, one.error - base.error, *gpus)
        elif one.run.why not in (SETS, SETS_HOST):
            yield Miss(parts.TRAINING, *where, one.error)


def speedups(records: Iterable[Record], known: Bands) -> Iterator[Miss]:
    """Predicted over published speedups of a pipeline over another method: the seconds of one over the other's."""
    for record in records:
        row, error = record.row, record.independent_error
        wanted = row.quantity == "speedup" and "partition" not in row.method
        if wanted and error is not None and row.machine in cluster_names():
            family = known.family(cluster_of(row.machine).device.name)
            yield Miss(parts.PIPELINE, family, row.authors, log(1 + error), row.num_gpus or 1)


def waits(records: Iterable[Record]) -> Iterator[Miss]:
    """Published over predicted seconds of exposed synchronisation, each relative to the compute of its run."""
    for record in records:
        published, share = record.row.value, record.predicted
        wanted = record.row.quantity == "synchronisation_ratio" and record.standing is not Standing.FITTED
        if wanted and share:
            ratio = published / (1 - published) / (share / (1 - share))
            yield Miss(parts.EXPOSED, parts.ANY, record.row.authors, log(ratio))


@cache
def misses_of(records: tuple[Record, ...]) -> Misses:
    """All errors, those of a ledger's records and of all runs of sampling."""
    known, runs = load_bands(), all_runs()
    trained = (*trained_misses(known), *speedups(records, known), *waits(records))
    return Misses((*sampled(runs, known), *trained), tuple(held_rows(runs)))


def scores_of(misses: Misses) -> list[Score]:
    """Each row on several GPUs, held against the bands of the other sources."""
    others = {source: misses.without(source).bands() for source in {row.source for row in misses.held}}
    return [scored(row, others[row.source]) for row in misses.held]


def text_of(bands: Bands) -> str:
    """The text of a file of bands, with the priors, and the devices of the shipped bands."""
    devices = {key: getattr(bands, key) for key in ("measured", "exact", "stated")}
    spreads = [asdict(one) for one in bands.spreads]
    values = {"devices": devices, "shape": asdict(bands.shape), "spread": spreads}
    return f"{PRIORS['head']}{toml_text(values, '.4g')}"


class Judged(NamedTuple):
    """An independent number: what it is of, and the relative errors of its pace and scaling, where it shows them."""

    task: str
    family: str
    kind: str
    source: str
    model: str
    size: str
    pace: float | None = None
    scaling: float | None = None


def judged(records: Iterable[Record], held: Iterable[Held], known: Bands) -> Iterator[Judged]:
    """The independent times and throughputs, and pipelines' speedups over other methods."""
    records, several = list(records), {row.record.row: row for row in held}
    scaled = {(one.run.name, one.run.gpus, one.run.samples_per_s): one for one in trainings()}
    for one in records:
        row, where, error = one.row, one.conditions, one.independent_error
        if error is None or where is None or row.quantity not in TIMES:
            continue
        pace: float | None = error
        scaling: float | None = None
        there, trained = several.get(row), scaled.get((row.item, row.num_gpus or 1, row.value))
        if there is not None:
            pace, scaling = expm1(-there.before), expm1(-there.after)
        elif trained is not None and trained.base is not None:
            pace, scaling = None, expm1(trained.error - trained.base.error)
        family = known.family(where.device, timed=one.provenance == "measured")
        model, size = (value.split(" ")[0] for value in (row.model, row.resolution_px))
        yield Judged(row.task, family, where.kind, row.authors, model, size, pace, scaling)
    for record in records:
        for miss in speedups([record], known):
            about = miss.part, miss.source, record.row.model, ""
            yield Judged(TASKS[0], miss.where, *about, scaling=expm1(miss.error))


def trusts(numbers: Iterable[Judged]) -> Iterator[Trust]:
    """Trust by task, family and kind, in that order."""
    for (task, family, kind), group in sorted(grouped(numbers, lambda one: one[:3]).items()):
        sources, models, sizes = (
            tuple(sorted({getattr(one, key) for one in group} - {"", UNSAID}))
            for key in ("source", "model", "size")
        )
        paces, scalings = errors_of(one.pace for one in group), errors_of(one.scaling for one in group)
        methods = tuple(METHODS_OF_KIND[kind])
        yield Trust(task, family, kind, methods, sources, models, sizes, paces, scalings)


def errors_of(errors: Iterable[float | None]) -> Errors:
    """How many predictions err, and by how much; None: not known."""
    sizes = [abs(error) for error in errors if error is not None]
    return Errors(len(sizes), median(sizes), max(sizes)) if sizes else Errors()


def cells_of(trust: Trust) -> tuple[str, ...]:
    """The line of a trust in its file."""
    names = (" ".join(words) for words in (trust.strategies, trust.sources, trust.models, trust.sizes))
    errors = (
        (f"{error.numbers}", f"{error.median:.4f}", f"{error.worst:.4f}")
        for error in (trust.pace, trust.scaling)
    )
    return trust.task, trust.family, trust.kind, *names, *chain(*errors)


def write_trust(path: Path, ledger: Ledger) -> None:
    """Write the trust that follows from a ledger."""
    held = misses_of(ledger.records).held
    lines = [cells_of(trust) for trust in trusts(judged(ledger.records, held, load_bands()))]
    write_file(path, csv_text(COLUMNS, lines))
    write_file(path.with_name(MISSES.name), csv_text(OWN, times_of_models(ledger.records)))


def times_of_models(records: Iterable[Record]) -> Iterator[tuple[str, ...]]:
    """The lines of our times over those of each shipped model's own independent times and throughputs, by device."""
    times: dict[tuple[str, ...], list[float]] = {}
    for one in records:
        error, where, row = one.independent_error, one.conditions, one.row
        model = known_name("model", row.model.split(" ")[0], model_names(), silent=True)
        if error is not None and where is not None and model and row.quantity.endswith("_s"):
            over = 1 / (1 + error) if row.quantity.endswith("_per_s") else 1 + error
            times.setdefault((row.task, model, where.device), []).append(over)
    for key, rows in sorted(times.items()):
        yield *key, str(len(rows)), f"{min(rows):.4f}", f"{max(rows):.4f}"
