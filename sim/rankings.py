"""Rankings: what a person reads of a sweep."""

import json
from collections import Counter
from collections.abc import Sequence
from textwrap import shorten
from typing import Final

from rich.console import Console

from sim.frames import rows
from sim.points import Point, seconds, task
from sim.sampling_rankings import strategies_table, top_table
from sim.standings import held_fixed
from sim.sweep import Sweep
from sim.tables import command_of, console
from sim.training_rankings import training_table
from strategies.sampling import SamplingScenario

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
    if isinstance(sweep.scenario, SamplingScenario):
        screen.print(strategies_table(sweep, simulated))
        screen.print(top_table(sweep, simulated))
    else:
        screen.print(training_table(sweep, simulated))


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


def _print_winner(screen: Console, sweep: Sweep) -> None:
    """Say where the winner's time goes, what was held fixed, how far to trust it and how to have it again."""
    best = sweep.best()
    if best is None or best.result is None:
        screen.print("best: none; every point that fits leaves seams, which is not recommended")
        return
    result, whole_s = best.result, seconds(best.result)
    waiting = result.expected.exposed_communication_s
    screen.print(
        f"best: {best.name}; of each {PERIODS[task(sweep.scenario)]} the devices compute"
        f" {1 - result.bubble_ratio:.1%}, wait for data on the wire {waiting / whole_s:.1%}, idle otherwise"
        f" {max(0.0, result.expected.idle_s - waiting) / whole_s:.1%}"
    )
    screen.print(f"held fixed: {held_fixed(sweep, result)}")
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
