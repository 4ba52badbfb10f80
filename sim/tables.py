"""Tables: what a person reads on the terminal."""

import json
import shlex
import sys
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import fields
from textwrap import shorten
from time import monotonic
from typing import Any, Final

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn
from rich.table import Table

from profiles.clusters import Cluster, Link
from profiles.models import Model
from profiles.units import GB, GIB
from sim.experiment import TrainingResult
from sim.frames import rows
from sim.space import pareto_front
from sim.sweep import Point, Sweep
from sim.tuning import Choice
from strategies.strategy import Strategy

REFRESH_S: Final = 0.1
"""Progress is drawn again at most this often."""
SHAPE: Final = ("pipeline_degree", "micro_batches", "group_size")
"""Parameters with a column of their own: P, M and D."""
BEST: Final = 10
"""Rows of the table of the best."""


def _console() -> Console:
    width = None if sys.stdout.isatty() else 140
    return Console(highlight=False, markup=False, emoji=False, width=width)


def print_models(models: Sequence[Model], as_json: bool) -> None:
    """Print the models, one component per row."""
    if as_json:
        print(json.dumps([_model_json(model) for model in models]))
        return
    table = Table("model", "component", "trained", "layers", "blocks", "parameters", "skips", "measured on")
    for model in models:
        for number, component in enumerate(model.components):
            table.add_row(
                model.name if number == 0 else "",
                component.name,
                "yes" if component.trainable else "frozen",
                str(len(component.layers)),
                str(len({layer.block for layer in component.layers})),
                f"{component.parameters / 1e6:,.1f} M",
                str(len(component.skips)),
                ", ".join(device for device, _ in component.times) or "estimated",
            )
    _console().print(table)


def _model_json(model: Model) -> dict[str, Any]:
    return {
        "name": model.name,
        "title": model.title,
        "source": model.source,
        "components": [
            {
                "name": component.name,
                "trainable": component.trainable,
                "layers": len(component.layers),
                "parameters": component.parameters,
                "skips": len(component.skips),
                "measured_on": [device for device, _ in component.times],
            }
            for component in model.components
        ],
    }


def print_clusters(clusters: Sequence[Cluster], as_json: bool) -> None:
    """Print the clusters."""
    if as_json:
        print(json.dumps([_cluster_json(cluster) for cluster in clusters]))
        return
    table = Table("cluster", "device", "devices per node", "nodes", "inside a node", "between nodes")
    for cluster in clusters:
        table.add_row(
            cluster.name,
            cluster.device.name,
            str(cluster.devices_per_node),
            str(cluster.max_nodes),
            *(_link_words(link) for link in (cluster.intra_node, cluster.inter_node)),
        )
    _console().print(table)


def _link_words(link: Link | None) -> str:
    if link is None:
        return "-"
    return link.kind if link.kind == "ideal" else f"{link.kind} {link.bandwidth_bytes_per_s / GB:g} GB/s"


def _cluster_json(cluster: Cluster) -> dict[str, Any]:
    return {
        "name": cluster.name,
        "source": cluster.source,
        "device": cluster.device.name,
        "devices_per_node": cluster.devices_per_node,
        "max_nodes": cluster.max_nodes,
        "intra_node": _link_json(cluster.intra_node),
        "inter_node": None if cluster.inter_node is None else _link_json(cluster.inter_node),
    }


def _link_json(link: Link) -> dict[str, Any]:
    bandwidth = None if link.kind == "ideal" else link.bandwidth_bytes_per_s
    return {
        "kind": link.kind,
        "bandwidth_bytes_per_s": bandwidth,
        "latency_s": link.latency_s,
        "call_s": link.call_s,
    }


def print_strategies(strategies: Sequence[type[Strategy]], as_json: bool) -> None:
    """Print the strategies with their parameters and defaults."""
    if as_json:
        print(json.dumps([_strategy_json(cls) for cls in strategies]))
        return
    table = Table("strategy", "task", "what it is", "parameters")
    for cls in strategies:
        flags = " ".join(f"--{f.name.replace('_', '-')}" for f in fields(cls))  # type: ignore[arg-type]
        table.add_row(cls.name, cls.task, cls.summary, flags)
    _console().print(table)


