"""Rankings: the best points of a sweep as rows of a table, training and sampling."""

import json
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from textwrap import shorten
from typing import Any, Final

from rich.console import Console
from rich.table import Table

from profiles.units import GIB
from sim.explore.frames import rows
from sim.explore.points import Point
from sim.explore.space import pareto_front
from sim.explore.sweep import Sweep
from sim.report.tables import command_of, console, milliseconds
from sim.results import Result
from strategies.registry import baselines

PERIODS: Final = {"train": "iteration", "sample": "run"}


def print_rows_json(sweep: Sweep) -> None:
    """Print all rows of a sweep as one JSON list."""
    print(json.dumps(rows(sweep), allow_nan=False))


def print_sweep(sweep: Sweep) -> None:
    """Print the best points, the best of each strategy among them, what is infeasible and why, and the winner."""
    screen = console()
    ranked = sweep.ranked()
    simulated = [point for point in ranked if point.status == "simulated"]
    if simulated:
        _print_tables(screen, sweep, simulated)
        _print_winner(screen, sweep)
    for kind, count in sweep.infeasible_by_reason().items():
        example = next(p for p in ranked if p.kind == kind)
        such = example.name if example.reason == kind else f"{example.name}: {example.reason}"
        screen.print(f"infeasible: {count} x {kind} (such as {such})")
    for kind, names in _not_applicable(sweep.points).items():
        screen.print(f"not a point left of {', '.join(names)}: {kind}")
    counts = {
        status: sum(p.status == status for p in ranked) for status in ("simulated", "bounded", "infeasible")
    }
    counts["with the result of another"] = len(sweep.points) - len(ranked)
    screen.print("points: " + ", ".join(f"{count} {status}" for status, count in counts.items()))


def _print_tables(screen: Console, sweep: Sweep, simulated: list[Point]) -> None:
    if sweep.scenario.task == "sample":
        screen.print(strategies_table(sweep, simulated))
        screen.print(top_table(sweep, simulated))
    else:
        screen.print(training_table(sweep, simulated))


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


def _print_winner(screen: Console, sweep: Sweep) -> None:
    """Say where the winner's time goes, what was held fixed, how far to trust it and how to have it again."""
    best = sweep.best_point()
    if best is None or best.result is None:
        screen.print("best: none; every point that fits leaves seams, which is not recommended")
        return
    result, whole_s = best.result, best.result.expected.duration_s
    waiting = result.expected.exposed_communication_s
    screen.print(
        f"best: {best.name}; of each {PERIODS[sweep.scenario.task]} the devices compute"
        f" {1 - result.bubble_ratio:.1%}, wait for data on the wire {waiting / whole_s:.1%}, idle otherwise"
        f" {max(0.0, result.expected.idle_s - waiting) / whole_s:.1%}"
    )
    screen.print(f"held fixed: {held_fixed(sweep, result)}")
    device, stack = sweep.scenario.cluster.device, sweep.scenario.stack.name
    if result.provenance == "estimated":
        source = shorten(device.source, 160, placeholder=" ...")
        screen.print(
            f"layer times are estimated for stack {stack} on {device.name} ({source})", soft_wrap=True
        )
    else:
        screen.print(f"layer times are measured on {device.name}")
    screen.print(f"again: {command(best)}", soft_wrap=True)


def command(point: Point) -> str:
    """The command line that gives a simulated point again."""
    assert point.result is not None
    return command_of(point.result)


COLUMNS: Final = (
    "#", "strategy", "GPUs", "degrees", "patches", "latency", "over one GPU", "GPU-s per image", "bubble",
    "peak memory",
)  # fmt: skip


def strategies_table(sweep: Sweep, simulated: list[Point]) -> Table:
    """The best point of each strategy."""
    workload, model = sweep.scenario.workload, sweep.scenario.model
    where = f"on up to {workload.num_gpus} GPUs of {sweep.scenario.cluster.name}, stack {sweep.scenario.stack.name}"
    title = f"best of each strategy: {model.title}, {where}"
    return _table(simulated, shown(simulated, []), title)


def top_table(sweep: Sweep, simulated: list[Point]) -> Table:
    """The best points; those of the Pareto front where that is asked for."""
    if sweep.objective == "pareto":
        chosen = {id(point) for point in front(simulated)}
        best = [(rank, point) for rank, point in enumerate(simulated, 1) if id(point) in chosen]
        return _table(simulated, best, "no point beats these in both latency and memory")
    return _table(simulated, enumerate(simulated[: sweep.top], 1), f"best by {sweep.objective}")


def _table(simulated: list[Point], ranks: Iterable[tuple[int, Point]], title: str) -> Table:
    table = Table(*COLUMNS, title=title)
    one = next((point.result for point in simulated if point.num_gpus == 1), None)
    ranks = list(ranks)
    if seams := sorted({point.name for _, point in ranks if not point.seamless}):
        table.caption = f"{', '.join(seams)}: seams show, so not recommended, and ranked last"
    for rank, point in ranks:
        assert point.result is not None
        speedup = "-" if one is None else f"{point.result.samples_per_s / one.samples_per_s:.2f}"
        table.add_row(str(rank), *_row(point.result, speedup))
    return table


