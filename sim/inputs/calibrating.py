"""Calibrating: the factor on compute with which a simulated run takes as long as it was measured to take."""

import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from functools import cache
from os import PathLike, fspath
from typing import Any, Final, TypeVar

from profiles.checks import is_number
from profiles.costs.calibration import OWN, Calibration, MeasuredRun, check_same
from profiles.errors import DiffusimError, DiffusimWarning, InputError, shown, warn_caller
from sim.inputs.experiments import flags_in, read_flags
from sim.inputs.scenarios import SHARED, request_of, resolve_strategy, scenario_of
from sim.outcomes.results import Result
from sim.outcomes.runs import run_point
from sim.outcomes.tasks import TASKS
from strategies.strategy import AnyScenario, AnyStrategy

S = TypeVar("S", bound=AnyScenario)

NAMES: Final = tuple(dict.fromkeys(name for task in TASKS.values() for name in task.measured))
"""Numbers that can be measured."""
MOST: Final = 10.0
"""Compute that takes so many times as long as estimated, or as short, is another model or machine."""
LARGEST: Final = 1e9
"""No measured number is larger, nor smaller than its inverse."""
TOLERANCE: Final = 1e-7
"""Relative error of the factor."""
FAR: Final = 1.5
"""Measured and predicted numbers more than this factor apart may be of different runs."""
JUMP: Final = 0.01
"""Relative error left where a strategy changes its plan at some factor, so that the time jumps."""

FLAG: Final = "`measured_run`"
NumberSource = str | Mapping[str, float]
RunSource = str | PathLike[str] | Mapping[str, Any] | MeasuredRun | Result


@dataclass(frozen=True, slots=True)
class Number:
    """One measured number of a run: its name, one of ``NAMES``, and its value in seconds or samples per second."""

    name: str
    value: float

    def __post_init__(self) -> None:
        if self.name not in NAMES:
            raise InputError(f"`measured` is {self}, must be one of {', '.join(NAMES)}")
        if not (is_number(self.value) and 1 / LARGEST <= self.value <= LARGEST):
            raise InputError(f"`measured` is {self}, must be from {1 / LARGEST:g} to {LARGEST:g}")

    def __str__(self) -> str:
        return f"{self.name}={shown(self.value)}"

    @classmethod
    def of(cls, source: NumberSource) -> "Number":
        """Return the number that words such as ``step_s=0.87``, or a mapping of one key, give."""
        if isinstance(source, str):
            name, _, words = source.partition("=")
            try:
                source = {name.strip(): float(words)}
            except ValueError:
                raise InputError(f"`measured` is '{source}', must be NAME=NUMBER, as step_s=0.87") from None
        if not isinstance(source, Mapping) or len(source) != 1:
            raise InputError(f"`measured` is {shown(source)}, must be one number, such as step_s=0.87")
        return cls(*next(iter(source.items())))

    def of_result(self, result: Result) -> float:
        """Return simulated over measured seconds."""
        quantities = TASKS[result.task].measured
        if self.name not in quantities:
            raise InputError(
                f"`measured` is {self}, but {result.strategy} is measured by {', '.join(quantities)}"
            )
        simulated: float = getattr(result, quantities[self.name])
        return self.value / simulated if self.name == "samples_per_s" else simulated / self.value


def measure(
    strategy: AnyStrategy, scenario: AnyScenario, number: Number, options: Mapping[str, str]
) -> MeasuredRun:
    """Return the calibration by a measured run, with a warning where its number is far from the predicted one.

    ``options`` are those that ask for the run again.
    """
    plain = replace(scenario, measured=None)
    result = run_point(strategy, plain)
    where = plain.task, plain.model.name, plain.cluster.device.name, plain.stack.name
    unscaled = MeasuredRun(Calibration(1.0, OWN), *where, result.uncertainty, tuple(options.items()))

    @cache
    def excess(factor: float) -> float:
        scaled = replace(plain, measured=replace(unscaled, calibration=Calibration(factor, OWN)))
        return number.of_result(run_point(strategy, scaled)) - 1

    factor = _factor(excess, number)
    times = max(ratio := number.of_result(result), 1 / ratio)
    if times > FAR:
        predicted = getattr(result, TASKS[result.task].measured[number.name])
        words = f"{number} was measured, but {predicted:.4g} is predicted: a factor of {times:.2g} apart"
        warn_caller(f"{words}; are the flags those of the run that was measured?", DiffusimWarning)
    return replace(unscaled, calibration=Calibration(factor, OWN))


