"""Scenarios: what parsed flags ask for, and of which task it is."""

import argparse
import sys
from collections.abc import Iterable
from dataclasses import MISSING, fields
from math import isqrt
from typing import Any

from profiles.clusters import Cluster, load_cluster
from profiles.errors import InputError
from profiles.models import Model, load_model
from sim.cli.flags import FLAGS_OF_TASK, PARAMETER, SAMPLING, TASKS, class_of, flag_of, strategy_names
from strategies.registry import all_samplers, sampler_class, task_of
from strategies.scenario import (
    DEFAULT_BATCH_PER_GPU,
    SamplingScenario,
    SamplingWorkload,
    Scenario,
    TrainingWorkload,
)
from strategies.strategy import gpu_counts

DOES = {"train": "trains", "sample": "draws images"}
KIND = {"train": "training", "sample": "sampling"}


def parameters(options: argparse.Namespace) -> dict[str, Any]:
    """The parameters of strategies that were given."""
    given = {k.removeprefix(PARAMETER): v for k, v in vars(options).items() if k.startswith(PARAMETER)}
    return {key: value for key, value in given.items() if value is not MISSING}


def named(options: argparse.Namespace) -> list[str] | None:
    """The strategies that were named; None where none was."""
    return None if options.strategy is None else options.strategy.split(",")


def task(options: argparse.Namespace) -> str:
    """The task: what the strategies named do, or ``--task``, or what the flags given are of.

    Raises:
        InputError: these do not go together.
    """
    asked = getattr(options, "task", None)
    names = named(options)
    if names is not None:
        found, owner = _task_of_names(names, asked)
    elif asked is not None:
        found, owner = asked, f"--task is {asked}"
    else:
        why = _sampling_flag(options)
        found, owner = ("sample", f"{why} of sampling") if why else ("train", "")
    _check_flags(options, found, owner)
    return found


def _task_of_names(names: list[str], asked: str | None) -> tuple[str, str]:
    """The task of all strategies named, and who says so."""
    found = {name: task_of(name) for name in names}
    first = names[0]
    for name, other in found.items():
        if other != found[first]:
            raise InputError(
                f"--strategy names {first}, which {DOES[found[first]]}, and {name}, which {DOES[other]}"
            )
    if asked not in (None, found[first]):
        raise InputError(f"--task is {asked}, but {first} {DOES[found[first]]}")
    return found[first], f"{first} {DOES[found[first]]}"


def _sampling_flag(options: argparse.Namespace) -> str | None:
    """The first flag given that only sampling has: an option, or a parameter that no strategy trains with."""
    for name in SAMPLING:
        if hasattr(options, name):
            return flag_of(name)
    training = _fields_of(name for name in strategy_names() if task_of(name) == "train")
    return next((flag_of(name) for name in parameters(options) if name not in training), None)


def _fields_of(names: Iterable[str]) -> set[str]:
    return {item.name for name in names for item in fields(class_of(name))}


def _check_flags(options: argparse.Namespace, found: str, owner: str) -> None:
    """Refuse flags of the other task."""
    for other in TASKS:
        for name in FLAGS_OF_TASK[other]:
            if other != found and hasattr(options, name):
                raise InputError(f"{flag_of(name)} is of {KIND[other]}, {owner}")


def training_scenario(options: argparse.Namespace) -> Scenario:
    """The training scenario that the flags ask about.

    Raises:
        InputError: a name is unknown, or a value breaks its rule.
    """
    cluster = load_cluster(options.cluster)
    num_gpus = options.gpus if options.gpus is not None else _one_node(cluster)
    batch_size = options.batch_size if options.batch_size is not None else DEFAULT_BATCH_PER_GPU * num_gpus
    workload = TrainingWorkload(num_gpus, batch_size, **_given(options, "train"))
    scenario = Scenario(load_model(options.model), cluster, workload, options.model, options.cluster)
    _warn_of_times(scenario.model, cluster, options.model)
    return scenario


def sampling_scenario(options: argparse.Namespace) -> SamplingScenario:
    """The sampling scenario that the flags ask about; by default on one node, or as many GPUs as the sampler can use.

    Raises:
        InputError: a name is unknown, or a value breaks its rule.
    """
    cluster, model = load_cluster(options.cluster), load_model(options.model)
    given = _given(options, "sample")
    width, height = given.pop("resolution", (model.width, model.height))
    given.setdefault("guidance", model.guidance)
    workload = SamplingWorkload(
        num_gpus=options.gpus if options.gpus is not None else _most_gpus(options, cluster),
        height=height,
        width=width,
        batch_size=options.batch_size if options.batch_size is not None else 1,
        **given,
    )
    check_tokens(model, workload)
    scenario = SamplingScenario(model, cluster, workload, options.model, options.cluster)
    _warn_of_times(scenario.model, cluster, options.model)
    return scenario


def _warn_of_times(model: Model, cluster: Cluster, asked: str) -> None:
    """Say that times were measured, but not on the device that the cluster has, so that its rates give them."""
    device = cluster.device.name
    if others := model.times_elsewhere(device):
        print(
            f"sim: warning: {asked} has times measured on {', '.join(others)}, but cluster {cluster.name} is of device"
            f" {device}: layers without times on it are estimated by its rates",
            file=sys.stderr,
        )


def _most_gpus(options: argparse.Namespace, cluster: Cluster) -> int:
    """The most GPUs of one node that the samplers named, or any, can use."""
    there = _one_node(cluster)
    counts = [gpu_counts(sampler_class(name), there) for name in named(options) or all_samplers()]
    return max((most for most, *_ in filter(None, counts)), default=there)


def check_tokens(model: Model, workload: SamplingWorkload) -> None:
    """Refuse an image whose sides are not made of whole tokens, where these are squares of pixels.

    Raises:
        InputError: they are not.
    """
    for component in (model.components[i] for i in model.backbones):
        if not component.image_tokens or model.height * model.width % component.image_tokens:
            continue
        area = model.height * model.width // component.image_tokens
        side = isqrt(area)
        if side**2 != area or model.height % side or model.width % side:
            continue  # a video's tokens are those of all its frames
        for name, pixels in (("width", workload.width), ("height", workload.height)):
            if pixels % side:
                raise InputError(
                    f"--resolution is {workload.resolution}, but {name}({pixels}) is no multiple of {side},"
                    f" the pixels along a token of {component.name}"
                )


def _one_node(cluster: Cluster) -> int:
    return min(cluster.devices_per_node, 8)


def _given(options: argparse.Namespace, of: str) -> dict[str, Any]:
    """The flags of a task that were given."""
    return {name: getattr(options, name) for name in FLAGS_OF_TASK[of] if hasattr(options, name)}