def _strategy_json(cls: type[Strategy]) -> dict[str, Any]:
    return {
        "name": cls.name,
        "task": cls.task,
        "summary": cls.summary,
        "parameters": {
            item.name: {
                "default": item.default,
                "choices": list(item.metadata["choices"]),
                "help": item.metadata["help"],
            }
            for item in fields(cls)  # type: ignore[arg-type]
        },
    }


def print_result(result: TrainingResult) -> None:
    """Print one result."""
    expected = result.expected
    console = _console()
    parameters = ", ".join(f"{k} {v}" for k, v in result.parameters.items())
    console.print(f"{result.strategy} ({parameters})")
    console.print(f"{result.model} on {result.num_gpus} GPUs of {result.cluster}, batch {result.batch_size}")
    table = Table(show_header=False, box=None, pad_edge=False)
    for name, value in (
        ("iteration", _milliseconds(expected.iteration_s)),
        ("first iteration", _milliseconds(expected.first_iteration_s)),
        ("throughput", f"{result.samples_per_s:,.1f} samples/s" + _per_backbone(result)),
        ("bubble ratio", f"{result.bubble_ratio:.1%}"),
        ("exposed communication", _milliseconds(expected.exposed_communication_s)),
        ("collectives", _milliseconds(expected.collective_s)),
        ("sent point to point", f"{expected.p2p_bytes / GB:,.2f} GB by all GPUs together"),
        ("sent in collectives", f"{expected.collective_bytes / GB:,.2f} GB by all GPUs together"),
        ("peak memory", _memory(result)),
        ("layer times", result.provenance),
    ):
        table.add_row(name, value)
    console.print(table)
    console.print(_stage_table(result))


def _per_backbone(result: TrainingResult) -> str:
    return (
        ""
        if result.num_backbones == 1
        else f", each counted once for each of {result.num_backbones} backbones"
    )


def _stage_table(result: TrainingResult) -> Table:
    table = Table("stage", "devices", "layers", "forward", "backward", "parameters", title="per micro-batch")
    for number, stage in enumerate(result.stages):
        table.add_row(
            str(number),
            _span(stage["devices"]),
            f"{stage['first_layer']}-{stage['last_layer']}",
            _milliseconds(stage["forward_s"]),
            _milliseconds(stage["backward_s"]),
            f"{stage['parameters'] / 1e6:,.1f} M",
        )
    return table


def _span(devices: list[int]) -> str:
    if len(devices) > 2 and devices == list(range(devices[0], devices[-1] + 1)):
        return f"{devices[0]}-{devices[-1]}"
    return ",".join(map(str, devices))


def print_choices(choices: Sequence[Choice], as_json: bool) -> None:
    """Print what tuning found, the best first."""
    if as_json:
        print(json.dumps([choice.to_json() for choice in choices], allow_nan=False))
        return
    table = Table(
        "P", "G", "b", "batch", "memory, Eq. 14", "replayed", "Eq. 15", "bound", "iteration", "samples/s"
    )
    for choice in choices:
        result = choice.result
        table.add_row(
            str(choice.degree), str(choice.replicas), str(choice.micro_batch), str(choice.batch_size),
            f"{choice.equation_bytes / GIB:.1f} GiB",
            "-" if result is None else f"{result.expected.peak_memory_bytes / GIB:.1f} GiB",
            _milliseconds(choice.estimate_s),
            _milliseconds(choice.bound_s),
            "-" if result is None else _milliseconds(result.expected.iteration_s),
            "-" if result is None else f"{result.samples_per_s:,.1f}" if result.fits_memory else "does not fit",
        )  # fmt: skip
    console = _console()
    console.print(table)
    if best := next((choice for choice in choices if choice.samples_per_s), None):
        assert best.result is not None
        console.print(f"again: {command_of(best.result)}", soft_wrap=True)


def print_rows_json(sweep: Sweep) -> None:
    """Print all rows of a sweep as one JSON list."""
    print(json.dumps(rows(sweep), allow_nan=False))


