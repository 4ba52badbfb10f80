"""Rankings: what a person reads of a sweep."""

import json
from collections import Counter
from collections.abc import Iterator, Sequence
from textwrap import shorten
from typing import Any, Final

from rich.console import Console
from rich.table import Table

from profiles.units import GIB
from sim.experiment import TrainingResult
from sim.frames import rows
from sim.space import pareto_front
from sim.sweep import Point, Sweep
from sim.tables import command_of, console, milliseconds

SHAPE: Final = ("pipeline_degree", "micro_batches", "group_size")
"""Parameters with a column of their own: P, M and D."""
BEST: Final = 10
"""Rows of the table of the best."""


def print_rows_json(sweep: Sweep) -> None:
    """Print all rows of a sweep as one JSON list."""
    print(json.dumps(rows(sweep), allow_nan=False))


def print_sweep(sweep: Sweep) -> None:
    """Print the best points, the best of each strategy among them, what is infeasible and why, and the winner."""
    screen = console()
    ranked = sweep.ranked()
    simulated = [point for point in ranked if point.status == "simulated"]
    if simulated:
        screen.print(_best_table(sweep, simulated))
        _print_winner(screen, sweep, simulated[0])
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


def _not_applicable(points: Sequence[Point]) -> dict[str, list[str]]:
    """Return the strategies none of whose points is feasible, by what most of these lack."""
    kinds: dict[str, Counter[str | None]] = {}
    for point in points:
        kinds.setdefault(point.name, Counter())[point.kind] += 1
    found: dict[str, list[str]] = {}
    for name, counts in kinds.items():
        if None not in counts:
            found.setdefault(str(counts.most_common(1)[0][0]), []).append(name)
    return found


def _best_table(sweep: Sweep, simulated: list[Point]) -> Table:
    scenario, workload = sweep.scenario, sweep.scenario.workload
    table = Table(
        "#", "strategy", "P", "M", "D", "more", "iteration", "samples/s", "over ddp", "bubble", "peak memory",
        title=f"{scenario.model.title} on {workload.num_gpus} GPUs of {scenario.cluster.name}, batch"
        f" {workload.batch_size}",
    )  # fmt: skip
    baselines = [point.result for point in simulated if point.name == "ddp" and point.result is not None]
    ddp = max(baselines, key=lambda result: result.samples_per_s, default=None)
    if sweep.objective == "memory":  # the fastest is not among them for sure
        ddp = None
    tried = _tried(sweep)
    front = _front(simulated) if sweep.objective == "pareto" else []
    if front:
        table.caption = "* no point beats it in both throughput and memory"
    for rank, point in _shown(simulated, front or simulated[:BEST]):
        assert point.result is not None
        varied = {key for key, values in tried[point.name].items() if len(values) > 1}
        mark = " *" if any(point is other for other in front) else ""
        table.add_row(f"{rank}{mark}", *_best_row(point.result, ddp, varied))
    return table


def _tried(sweep: Sweep) -> dict[str, dict[str, set[Any]]]:
    """Return for each strategy and each of its parameters the values that the sweep looks at."""
    tried: dict[str, dict[str, set[Any]]] = {}
    for point in sweep.points:
        for key, value in point.parameters.items():
            tried.setdefault(point.name, {}).setdefault(key, set()).add(value)
    return tried


def _held_fixed(sweep: Sweep, result: TrainingResult) -> str:
    """Return in words what the sweep did not vary: the options, and parameters with one value per strategy.

    Where other strategies vary a parameter, those that do not are named.
    """
    held = {key: {value} for key, value in result.options.items()}
    holders: dict[str, list[str]] = {}
    tried = _tried(sweep)
    for name, parameters in tried.items():
        for key, values in parameters.items():
            if len(values) == 1 and key not in SHAPE:
                held[key] = held.get(key, set()) | values
                holders.setdefault(key, []).append(name)
    varied = {key for parameters in tried.values() for key, values in parameters.items() if len(values) > 1}
    words = []
    for key, values in held.items():
        names = f" ({', '.join(holders[key])})" if key in varied and key in holders else ""
        words.append(f"{key.replace('_', ' ')} {' or '.join(sorted(map(str, values)))}{names}")
    return ", ".join(words)


def _front(simulated: list[Point]) -> list[Point]:
    """Return the points that no other beats in both throughput and memory."""
    results = [(point, point.result.to_json()) for point in simulated if point.result is not None]
    return [item["point"] for item in pareto_front([{**result, "point": point} for point, result in results])]


def _shown(simulated: list[Point], best: list[Point]) -> Iterator[tuple[int, Point]]:
    """Yield the best points with their ranks, and the best of each strategy that is not among them."""
    seen, chosen = set(), {id(point) for point in best}
    for rank, point in enumerate(simulated, 1):
        if id(point) in chosen or point.name not in seen:
            seen.add(point.name)
            yield rank, point


def _best_row(result: TrainingResult, ddp: TrainingResult | None, varied: set[str]) -> list[str]:
    more = [
        value if isinstance(value, str) else f"{key.replace('_', '-')} {value}"
        for key, value in result.parameters.items()
        if key in varied and key not in SHAPE
    ]
    return [
        result.strategy,
        *(str(result.parameters.get(key, "-")) for key in SHAPE),
        " ".join(more),
        milliseconds(result.expected.iteration_s),
        f"{result.samples_per_s:,.1f}",
        "-" if ddp is None else f"{result.samples_per_s / ddp.samples_per_s:.2f}",
        f"{result.bubble_ratio:.1%}",
        f"{result.expected.peak_memory_bytes / GIB:.1f} GiB",
    ]


def _print_winner(screen: Console, sweep: Sweep, best: Point) -> None:
    """Say where the winner's time goes, what was held fixed, how far to trust it and how to have it again."""
    assert best.result is not None
    expected, result = best.result.expected, best.result
    waiting = expected.exposed_communication_s
    screen.print(
        f"best: {best.name}; of each iteration the devices compute {1 - result.bubble_ratio:.1%}, wait for data on"
        f" the wire {waiting / expected.iteration_s:.1%}, idle otherwise"
        f" {max(0.0, expected.idle_s - waiting) / expected.iteration_s:.1%}"
    )
    screen.print(f"held fixed: {_held_fixed(sweep, result)}")
    device = sweep.scenario.cluster.device
    if result.provenance == "estimated":
        source = shorten(device.source, 160, placeholder=" ...")
        screen.print(f"layer times are estimated with the rates of {device.name} ({source})", soft_wrap=True)
    else:
        screen.print(f"layer times are measured on {device.name}")
    screen.print(f"again: {command(best)}", soft_wrap=True)


def command(point: Point) -> str:
    """Return the command line that gives a simulated point again."""
    assert point.result is not None
    return command_of(point.result)
