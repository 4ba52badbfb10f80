"""Tables: what a person reads on the terminal."""

import json
import shlex
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import fields
from itertools import groupby
from shutil import get_terminal_size
from typing import Any, Final, NamedTuple

from rich.console import Console
from rich.table import Table

from profiles.architectures.models import Model
from profiles.errors import counted, flag_of
from profiles.machines.clusters import Cluster, Link
from profiles.machines.devices import Device
from profiles.machines.laws import Rates
from profiles.software.stacks import Stack
from profiles.units import GB, GIB, MICROSECOND, TFLOP
from sim.explore.legality import runtimes_of
from sim.explore.tuning import Choice
from sim.outcomes.results import Result
from sim.report.columns import Column, markdown_of, show_table
from sim.report.listings import (
    cluster_facts,
    device_facts,
    model_facts,
    sampled_on,
    stack_facts,
    strategy_facts,
)
from sim.report.numbers import banded, image_words, milliseconds, throughput
from sim.report.panels import (
    Line,
    Panel,
    image_groups_of,
    result_lines,
    runs_in_words,
    trust_in,
)
from sim.report.reasons import Account, account_of, shares
from strategies.strategy import AnyScenario, AnyStrategy

PACED: Final = "; beside these, a measured run of yours sets the pace of compute"
"""What trust rests on where compute is scaled to a measured run of the same task."""
NO_TERMINAL: Final = 140
"""Characters of a line where no terminal is there and COLUMNS is not set."""


def console() -> Console:
    """The console that tables are printed on; where it is no terminal, as wide as COLUMNS says, else 140 characters."""
    width = None if sys.stdout.isatty() else get_terminal_size((NO_TERMINAL, 0)).columns
    return Console(highlight=False, markup=False, emoji=False, width=width)


def _print_all(
    items: Iterable[Any],
    facts: Callable[[Any], dict[str, Any]],
    as_json: bool,
    heads: Sequence[str],
    rows: Callable[[Any], Iterable[Sequence[str]]],
    *,
    note: str = "",
) -> None:
    """Print what comes with the package, as JSON or as a table with a note below it."""
    if as_json:
        print(json.dumps([facts(item) for item in items]))
        return
    table, screen = Table(*heads), console()
    for row in (row for item in items for row in rows(item)):
        table.add_row(*row)
    screen.print(table)
    if note:
        screen.print(note, soft_wrap=True)


