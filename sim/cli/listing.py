"""Commands that list what there is, and show the file of one of them."""

import argparse
import sys
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, Final, NamedTuple

from profiles.architectures.models import MODELS, load_model, model_names
from profiles.errors import InputError
from profiles.files import read_text
from profiles.machines.clusters import CLUSTERS, cluster_names, load_cluster
from profiles.machines.devices import DEVICES, device_names, load_device
from profiles.names import known_name, unknown_name
from profiles.software.stacks import STACKS, load_stack, stack_names


class Shelf(NamedTuple):
    """Things of a kind that come with the package: their names, and the file of each under their folder."""

    kind: str
    names: Callable[[], Sequence[str]]
    folder: Path
    file: str

    def path(self, name: str) -> Path:
        """The file of a thing.

        Raises:
            InputError: there is none of this name.
        """
        known = known_name(self.kind, name, self.names())
        if known is None:
            raise unknown_name(self.kind, name, self.names())
        return self.folder / self.file.format(known)


SHELVES: Final[Mapping[str, Shelf]] = {
    "models": Shelf("model", model_names, MODELS, "{}/model.toml"),
    "clusters": Shelf("cluster", cluster_names, CLUSTERS, "{}.toml"),
    "devices": Shelf("device", device_names, DEVICES, "{}.toml"),
    "stacks": Shelf("stack", stack_names, STACKS, "{}.toml"),
}
"""What can be shown, by command."""


def list_command(options: argparse.Namespace) -> int:
    """List the things of a kind, or show the file of one."""
    listed: str = options.listed
    if getattr(options, "action", None) is None:
        things, show = LISTS[listed]()
        show(things, options.json)
        return 0
    shelf = SHELVES[listed]
    if options.name is None:
        raise InputError(f"NAME must be given; choose from {', '.join(shelf.names())}")
    if options.json:
        raise InputError(f"--json is of the list; {shelf.kind} files are TOML")
    path = shelf.path(options.name)
    sys.stdout.write(read_text(path))
    if path.parent != shelf.folder:
        beside = ", ".join(sorted(item.name for item in path.parent.iterdir() if item != path))
        print(f"sim: {path}; beside it {beside}", file=sys.stderr)
    return 0


List = tuple[list[Any], Callable[[Any, bool], None]]


def _models() -> List:
    from sim.report.tables import print_models

    return [load_model(name) for name in model_names()], print_models


def _clusters() -> List:
    from sim.report.tables import print_clusters

    return [load_cluster(name) for name in cluster_names()], print_clusters


def _devices() -> List:
    from sim.report.tables import print_devices

    return [load_device(name) for name in device_names()], print_devices


def _stacks() -> List:
    from sim.report.tables import print_stacks

    return [load_stack(name) for name in stack_names()], print_stacks


def _strategies() -> List:
    from sim.cli.flags import strategy_names
    from sim.report.tables import print_strategies
    from strategies.registry import class_of

    return [class_of(name) for name in strategy_names()], print_strategies


LISTS: Final[Mapping[str, Callable[[], List]]] = {
    "models": _models,
    "clusters": _clusters,
    "devices": _devices,
    "stacks": _stacks,
    "strategies": _strategies,
}
"""All things of a kind and what prints them, by command."""
