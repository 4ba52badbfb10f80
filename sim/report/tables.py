"""Tables: what a person reads on the terminal."""

import json
import shlex
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import fields
from time import monotonic
from typing import Any, Final, NamedTuple

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn
from rich.table import Table

from profiles.clusters import Cluster, Link
from profiles.models import Model
from profiles.stacks import Stack
from profiles.units import GB, GIB, MICROSECOND
from sim.explore.tuning import Choice
from sim.report.facts import cluster_facts, model_facts, sampled_on, stack_facts, strategy_facts
from sim.results import Result
from strategies.parameters import flag_of
from strategies.strategy import AnyStrategy

REFRESH_S: Final = 0.1
"""Progress is drawn again at most this often."""


def console() -> Console:
    """The console that tables are printed on; 140 characters wide where it is no terminal."""
    width = None if sys.stdout.isatty() else 140
    return Console(highlight=False, markup=False, emoji=False, width=width)


def print_models(models: Sequence[Model], as_json: bool) -> None:
    """Print the models, one component per row."""
    if as_json:
        print(json.dumps([model_facts(model) for model in models]))
        return
    table = Table(
        "model",
        "component",
        "trained",
        "layers",
        "blocks",
        "parameters",
        "skips",
        "measured on",
        "sampled on",
    )
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
                _sampled_words(model) if component.trainable else "",
            )
    screen = console()
    screen.print(table)
    screen.print(
        "sampled on several GPUs: an exchanges.csv says what they need of one another; no guidance: one prediction"
        " per step is the default",
        soft_wrap=True,
    )


def _sampled_words(model: Model) -> str:
    where = sampled_on(model)
    return "-" if where is None else where + (", no guidance" if model.guidance == "none" else "")


def print_clusters(clusters: Sequence[Cluster], as_json: bool) -> None:
    """Print the clusters."""
    if as_json:
        print(json.dumps([cluster_facts(cluster) for cluster in clusters]))
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
    console().print(table)


def _link_words(link: Link | None) -> str:
    if link is None:
        return "-"
    return link.kind if link.kind == "ideal" else f"{link.kind} {link.bandwidth_bytes_per_s / GB:g} GB/s"


def print_stacks(stacks: Sequence[Stack], as_json: bool) -> None:
    """Print the software stacks."""
    if as_json:
        print(json.dumps([stack_facts(stack) for stack in stacks]))
        return
    table = Table("stack", "what it is", "host per operator", "attention", "norms", "optimizer")
    for stack in stacks:
        table.add_row(
            stack.name,
            stack.summary,
            f"{stack.forward_operator_s / MICROSECOND:g} us",
            stack.attention,
            stack.norms,
            stack.optimizer,
        )
    console().print(table)


def print_strategies(strategies: Sequence[type[AnyStrategy]], as_json: bool) -> None:
    """Print the strategies with their parameters and defaults."""
    if as_json:
        print(json.dumps([strategy_facts(cls) for cls in strategies]))
        return
    table = Table("strategy", "task", "what it is", "parameters")
    for cls in strategies:
        flags = " ".join(flag_of(f.name) for f in fields(cls))  # type: ignore[arg-type]
        table.add_row(cls.name, cls.task, cls.summary, flags)
    console().print(table)


class Words(NamedTuple):
    """A result in words: the question, the quantities that came out, and the unit of work of its stage times."""

    asked: str
    quantities: list[tuple[str, str]]
    per: str
    passes: tuple[str, ...]


def print_result(result: Result) -> None:
    """Print one result; means over its GPUs where each has its own."""
    words = _run_words(result) if result.task == "sample" else _iteration_words(result)
    screen = console()
    screen.print(_title(result.strategy, result.parameters))
    screen.print(
        f"{result.model} on {_gpus(result.num_gpus)} of {result.cluster}, stack {result.stack}, {words.asked}"
    )
    table = Table(show_header=False, box=None, pad_edge=False)
    for line in (
        *words.quantities,
        ("peak memory", _memory(result)),
        ("layer times", _provenance(result)),
    ):
        table.add_row(*line)
    screen.print(table)
    screen.print(_stage_table(result, words))


def _iteration_words(result: Result) -> Words:
    asked = ", ".join([f"batch {result.batch_size}", *result.departures])
    return Words(asked, _iteration(result), "per micro-batch", ("forward", "backward"))


def _run_words(result: Result) -> Words:
    asked = result.asked
    guidance = "no guidance" if asked["guidance"] == "none" else f"guidance {asked['guidance']}"
    images = "1 image" if result.batch_size == 1 else f"{result.batch_size} images"
    drawn = f"{images} of {asked['resolution']} pixels, {asked['steps']} steps, {guidance}"
    return Words(drawn, _drawing(result), "per step", ("forward",))