def print_models(models: Sequence[Model], as_json: bool) -> None:
    """Print the models, one component per row."""
    heads = (
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
    note = (
        "sampled on several GPUs: an exchanges.csv says what they need of one another; no guidance, or embedded: one"
        " prediction per step is the default"
    )
    _print_all(models, model_facts, as_json, heads, _model_rows, note=note)


def _model_rows(model: Model) -> Iterator[Sequence[str]]:
    for number, component in enumerate(model.components):
        yield (
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


def _sampled_words(model: Model) -> str:
    where = sampled_on(model)
    guidance = {"none": ", no guidance", "embedded": ", guidance embedded"}
    return "-" if where is None else where + guidance.get(model.guidance, "")


def print_clusters(clusters: Sequence[Cluster], as_json: bool) -> None:
    """Print the clusters."""
    heads = ("cluster", "device", "devices per node", "nodes", "inside a node", "between nodes")

    def rows(cluster: Cluster) -> Iterator[Sequence[str]]:
        links = map(_link_words, (cluster.intra_node, cluster.inter_node))
        yield (
            cluster.name,
            cluster.device.name,
            str(cluster.devices_per_node),
            str(cluster.max_nodes),
            *links,
        )

    _print_all(clusters, cluster_facts, as_json, heads, rows)


def _link_words(link: Link | None) -> str:
    if link is None:
        return "-"
    return link.kind if link.kind == "ideal" else f"{link.kind} {link.bandwidth_bytes_per_s / GB:g} GB/s"


def print_devices(devices: Sequence[Device], as_json: bool) -> None:
    """Print the devices."""
    heads = ("device", "memory", "convolutions", "products", "attention", "memory traffic", "layer times by")

    def rows(device: Device) -> Iterator[Sequence[str]]:
        memory = "unlimited" if device.memory_bytes is None else f"{device.memory_bytes / GIB:g} GiB"
        times = "laws by shape" if device.own_laws else "rates" if device.rates else "measured alone"
        yield (device.name, memory, *_rate_words(device.rates), times)

    _print_all(devices, device_facts, as_json, heads, rows)


def _rate_words(rates: Rates | None) -> list[str]:
    if rates is None:
        return ["-"] * 4
    flop = rates.conv_flop_per_s, rates.matmul_flop_per_s, rates.attention_flop_per_s
    return [*(f"{rate / TFLOP:g} TFLOP/s" for rate in flop), f"{rates.memory_bytes_per_s / GB:g} GB/s"]


def print_stacks(stacks: Sequence[Stack], as_json: bool) -> None:
    """Print the software stacks."""
    heads = ("stack", "what it is", "host per operator", "attention", "norms", "optimizer")

    def rows(stack: Stack) -> Iterator[Sequence[str]]:
        host = f"{stack.forward_operator_s / MICROSECOND:g} us"
        yield (stack.name, stack.summary, host, stack.attention, stack.norms, stack.optimizer)

    _print_all(stacks, stack_facts, as_json, heads, rows)


def print_strategies(strategies: Sequence[type[AnyStrategy]], as_json: bool) -> None:
    """Print the strategies with their parameters and defaults."""

    def rows(cls: type[AnyStrategy]) -> Iterator[Sequence[str]]:
        flags = " ".join(flag_of(f.name) for f in fields(cls))  # type: ignore[arg-type]
        yield (cls.name, cls.task, cls.summary, flags)

    _print_all(strategies, strategy_facts, as_json, ("strategy", "task", "what it is", "parameters"), rows)


class Words(NamedTuple):
    """A result in words: the question, and what came out beside speed and memory."""

    question: str
    quantities: list[Line]


def print_result(result: Result, *, markdown: bool = False) -> None:
    """Print one result; means over its GPUs where each has its own."""
    screen, panel, columns = console(), panel_of(result), _stage_columns(result)
    title = f"stages, per {'micro-batch' if result.task == 'train' else 'step'}"
    if markdown:
        print(f"{panel.markdown()}\n\n{markdown_of(title, columns)}")
        return
    panel.show(screen)
    screen.print()
    show_table(screen, title, columns)


def panel_of(result: Result) -> Panel:
    """A result with what is trained or drawn, as ``sim run`` says it."""
    title = f"{result.title}, {_words(result).question}"
    return Panel(title, lines_of(result, account_in(result)))


def lines_of(result: Result, account: Account) -> list[Line]:
    """A result line by line: the strategy, speed, memory, time and its account, then what else came out."""
    trust = None if result.source is None else trust_in(result, result.source.scenario.cluster.device.name)
    paced = PACED if result.source is not None and is_paced(result.source.scenario) else ""
    return [
        ("strategy", result.strategy),
        *([("with", words)] if (words := _parameters(result.parameters)) else []),
        *result_lines(result, account, image_groups_of(result)),
        *_words(result).quantities,
        *_runs_in(result),
        ("layer times", _provenance(result)),
        *([] if trust is None else [("trust", f"{trust}{paced}")]),
    ]


def account_in(result: Result) -> Account:
    """Where its time goes; without the host where it is not known what was asked."""
    if result.source is None:
        compute, wire, idle = shares(result)
        return Account(compute, 0.0, wire, idle)
    return account_of(result.source.strategy, result.source.scenario, result)


def _runs_in(result: Result) -> list[Line]:
    """The runtimes that run it, where it is known what was asked."""
    if result.source is None:
        return []
    source = result.source
    return [("runs in", runs_in_words(runtimes_of(source.strategy, source.scenario)))]


def _words(result: Result) -> Words:
    expected = result.expected
    if result.task == "train":
        first = ("first", f"{milliseconds(expected.first_s)} the first iteration alone")
        return Words(
            f"batch {result.batch_size}", [first, *_communication(result, 1, "by all GPUs together")]
        )
    asked, (one, more) = result.asked, image_words(result.options)
    guidance = "no guidance" if asked["guidance"] == "none" else f"guidance {asked['guidance']}"
    images, steps = counted(result.batch_size, one, more), counted(asked["steps"], "step")
    step = ("step", f"{milliseconds(result.step_s)}, once steady")
    sent = _communication(result, result.batch_size, f"per {one} by all GPUs together")
    return Words(f"{images} of {asked['resolution']} pixels, {steps}, {guidance}", [step, *sent])


def _communication(result: Result, samples: int, whose: str) -> list[Line]:
    expected = result.expected
    sent = f"{expected.p2p_bytes / samples / GB:,.2f} GB point to point"
    collective = f"{expected.collective_bytes / samples / GB:,.2f} GB in collectives"
    waiting = f"waiting for data on the wire {milliseconds(expected.exposed_communication_s)}"
    return [
        ("collectives", f"{milliseconds(expected.collective_s)}; {waiting}"),
        ("sent", f"{sent}, {collective}, {whose}"),
    ]


def _parameters(parameters: Mapping[str, Any]) -> str:
    """Parameters in words; those left to the strategy are not said."""
    return ", ".join(f"{key} {_joined(value)}" for key, value in parameters.items() if value is not None)


def _joined(value: Any) -> str:  # noqa: ANN401
    """A value as a flag takes it: lists with commas."""
    return ",".join(map(str, value)) if isinstance(value, tuple | list) else str(value)


def _provenance(result: Result) -> str:
    """Provenance of the layer times, and the factors by which published and own runs scale them."""
    if result.source is None:
        return result.provenance
    scenario = result.source.scenario
    words = [result.provenance]
    if result.provenance != "measured" and scenario.costs.published.source:
        words.append(f"those of the backbone {scenario.costs.published}")
    return "; ".join(filter(None, (*words, measured_words(scenario))))


def is_paced(scenario: AnyScenario) -> bool:
    """Whether compute is scaled to a measured run of the same task."""
    return scenario.measured is not None and scenario.measured.task == scenario.task


def measured_words(scenario: AnyScenario) -> str:
    """The factor of a measured run on compute; empty without one."""
    return "" if scenario.measured is None else scenario.measured.words(scenario.task)


def _stage_columns(result: Result) -> list[Column]:
    """The columns of the stages; neighbours that differ in nothing but their layers share a row."""
    alike = [list(group) for _, group in groupby(enumerate(result.stages), _stage_look)]
    stages = [group[0][1] for group in alike]
    passes = ("forward", "backward") if result.task == "train" else ("forward",)
    return [
        Column("stage", [_ends(group[0][0], group[-1][0]) for group in alike]),
        Column("devices", [_span(stage["devices"]) for stage in stages], 1, widest=30),
        Column("layers", [_layers(group[0][1], group[-1][1]) for group in alike]),
        *(Column(name, [milliseconds(stage[f"{name}_s"]) for stage in stages]) for name in passes),
        Column("parameters", [f"{stage['parameters'] / 1e6:,.1f} M" for stage in stages], 2),
    ]


def _stage_look(item: tuple[int, Mapping[str, Any]]) -> tuple[Any, ...]:
    """All that is shown of a numbered stage; the same of neighbours that go on where the one before ends."""
    number, stage = item
    times = (milliseconds(stage[name]) for name in ("forward_s", "backward_s"))
    each = stage["last_layer"] - stage["first_layer"] + 1
    place = stage["first_layer"] - number * each if each else number
    return (tuple(stage["devices"]), *times, f"{stage['parameters'] / 1e6:.1f}", each, place)


def _ends(first: int, last: int) -> str:
    return str(first) if first == last else f"{first} to {last}"


def _layers(first: Mapping[str, Any], last: Mapping[str, Any]) -> str:
    """The layers of a stage, or of neighbours that have equally many."""
    start, end = first["first_layer"], last["last_layer"]
    if first is last:
        return f"{start}-{end}" if start <= end else "none"
    return f"{start}-{end}, each {first['last_layer'] - start + 1}"


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
            "-" if result is None else banded(result),
            _throughput(choice),
        )  # fmt: skip
    screen = console()
    screen.print(table)
    if best := next((choice for choice in choices if choice.samples_per_s), None):
        assert best.result is not None
        screen.print(f"again: {command_of(best.result)}", soft_wrap=True)


def _throughput(choice: Choice) -> str:
    if choice.result is None:
        return "-"
    if not choice.result.fits_memory:
        return "does not fit"
    return throughput(choice.result.samples_per_s) + (" tie" if choice.tie else "")


def command_of(result: Result) -> str:
    """The command line that gives a result again."""
    given = {key: value for key, value in result.flags.items() if value not in (None, "")}
    words = [word for key, value in given.items() for word in (flag_of(key), _joined(value))]
    return shlex.join(["sim", "run", *words])
