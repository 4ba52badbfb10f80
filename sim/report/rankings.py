"""Rankings: the verdict on a sweep, then its best points as a table; training and sampling."""

import json
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Final, NamedTuple

from profiles.units import GIB
from sim.explore.legality import starters
from sim.explore.points import Point
from sim.explore.scaling import Scaling
from sim.explore.sweep import Sweep, example_words, pareto_front
from sim.explore.tuning import Choice
from sim.outcomes.results import Result
from sim.report.blocks import Block, Column, Command, Table, html, print_blocks
from sim.report.descriptions import LETTERS, MEANINGS, held_fixed, how, tried
from sim.report.frames import rows
from sim.report.numbers import band, banded, duration, image_words, milliseconds, throughput
from sim.report.results import command_of
from sim.report.verdicts import NoVerdict, Verdict, verdict_of
from strategies.registry import baselines

TIE: Final = " tie"
"""Mark of points that tie with the best."""
TIED: Final = "tie: may be as fast as 1, within the errors of both strategies, which differ"
"""What the mark means, and why points between others may lack it."""
FRONT: Final = " *"
"""Mark of points of the Pareto front."""
BEST: Final = 10
"""Rows of the table of the best."""
HOW: Final = 18
"""Characters for what was varied in a narrow table."""
JSON: Final = json.JSONEncoder(allow_nan=False)
NO_BEST: Final = "best: none; every point that fits leaves seams, which is not recommended"
MORE: Final = "More: .frame(), .plot(), .best.plot_timeline(), .write_report('report.html')"


def print_rows_json(answer: Sweep | Scaling) -> None:
    """Print all rows as one JSON list; that of each sweep's recommended point also holds its verdict."""
    sweeps = answer if isinstance(answer, Scaling) else (answer,)
    print(f"[{', '.join(text for sweep in sweeps for text in _row_texts(sweep))}]")


def _row_texts(sweep: Sweep) -> list[str]:
    """The rows of a sweep as JSON, written while others work on its verdict."""
    own: list[dict[str, Any]] = []
    texts: list[str] = []

    def encode() -> None:
        own.extend(rows(sweep))
        texts.extend(map(JSON.encode, own))

    if verdict := verdict_of(sweep, meanwhile=encode):
        best = (
            n for n, one in enumerate(own) if one["status"] == "simulated" and one.get("recommended", True)
        )
        at = next(best)
        texts[at] = JSON.encode({**own[at], "verdict": verdict.to_json()})
    return texts


def print_sweep(sweep: Sweep, note: str = "", *, as_markdown: bool = False) -> None:
    """Print the verdict and a note, the best points and the best of each strategy, and what is infeasible and why."""
    verdict, table = _answer(sweep, note)
    head: list[Block] = [verdict.panel] if verdict else []
    again: list[Block] = []
    if verdict:
        again.append(Command("again", verdict.again))
        if verdict.runnable is not None:
            what = "a tie" if verdict.runnable.tie else "the best"
            again.append(Command(f"{what} that runs", verdict.runnable.again))
    elif table:
        again.append(NO_BEST)
    print_blocks([*head, *table, *again, *_remarks(sweep, verdict)], as_markdown=as_markdown)


def sweep_html(sweep: Sweep, verdict: Verdict | NoVerdict) -> str:
    """Return the verdict and the table, or why nothing fits, in HTML."""
    table = table_blocks(sweep)
    return html(verdict.panel, *table, *([MORE] if table else []))


def _answer(sweep: Sweep, note: str) -> tuple[Verdict | NoVerdict, list[Block]]:
    """The verdict with a note, and the table, made while others work on the verdict."""
    table: list[Block] = []
    return verdict_of(sweep, note, lambda: table.extend(table_blocks(sweep))), table


class Shown(NamedTuple):
    """The points of a table with their ranks; ``above`` are recommended, where there are others too."""

    rows: list[tuple[int, Point]]
    above: int | None
    title: str


