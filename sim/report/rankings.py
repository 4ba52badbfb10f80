"""Rankings: the verdict on a sweep, or at the knee of several, and the best points, sizes and clusters as tables."""

import json
from collections import Counter
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any, Final

from profiles.errors import counted
from profiles.units import GIB
from sim.explore.legality import runtimes_of, starters
from sim.explore.points import Point
from sim.explore.scaling import PAYS, Clusters, Scaling, Step
from sim.explore.sweep import Sweep, example_words, pareto_front
from sim.outcomes.results import OUT_OF_MEMORY, Result
from sim.outcomes.tasks import TASKS
from sim.report.blocks import Block, Column, Command, Table
from sim.report.frames import rows
from sim.report.results import NO_RUNTIME_TODAY, command_of
from sim.report.verdicts import NoVerdict, Verdict, verdict_of
from sim.report.words import (
    LETTERS,
    MEANINGS,
    band,
    duration,
    how,
    rounded,
    sample_words,
    throughput,
    tried,
    unit_of,
)
from strategies.registry import baselines

HEADLINE, TIE, FRONT = " best", " tie", " *"
"""Marks of the recommended point, of those that tie with it, and of the Pareto front."""
BEST: Final = 10
"""Rows of the table of the best."""
HOW: Final = 18
"""Characters for what was varied in a narrow table."""
MEMORY: Final = Column("memory\nGiB")


def print_rows_json(sweeps: Iterable[Sweep]) -> None:
    """Print all rows of sweeps as one JSON list; that of each sweep's recommended point also holds its verdict."""
    every: list[dict[str, Any]] = []
    for sweep in sweeps:
        points, verdict = rows(sweep), verdict_of(sweep)
        if verdict:
            points[0]["verdict"] = verdict.to_json()
        every += points
    print(json.dumps(every, allow_nan=False))


def sweep_blocks(sweep: Sweep, note: str = "") -> list[Block]:
    """Return the verdict and a note, the best points and the best of each strategy, and what is infeasible and why."""
    verdict, table = verdict_of(sweep, note), table_blocks(sweep)
    none = "best: none; every point that fits leaves seams, which is not recommended"
    blocks = [*table, none] if table else []
    if verdict:
        blocks = [*verdict.answer, *table, Command("again", verdict.again)]
    return [*blocks, *_remarks(sweep)]


def table_blocks(sweep: Sweep, most: int = BEST) -> list[Block]:
    """Return a table of the best points, or the Pareto front, and of the best of each strategy, with its legend."""
    simulated, pareto = sweep.simulated(), sweep.objective == "pareto"
    if not simulated:
        return []
    best, headline = front(simulated) if pareto else simulated[:most], sweep.best_point()
    on_front, ties = (set(map(id, points)) for points in (best if pareto else [], sweep.ties()))
    marked: list[tuple[str, list[Point]]] = []
    for rank, points in _shown(simulated, {*map(id, best), id(headline)}):
        first = points[0]
        mark = HEADLINE if headline and first.same(headline) else TIE * (id(first) in ties)
        marked.append((f"{rank}{FRONT * (id(first) in on_front)}{mark}", points))
    title = f"{len(best)} best by {sweep.objective}, and the best of each strategy"
    if pareto:
        title = "* no point beats it in both speed and memory; and the best of each strategy"
    good = sum(first.recommended for _, (first, *_) in marked)
    if names := ", ".join(dict.fromkeys(first.name for _, (first, *_) in marked[good:])):
        title += f"; below the line not recommended: seams show ({names})"
    columns, rows = _columns_and_rows(sweep, marked)
    table = Table(title, columns, rows, good if good and names else None)
    return [table, *legend(table)]


