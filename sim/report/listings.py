"""Listings of models, clusters, devices, stacks and strategies, as frames, in JSON and in words."""

import json
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from dataclasses import asdict, fields
from typing import TYPE_CHECKING, Any, Final

from profiles.architectures.models import Model, load_model, model_names
from profiles.costs.bands import FAMILIES, load_bands
from profiles.errors import flag_of
from profiles.machines.clusters import Cluster, Link, cluster_names, load_cluster
from profiles.machines.devices import Device, device_names, load_device
from profiles.software.stacks import load_stack, stack_names
from profiles.units import GB, GIB, MICROSECOND, TFLOP
from sim.report.blocks import Column, Table, print_blocks
from strategies.registry import class_of, every_strategy, policies
from strategies.strategy import is_seamless

if TYPE_CHECKING:
    from pandas import DataFrame

TABLES: Final[Mapping[str, str]] = {
    "models": "name component trainable layers parameters basis sampled_on samples_per_gpu skips",
    "clusters": "name device links devices_per_node max_nodes intra_node_kind intra_node_bandwidth_bytes_per_s"
    " inter_node_kind inter_node_bandwidth_bytes_per_s",
    "devices": "name memory_bytes rates_conv_flop_per_s rates_matmul_flop_per_s rates_attention_flop_per_s"
    " rates_memory_bytes_per_s basis",
    "stacks": "name summary forward_operator_s attention norms optimizer",
    "strategies": "name task summary parameters",
}
"""The columns of the frames that are printed, by command."""
UNITS: Final = (
    ("_flop_per_s", TFLOP, "TFLOP/s"),
    ("_bytes_per_s", GB, "GB/s"),
    ("_bytes", GIB, "GiB"),
    ("_s", MICROSECOND, "us"),
)
"""Endings of keys, their unit and its name."""


def print_listing(kind: str, names: Collection[str] = (), *, as_json: bool) -> None:
    """Print the items of a kind in the package that are named; all without ``names``."""
    rows = [row for row in (FACTS if as_json else ROWS)[kind]() if not names or row["name"] in names]
    if as_json:
        print(json.dumps(rows))
        return
    keys = TABLES[kind].split()
    columns = [Column(_head(key), rank, words=True, widest=27) for rank, key in enumerate(keys)]
    print_blocks([Table("", columns, [[_cell(key, row.get(key)) for key in keys] for row in rows])])


def resting_on(kind: str, word: str) -> list[str]:
    """The items of a kind whose estimates rest on what a word says; none for other words."""
    rows = FACTS[kind]() if word in FAMILIES else ()
    return [row["name"] for row in rows if word in (row.get("basis"), row.get("links"))]


def print_strategy(name: str) -> None:
    """Print what a strategy does, and its parameters with their choices and defaults."""
    cls = class_of(name)
    rows = [
        (flag_of(item.name), str(item.default), ", ".join(item.metadata["choices"]), item.metadata["help"])
        for item in fields(cls)
    ]
    columns = [Column(head, words=True) for head in ("flag", "default", "choices", "what it is")]
    print_blocks([f"{name}: {cls.summary}", *([Table("", columns, rows)] if rows else [])])


def _head(key: str) -> str:
    """Return the head of a column: its key without the unit."""
    ending = next((ending for ending, *_ in UNITS if key.endswith(ending)), "")
    return key.removesuffix(ending).removeprefix("rates_").replace("_", " ")


def _cell(key: str, value: Any) -> str:  # noqa: ANN401
    """Return a value in words."""
    match value:
        case None:
            return "-"
        case bool():
            return "yes" if value else "no"
        case list():
            return ", ".join(value) or "-"
        case int() if key == "parameters":
            return f"{value / 1e6:,.1f} M"
    unit = next(((size, name) for ending, size, name in UNITS if key.endswith(ending)), None)
    return str(value) if unit is None else f"{value / unit[0]:g} {unit[1]}"


def models() -> "DataFrame":
    """Return the models that come with the package, a row for each component."""
    return _frame("models")


def clusters() -> "DataFrame":
    """Return the clusters that come with the package; links in bytes per second and seconds."""
    return _frame("clusters")


def devices() -> "DataFrame":
    """Return the devices that come with the package; rates in FLOP, bytes and seconds."""
    return _frame("devices")


def stacks() -> "DataFrame":
    """Return the software stacks that come with the package."""
    return _frame("stacks")


def strategies() -> "DataFrame":
    """Return the strategies with their summaries and parameters."""
    return _frame("strategies")


def _frame(kind: str) -> "DataFrame":
    import pandas as pd

    return pd.DataFrame(list(ROWS[kind]()))