def table_blocks(sweep: Sweep, best: int = BEST) -> list[Block]:
    """The best points, what marks and letters stand for, and what no runtime runs; nothing where nothing fits."""
    shown = shown_points(sweep, best)
    if not shown.rows:
        return []
    table = Table(shown.title, columns(sweep, shown), shown.above)
    ranks = [str(rank) for rank, point in shown.rows if not starters(point, sweep.scenario)]
    which = "any of these" if len(ranks) == len(shown.rows) else f"numbers {', '.join(ranks)}"
    return [table, *legend(table), *([f"no runtime is known that starts {which}"] if ranks else [])]


def shown_points(sweep: Sweep, most: int) -> Shown:
    """So many of the best points, or the Pareto front, and the best of each strategy; those not recommended below."""
    simulated = [point for point in sweep.ranked() if point.status == "simulated"]
    best = front(simulated) if sweep.objective == "pareto" else simulated[:most]
    chosen = list(_chosen(simulated, best, sweep.twins()))
    good = sum(point.recommended for _, point in chosen)
    words = [f"{len(best)} best by {sweep.objective}, and the best of each strategy"]
    if sweep.objective == "pareto":
        words = ["* no point beats it in both speed and memory; and the best of each strategy"]
    if good < len(chosen):
        names = dict.fromkeys(point.name for _, point in chosen[good:])
        words.append(f"below the line not recommended: seams show ({', '.join(names)})")
    return Shown(chosen, good if 0 < good < len(chosen) else None, "; ".join(words))


