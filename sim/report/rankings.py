"""Rankings: the verdict on a sweep, then its best points as a table; training and sampling."""

import json
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Final

from profiles.errors import counted
from profiles.units import GIB
from sim.explore.legality import starters
from sim.explore.points import Point
from sim.explore.scaling import Clusters, Scaling
from sim.explore.sweep import Sweep, example_words, pareto_front
from sim.outcomes.results import OUT_OF_MEMORY, Result
from sim.outcomes.tasks import TASKS
from sim.report.blocks import Block, Column, Command, Table
from sim.report.descriptions import LETTERS, MEANINGS, held_fixed, how, tried
from sim.report.frames import rows
from sim.report.numbers import band, duration, sample_words, throughput
from sim.report.results import NO_RUNTIME_TODAY
from sim.report.verdicts import NoVerdict, Verdict, verdict_of
from strategies.registry import baselines

HEADLINE, TIE, FRONT = " best", " tie", " *"
"""Marks of the recommended point, of those that tie with it, and of the Pareto front."""
BEST: Final = 10
"""Rows of the table of the best."""
HOW: Final = 18
"""Characters for what was varied in a narrow table."""


def print_rows_json(answer: Sweep | Scaling | Clusters) -> None:
    """Print all rows as one JSON list; that of each sweep's recommended point also holds its verdict."""
    every: list[dict[str, Any]] = []
    for sweep in (answer,) if isinstance(answer, Sweep) else answer:
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
    return [*blocks, *_remarks(sweep, verdict)]


def table_blocks(sweep: Sweep, most: int = BEST) -> list[Block]:
    """Return a table of the best points, or the Pareto front, and of the best of each strategy, with its legend."""
    simulated = sweep.simulated()
    if not simulated:
        return []
    best = front(simulated) if sweep.objective == "pareto" else simulated[:most]
    headline = sweep.best_point()
    chosen = list(_chosen(simulated, [*best, *filter(None, [headline])], sweep.twins()))
    points = [point for _, point in chosen]
    good = sum(point.recommended for point in points)
    title = f"{len(best)} best by {sweep.objective}, and the best of each strategy"
    if sweep.objective == "pareto":
        title = "* no point beats it in both speed and memory; and the best of each strategy"
    if good < len(chosen):
        names = ", ".join(dict.fromkeys(point.name for point in points[good:]))
        title += f"; below the line not recommended: seams show ({names})"
    on_front, ties = set(map(id, best)) if sweep.objective == "pareto" else (), set(map(id, sweep.ties()))
    numbers = [
        f"{rank}{FRONT * (id(of) in on_front)}"
        f"{HEADLINE if headline and of.same(headline) else TIE * (id(of) in ties)}"
        for rank, of in chosen
    ]
    runtimes = [starters(point, sweep.scenario) for point in points]
    cells = [f"{of[0]}{f' +{len(of) - 1}' * (len(of) > 1)}" if of else "-" for of in runtimes]
    columns = [Column("#", numbers), *_columns(sweep, points), Column("runs in", cells, 1)]
    table = Table(title, columns, good if 0 < good < len(chosen) else None)
    return [table, *legend(table)]


def _chosen(
    simulated: Sequence[Point], best: Sequence[Point], twins: Mapping[int, Point]
) -> Iterator[tuple[int, Point]]:
    """Yield the best points with their ranks, and the best of each strategy that is not among them.

    A point with the result of another that is shown is left out: the other's row names its strategy, too.
    """
    strategies, chosen, shown = set[str](), {id(point) for point in best}, set[int]()
    for rank, point in enumerate(simulated, 1):
        if id(twins.get(id(point))) in shown:
            strategies.add(point.name)
        elif id(point) in chosen or point.name not in strategies:
            strategies.add(point.name)
            shown.add(id(point))
            yield rank, point


def _named(sweep: Sweep, points: Sequence[Point]) -> list[str]:
    """Return the strategies of points, with those of the same result."""
    twins, names = sweep.twins(), dict[int, list[str]]()
    for point in sweep.ranked():
        names.setdefault(id(twins.get(id(point), point)), []).append(point.name)
    alike = ([point.name, *names[id(twins.get(id(point), point))]] for point in points)
    return [" = ".join(dict.fromkeys(one)) for one in alike]


def front(simulated: Sequence[Point]) -> list[Point]:
    """Return the recommended points that no other of them beats in both throughput and memory."""
    good = [point for point in simulated if point.result is not None and point.recommended]
    return [of["point"] for of in pareto_front([p.result.to_json() | {"point": p} for p in good if p.result])]


