"""Scalings: the best on each number of GPUs, or on each cluster, as a table, and the verdict at the knee."""

from collections.abc import Iterable, Sequence
from dataclasses import replace

from profiles.errors import counted
from sim.explore.legality import runtimes_of
from sim.explore.scaling import PAYS, Clusters, Scaling, Step
from sim.explore.sweep import Sweep
from sim.outcomes.results import Result
from sim.report.blocks import Block, Column, Command, Table
from sim.report.descriptions import how, tried
from sim.report.numbers import rounded, sample_words
from sim.report.rankings import HOW, TIE, legend, memory_column, time_columns
from sim.report.results import command_of
from sim.report.verdicts import NoVerdict, Verdict, verdict_of


def verdict_at_knee(scaling: Scaling, note: str = "") -> Verdict | NoVerdict:
    """Return the verdict at the knee, after the fastest and the knee; false where nothing recommended fits.

    Of one number of GPUs it is that of its sweep: one has no knee.
    """
    verdict, knee, fastest = verdict_of(scaling.chosen, note), scaling.knee, scaling.fastest
    if not verdict or knee is None or fastest is None or len(scaling) == 1:
        return verdict
    lead = [("sweet spot", _knee_words(scaling, knee))]
    there, word = {step.gpus for step in scaling.steps}, "not on"
    for sweep in scaling.sweeps:
        if (gpus := sweep.scenario.workload.num_gpus) not in there:
            lead.append((word, f"{counted(gpus, 'GPU')}: {sweep.nearest_words()}"))
            word = ""
    if fastest.gpus != knee.gpus:
        lead.insert(0, ("fastest", _fastest_words(scaling, fastest)))
    return replace(verdict, title=scaling.title, lead=tuple(lead))


def _fastest_words(scaling: Scaling, fastest: Step) -> str:
    """Return the most samples per second, and their efficiency, in words."""
    values = tried(point for sweep in scaling.sweeps for point in sweep.points)
    named = ", ".join(filter(None, (fastest.result.strategy, how(fastest.result, values))))
    speed = f"{fastest.samples_per_s:,.4g} {unit_of(scaling)}/s"
    share = f"{fastest.efficiency:.0%} efficient"
    copies = f", {fastest.copies} copies" if fastest.copies > 1 else ""
    return f"{counted(fastest.gpus, 'GPU')}, {speed}, {share}: {named}{copies}"


def _knee_words(scaling: Scaling, knee: Step) -> str:
    """Return the knee and the gain beyond it in words."""
    steps, share, first = scaling.steps, f"{knee.efficiency:.0%}", scaling.steps[0].gpus
    beyond = next((step for step in steps if step.gpus > knee.gpus), None)
    if len(steps) == 1:
        return f"none: something fits on {counted(first, 'GPU')} alone, of these numbers"
    if beyond is None:
        return f"none: up to {counted(knee.gpus, 'GPU')} each added GPU pays ({share} efficient)"
    more = f"the next {beyond.gpus - knee.gpus} add {beyond.gain:.0%} of ideal, below the {PAYS:.0%} that pay"
    return f"{counted(knee.gpus, 'GPU')} ({share} efficient); {more}"


def unit_of(scaling: Scaling) -> str:
    """Return the plural of the samples that speeds count."""
    return sample_words(scaling.sweeps[0].scenario)[1]


def scaling_blocks(scaling: Scaling, note: str) -> list[Block]:
    """Return the verdict at the knee with a note, and the best on each number of GPUs."""
    if not (verdict := verdict_at_knee(scaling, note)):
        return ["best: none; nothing that is recommended fits, on any of these numbers of GPUs"]
    table = table_of(scaling)
    return [*verdict.answer, table, *legend(table), Command("again", verdict.again)]


def table_of(scaling: Scaling) -> Table:
    """Return the best on each number of GPUs as a table, with the knee marked."""
    steps, results = scaling.steps, [step.result for step in scaling.steps]
    knee = scaling.knee if scaling.bends else None
    copies = [str(step.copies) for step in steps]
    columns = [
        Column("GPUs", [f"{step.gpus}{' sweet spot' if step == knee else ''}" for step in steps]),
        *_named_columns(results, scaling),
        *([Column("copies", copies, 1)] if set(copies) - {"1"} else []),
        *time_columns(results),
        Column(f"{unit_of(scaling)}\nper s", [f"{step.samples_per_s:,.4g}" for step in steps]),
        Column(f"GPU-s per\n{unit_of(scaling)[:-1]}", [f"{of.gpu_s_per_sample:.3g}" for of in results], 4),
        Column("efficiency", [f"{step.efficiency:.0%}" for step in steps]),
        Column("gain", [f"{step.gain:.0%}" if place else "-" for place, step in enumerate(steps)], 3),
        memory_column(results),
    ]
    return Table(
        f"best on each number of GPUs, {scaling.batch}; gain: what was added brings, over its share", columns
    )


def _named_columns(results: Sequence[Result], sweeps: Iterable[Sweep]) -> list[Column]:
    """Return the strategies of results, and the parameters that sweeps varied."""
    values = tried(point for sweep in sweeps for point in sweep.points)
    return [
        Column("strategy", [result.strategy for result in results], words=True),
        Column("how", [how(result, values) for result in results], 2, words=True, widest=HOW),
    ]


def cluster_blocks(clusters: Clusters) -> list[Block]:
    """Return the best on each cluster as a table, why there is none on others, and what starts each."""
    ranked, first = clusters.ranked(), clusters.leading.chosen
    nowhere = [
        f"not on {one.chosen.scenario.cluster_name}: {one.chosen.nearest_words()}"
        for one in clusters.scalings
        if one.knee is None
    ]
    if not ranked:
        return [*nowhere]
    results = [knee.result for knee, _ in ranked]
    dollars = [clusters.dollars_per_1000(knee) for knee, _ in ranked]
    least = min(filter(None, dollars), default=None)
    marks = [
        result.cluster
        + (TIE * clusters.ties(knee) if place else f" {clusters.order}")
        + " cheapest" * (of == least is not None and (place > 0 or clusters.order != "cheapest"))
        for place, (of, (knee, _), result) in enumerate(zip(dollars, ranked, results, strict=True))
    ]
    cost = Column("$ per\n1,000", ["-" if of is None else rounded(of, 3) for of in dollars])
    if least is None:
        unit = unit_of(clusters.leading)[:-1]
        cost = Column(f"GPU-s per\n{unit}", [f"{result.gpu_s_per_sample:.3g}" for result in results], 4)
    runtimes = [runtimes_of(result) for result in results]
    where = f"{counted(first.scenario.workload.num_gpus, 'GPU')} of {first.scenario.cluster.name}"
    columns = [
        Column("cluster", marks, words=True),
        Column("GPUs", [str(knee.copies * knee.result.num_gpus) for knee, _ in ranked]),
        *_named_columns(results, clusters),
        *time_columns(results),
        Column(f"{unit_of(clusters.leading)}\nper s", [f"{knee.samples_per_s:,.4g}" for knee, _ in ranked]),
        cost,
        memory_column(results),
        Column("runs in", [", ".join(of) or "-" for of in runtimes], 3),
    ]
    table = Table(f"{first.title.replace(where, 'each cluster')}, {clusters.order} first", columns)
    starts = (
        Command(f"on {result.cluster}", command_of(result, *(("launch", names[0]) if names else ())))
        for result, names in zip(results, runtimes, strict=True)
    )
    return [table, *legend(table), *nowhere, *starts]