def _factor(excess: Callable[[float], float], number: Number) -> float:
    """Return the factor at which the simulated time is the measured one.

    What is not compute stays as it is, so that the factor is further from 1 than the ratio of the times.
    """
    at_one = excess(1.0)
    if abs(at_one) <= TOLERANCE:
        return 1.0
    ratio, end = 1 / (1 + at_one), MOST if at_one < 0 else 1 / MOST
    words = f"`measured` is {number}, which takes {ratio:.3g} times as long as simulated"
    if not 1 / MOST <= ratio <= MOST or excess(end) * at_one > 0:
        raise InputError(f"{words}: compute times {1 / MOST:g} to {MOST:g} does not give it")
    factor = _root(excess, ratio if excess(ratio) * at_one >= 0 else 1.0, end)
    if abs(excess(factor)) > JUMP:
        raise InputError(f"{words}: the plan changes where compute takes {factor:.3g} times as long, past it")
    return factor


def setting(scenario: AnyScenario) -> dict[str, Any]:
    """Return the flags of a scenario but for the run that was measured, by name; plain values."""
    workload = scenario.workload
    return {
        "model": scenario.model_name,
        "cluster": scenario.cluster_name,
        "stack": scenario.stack_name,
        "gpus": workload.num_gpus,
        "batch_size": workload.batch_size,
        **scenario.asked,
        **replace(scenario, measured=None).options,
    }


def _root(function: Callable[[float], float], start: float, end: float) -> float:
    """Return a root of a function between two arguments at which its signs differ.

    False position by the Illinois algorithm. Source: Dowell and Jarratt, BIT 11, 1971.
    """
    at_start, at_end = function(start), function(end)
    if abs(at_start) <= TOLERANCE:
        return start
    while abs(end - start) > TOLERANCE * abs(end):
        middle = end - at_end * (end - start) / (at_end - at_start)
        at_middle = function(middle)
        if at_middle * at_end < 0:
            start, at_start = end, at_end
        else:
            at_start /= 2
        end, at_end = middle, at_middle
        if abs(at_end) <= TOLERANCE:
            break
    return end


def calibrated(scenario: S, measured: NumberSource | None, run: RunSource | None) -> S:
    """Return the scenario with compute scaled to a measured run, or as it is without one.

    ``measured`` is its number, where the run does not hold it.
    """
    number = measured if isinstance(measured, str) else shown(measured)
    if run is None:
        if measured is not None:
            how = f"{FLAG}, its flags in a file, as `sim run ... --measured {number} --json` prints"
            raise InputError(f"`measured` is {number}, but of which run? give {how}")
        return scenario
    if scenario.measured is not None:
        raise InputError(f"{FLAG} is given, but the scenario has a measured run already")
    if isinstance(run, Result):
        behind = None if run.source is None else run.source.scenario.measured
        if behind is None:
            how = "sim.run(..., measured={'step_s': 0.87}) gives one that is"
            raise InputError(f"{FLAG} is {shown(run)}, which is scaled to no measured number; {how}")
        run = behind
    if isinstance(run, MeasuredRun):
        if measured is not None:
            raise InputError(f"`measured` is {number}, but the run of {FLAG} has its number already")
        return replace(scenario, measured=run)
    where, again, flags = _flags_of_run(run)
    try:
        return replace(scenario, measured=_measured(flags, again, measured, scenario))
    except DiffusimError as error:
        raise InputError(f"{where}: {error.message}") from None


def _flags_of_run(run: str | PathLike[str] | Mapping[str, Any]) -> tuple[str, str, dict[str, Any]]:
    """Return where a run stands, for messages, what gives it again, and its flags with the numbers among them."""
    if isinstance(run, Mapping):
        try:
            return FLAG, json.dumps(run), flags_in(run, FLAG)
        except TypeError as error:
            raise InputError(f"{FLAG} must be names and numbers: {str(error).lower()}") from None
    if not isinstance(run, str | PathLike):
        rule = "must be a file, JSON, a mapping, a MeasuredRun or a Result"
        raise InputError(f"{FLAG} is {shown(run)}, {rule}")
    again = fspath(run)
    where = FLAG if again.lstrip().startswith("{") else again
    return where, again, read_flags(again, where)


def _measured(
    flags: dict[str, Any], again: str, measured: NumberSource | None, scenario: AnyScenario
) -> MeasuredRun:
    """Return the calibration by a run for a scenario, which is of the same model, device and stack."""
    numbers = [Number(name, flags.pop(name)) for name in NAMES if name in flags]
    numbers += [Number.of(source) for source in (flags.pop("measured", None), measured) if source is not None]
    if len(numbers) != 1:
        listed = " and ".join(map(str, numbers)) or "none"
        raise InputError(f"the measured numbers are {listed}, must be one, such as step_s = 0.87")
    model, strategy, cluster, gpus, stack = (flags.pop(key, None) for key in SHARED)
    if model is None or strategy is None:
        raise InputError(f"{'model' if model is None else 'strategy'} is missing")
    request = request_of(model, cluster, gpus, flags, strategies=(strategy,), stack=stack)
    simulated = scenario_of(request)
    check_same(
        *((side.model.name, side.cluster.device.name, side.stack.name) for side in (simulated, scenario))
    )
    options = {} if measured is None else {"measured": str(numbers[0])}
    return measure(resolve_strategy(request), simulated, numbers[0], options | {"measured_run": again})