def print_sweep(sweep: Sweep) -> None:
    """Print the best points, the best of each strategy among them, what is infeasible and why, and the winner."""
    console = _console()
    ranked = sweep.ranked()
    simulated = [point for point in ranked if point.status == "simulated"]
    if simulated:
        console.print(_best_table(sweep, simulated))
        _print_winner(console, sweep, simulated[0])
    for kind, count in sweep.infeasible_by_reason().items():
        example = next(p for p in ranked if p.kind == kind)
        such = example.name if example.reason == kind else f"{example.name}: {example.reason}"
        console.print(f"infeasible: {count} x {kind} (such as {such})")
    for kind, names in _not_applicable(sweep.points).items():
        console.print(f"not a point left of {', '.join(names)}: {kind}")
    counts = {
        status: sum(p.status == status for p in ranked) for status in ("simulated", "bounded", "infeasible")
    }
    counts["with the result of another"] = len(sweep.points) - len(ranked)
    console.print("points: " + ", ".join(f"{count} {status}" for status, count in counts.items()))


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
        _milliseconds(result.expected.iteration_s),
        f"{result.samples_per_s:,.1f}",
        "-" if ddp is None else f"{result.samples_per_s / ddp.samples_per_s:.2f}",
        f"{result.bubble_ratio:.1%}",
        f"{result.expected.peak_memory_bytes / GIB:.1f} GiB",
    ]


def _print_winner(console: Console, sweep: Sweep, best: Point) -> None:
    """Say where the winner's time goes, what was held fixed, how far to trust it and how to have it again."""
    assert best.result is not None
    expected, result = best.result.expected, best.result
    waiting = expected.exposed_communication_s
    console.print(
        f"best: {best.name}; of each iteration the devices compute {1 - result.bubble_ratio:.1%}, wait for data on"
        f" the wire {waiting / expected.iteration_s:.1%}, idle otherwise"
        f" {max(0.0, expected.idle_s - waiting) / expected.iteration_s:.1%}"
    )
    console.print(f"held fixed: {_held_fixed(sweep, result)}")
    device = sweep.scenario.cluster.device
    if result.provenance == "estimated":
        source = shorten(device.source, 160, placeholder=" ...")
        console.print(f"layer times are estimated with the rates of {device.name} ({source})", soft_wrap=True)
    else:
        console.print(f"layer times are measured on {device.name}")
    console.print(f"again: {command(best)}", soft_wrap=True)


def command(point: Point) -> str:
    """Return the command line that gives a simulated point again."""
    assert point.result is not None
    return command_of(point.result)


def command_of(result: TrainingResult) -> str:
    """Return the command line that gives a result again."""
    flags = {
        "model": result.model, "cluster": result.cluster, "gpus": result.num_gpus,
        "batch_size": result.batch_size, "strategy": result.strategy, **result.parameters, **result.options,
    }  # fmt: skip
    words = [word for key, value in flags.items() for word in (f"--{key.replace('_', '-')}", str(value))]
    return shlex.join(["sim", "run", *words])


def _milliseconds(seconds: float) -> str:
    return f"{seconds * 1e3:,.1f} ms"


def _memory(result: TrainingResult) -> str:
    there = "" if result.memory_bytes is None else f" of {result.memory_bytes / GIB:.0f} GiB"
    return f"{result.expected.peak_memory_bytes / GIB:.1f} GiB{there}"


@contextmanager
def progress() -> Iterator[Callable[[str, int, int], None]]:
    """Show progress on stderr while something runs; nothing where stderr is no terminal."""
    console = Console(stderr=True)
    columns = (TextColumn("{task.description:>10}"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn())
    shown = sys.stderr is not None and sys.stderr.isatty()
    # no thread of its own: worker processes may be forked while it is shown
    with Progress(*columns, console=console, transient=True, disable=not shown, auto_refresh=False) as bar:
        tasks: dict[str, Any] = {}
        refreshed = 0.0

        def report(stage: str, done: int, total: int) -> None:
            nonlocal refreshed
            if stage not in tasks:
                tasks[stage] = bar.add_task(stage, total=total)
            due = monotonic() - refreshed > REFRESH_S
            refreshed = monotonic() if due else refreshed
            bar.update(tasks[stage], completed=done, total=total, refresh=due)

        yield report
