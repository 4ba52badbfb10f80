"""The requests, scenarios and strategies that the arguments of ``sim.run`` and its like stand for."""

from collections.abc import Mapping, Sequence
from dataclasses import is_dataclass, replace
from os import PathLike, fspath
from typing import Any, Final, ParamSpec, TypeVar

from profiles.architectures.models import Model
from profiles.errors import DiffusimError, InputError, shown
from profiles.machines.clusters import Cluster
from profiles.software.stacks import DEFAULT_STACK, Stack
from sim.inputs.scenarios import DEFAULT_CLUSTER, OPTION_NAMES, Request, check_known, scenario_of
from sim.outcomes.runs import parameters_of
from strategies.parameters import completed
from strategies.registry import make, take
from strategies.sampling_scenario import SamplingScenario
from strategies.scenario import Scenario, Scene
from strategies.strategy import AnyScenario, AnyStrategy, Sampler, Strategy

P = ParamSpec("P")
R = TypeVar("R")
E = TypeVar("E", bound=DiffusimError)

SHARED: Final = ("model", "strategy", "cluster", "gpus", "stack")
"""Arguments of all functions that ask about a strategy, beside options and parameters."""
ARGUMENTS: Final = (*SHARED, "measured", "measured_run", "runtime")
"""Arguments of ``run``."""


def request_of(
    model: str | Model | AnyScenario | None,
    cluster: str | Cluster | None,
    gpus: int | None,
    options: dict[str, Any],
    *,
    strategies: Sequence[str | AnyStrategy | type[AnyStrategy]] | None,
    task: str | None = None,
    stack: str | Stack | None = None,
    arguments: Sequence[str] = ARGUMENTS,
) -> Request:
    """Return the request of some arguments; a whole scenario holds all but the parameters.

    Raises:
        InputError: an argument is unknown, or beside a scenario.
    """
    _check_kinds(model, cluster, strategies, stack)
    model = fspath(model) if isinstance(model, PathLike) else model
    cluster = fspath(cluster) if isinstance(cluster, PathLike) else cluster
    stack = fspath(stack) if isinstance(stack, PathLike) else stack
    if strategies is not None:
        strategies = tuple(take(one) if isinstance(one, type) else one for one in strategies)
    if isinstance(model, Scene):
        shared = {"cluster": cluster, "gpus": gpus, "stack": stack, "task": task}
        extra = [name for name in OPTION_NAMES if name in options]
        extra += [name for name, value in shared.items() if value is not None]
        if extra:
            raise InputError(f"{extra[0]} is given, but the scenario says it already")
        request = Request("", "", None, strategies, options, model.task)
    else:
        where = DEFAULT_CLUSTER if cluster is None else cluster
        request = Request(
            model or "", where, gpus, strategies, options, task, DEFAULT_STACK if stack is None else stack
        )
    check_known(request, arguments)
    return request


def _check_kinds(model: object, cluster: object, strategies: Sequence[object] | None, stack: object) -> None:
    """Refuse what names neither a model, a cluster, a strategy nor a stack."""
    if not isinstance(model, str | PathLike | Model | Scene | None):
        raise InputError(f"model is {shown(model)}, must be a name, a folder, a Model or a Scenario")
    if not isinstance(cluster, str | PathLike | Cluster | None):
        raise InputError(f"cluster is {shown(cluster)}, must be a name, a file or a Cluster")
    if not isinstance(stack, str | PathLike | Stack | None):
        raise InputError(f"stack is {shown(stack)}, must be a name, a file or a Stack")
    for strategy in () if strategies is None else strategies:
        base = strategy if isinstance(strategy, type) else type(strategy)
        if not issubclass(base, str | Strategy | Sampler) or strategy is str:
            raise InputError(f"strategy is {shown(strategy)}, must be a name or a strategy")
        if isinstance(strategy, type) and not is_dataclass(strategy):
            raise InputError(f"strategy is {shown(strategy)}, must be a dataclass")


def resolve_scenario(model: str | Model | AnyScenario | None, request: Request) -> AnyScenario:
    """Return the scenario of a request: the model itself where it is one."""
    return model if isinstance(model, Scenario | SamplingScenario) else scenario_of(request)


def resolve_strategy(request: Request) -> AnyStrategy:
    """Return the only strategy of a request, with its parameters.

    Raises:
        InputError: a parameter is unknown, given twice, or breaks its rule.
    """
    assert request.strategies is not None
    (strategy,), parameters = request.strategies, request.parameters
    if isinstance(strategy, str):
        made: AnyStrategy = make(strategy, parameters)
        return made
    if parameters:
        raise InputError(f"{next(iter(parameters))} is given, but {strategy.name} has its parameters already")
    return completed(replace(strategy))  # type: ignore[type-var]  # a dataclass, checked again


def given_parameters(request: Request, strategy: AnyStrategy) -> Mapping[str, Any]:
    """Return the parameters of a strategy that were given."""
    return request.parameters or (parameters_of(strategy) if strategy in (request.strategies or ()) else {})