def _shown(simulated: Iterable[Point], best: Collection[int]) -> Iterator[tuple[int, list[Point]]]:
    """Yield the best points, and the best of each strategy, with their ranks; those of one result follow the first."""
    alike: dict[Any, list[tuple[int, Point]]] = {}
    for rank, point in enumerate(simulated, 1):
        _, *result = point.identity or ("",)
        alike.setdefault(tuple(result), []).append((rank, point))
    strategies = set[str]()
    for points in alike.values():
        told = [pair for pair in points if id(pair[1]) in best or pair[1].name not in strategies]
        strategies |= {point.name for _, point in points}
        for rank, first in told[:1]:
            yield rank, [first, *(point for _, point in points if point is not first)]


def front(simulated: Sequence[Point]) -> list[Point]:
    """Return the recommended points that no other of them beats in both throughput and memory."""
    rows = [p.result.to_json() | {"point": p} for p in simulated if p.result and p.recommended]
    return [row["point"] for row in pareto_front(rows)]


def _columns_and_rows(
    sweep: Sweep, marked: Sequence[tuple[str, list[Point]]]
) -> tuple[list[Column], list[tuple[str, ...]]]:
    """Return columns and rows of marked points; where the terminal is narrow, the first and last are kept longest."""
    points = [(mark, alike, point.result) for mark, alike in marked if (point := alike[0]).result is not None]
    values, sampled, over = tried(sweep.points), sweep.scenario.task == "sample", _baseline(sweep)
    letters, several = {} if sampled else LETTERS, len({result.num_gpus for *_, result in points}) > 1
    leave = list(letters)
    if len({result.options.get("checkpointing") for *_, result in points}) == 1:  # it stands above the table
        leave.append("checkpointing")
    last = Column("samples\nper s", 8)
    if sampled:
        last = Column(f"GPU-s per\n{sample_words(sweep.scenario)[0]}", 6)
    columns = [
        Column("#"),
        Column("strategy", words=True),
        Column("GPUs", 1),
        *(Column(letter, 1) for letter in letters.values()),
        Column("how" if sampled else "more", 2, words=True, widest=HOW),
        *time_columns(sweep.scenario.task),
        Column(f"speed over\n{'one GPU' if sampled else ' or '.join(baselines())}", 5),
        last,
        Column("bubble", 7),
        MEMORY,
        Column("runs in", 1),
    ]
    rows = [
        (
            mark,
            " = ".join(dict.fromkeys(point.name for point in alike)),
            str(result.num_gpus) if several else "",
            *(str(result.parameters.get(key) or "-") for key in letters),
            how(result, values, leave),
            *time_cells(result),
            "-" if over is None else f"{result.samples_per_s / over.samples_per_s:.2f}",
            f"{result.gpu_s_per_sample:,.2f}" if sampled else throughput(result.samples_per_s),
            f"{result.bubble_ratio:.1%}",
            f"{result.peak_memory_bytes / GIB:.1f}",
            f"{runtimes[0]}{f' +{len(runtimes) - 1}' * (len(runtimes) > 1)}" if runtimes else "-",
        )
        for mark, alike, result in points
        for runtimes in [starters(alike[0], sweep.scenario)]
    ]
    return columns, rows


def time_columns(task: str) -> list[Column]:
    """Return the columns of durations and their bands."""
    kind = TASKS[task]
    return [Column(f"{kind.timed}\n{kind.unit}"), Column("80 %\nrange", 3)]


def time_cells(result: Result) -> tuple[str, str]:
    """Return the duration of a result, and its band."""
    return duration(result).removesuffix(f" {unit_of(result)}"), band(result) or "-"


def legend(table: Table) -> Iterator[str]:
    """Yield the meanings of the marks and letters of a table: a line each."""
    table = table.filled
    if any(row[0].endswith(TIE) for row in table.rows):
        yield "tie: not surely slower than the best, nor than others of its strategy, which compare with less error"
    if table.columns[-1].name == "runs in" and any(row[-1] == "-" for row in table.rows):
        yield f"runs in -: {NO_RUNTIME_TODAY}"
    used = {column.name for column in table.columns} | {
        word for row in table.rows for cell in row for word in cell.split()
    }
    if letters := [f"{letter}: {means}" for letter, means in MEANINGS.items() if letter in used]:
        yield ", ".join(letters)


