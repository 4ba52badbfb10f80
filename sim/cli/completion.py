"""Completion of command lines by shells: the script that a shell reads."""

import argparse
import sys
from collections.abc import Callable, Mapping
from typing import Final

from profiles.architectures.models import model_names
from profiles.errors import InputError
from profiles.machines.clusters import cluster_names
from profiles.machines.devices import device_names
from profiles.software.stacks import stack_names
from sim.cli.flags import strategy_names

SHELLS: Final = ("bash", "zsh", "fish")
NAMES: Final[Mapping[str, Callable[[], list[str]]]] = {
    "model": model_names,
    "cluster": cluster_names,
    "device": device_names,
    "stack": stack_names,
    "strategy": strategy_names,
}
"""Names that flags take, by the destination of the flag."""
SHOWN: Final[Mapping[str, str]] = {
    "models": "model",
    "clusters": "cluster",
    "devices": "device",
    "stacks": "stack",
}
"""Whose names ``show`` takes, by command."""


def print_completion(parser: argparse.ArgumentParser, shell: str) -> None:
    """Print the script with which a shell completes the command lines of a parser; the parser is spent.

    Raises:
        InputError: the library that writes it is not installed.
    """
    try:
        import shtab
    except ImportError:
        raise InputError("completion needs shtab: pip install 'diffusim[completion]'") from None
    for name, own in _commands(parser).items():
        for action in own._actions:
            if action.dest in NAMES or (action.dest == "name" and name in SHOWN):
                action.choices = NAMES[SHOWN.get(name, action.dest)]()
            elif action.metavar == "FILE":
                action.complete = shtab.FILE  # type: ignore[attr-defined]
    sys.stdout.write(shtab.complete(parser, shell=shell) + "\n")


def _commands(parser: argparse.ArgumentParser) -> dict[str, argparse.ArgumentParser]:
    (commands,) = (action for action in parser._actions if isinstance(action, argparse._SubParsersAction))
    return dict(commands.choices)