def _chosen(
    simulated: Sequence[Point], best: Sequence[Point], twins: Mapping[int, Point]
) -> Iterator[tuple[int, Point]]:
    """The best points with their ranks, and the best of each strategy that is not among them.

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
    """The strategies of points, with those of the same result."""
    names = {point.identity: [point.name] for point in points}
    alike = {identity and identity[1:]: own for identity, own in names.items()}
    for point in sweep.points:
        if (identity := point.identity) is not None and identity not in names:
            alike.get(identity[1:], []).append(point.name)
    return [" = ".join(dict.fromkeys(names[point.identity])) for point in points]


def front(simulated: Sequence[Point]) -> list[Point]:
    """The recommended points that no other of them beats in both throughput and memory."""
    good = [point for point in simulated if point.result is not None and point.recommended]
    return [
        row["point"] for row in pareto_front([{**p.result.to_json(), "point": p} for p in good if p.result])
    ]


def columns(sweep: Sweep, shown: Shown) -> list[Column]:
    """The columns of a table of points; where the terminal is narrow, the first and the last are kept longest."""
    points = [point for _, point in shown.rows]
    results = [point.result for point in points if point.result is not None]
    values, sampled, over = tried(sweep.points), sweep.scenario.task == "sample", _baseline(sweep)
    alike = (
        len({result.options.get("checkpointing") for result in results}) == 1
    )  # said once, above the table
    letters = {} if sampled else LETTERS
    leave = [*letters, "checkpointing"] if alike else list(letters)
    baseline = "one GPU" if sampled else " or ".join(baselines("train"))
    speeds = ["-" if over is None else f"{r.samples_per_s / over.samples_per_s:.2f}" for r in results]
    if sampled:
        costs = [f"{result.gpu_s_per_sample:,.2f}" for result in results]
        last = Column(f"GPU-s per\n{image_words(sweep.scenario.options)[0]}", costs, 6)
    else:
        last = Column("samples\nper s", [throughput(result.samples_per_s) for result in results], 8)
    return [
        Column(
            "#", [f"{rank}{mark}" for (rank, _), mark in zip(shown.rows, _marks(sweep, points), strict=True)]
        ),
        Column("strategy", _named(sweep, points), words=True),
        *_counts(results),
        *(
            Column(letter, [str(r.parameters.get(key) or "-") for r in results], 1)
            for key, letter in letters.items()
        ),
        Column(
            "how" if sampled else "more", [how(r, values, leave) for r in results], 2, words=True, widest=HOW
        ),
        *time_columns(results, sampled=sampled),
        Column(f"speed over\n{baseline}", speeds, 5),
        last,
        Column("bubble", [f"{result.bubble_ratio:.1%}" for result in results], 7),
        memory_column(results),
    ]


def time_columns(results: Sequence[Result], *, sampled: bool) -> list[Column]:
    """The durations of results, with their bands."""
    times = [duration(result).removesuffix(" s" if sampled else " ms") for result in results]
    return [
        Column("latency\ns" if sampled else "iteration\nms", times),
        Column("8 of 10\nwithin", [band(result) or "-" for result in results], 3),
    ]


def memory_column(results: Sequence[Result]) -> Column:
    """The memory that results need."""
    return Column("memory\nGiB", [f"{result.expected.peak_memory_bytes / GIB:.1f}" for result in results])


def _counts(results: Sequence[Result]) -> list[Column]:
    """The column of GPUs, where results differ in them."""
    counts = [str(result.num_gpus) for result in results]
    return [Column("GPUs", counts, 1)] if len(set(counts)) > 1 else []


def _marks(sweep: Sweep, points: Sequence[Point]) -> Iterator[str]:
    """The marks of the rows of a table."""
    on_front = set(map(id, front(points))) if sweep.objective == "pareto" else set()
    ties = set(map(id, sweep.ties()))
    for point in points:
        yield FRONT * (id(point) in on_front) + TIE * (id(point) in ties)


def legend(table: Table) -> Iterator[str]:
    """What the marks and letters of a table stand for: a line each."""
    if any(cell.endswith(TIE) for cell in table.columns[0].cells):
        yield TIED
    cells = (cell for column in table.filled if column.words for cell in column.cells)
    used = {column.name for column in table.filled} | {
        words.split()[0] for c in cells for words in c.split(", ") if words
    }
    if letters := [f"{letter}: {means}" for letter, means in MEANINGS.items() if letter in used]:
        yield ", ".join(letters)


def _baseline(sweep: Sweep) -> Result | None:
    """Of training the fastest of the baselines, None where memory is ranked by; of sampling the best on one GPU."""
    if sweep.scenario.task == "sample":
        return next((p.result for p in sweep.ranked() if p.result is not None and p.num_gpus == 1), None)
    if sweep.objective == "memory":  # the fastest is not among them for sure
        return None
    against = [p.result for p in sweep.points if p.status == "simulated" and p.name in baselines("train")]
    return max((r for r in against if r is not None), key=lambda r: r.samples_per_s, default=None)


def _remarks(sweep: Sweep, verdict: Verdict | NoVerdict) -> Iterator[str]:
    """What was held fixed, and what is infeasible and why."""
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
    ranked = sweep.ranked()
    counts = {
        status: sum(p.status == status for p in ranked) for status in ("simulated", "bounded", "infeasible")
    }
    counts["with the result of another"] = len(sweep.points) - len(ranked)
    yield "points: " + ", ".join(f"{count} {status}" for status, count in counts.items())


def print_choices(choices: Sequence[Choice], *, as_json: bool) -> None:
    """Print what tuning found, the best first."""
    if as_json:
        print(JSON.encode([choice.to_json() for choice in choices]))
        return
    cells = {
        "P": [str(choice.degree) for choice in choices],
        "G": [str(choice.replicas) for choice in choices],
        "b": [str(choice.micro_batch) for choice in choices],
        "batch": [str(choice.batch_size) for choice in choices],
        "memory, Eq. 14\nGiB": [f"{choice.equation_bytes / GIB:.1f}" for choice in choices],
        "replayed\nGiB": [f"{c.result.peak_memory_bytes / GIB:.1f}" if c.result else "-" for c in choices],
        "Eq. 15": [milliseconds(choice.estimate_s) for choice in choices],
        "bound": [milliseconds(choice.bound_s) for choice in choices],
        "iteration": [banded(choice.result) if choice.result else "-" for choice in choices],
        "samples/s": list(map(_tuned_speed, choices)),
    }
    best = next((choice.result for choice in choices if choice.samples_per_s), None)
    again = [] if best is None else [Command("again", command_of(best))]
    print_blocks([Table("", [Column(head, column) for head, column in cells.items()]), *again])


def _tuned_speed(choice: Choice) -> str:
    if choice.result is None:
        return "-"
    if not choice.result.fits_memory:
        return "does not fit"
    return throughput(choice.result.samples_per_s) + TIE * choice.tie