def _baseline(sweep: Sweep) -> Result | None:
    """Return of training the fastest of the baselines, None by memory; of sampling the best on one GPU."""
    if sweep.scenario.task == "sample":
        return next((p.result for p in sweep.ranked() if p.result is not None and p.num_gpus == 1), None)
    if sweep.objective == "memory":  # the fastest is not among them for sure
        return None
    against = [p.result for p in sweep.points if p.status == "simulated" and p.name in baselines()]
    return max((r for r in against if r is not None), key=lambda r: r.samples_per_s, default=None)


def _remarks(sweep: Sweep) -> Iterator[str]:
    """Yield counts of points by what became of them, and by reason."""
    for kind, count in sweep.infeasible_by_reason().items():
        yield f"infeasible: {count} x {kind} (such as {example_words(sweep.points, kind)})"
    lacking: dict[str, list[str]] = {}
    for name in dict.fromkeys(point.name for point in sweep.points):
        kinds = Counter(point.kind for point in sweep.points if point.name == name)
        if None not in kinds:
            lacking.setdefault(str(kinds.most_common(1)[0][0]), []).append(name)
    yield from (f"no point is left of {', '.join(names)}: {kind}" for kind, names in lacking.items())
    ranked, worse = sweep.ranked(), {"memory": "larger", "cost": "dearer"}.get(sweep.objective, "slower")
    numbers = Counter(p.kind == OUT_OF_MEMORY if p.status == "infeasible" else p.status for p in ranked)
    counts = {
        "simulated": numbers["simulated"],
        f"ruled out as {worse}": numbers["bounded"],
        "out of memory": numbers[True],
        "not possible": numbers[False],
        "duplicates": len(sweep.points) - len(ranked),
    }
    parts = ", ".join(f"{count:,} {words}" for words, count in counts.items() if count)
    yield f"{counted(len(sweep.points), 'configuration')}: {parts}"


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
        values = tried(point for sweep in scaling.sweeps for point in sweep.points)
        named = ", ".join(filter(None, (fastest.result.strategy, how(fastest.result, values))))
        speed = f"{fastest.samples_per_s:,.4g} {sample_words(fastest.result)[1]}/s"
        copies = f", {fastest.copies} copies" if fastest.copies > 1 else ""
        words = (
            f"{counted(fastest.gpus, 'GPU')}, {speed}, {fastest.efficiency:.0%} efficient: {named}{copies}"
        )
        lead.insert(0, ("fastest", words))
    return replace(verdict, title=scaling.title, lead=tuple(lead))


def _knee_words(scaling: Scaling, knee: Step) -> str:
    """Return the knee and the gain beyond it in words."""
    steps, share = scaling.steps, f"{knee.efficiency:.0%}"
    beyond = next((step for step in steps if step.gpus > knee.gpus), None)
    if len(steps) == 1:
        return f"none: something fits on {counted(knee.gpus, 'GPU')} alone, of these numbers"
    if beyond is None:
        return f"none: up to {counted(knee.gpus, 'GPU')} each added GPU pays ({share} efficient)"
    more = f"the next {beyond.gpus - knee.gpus} add {beyond.gain:.0%} of ideal, below the {PAYS:.0%} that pay"
    return f"{counted(knee.gpus, 'GPU')} ({share} efficient); {more}"


def scaling_blocks(scaling: Scaling, note: str) -> list[Block]:
    """Return the verdict at the knee with a note, and the best on each number of GPUs."""
    if not (verdict := verdict_at_knee(scaling, note)):
        return ["best: none; nothing that is recommended fits, on any of these numbers of GPUs"]
    table = table_of(scaling)
    return [*verdict.answer, table, *legend(table), Command("again", verdict.again)]