def _columns(sweep: Sweep, points: Sequence[Point]) -> list[Column]:
    """Return the columns of points; where the terminal is narrow, the first and the last are kept longest."""
    results = [point.result for point in points if point.result is not None]
    values, sampled, over = tried(sweep.points), sweep.scenario.task == "sample", _baseline(sweep)
    counts, letters = [str(result.num_gpus) for result in results], {} if sampled else LETTERS
    leave = list(letters)
    if len({result.options.get("checkpointing") for result in results}) == 1:  # it stands above the table
        leave.append("checkpointing")
    baseline = "one GPU" if sampled else " or ".join(baselines())
    speeds = ["-" if over is None else f"{r.samples_per_s / over.samples_per_s:.2f}" for r in results]
    if sampled:
        costs = [f"{result.gpu_s_per_sample:,.2f}" for result in results]
        last = Column(f"GPU-s per\n{sample_words(sweep.scenario)[0]}", costs, 6)
    else:
        last = Column("samples\nper s", [throughput(result.samples_per_s) for result in results], 8)
    return [
        Column("strategy", _named(sweep, points), words=True),
        *([Column("GPUs", counts, 1)] if len(set(counts)) > 1 else []),
        *(
            Column(letter, [str(r.parameters.get(key) or "-") for r in results], 1)
            for key, letter in letters.items()
        ),
        Column(
            "how" if sampled else "more", [how(r, values, leave) for r in results], 2, words=True, widest=HOW
        ),
        *time_columns(results),
        Column(f"speed over\n{baseline}", speeds, 5),
        last,
        Column("bubble", [f"{result.bubble_ratio:.1%}" for result in results], 7),
        memory_column(results),
    ]


def time_columns(results: Sequence[Result]) -> list[Column]:
    """Return the durations of results, with their bands."""
    task = TASKS[results[0].task]
    times = [duration(result).removesuffix(f" {task.unit}") for result in results]
    return [
        Column(f"{task.timed}\n{task.unit}", times),
        Column("80 %\nrange", [band(result) or "-" for result in results], 3),
    ]


def memory_column(results: Sequence[Result]) -> Column:
    """Return the memory that results need."""
    return Column("memory\nGiB", [f"{result.expected.peak_memory_bytes / GIB:.1f}" for result in results])


def legend(table: Table) -> Iterator[str]:
    """Yield the meanings of the marks and letters of a table: a line each."""
    if any(cell.endswith(TIE) for cell in table.columns[0].cells):
        yield "tie: not surely slower than the best, nor than others of its strategy, which compare with less error"
    if table.columns[-1].name == "runs in" and "-" in table.columns[-1].cells:
        yield f"runs in -: {NO_RUNTIME_TODAY}"
    cells = (cell for column in table.filled if column.words for cell in column.cells)
    used = {column.name for column in table.filled} | {
        words.split()[0] for c in cells for words in c.split(", ") if words
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


def _remarks(sweep: Sweep, verdict: Verdict | NoVerdict) -> Iterator[str]:
    """Yield the options held fixed, and counts of infeasible points by reason."""
    if verdict:
        yield f"held fixed: {held_fixed(sweep.points, verdict.best)}"
    for kind, count in sweep.infeasible_by_reason().items():
        yield f"infeasible: {count} x {kind} (such as {example_words(sweep.points, kind)})"
    lacking: dict[str, list[str]] = {}
    for name in dict.fromkeys(point.name for point in sweep.points):
        kinds = Counter(point.kind for point in sweep.points if point.name == name)
        if None not in kinds:
            lacking.setdefault(str(kinds.most_common(1)[0][0]), []).append(name)
    yield from (f"no point is left of {', '.join(names)}: {kind}" for kind, names in lacking.items())
    ranked, worse = sweep.ranked(), {"memory": "larger", "cost": "dearer"}.get(sweep.objective, "slower")
    of = Counter(p.kind == OUT_OF_MEMORY if p.status == "infeasible" else p.status for p in ranked)
    counts = {
        "simulated": of["simulated"],
        f"ruled out as {worse}": of["bounded"],
        "out of memory": of[True],
        "not possible": of[False],
        "duplicates": len(sweep.points) - len(ranked),
    }
    parts = ", ".join(f"{count:,} {words}" for words, count in counts.items() if count)
    yield f"{counted(len(sweep.points), 'configuration')}: {parts}"
