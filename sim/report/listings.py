"""What comes with the package: models, clusters, devices, stacks and strategies, as frames and under public keys."""

from collections.abc import Iterable, Mapping
from dataclasses import asdict, fields
from typing import TYPE_CHECKING, Any

from profiles.architectures.models import Model, load_model, model_names
from profiles.machines.clusters import Cluster, Link, cluster_names, load_cluster
from profiles.machines.devices import Device, device_names, load_device
from profiles.software.stacks import Stack, load_stack, stack_names
from strategies.registry import strategies_of
from strategies.strategy import AnyStrategy, is_seamless

if TYPE_CHECKING:
    from pandas import DataFrame


def models() -> "DataFrame":
    """The models that come with the package, a row for each component."""
    return _frame(
        {name: facts[name] for name in ("name", "title", "guidance", "sampled_on")}
        | {"component": component.name, "tasks": ", ".join(component.tasks)}
        | {name: value for name, value in own.items() if name != "name"}
        for model in map(load_model, model_names())
        for facts in [model_facts(model)]
        for component, own in zip(model.components, facts["components"], strict=True)
    )


def clusters() -> "DataFrame":
    """The clusters that come with the package; links in bytes per second and seconds."""
    return _frame(_flat(cluster_facts(load_cluster(name))) for name in cluster_names())


def _flat(facts: Mapping[str, Any]) -> dict[str, Any]:
    """Facts with those of a part under names of their own."""
    flat: dict[str, Any] = {}
    for key, value in facts.items():
        flat |= (
            {f"{key}_{name}": of for name, of in value.items()} if isinstance(value, dict) else {key: value}
        )
    return flat


def devices() -> "DataFrame":
    """The devices that come with the package; rates in FLOP, bytes and seconds."""
    return _frame(_flat(device_facts(load_device(name))) for name in device_names())


def stacks() -> "DataFrame":
    """The software stacks that come with the package."""
    return _frame(map(stack_facts, map(load_stack, stack_names())))


def strategies() -> "DataFrame":
    """The strategies with what they are and their parameters."""
    return _frame(
        strategy_facts(cls)
        | {"seamless": is_seamless(cls), "parameters": ", ".join(item.name for item in fields(cls))}  # type: ignore[arg-type]
        for task in ("train", "sample")
        for cls in strategies_of(task).values()
    )


def _frame(rows: Iterable[dict[str, Any]]) -> "DataFrame":
    import pandas as pd

    return pd.DataFrame(list(rows))


def sampled_on(model: Model) -> str | None:
    """The ways a model can sample: on several GPUs where its exchanges are known; None where it cannot."""
    drawn = model.for_task("sample")
    if len(drawn.backbones) != 1:
        return None
    return "several GPUs" if drawn.components[drawn.backbones[0]].exchanges else "one GPU"


def model_facts(model: Model) -> dict[str, Any]:
    """The facts of a model and its components."""
    return {
        "name": model.name,
        "title": model.title,
        "source": model.source,
        "guidance": model.guidance,
        "sampled_on": sampled_on(model),
        "components": [
            {
                "name": component.name,
                "trainable": component.trainable,
                "layers": len(component.layers),
                "parameters": component.parameters,
                "skips": len(component.skips),
                "measured_on": [device for device, _ in component.times],
                "exchanges": sorted({exchange.kind for exchange in component.exchanges}),
            }
            for component in model.components
        ],
    }


def cluster_facts(cluster: Cluster) -> dict[str, Any]:
    """The facts of a cluster and its links."""
    return {
        "name": cluster.name,
        "source": cluster.source,
        "device": cluster.device.name,
        "devices_per_node": cluster.devices_per_node,
        "max_nodes": cluster.max_nodes,
        "intra_node": _link_json(cluster.intra_node),
        "inter_node": None if cluster.inter_node is None else _link_json(cluster.inter_node),
    }


def device_facts(device: Device) -> dict[str, Any]:
    """The facts of a device and the rates that it reaches by class of work."""
    return {
        "name": device.name,
        "source": device.source,
        "memory_bytes": device.memory_bytes,
        "rates": None if device.rates is None else asdict(device.rates),
        "laws": device.own_laws is not None,
    }


def _link_json(link: Link) -> dict[str, Any]:
    bandwidth = None if link.kind == "ideal" else link.bandwidth_bytes_per_s
    return {
        "kind": link.kind,
        "bandwidth_bytes_per_s": bandwidth,
        "latency_s": link.latency_s,
        "call_s": link.call_s,
    }


def stack_facts(stack: Stack) -> dict[str, Any]:
    """The facts of a software stack."""
    return asdict(stack)


def strategy_facts(cls: type[AnyStrategy]) -> dict[str, Any]:
    """The facts of a strategy and its parameters."""
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
