"""Rankings: the verdict on a sweep, then its best points as a table; training and sampling."""

import json
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from textwrap import shorten
from typing import Any, Final, NamedTuple

from rich.console import Console

from profiles.units import GIB
from sim.explore.legality import starters
from sim.explore.points import Point
from sim.explore.scaling import Scaling
from sim.explore.sweep import Sweep, pareto_front, such_as
from sim.outcomes.results import Result
from sim.report.columns import Column, markdown_of, more_html, show_table, table_html
from sim.report.descriptions import LETTERS, MEANINGS, held_fixed, how, tried
from sim.report.frames import rows
from sim.report.numbers import band, duration, image_words, throughput
from sim.report.tables import console
from sim.report.verdicts import NoVerdict, Verdict, verdict_of, with_note
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


def print_rows_json(answer: Sweep | Scaling) -> None:
    """Print all rows as one JSON list; that of each sweep's recommended point also holds its verdict."""
    sweeps = answer if isinstance(answer, Scaling) else (answer,)
    print(f"[{', '.join(text for sweep in sweeps for text in _row_texts(sweep))}]")


def _row_texts(sweep: Sweep) -> list[str]:
    """The rows of a sweep as JSON, written while others work on its verdict."""
    own: list[dict[str, Any]] = []
    texts: list[str] = []

    def write() -> None:
        own.extend(rows(sweep))
        texts.extend(map(JSON.encode, own))

    verdict = verdict_of(sweep, meanwhile=write)
    if verdict is not None:
        at = next(
            i for i, one in enumerate(own) if one["status"] == "simulated" and one.get("recommended", True)
        )
        texts[at] = JSON.encode({**own[at], "verdict": verdict.to_json()})
    return texts


def print_sweep(sweep: Sweep, note: str = "") -> None:
    """Print the verdict and a note, the best points and the best of each strategy, and what is infeasible and why."""
    screen, (verdict, shown, all_columns) = console(), _told(sweep, note)
    if verdict is not None:
        verdict.panel.show(screen)
    if shown.rows:
        show_with_legend(screen, shown.title, all_columns, shown.above)
        screen.print(NO_BEST if verdict is None else f"again: {verdict.again}", soft_wrap=True)
        if verdict is not None and verdict.runnable is not None:
            what = "a tie" if verdict.runnable.tie else "the best"
            screen.print(f"{what} that runs: {verdict.runnable.again}", soft_wrap=True)
    for line in (*not_runnable(sweep, shown), *remarks(sweep, verdict)):
        screen.print(line)


def show_with_legend(
    screen: Console, title: str, columns: Sequence[Column], above: int | None = None
) -> None:
    """Print a table, and what its marks and letters stand for."""
    screen.print()
    kept = show_table(screen, title, columns, above)
    screen.print()
    if words := "\n".join(legend(kept)):
        screen.print(f"{words}\n")


def print_markdown(sweep: Sweep, note: str = "") -> None:
    """Print the verdict with a note, and the table, in Markdown."""
    verdict, shown, kept = _told(sweep, note)
    parts = [NO_BEST] if verdict is None else [verdict.markdown(), f"```\n{verdict.again}\n```"]
    if shown.rows:
        parts += [markdown_of(shown.title, kept), *legend(kept)]
    print("\n\n".join([*parts, *not_runnable(sweep, shown), *remarks(sweep, verdict)]))


def sweep_html(sweep: Sweep, verdict: Verdict | NoVerdict) -> str:
    """Return the verdict and the table, or why nothing fits, in HTML."""
    shown, head = shown_points(sweep), verdict._repr_html_()
    if not shown.rows:
        return head
    table = table_html(shown.title, columns(sweep, shown), shown.above)
    return f"{head}{table}{more_html('plot()', 'best.plot_timeline()')}"


class Shown(NamedTuple):
    """The points of a table with their ranks; ``above`` are recommended, where there are others too."""

    rows: list[tuple[int, Point]]
    above: int | None
    title: str


def _told(sweep: Sweep, note: str) -> tuple[Verdict | None, Shown, list[Column]]:
    """The verdict with a note, and the points of the table and its columns, made while others work on the verdict."""
    made: list[tuple[Shown, list[Column]]] = []

    def make() -> None:
        shown = shown_points(sweep)
        made.append((shown, columns(sweep, shown) if shown.rows else []))

    verdict = with_note(verdict_of(sweep, meanwhile=make), note)
    return verdict, *made[0]


