"""What comes with the package, as frames: models, clusters, devices, software stacks and strategies."""

from collections.abc import Iterable, Mapping
from dataclasses import fields
from typing import TYPE_CHECKING, Any

from profiles.architectures.models import load_model, model_names
from profiles.machines.clusters import cluster_names, load_cluster
from profiles.machines.devices import device_names, load_device
from profiles.software.stacks import load_stack, stack_names
from sim.report.facts import cluster_facts, device_facts, model_facts, stack_facts, strategy_facts
from strategies.registry import strategies_of
from strategies.strategy import is_seamless

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
