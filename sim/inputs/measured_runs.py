"""Measured runs: the flags of a run and the number that was measured, as a file, JSON or a mapping.

A file is the result of ``sim run --measured ... --json``, or the flags of the run by name with the number among them,
as TOML or JSON.
"""

import json
from collections.abc import Mapping
from dataclasses import replace
from os import PathLike, fspath
from pathlib import Path
from typing import Any, Final, NamedTuple, TypeVar

from profiles.costs.calibration import MeasuredRun, check_same
from profiles.errors import DiffusimError, InputError, shown
from profiles.files import read_text
from profiles.parsing import parse_json, parse_toml
from profiles.software.stacks import DEFAULT_STACK
from sim.inputs.calibrating import NAMES, Given, Number, measure
from sim.inputs.scenarios import DEFAULT_CLUSTER, OPTION_NAMES, Request, check_known, scenario_of
from sim.outcomes.results import Result
from strategies.registry import make, strategy_named
from strategies.strategy import AnyScenario

S = TypeVar("S", bound=AnyScenario)
RunSource = str | PathLike[str] | Mapping[str, Any] | MeasuredRun | Result
FLAG: Final = "`measured_run`"
RESULT: Final = ("num_gpus", "parameters", "options")
"""Keys by which the result of a run is told from its flags."""


class Said(NamedTuple):
    """What is said of a measured run.

    ``where`` it stands, for messages; ``again`` is the value of the flag that gives it again; ``keys`` are its flags
    and numbers.
    """

    where: str
    again: str
    keys: dict[str, Any]


def calibrated(scenario: S, measured: Given | None, run: RunSource | None) -> S:
    """The scenario with compute scaled to a measured run.

    Args:
        scenario: what is asked about.
        measured: the number, where the run does not hold it.
        run: a file, JSON, a mapping, a calibration, or a result with one; None leaves the scenario as it is.

    Raises:
        InputError: the run is of another model, device or stack, does not exist or breaks a rule.
    """
    if run is None:
        if measured is not None:
            raise InputError(
                f"`measured` is {_given(measured)}, but of which run? give {FLAG}, its flags in a file"
            )
        return scenario
    if scenario.measured is not None:
        raise InputError(f"{FLAG} is given, but the scenario has a measured run already")
    if isinstance(run, Result):
        run = _behind(run)
    if isinstance(run, MeasuredRun):
        if measured is not None:
            raise InputError(
                f"`measured` is {_given(measured)}, but the run of {FLAG} has its number already"
            )
        return replace(scenario, measured=run)
    said = _read(run)
    try:
        return replace(scenario, measured=_measured(said, measured, scenario))
    except DiffusimError as error:
        raise InputError(f"{said.where}: {error.message}") from None


def _behind(result: Result) -> MeasuredRun:
    """The measured run that the compute of a result is scaled to.

    Raises:
        InputError: it is scaled to none.
    """
    own = None if result.source is None else result.source.scenario.measured
    if own is None:
        how = "sim.run(..., measured={'step_s': 0.87}) gives one that is"
        raise InputError(f"{FLAG} is {shown(result)}, which is scaled to no measured number; {how}")
    return own


def _given(measured: Given) -> str:
    return measured if isinstance(measured, str) else shown(measured)


def _measured(said: Said, measured: Given | None, scenario: AnyScenario) -> MeasuredRun:
    """The calibration by what is said of a run, for a scenario.

    Raises:
        DiffusimError: it is of something else, does not exist or breaks a rule.
    """
    keys = dict(said.keys)
    number = _number(keys, measured)
    model, strategy = (_name(keys, key) for key in ("model", "strategy"))
    where = _name(keys, "cluster", DEFAULT_CLUSTER), keys.pop("gpus", None)
    stack = _name(keys, "stack", DEFAULT_STACK)
    request = Request(model, *where, (strategy,), keys, stack=stack)
    check_known(request)
    own = scenario_of(request)
    check_same(_identity(own), _identity(scenario))
    options = {} if measured is None else {"measured": str(number)}
    return measure(
        make(strategy_named(strategy, silent=True), request.parameters),
        own,
        number,
        options | {"measured_run": said.again},
    )


def _identity(scenario: AnyScenario) -> tuple[str, str, str]:
    """Names of model, device and stack."""
    return scenario.model.name, scenario.cluster.device.name, scenario.stack.name


def _name(keys: dict[str, Any], key: str, default: str | None = None) -> str:
    value = keys.pop(key, default)
    if not isinstance(value, str):
        raise InputError(f"{key} is {'missing' if value is None else shown(value) + ', must be a name'}")
    return value


def _number(keys: dict[str, Any], measured: Given | None) -> Number:
    """The only number that was measured, among the keys of a run or beside them.

    Raises:
        InputError: there is none, or several.
    """
    there = [Number(name, keys.pop(name)) for name in NAMES if name in keys]
    there += [Number.of(given) for given in (keys.pop("measured", None), measured) if given is not None]
    if len(there) != 1:
        found = " and ".join(map(str, there)) or "none"
        raise InputError(f"the measured numbers are {found}, must be one, such as step_s = 0.87")
    return there[0]


def _read(run: str | PathLike[str] | Mapping[str, Any]) -> Said:
    """What a file, JSON or a mapping says of a run.

    Raises:
        InputError: it cannot be read.
    """
    if isinstance(run, Mapping):
        try:
            return Said(FLAG, json.dumps(run), flags_said(run, FLAG))
        except TypeError as error:
            raise InputError(f"{FLAG} must be names and numbers: {str(error).lower()}") from None
    if not isinstance(run, str | PathLike):
        raise InputError(
            f"{FLAG} is {shown(run)}, must be a file, JSON, a mapping, a MeasuredRun or a Result"
        )
    again = fspath(run)
    inline = again.lstrip().startswith("{")
    where = FLAG if inline else again
    text = again if inline else read_text(Path(again))
    toml = not inline and Path(again).suffix == ".toml"
    try:
        found = parse_toml(text) if toml else parse_json(text)
    except ValueError as error:
        raise InputError(f"{where}: is not valid {'TOML' if toml else 'JSON'}: {error}") from None
    if not isinstance(found, dict):
        raise InputError(f"{where}: must be the flags of a run, or its result")
    return Said(where, again, flags_said(found, where))


def flags_said(said: Mapping[str, Any], where: str) -> dict[str, Any]:
    """Flags by name; those of a result are what it was asked, and what it was measured to take.

    Raises:
        InputError: parameters or options of a result are no mappings; it names where they stand.
    """
    if not all(key in said for key in RESULT):
        return {str(key).replace("-", "_"): value for key, value in said.items()}
    parameters, options = (_mapping(said, key, where) for key in ("parameters", "options"))
    shared = {key: said[key] for key in ("model", "cluster", "stack", "strategy") if key in said}
    asked = {key: said[key] for key in OPTION_NAMES if key in said}
    own = {key: value for key, value in (parameters | options).items() if value is not None}
    own.pop("measured_run", None)  # it was predicted from another run, and is measured now
    measured = {"measured": said["measured"]} if "measured" in said else {}
    return shared | {"gpus": said["num_gpus"]} | asked | own | measured


def _mapping(said: Mapping[str, Any], key: str, where: str) -> dict[str, Any]:
    value = said[key]
    if not isinstance(value, Mapping):
        raise InputError(f"{where}: {key} is {shown(value)}, must be a mapping")
    return dict(value)
