"""Calibrating: the factor on compute with which a simulated run takes as long as it was measured to take."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from functools import cache
from math import inf
from typing import Any, Final

from profiles.checks import is_number
from profiles.costs.calibration import OWN, Calibration, MeasuredRun
from profiles.errors import DiffusimWarning, InputError, shown, warn_caller
from sim.outcomes.results import Result
from sim.outcomes.runs import parameters_of, run_point
from strategies.strategy import AnyScenario, AnyStrategy

QUANTITIES: Final[Mapping[str, Mapping[str, str]]] = {
    "train": {"step_s": "iteration_s", "iteration_s": "iteration_s", "samples_per_s": "samples_per_s"},
    "sample": {"latency_s": "latency_s", "step_s": "step_s", "samples_per_s": "samples_per_s"},
}
"""Numbers that can be measured, by task, and the quantity of a result that each is."""
NAMES: Final = tuple(dict.fromkeys(name for own in QUANTITIES.values() for name in own))
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

Given = str | Mapping[str, float]


@dataclass(frozen=True, slots=True)
class Number:
    """One measured number of a run: its name, one of ``NAMES``, and its value in seconds or samples per second."""

    name: str
    value: float

    def __post_init__(self) -> None:
        if self.name not in NAMES:
            raise InputError(f"`measured` is {self}, must be one of {', '.join(NAMES)}")
        value = self.value
        if not (is_number(value) and 0 < value < inf):
            raise InputError(f"`measured` is {self}, must be a positive number")
        if not 1 / LARGEST <= value <= LARGEST:
            raise InputError(f"`measured` is {self}, must be from {1 / LARGEST:g} to {LARGEST:g}")

    def __str__(self) -> str:
        return f"{self.name}={shown(self.value)}"

    @classmethod
    def of(cls, given: Given) -> "Number":
        """The number that words such as ``step_s=0.87``, or a mapping of one key, give.

        Raises:
            InputError: they give none.
        """
        if isinstance(given, str):
            name, _, words = given.partition("=")
            try:
                return cls(name.strip(), float(words))
            except ValueError as error:
                if isinstance(error, InputError):
                    raise
                raise InputError(
                    f"`measured` is '{given}', must be NAME=NUMBER, such as step_s=0.87"
                ) from None
        if not isinstance(given, Mapping) or len(given) != 1:
            raise InputError(f"`measured` is {shown(given)}, must be one number, such as step_s=0.87")
        return cls(*next(iter(given.items())))

    def of_result(self, result: Result) -> float:
        """Simulated over measured seconds.

        Raises:
            InputError: the result has no such quantity.
        """
        quantities = QUANTITIES[result.task]
        if self.name not in quantities:
            raise InputError(
                f"`measured` is {self}, but {result.strategy} is measured by {', '.join(quantities)}"
            )
        found: float = getattr(result, quantities[self.name])
        return self.value / found if self.name == "samples_per_s" else found / self.value


def measure(
    strategy: AnyStrategy, scenario: AnyScenario, number: Number, options: Mapping[str, str]
) -> MeasuredRun:
    """The calibration by a measured run of a strategy on a scenario.

    Args:
        strategy: of the run, with its parameters.
        scenario: of the run.
        number: what was measured.
        options: those that ask for it again.

    Raises:
        InputError: there is no factor.
        InfeasibleError: the run does not exist.
    """
    plain = replace(scenario, measured=None)
    result = run_point(strategy, plain)
    unscaled = MeasuredRun(
        Calibration(1.0, OWN),
        plain.task,
        plain.model.name,
        plain.cluster.device.name,
        plain.stack.name,
        result.uncertainty,
        tuple(options.items()),
    )

    @cache
    def excess(factor: float) -> float:
        scaled = replace(plain, measured=replace(unscaled, calibration=Calibration(factor, OWN)))
        return number.of_result(run_point(strategy, scaled)) - 1

    factor = _factor(excess, number)
    _warn_where_far(number, result)
    return replace(unscaled, calibration=Calibration(factor, OWN))


def _warn_where_far(number: Number, result: Result) -> None:
    """Warn of a measured number that is far from the predicted one."""
    times = max(ratio := number.of_result(result), 1 / ratio)
    if times > FAR:
        predicted = getattr(result, QUANTITIES[result.task][number.name])
        words = f"{number} was measured, but {predicted:.4g} is predicted: a factor of {times:.2g} apart"
        warn_caller(f"{words}; are the flags those of the run that was measured?", DiffusimWarning)


def _factor(excess: Callable[[float], float], number: Number) -> float:
    """The factor at which the simulated time is the measured one.

    What is not compute stays as it is, so that the factor is further from 1 than the ratio of the times.

    Raises:
        InputError: there is none between 1 / MOST and MOST.
    """
    at_one = excess(1.0)
    if abs(at_one) <= TOLERANCE:
        return 1.0
    ratio, end = 1 / (1 + at_one), MOST if at_one < 0 else 1 / MOST
    told = f"`measured` is {number}, which takes {ratio:.3g} times as long as simulated"
    if not 1 / MOST <= ratio <= MOST or excess(end) * at_one > 0:
        raise InputError(f"{told}: compute times {1 / MOST:g} to {MOST:g} does not give it")
    start = ratio if excess(ratio) * at_one >= 0 else 1.0
    factor = _root(excess, start, end)
    if abs(excess(factor)) > JUMP:
        raise InputError(f"{told}: the plan changes where compute takes {factor:.3g} times as long, past it")
    return factor


def question(strategy: AnyStrategy, scenario: AnyScenario) -> dict[str, Any]:
    """What ``sim run`` would be asked for a strategy on a scenario, by the names of its flags; plain values."""
    parameters = {name: value for name, value in parameters_of(strategy).items() if value is not None}
    return {**setting(scenario), "strategy": strategy.name, **parameters}


def setting(scenario: AnyScenario) -> dict[str, Any]:
    """What asks for a scenario again but for the run that was measured, by the names of flags; plain values."""
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
    """A root of a function between two arguments at which its signs differ.

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
