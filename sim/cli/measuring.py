"""Commands that stand in TOML with their functions and flags; among them those of ``sim measure``.

A function is imported when its command is called: torch takes seconds, and need not be there.
"""

import argparse
import tomllib
from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path
from pkgutil import resolve_name
from typing import Any, Final

import profiles
from profiles.errors import InputError
from profiles.mappings import FrozenMapping
from sim.cli.console import flags_of
from sim.cli.flags import add_flags

MEASURING: Final = Path(profiles.__file__).parent / "measuring" / "commands.toml"
"""The commands of ``sim measure``, which are also those of ``python -m validate``."""


def add_commands(
    commands: Any,  # noqa: ANN401  argparse hides the type
    extra: str,
    path: Path = MEASURING,
    extend: Mapping[str, Callable[[argparse.ArgumentParser], object]] = FrozenMapping(),
) -> None:
    """Add the commands of a file.

    Args:
        commands: gets them: what ``add_subparsers`` returns.
        extra: what brings the packages that they import beyond those of this distribution.
        path: of the file.
        extend: adds further flags, by command.
    """
    for name, entry in tomllib.loads(path.read_text(encoding="utf-8")).items():
        words = {key: entry[key] for key in ("help", "description", "aliases") if key in entry}
        command = commands.add_parser(name, **words)
        if name in extend:
            extend[name](command)
        add_flags(command, entry)
        command.set_defaults(command=partial(_call, name, entry["run"], extra), flags=flags_of(command))


def _call(name: str, function: str, extra: str, options: argparse.Namespace) -> int:
    """Carry a command out; a package that is missing is named, with the extra that brings it."""
    try:
        code = resolve_name(function)(options)
    except ModuleNotFoundError as error:
        raise InputError(f"{name} needs {error.name}: pip install 'diffusim[{extra}]'") from error
    return code if isinstance(code, int) else 0
