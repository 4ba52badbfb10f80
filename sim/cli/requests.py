"""Requests: parsed flags as the arguments of ``sim.run`` and its like."""

import argparse
from dataclasses import MISSING
from typing import Any

from profiles.machines.whatifs import WHAT_IFS
from sim.cli.flags import PARAMETER
from sim.inputs.scenarios import OPTIONS

SHARED = ("model", "cluster", "gpus", "stack")
ASIDE = ("measured", "measured_run", "runtime")


def given_parameters(options: argparse.Namespace) -> dict[str, Any]:
    """The parameters of strategies that were given."""
    given = {k.removeprefix(PARAMETER): v for k, v in vars(options).items() if k.startswith(PARAMETER)}
    return {key: value for key, value in given.items() if value is not MISSING}


def named(options: argparse.Namespace) -> list[str] | None:
    """The strategies that were named; None where none was."""
    return None if options.strategy is None else options.strategy.split(",")


def given(options: argparse.Namespace) -> dict[str, Any]:
    """The options of the scenario and the parameters that were given."""
    names = [name for own in (WHAT_IFS, *OPTIONS.values()) for name in own if hasattr(options, name)]
    batch = {} if options.batch_size is None else {"batch_size": options.batch_size}
    return batch | {name: getattr(options, name) for name in names} | given_parameters(options)


def arguments(options: argparse.Namespace) -> dict[str, Any]:
    """The arguments that say what is asked of which model on which cluster."""
    measured = {name: getattr(options, name) for name in ASIDE if hasattr(options, name)}
    return {name: getattr(options, name) for name in SHARED} | measured | given(options)