def shown_points(sweep: Sweep) -> Shown:
    """The best points, or the whole Pareto front, and the best of each strategy; those not recommended below."""
    simulated = [point for point in sweep.ranked() if point.status == "simulated"]
    best = front(simulated) if sweep.objective == "pareto" else simulated[:BEST]
    chosen = list(chosen_of(simulated, best, sweep.twins()))
    good = sum(point.recommended for _, point in chosen)
    words = [f"{len(best)} best by {sweep.objective}, and the best of each strategy"]
    if sweep.objective == "pareto":
        words = ["* no point beats it in both speed and memory; and the best of each strategy"]
    if good < len(chosen):
        names = dict.fromkeys(point.name for _, point in chosen[good:])
        words.append(f"below the line not recommended: seams show ({', '.join(names)})")
    if checkpointing := _checkpointing_of_all([point for _, point in chosen]):
        words.append(f"all with checkpointing {checkpointing}, without which they lack memory")
    return Shown(chosen, good if 0 < good < len(chosen) else None, "; ".join(words))


def _checkpointing_of_all(points: Sequence[Point]) -> str | None:
    """What all of some points recompute that were tried again for want of memory; None where they differ."""
    found = {point.checkpointing for point in points}
    return found.pop() if len(found) == 1 else None


def chosen_of(
    simulated: Sequence[Point], best: Sequence[Point], twins: Mapping[int, Point]
) -> Iterator[tuple[int, Point]]:
    """The best points with their ranks, and the best of each strategy that is not among them; equal rows once.

    A point with the result of another that is shown is left out: the other's row names its strategy, too.
    """
    strategies, chosen, shown = set(), {id(point) for point in best}, set()
    looks = set()
    for rank, point in enumerate(simulated, 1):
        if id(twins.get(id(point))) in shown:
            strategies.add(point.name)
        elif (id(point) in chosen and _look(point) not in looks) or point.name not in strategies:
            strategies.add(point.name)
            looks.add(_look(point))
            shown.add(id(point))
            yield rank, point


def _named(sweep: Sweep, shown: Shown) -> list[str]:
    """The strategies of the points of a table, with those of the same result."""
    names = {point.identity: [point.name] for _, point in shown.rows}
    alike = {identity and identity[1:]: own for identity, own in names.items()}
    for point in sweep.points:
        if (identity := point.identity) is not None and identity not in names:
            alike.get(identity[1:], []).append(point.name)
    return [" = ".join(dict.fromkeys(names[point.identity])) for _, point in shown.rows]


def _look(point: Point) -> tuple[object, ...]:
    """What a table says of a point beside its parameters."""
    assert point.result is not None
    memory = f"{point.result.expected.peak_memory_bytes / GIB:.1f}"
    return point.name, point.result.num_gpus, duration(point.result), memory


def front(simulated: Sequence[Point]) -> list[Point]:
    """The recommended points that no other of them beats in both throughput and memory."""
    results = [
        (point, point.result.to_json())
        for point in simulated
        if point.result is not None and point.recommended
    ]
    return [item["point"] for item in pareto_front([{**result, "point": point} for point, result in results])]


def columns(sweep: Sweep, shown: Shown) -> list[Column]:
    """The columns of a table of points; where the terminal is narrow, the first and the last are kept longest."""
    results = [point.result for _, point in shown.rows if point.result is not None]
    heads = [f"{rank}{mark}" for (rank, _), mark in zip(shown.rows, _marks(sweep, shown), strict=True)]
    of_task = _of_sampling if sweep.scenario.task == "sample" else _of_training
    return [
        Column("#", heads),
        Column("strategy", _named(sweep, shown), words=True, tells=True),
        *of_task(sweep, results),
        *_shares(results),
    ]


def not_runnable(sweep: Sweep, shown: Shown) -> Iterator[str]:
    """Which rows of a table no runtime is known to start, in words."""
    ranks = [str(rank) for rank, point in shown.rows if not starters(point, sweep.scenario)]
    if ranks and len(ranks) == len(shown.rows):
        yield "no runtime is known that starts any of these"
    elif ranks:
        yield f"no runtime is known that starts {'number' if len(ranks) == 1 else 'numbers'} {', '.join(ranks)}"


def _marks(sweep: Sweep, shown: Shown) -> Iterator[str]:
    """The marks of the rows of a table."""
    points = [point for _, point in shown.rows]
    on_front = set(map(id, front(points))) if sweep.objective == "pareto" else set()
    ties = set(map(id, sweep.ties()))
    for point in points:
        yield FRONT * (id(point) in on_front) + TIE * (id(point) in ties)


def legend(columns: Sequence[Column]) -> Iterator[str]:
    """What the marks and letters in some columns stand for: a line each."""
    if any(cell.endswith(TIE) for column in columns if column.name == "#" for cell in column.cells):
        yield TIED
    names = {column.name for column in columns}
    said = {
        word.split()[0]
        for column in columns
        if column.words
        for cell in column.cells
        for word in _clauses(cell)
    }
    letters = [f"{letter}: {means}" for letter, means in MEANINGS.items() if letter in names | said]
    if letters:
        yield ", ".join(letters)


def _clauses(cell: str) -> list[str]:
    """What a cell says of parameters, one by one."""
    return [word for word in cell.split(", ") if word]


