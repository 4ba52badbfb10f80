"""Facts: models, clusters, stacks and strategies under public keys."""

from dataclasses import asdict, fields
from typing import Any

from profiles.architectures.models import Model
from profiles.machines.clusters import Cluster, Link
from profiles.machines.devices import Device
from profiles.software.stacks import Stack
from strategies.strategy import AnyStrategy


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
