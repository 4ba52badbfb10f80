"""Commands that list what there is, show the file of one, and complete command lines in shells."""

import argparse
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Final, NamedTuple

from profiles.architectures.models import MODELS, model_names
from profiles.errors import InputError, shown
from profiles.files import read_text
from profiles.machines.clusters import CLUSTERS, cluster_names
from profiles.machines.devices import DEVICES, device_names
from profiles.names import STRATEGY, having, known_name, unknown_name
from profiles.software.stacks import STACKS, stack_names
from sim.cli.console import note
from sim.report.listings import print_listing, print_strategy, resting_on
from strategies.registry import every_strategy


class Kind(NamedTuple):
    """Things of a kind: their names, and the file of each where they come as files."""

    names: Callable[[], Sequence[str]]
    files: Path | None = None


KINDS: Final = {
    "models": Kind(model_names, MODELS / "{}" / "model.toml"),
    "clusters": Kind(cluster_names, CLUSTERS / "{}.toml"),
    "devices": Kind(device_names, DEVICES / "{}.toml"),
    "stacks": Kind(stack_names, STACKS / "{}.toml"),
    "strategies": Kind(lambda: [*every_strategy()]),
}
"""Kinds by the command that lists them."""


def list_command(options: argparse.Namespace) -> int:
    """List the things of a kind, or show the file, or the parameters, of one."""
    listed: str = options.subcommand
    kind, one = KINDS[listed], listed.removesuffix("s").replace("strategie", STRATEGY)
    if options.action is None:
        print_listing(listed, as_json=options.json)
        return 0
    shows = options.action == "show"
    if not shows and options.name is not None:
        raise InputError(f"unexpected argument {shown(options.name)}")
    if (given := options.name if shows else options.action) is None:
        raise InputError(f"NAME must be given; choose from {', '.join(kind.names())}")
    names = kind.names()
    several = [] if shows or given in names else having(given, names) or resting_on(listed, given)
    if len(several) > 1:
        print_listing(listed, several, as_json=options.json)
        return 0
    if options.json:
        raise InputError("--json is of the list")
    name = known_name(one, given, names)
    if name is None:
        raise unknown_name(one, given, names)
    if kind.files is None:
        print_strategy(name)
        return 0
    path = Path(str(kind.files).format(name))
    sys.stdout.write(read_text(path))
    if listed == "models":
        beside = ", ".join(sorted(item.name for item in path.parent.iterdir() if item != path))
        note(f"{path}; beside it {beside}")
    return 0


def print_completion(parser: argparse.ArgumentParser, shell: str) -> int:
    """Print the script with which a shell completes the command lines of a parser; the parser is spent."""
    try:
        import shtab
    except ImportError:
        raise InputError("completion needs shtab: pip install 'diffusim[completion]'") from None
    names = {kind.removesuffix("s"): KINDS[kind].names for kind in KINDS}
    names["strategy"] = KINDS["strategies"].names
    (commands,) = (action for action in parser._actions if isinstance(action, argparse._SubParsersAction))
    for name, command in commands.choices.items():
        for action in command._actions:
            thing = name.removesuffix("s") if action.dest in ("action", "name") else action.dest
            if thing in names:
                action.choices = names[thing]()
            elif action.metavar == "FILE":
                action.complete = shtab.FILE
    sys.stdout.write(shtab.complete(parser, shell=shell) + "\n")
    return 0