def sampled_on(model: Model) -> str | None:
    """Return the GPUs on which a model can sample: several where its exchanges are known; None for none."""
    drawn = model.for_task("sample")
    if len(drawn.backbones) != 1:
        return None
    return "several GPUs" if drawn.components[drawn.backbones[0]].exchanges else "one GPU"


def model_facts(model: Model) -> dict[str, Any]:
    """Return the facts of a model and its components."""
    components = [
        {
            "name": component.name,
            "trainable": component.trainable,
            "layers": len(component.layers),
            "parameters": component.held_parameters,
            "skips": len(component.skips),
            "measured_on": [device for device, _ in component.times],
            "exchanges": sorted({exchange.kind for exchange in component.exchanges}),
        }
        for component in model.components
    ]
    return {
        "name": model.name,
        "title": model.title,
        "source": model.source,
        "guidance": model.guidance,
        "samples_per_gpu": model.samples_per_gpu,
        "sampled_on": sampled_on(model),
        "basis": FAMILIES[0 if model.anchors or any(part.times for part in model.components) else 1],
        "components": components,
    }


def cluster_facts(cluster: Cluster) -> dict[str, Any]:
    """Return the facts of a cluster and its links."""
    return {
        "name": cluster.name,
        "source": cluster.source,
        "device": cluster.device.name,
        "links": cluster.links or None,
        "devices_per_node": cluster.devices_per_node,
        "max_nodes": cluster.max_nodes,
        "intra_node": _link_facts(cluster.intra_node),
        "inter_node": cluster.inter_node and _link_facts(cluster.inter_node),
        "gathers_measured": cluster.gathers_measured,
    }


def _link_facts(link: Link) -> dict[str, Any]:
    return {
        "kind": link.kind,
        "bandwidth_bytes_per_s": None if link.kind == "ideal" else link.bandwidth_bytes_per_s,
        "latency_s": link.latency_s,
        "call_s": link.call_s,
    }


def device_facts(device: Device) -> dict[str, Any]:
    """Return the facts of a device and its rates by class of work."""
    return {
        "name": device.name,
        "source": device.source,
        "memory_bytes": device.memory_bytes,
        "rates": device.rates and asdict(device.rates),
        "laws": device.own_laws is not None,
        "basis": basis(device),
    }


def basis(device: Device) -> str | None:
    """What the pace of a device rests on: kernels measured on it, laws of others, or rates of a data sheet."""
    if device.own_laws is None:
        return None if device.rates is None else FAMILIES[-1]
    return load_bands().family(device.name)


def strategy_facts() -> Iterator[dict[str, Any]]:
    """Yield the facts of each strategy and its parameters, then those of each serving policy."""
    for cls in every_strategy().values():
        parameters = {
            item.name: {"default": item.default, "choices": list(meta["choices"]), "help": meta["help"]}
            for item in fields(cls)
            for meta in [item.metadata]
        }
        yield {"name": cls.name, "task": cls.task, "summary": cls.summary, "parameters": parameters}
    for name, policy in policies().items():
        yield {"name": name, "task": "serve", "summary": policy.summary, "parameters": {}}


def _component_rows() -> Iterator[dict[str, Any]]:
    """Yield a row for each component of each model."""
    for model in map(load_model, model_names()):
        facts = model_facts(model)
        for component, values in zip(model.components, facts.pop("components"), strict=True):
            own = {"component": values.pop("name"), "tasks": ", ".join(component.tasks)}
            yield {**facts, **own, **values}


def _strategy_rows() -> Iterator[dict[str, Any]]:
    known = every_strategy()
    for facts in strategy_facts():
        seamless = facts["name"] not in known or is_seamless(known[facts["name"]])
        yield facts | {"seamless": seamless, "parameters": ", ".join(facts["parameters"])}


def _flat(facts: Mapping[str, Any]) -> dict[str, Any]:
    """Return facts with nested ones under joined names."""
    return {
        f"{key}_{name}" if name else key: fact
        for key, value in facts.items()
        for name, fact in (value if isinstance(value, dict) else {"": value}).items()
    }


FACTS: Final[Mapping[str, Callable[[], Iterable[dict[str, Any]]]]] = {
    "models": lambda: map(model_facts, map(load_model, model_names())),
    "clusters": lambda: map(cluster_facts, map(load_cluster, cluster_names())),
    "devices": lambda: map(device_facts, map(load_device, device_names())),
    "stacks": lambda: map(asdict, map(load_stack, stack_names())),
    "strategies": strategy_facts,
}
"""Facts under public keys, by command."""
ROWS: Final[Mapping[str, Callable[[], Iterable[dict[str, Any]]]]] = {
    "models": _component_rows,
    "clusters": lambda: map(_flat, FACTS["clusters"]()),
    "devices": lambda: map(_flat, FACTS["devices"]()),
    "stacks": FACTS["stacks"],
    "strategies": _strategy_rows,
}
"""The rows of frames and tables, by command."""