def _of_training(sweep: Sweep, results: Sequence[Result]) -> list[Column]:
    values, over = tried(sweep.points), _baseline(sweep)
    alike = len({result.options["checkpointing"] for result in results}) == 1  # said once, above the table
    leave = [*LETTERS, "checkpointing"] if alike else LETTERS
    letters = [
        Column(letter, [str(r.parameters.get(key) or "-") for r in results], rank, tells=True)
        for (key, letter), rank in zip(LETTERS.items(), (1, 1, 4), strict=True)
    ]
    speeds = ["-" if over is None else f"{r.samples_per_s / over.samples_per_s:.2f}" for r in results]
    return [
        *_counts(results, 2),
        *letters,
        Column("more", [how(r, values, leave) for r in results], 6, words=True, widest=HOW, tells=True),
        Column("iteration\nms", [f"{r.expected.duration_s * 1e3:,.1f}" for r in results]),
        Column("8 of 10\nwithin", [band(r) or "-" for r in results], 3),
        Column("samples\nper s", [throughput(r.samples_per_s) for r in results], 8),
        Column(f"speed over\n{' or '.join(baselines('train'))}", speeds, 5),
    ]


def _of_sampling(sweep: Sweep, results: Sequence[Result]) -> list[Column]:
    values = tried(sweep.points)
    image = image_words(sweep.scenario.options)[0]
    one = next((p.result for p in sweep.ranked() if p.result is not None and p.num_gpus == 1), None)
    speeds = ["-" if one is None else f"{r.samples_per_s / one.samples_per_s:.2f}" for r in results]
    return [
        *_counts(results, 2),
        Column("how", [how(r, values) for r in results], 1, words=True, widest=HOW, tells=True),
        Column("latency\ns", [f"{r.latency_s:.3f}" for r in results]),
        Column("8 of 10\nwithin", [band(r, "s") or "-" for r in results], 3),
        Column("speed over\none GPU", speeds, 5),
        Column(
            f"GPU-s per\n{image}",
            [f"{r.gpu_s_per_sample:,.2f}" for r in results],
            6,
        ),
    ]


def _counts(results: Sequence[Result], rank: int) -> list[Column]:
    """The column of GPUs, where results differ in them."""
    counts = [str(result.num_gpus) for result in results]
    return [Column("GPUs", counts, rank, tells=True)] if len(set(counts)) > 1 else []


def _shares(results: Sequence[Result]) -> list[Column]:
    return [
        Column("bubble", [f"{r.bubble_ratio:.1%}" for r in results], 7),
        Column("memory\nGiB", [f"{r.expected.peak_memory_bytes / GIB:.1f}" for r in results]),
    ]


def _baseline(sweep: Sweep) -> Result | None:
    """The fastest of the baselines; None where memory is ranked by, as the fastest is not among them for sure."""
    against = [p.result for p in sweep.points if p.status == "simulated" and p.name in baselines("train")]
    if sweep.objective == "memory":
        return None
    return max((r for r in against if r is not None), key=lambda r: r.samples_per_s, default=None)


def remarks(sweep: Sweep, verdict: Verdict | None) -> Iterator[str]:
    """What was held fixed, where layer times are from, and what is infeasible and why."""
    if verdict is not None:
        yield f"held fixed: {held_fixed(sweep.points, verdict.best)}"
        yield _times_words(sweep, verdict.best)
    yield from _infeasible_words(sweep)
    ranked = sweep.ranked()
    counts = {
        status: sum(p.status == status for p in ranked) for status in ("simulated", "bounded", "infeasible")
    }
    counts["with the result of another"] = len(sweep.points) - len(ranked)
    yield "points: " + ", ".join(f"{count} {status}" for status, count in counts.items())


def _times_words(sweep: Sweep, best: Result) -> str:
    device, stack = sweep.scenario.cluster.device, sweep.scenario.stack.name
    words = f"layer times are measured on {device.name}"
    if best.provenance == "estimated":
        source = shorten(device.source, 160, placeholder=" ...")
        words = f"layer times are estimated for stack {stack} on {device.name} ({source})"
    return words


def _infeasible_words(sweep: Sweep) -> Iterator[str]:
    for kind, count in sweep.infeasible_by_reason().items():
        yield f"infeasible: {count} x {kind} ({such_as(sweep.points, kind)})"
    for kind, names in _not_applicable(sweep.points).items():
        yield f"no point is left of {', '.join(names)}: {kind}"


def _not_applicable(points: Sequence[Point]) -> dict[str, list[str]]:
    """The strategies none of whose points is feasible, by what most of these lack."""
    kinds: dict[str, Counter[str | None]] = {}
    for point in points:
        kinds.setdefault(point.name, Counter())[point.kind] += 1
    found: dict[str, list[str]] = {}
    for name, counts in kinds.items():
        if None not in counts:
            found.setdefault(str(counts.most_common(1)[0][0]), []).append(name)
    return found