def _iteration(result: Result) -> list[tuple[str, str]]:
    expected = result.expected
    return [
        ("iteration", milliseconds(expected.duration_s)),
        ("first iteration", milliseconds(expected.first_s)),
        ("throughput", f"{result.samples_per_s:,.1f} samples/s" + _per_backbone(result)),
        ("bubble ratio", f"{result.bubble_ratio:.1%}"),
        ("exposed communication", milliseconds(expected.exposed_communication_s)),
        ("collectives", milliseconds(expected.collective_s)),
        ("sent point to point", f"{expected.p2p_bytes / GB:,.2f} GB by all GPUs together"),
        ("sent in collectives", f"{expected.collective_bytes / GB:,.2f} GB by all GPUs together"),
    ]


def _drawing(result: Result) -> list[tuple[str, str]]:
    expected, latency_s = result.expected, result.latency_s
    waiting = expected.exposed_communication_s
    return [
        ("latency", milliseconds(latency_s)),
        ("steady step", milliseconds(result.step_s)),
        ("throughput", f"{result.samples_per_s:,.3f} images/s"),
        ("cost", f"{result.gpu_s_per_sample:,.2f} GPU-seconds per image"),
        ("compute", _part(expected.busy_s, latency_s)),
        ("exposed communication", _part(waiting, latency_s)),
        ("idle otherwise", _part(max(0.0, expected.idle_s - waiting), latency_s)),
        ("collectives", milliseconds(expected.collective_s)),
        ("sent point to point", _per_image(expected.p2p_bytes, result)),
        ("sent in collectives", _per_image(expected.collective_bytes, result)),
    ]


def _title(strategy: str, parameters: Mapping[str, Any]) -> str:
    """A strategy with its parameters in words; those left to it are not said."""
    words = [f"{key} {_joined(value)}" for key, value in parameters.items() if value is not None]
    return f"{strategy} ({', '.join(words)})" if words else strategy


def _joined(value: Any) -> str:  # noqa: ANN401
    """A value as a flag takes it: lists with commas."""
    return ",".join(map(str, value)) if isinstance(value, tuple | list) else str(value)


def _part(seconds: float, of_s: float) -> str:
    return f"{milliseconds(seconds)}, {seconds / of_s:.1%} of the latency"


def _per_image(size_bytes: float, result: Result) -> str:
    return f"{size_bytes / result.batch_size / GB:,.2f} GB per image by all GPUs together"


def _provenance(result: Result) -> str:
    """Provenance of the layer times, and the factor by which published latencies scale them."""
    if result.source is None:
        return result.provenance
    scenario = result.source.scenario
    device = scenario.cluster.device
    if result.provenance == "measured" or all(a.device != device.name for a in scenario.model.anchors):
        return result.provenance
    factor = f"times {scenario.costs.anchor_factor:.2f}, from published latencies of one GPU"
    return f"{result.provenance}, those of the backbone {factor}"


def _gpus(count: int) -> str:
    return "1 GPU" if count == 1 else f"{count} GPUs"


def _per_backbone(result: Result) -> str:
    return (
        ""
        if result.num_backbones == 1
        else f", each counted once for each of {result.num_backbones} backbones"
    )


def _stage_table(result: Result, words: Words) -> Table:
    table = Table("stage", "devices", "layers", *words.passes, "parameters", title=words.per)
    for number, stage in enumerate(result.stages):
        first, last = stage["first_layer"], stage["last_layer"]
        table.add_row(
            str(number),
            _span(stage["devices"]),
            f"{first}-{last}" if first <= last else "none",
            *(milliseconds(stage[f"{name}_s"]) for name in words.passes),
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
            milliseconds(choice.estimate_s),
            milliseconds(choice.bound_s),
            "-" if result is None else milliseconds(result.iteration_s),
            "-" if result is None else f"{result.samples_per_s:,.1f}" if result.fits_memory else "does not fit",
        )  # fmt: skip
    screen = console()
    screen.print(table)
    if best := next((choice for choice in choices if choice.samples_per_s), None):
        assert best.result is not None
        screen.print(f"again: {command_of(best.result)}", soft_wrap=True)


def command_of(result: Result) -> str:
    """The command line that gives a result again."""
    flags = {
        "model": result.model, "cluster": result.cluster, "stack": result.stack, "gpus": result.num_gpus,
        "batch_size": result.batch_size, "strategy": result.strategy, **result.parameters,
    }  # fmt: skip
    flags |= {**result.asked, **result.options}
    given = {key: value for key, value in flags.items() if value not in (None, "")}
    words = [word for key, value in given.items() for word in (flag_of(key), _joined(value))]
    return shlex.join(["sim", "run", *words])


def milliseconds(seconds: float) -> str:
    """A time in words."""
    return f"{seconds * 1e3:,.1f} ms"


def _memory(result: Result) -> str:
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