def _row(result: Result, speedup: str) -> list[str]:
    return [
        result.strategy,
        str(result.num_gpus),
        _degrees(result.parameters),
        str(result.parameters.get("patches") or "-"),
        f"{result.latency_s:,.3f} s",
        speedup,
        f"{result.gpu_s_per_sample:,.2f}",
        f"{result.bubble_ratio:.1%}",
        f"{result.expected.peak_memory_bytes / GIB:.1f} GiB",
    ]


def _degrees(parameters: Mapping[str, Any]) -> str:
    """The degrees above 1, in words."""
    named = (
        (key.removesuffix("_degree"), value) for key, value in parameters.items() if key.endswith("_degree")
    )
    return ", ".join(f"{name} {value}" for name, value in named if value is not None and value > 1) or "-"


SHAPE: Final = ("pipeline_degree", "micro_batches", "group_size")
"""Parameters with a column of their own: P, M and D."""


def tried(sweep: Sweep) -> dict[str, dict[str, set[Any]]]:
    """For each strategy and each of its parameters the values that the sweep looks at."""
    tried: dict[str, dict[str, set[Any]]] = {}
    for point in sweep.points:
        for key, value in point.parameters.items():
            tried.setdefault(point.name, {}).setdefault(key, set()).add(value)
    return tried


def held_fixed(sweep: Sweep, result: Result) -> str:
    """In words what the sweep did not vary: the options, and parameters with one value per strategy.

    Where other strategies vary a parameter, those that do not are named.
    """
    held = {key: {value} for key, value in result.options.items()}
    values_of = tried(sweep)
    if "guidance" in result.asked:
        own = [name for name, parameters in values_of.items() if "guidance_degree" in parameters]
        whose = f" of all but {', '.join(own)}" if own else ""
        held[f"guidance{whose}"] = {result.asked["guidance"]}
    holders: dict[str, list[str]] = {}
    for name, parameters in values_of.items():
        for key, values in parameters.items():
            if len(values) == 1 and key not in SHAPE:
                held[key] = held.get(key, set()) | values
                holders.setdefault(key, []).append(name)
    varied = {
        key for parameters in values_of.values() for key, values in parameters.items() if len(values) > 1
    }
    words = []
    for key, values in held.items():
        names = f" ({', '.join(holders[key])})" if key in varied and key in holders else ""
        words.append(f"{key.replace('_', ' ')} {' or '.join(sorted(map(_word, values)))}{names}")
    return ", ".join(words)


def _word(value: Any) -> str:  # noqa: ANN401
    return {"": "none", "None": "default"}.get(str(value), str(value))


def front(simulated: list[Point]) -> list[Point]:
    """The recommended points that no other of them beats in both throughput and memory."""
    results = [
        (point, point.result.to_json())
        for point in simulated
        if point.result is not None and point.recommended
    ]
    return [item["point"] for item in pareto_front([{**result, "point": point} for point, result in results])]


def shown(simulated: list[Point], best: list[Point]) -> Iterator[tuple[int, Point]]:
    """The best points with their ranks, and the best of each strategy that is not among them."""
    seen, chosen = set(), {id(point) for point in best}
    for rank, point in enumerate(simulated, 1):
        if id(point) in chosen or point.name not in seen:
            seen.add(point.name)
            yield rank, point


BEST: Final = 10
"""Rows of the table of the best."""


def training_table(sweep: Sweep, simulated: list[Point]) -> Table:
    """The best points of a sweep, and the best of each strategy among them."""
    compared = baselines("train")
    table = Table(
        "#", "strategy", "P", "M", "D", "more", "iteration", "samples/s", f"over {' or '.join(compared)}", "bubble",
        "peak memory",
        title=sweep.title,
    )  # fmt: skip
    results = [point.result for point in simulated if point.result is not None]
    against = [result for result in results if result.strategy in compared]
    baseline = max(against, key=lambda result: result.samples_per_s, default=None)
    if sweep.objective == "memory":  # the fastest is not among them for sure
        baseline = None
    values_of = tried(sweep)
    best = front(simulated) if sweep.objective == "pareto" else []
    if best:
        table.caption = "* no point beats it in both throughput and memory"
    for rank, point in shown(simulated, best or simulated[:BEST]):
        assert point.result is not None
        varied = {key for key, values in values_of[point.name].items() if len(values) > 1}
        mark = " *" if any(point is other for other in best) else ""
        table.add_row(f"{rank}{mark}", *_best_row(point.result, baseline, varied))
    return table


def _best_row(result: Result, baseline: Result | None, varied: set[str]) -> list[str]:
    more = [
        value if isinstance(value, str) else f"{key.replace('_', '-')} {value}"
        for key, value in result.parameters.items()
        if key in varied and key not in SHAPE
    ]
    return [
        result.strategy,
        *(str(result.parameters.get(key, "-")) for key in SHAPE),
        " ".join(more),
        milliseconds(result.iteration_s),
        f"{result.samples_per_s:,.1f}",
        "-" if baseline is None else f"{result.samples_per_s / baseline.samples_per_s:.2f}",
        f"{result.bubble_ratio:.1%}",
        f"{result.expected.peak_memory_bytes / GIB:.1f} GiB",
    ]