def table_of(scaling: Scaling) -> Table:
    """Return the best on each number of GPUs as a table, with the knee marked."""
    steps, knee = scaling.steps, scaling.knee if scaling.bends else None
    several = any(step.copies > 1 for step in steps)
    before = {
        Column("GPUs"): [f"{step.gpus}{' sweet spot' * (step == knee)}" for step in steps],
        Column("copies", 1): [str(step.copies) if several else "" for step in steps],
    }
    after = {
        Column("efficiency"): [f"{step.efficiency:.0%}" for step in steps],
        Column("gain", 3): ["-", *(f"{step.gain:.0%}" for step in steps[1:])],
        MEMORY: [f"{step.result.peak_memory_bytes / GIB:.1f}" for step in steps],
    }
    title = f"best on each number of GPUs, {scaling.batch}; gain: what was added brings, over its share"
    return _steps_table(title, before, steps, after, scaling)


Columns = Mapping[Column, Sequence[str]]
"""Columns of a table with their cells."""


def _steps_table(
    title: str, before: Columns, steps: Sequence[Step], after: Columns, sweeps: Iterable[Sweep]
) -> Table:
    """Return a table of the best on several numbers of GPUs, or clusters, with columns before and after their speed."""
    values = tried(point for sweep in sweeps for point in sweep.points)
    result = steps[0].result
    speed, cost = f"{sample_words(result)[1]}\nper s", f"GPU-s per\n{sample_words(result)[0]}"
    of_speed = [Column(speed), Column(cost, 4)]
    varied = Column("strategy", words=True), Column("how", 2, words=True, widest=HOW)
    columns = [*before, *varied, *time_columns(result.task), *of_speed, *after]
    rows = [
        (
            *(cells[number] for cells in before.values()),
            step.result.strategy,
            how(step.result, values),
            *time_cells(step.result),
            f"{step.samples_per_s:,.4g}",
            f"{step.result.gpu_s_per_sample:.3g}",
            *(cells[number] for cells in after.values()),
        )
        for number, step in enumerate(steps)
    ]
    return Table(title, columns, rows)


def cluster_blocks(clusters: Clusters) -> list[Block]:
    """Return the best on each cluster as a table, why there is none on others, and what starts each."""
    knees, first = [knee for knee, _ in clusters.ranked()], clusters.leading.chosen
    nowhere = [
        f"not on {one.chosen.scenario.cluster_name}: {one.chosen.nearest_words()}"
        for one in clusters.scalings
        if one.knee is None
    ]
    if not knees:
        return [*nowhere]
    dollars = [clusters.dollars_per_1000(knee) for knee in knees]
    least = min(filter(None, dollars), default=None)
    names = list[str]()
    for place, (knee, price) in enumerate(zip(knees, dollars, strict=True)):
        mark = TIE * clusters.ties(knee) if place else f" {clusters.order}"
        mark += " cheapest" * (price == least is not None and "cheapest" not in mark)
        names.append(f"{knee.result.cluster}{mark}")
    before = {
        Column("cluster", words=True): names,
        Column("GPUs"): [str(knee.copies * knee.result.num_gpus) for knee in knees],
    }
    after = {
        Column("$ per\n1,000"): ["-" if price is None else rounded(price, 3) for price in dollars],
        MEMORY: [f"{knee.result.peak_memory_bytes / GIB:.1f}" for knee in knees],
        Column("runs in", 3): [", ".join(runtimes_of(knee.result)) or "-" for knee in knees],
    }
    where = f"{counted(first.scenario.workload.num_gpus, 'GPU')} of {first.scenario.cluster.name}"
    title = f"{first.title.replace(where, 'each cluster')}, {clusters.order} first"
    table = _steps_table(title, before, knees, after, clusters)
    starts = [
        Command(f"on {knee.result.cluster}", command_of(knee.result, "launch", *runtimes_of(knee.result)[:1]))
        for knee in knees
    ]
    return [table, *legend(table), *nowhere, *starts]
