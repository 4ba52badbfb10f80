"""Commands that stand in TOML with their flags, as argparse takes them; among them those of ``sim measure``.

Each command imports its code when it is called: torch takes seconds, and need not be there.
"""

import argparse
import tomllib
from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path
from typing import Any, Final

import profiles
from profiles.errors import InputError
from sim.cli.console import flags_of
from sim.cli.flags import add_flags

MEASURING: Final = Path(profiles.__file__).parent / "measuring" / "commands.toml"
"""The commands of ``sim measure``, which are also those of ``python -m validate``."""


def add_measure(parser: argparse.ArgumentParser) -> None:
    """Add the commands of ``sim measure``."""
    add_measuring(parser.add_subparsers(required=True, metavar="command"), "measure")


def add_measuring(commands: Any, extra: str) -> None:  # noqa: ANN401  argparse hides the type
    """Add the commands that measure to others."""
    add_commands(commands, MEASURING, extra, _measure, {})


def add_commands(
    commands: Any,  # noqa: ANN401  argparse hides the type
    path: Path,
    extra: str,
    call: Callable[[str, argparse.Namespace], object],
    extend: Mapping[str, Callable[[argparse.ArgumentParser], object]],
) -> None:
    """Add the commands of a file.

    Args:
        commands: gets them: what ``add_subparsers`` returns.
        path: of the file.
        extra: what brings the packages that they import beyond those of this distribution.
        call: carries out the command of a name.
        extend: adds further flags, by command.
    """
    for name, entry in tomllib.loads(path.read_text(encoding="utf-8")).items():
        words = {key: entry[key] for key in ("help", "description", "aliases") if key in entry}
        command = commands.add_parser(name, **words)
        if name in extend:
            extend[name](command)
        add_flags(command, entry)
        command.set_defaults(command=partial(_call, call, name, extra), flags=flags_of(command))


def _call(
    call: Callable[[str, argparse.Namespace], object], name: str, extra: str, options: argparse.Namespace
) -> int:
    """Carry a command out; a package that is missing is named, with the extra that brings it."""
    try:
        code = call(name, options)
    except ModuleNotFoundError as error:
        raise InputError(f"{name} needs {error.name}: pip install 'diffusim[{extra}]'") from error
    return code if isinstance(code, int) else 0


def _measure(name: str, options: argparse.Namespace) -> object:
    """Carry out a command of ``sim measure``."""
    run: Any
    match name:
        case "count":
            from profiles.measuring.counting.folder import run_count as run
        case "calibrate":
            from profiles.measuring.fitting.calibration import report_calibration as run
        case "links":
            from profiles.measuring.linking.report import run_links as run
        case _:
            from profiles.measuring.timing.profiler import run_profile as run
    return run(options)
