"""The functions of ``sim`` for notebooks, scripts and the command line.

A keyword is either an option of the scenario (``batch_size``; of training ``self_conditioning``, ``checkpointing``,
...; of sampling ``resolution``, ``steps``, ...) or a parameter of the strategy. Errors name parameters, where the
command line names flags.
"""

import json
import warnings
from collections.abc import Callable, Iterable, Mapping, Sequence
from concurrent.futures import Executor
from contextlib import AbstractContextManager, nullcontext
from dataclasses import fields, replace
from functools import partial
from os import PathLike, fspath
from pathlib import Path
from typing import Any, Final, overload

from profiles.architectures.models import Model
from profiles.checks import is_one_of, plain_value
from profiles.costs.calibration import MeasuredRun
from profiles.errors import DiffusimNote, DiffusimWarning, InputError, shown, warn_caller, wrong
from profiles.machines.clusters import Cluster
from profiles.software.stacks import Stack
from sim.explore.balance import Trained, find_balance, read_shapes
from sim.explore.legality import always_recomputed, check_single, swept_points
from sim.explore.relax import least_recomputed
from sim.explore.scaling import counts, gpus_in
from sim.explore.search import run_sweep
from sim.explore.store import Store, code_of
from sim.explore.sweep import TOP, Report
from sim.inputs.calibrating import Number, NumberSource, RunSource, calibrated, measure, setting
from sim.inputs.limits import check_exists, check_passes, check_swept
from sim.inputs.scenarios import (
    ARGUMENTS,
    SHARED,
    find_task,
    given_parameters,
    request_of,
    resolve_scenario,
    resolve_strategy,
    scenario_of,
)
from sim.outcomes import results
from sim.outcomes.parts import parts_by, replay_parts
from sim.outcomes.runs import parameters_of, run_point, with_source
from sim.outcomes.schedules import Schedule, format_patches, written
from sim.outcomes.tasks import SAMPLING, TASKS
from sim.report.views import Balance, Clusters, Result, Scaling, Serving, Sweep, with_views
from sim.serving.answers import answer
from sim.serving.inputs import ask, prices_of
from sim.serving.options import ServingOptions
from sim.serving.service import Simulated
from strategies.orders.named import order_of
from strategies.parameters import check_integer
from strategies.pipelining.data_parallel import DataParallel
from strategies.pipelining.mesh import doublings
from strategies.plans.workloads import AUTO, RELIEF
from strategies.policy import Policy
from strategies.sampling_scenario import SamplingScenario
from strategies.scenario import Scenario, Scene
from strategies.strategy import AnyScenario, AnyStrategy, Sampler, Strategy

AnyModel = str | Model | AnyScenario
"""A model's name, a model folder, a model, or a whole scenario."""
Method = str | AnyStrategy | type[AnyStrategy]
"""A strategy's name, its class, or one with its parameters."""
Place = str | Cluster | None
"""A cluster's name, a cluster file, or a cluster; None: the default."""
Software = str | Stack | None
"""A stack's name, a stack file, or a stack; None: the default."""
Contenders = str | type[AnyStrategy] | Sequence[str | type[AnyStrategy]]
"""Strategies that a sweep looks at: names, with commas or as a list, or classes."""

SWEEPING: Final = (
    "task", "objective", "top", "exhaustive", "workers", "executor", "store", "report", "price",
)  # fmt: skip
"""Arguments that ``sweep`` has besides."""


def run(
    model: AnyModel,
    strategy: Method,
    cluster: Place = None,
    gpus: int | None = None,
    *,
    stack: Software = None,
    measured: NumberSource | None = None,
    measured_run: RunSource | None = None,
    runtime: str | None = None,
    **options: Any,  # noqa: ANN401
) -> Result:
    """Simulate one strategy on one scenario; the result keeps its traces.

    Args:
        model: a model's name, a model folder, a model, or a whole scenario.
        strategy: a strategy's name, its class, or one with its parameters.
        cluster: a cluster's name, a cluster file, or a cluster; by default ``p4de``.
        gpus: GPUs in all; by default one node, or as many as the strategy can use.
        stack: a stack's name, a stack file, or a stack; by default that of the runtime, else ``eager`` in training
            and ``fused`` in sampling, which is what servers run.
        measured: what this run was measured to take, such as ``{"step_s": 0.87}``; compute is scaled so that it takes
            as long. Beside ``measured_run`` it is the number of that run.
        measured_run: a measured run that compute is scaled to: its flags and number as a file or a mapping, or
            what ``calibrate`` gives, or a result of a run that was given ``measured``.
        runtime: the name of a runtime that must run it.
        options: of the scenario and parameters of the strategy, by the flags of ``sim run`` with underscores.

    Raises:
        InputError: a name is unknown, a value breaks its rule, or the runtime does not run it.
        InfeasibleError: the strategy, a degree or the batch does not apply here.
        DeadlockError: the strategy's order can never be carried out.
    """
    auto = is_one_of(options.get("checkpointing"), AUTO) and _leaves_open(options, runtime)
    request = request_of(model, cluster, gpus, options, strategies=(strategy,), stack=stack, runtime=runtime)
    scenario, point = resolve_scenario(model, request), resolve_strategy(request)
    scenario, *remarks = least_recomputed(point, scenario) if auto else (scenario,)
    if measured is not None and measured_run is None:
        number = Number.of(measured)
        run_itself = measure(point, scenario, number, {"measured": str(number)})
        scenario = replace(scenario, measured=run_itself)
    else:
        scenario = calibrated(scenario, measured, measured_run)
    check_exists(point, scenario, given_parameters(request, point))  # before its order is written out
    check_single(point, scenario, runtime)
    check_passes(point, scenario)
    return Result.of(with_source(run_point(point, scenario), point, scenario, remarks))


def _leaves_open(options: dict[str, Any], runtime: str | None) -> bool:
    """Return whether a runtime leaves recomputation to be chosen; set the option to what it always recomputes."""
    always = "" if runtime is None else always_recomputed(runtime)
    if always or "checkpointing" in options:
        options["checkpointing"] = always or None
    return not always


def calibrate(
    model: AnyModel,
    strategy: Method,
    cluster: Place = None,
    gpus: int | None = None,
    *,
    measured: NumberSource,
    stack: Software = None,
    **options: Any,  # noqa: ANN401
) -> MeasuredRun:
    """Find the factor by which compute must be scaled for a run to take as long as it was measured to take.

    ``measured`` is one number, such as ``{"step_s": 0.87}``, ``samples_per_s`` or, of sampling, ``latency_s``; the
    other arguments are those of ``run``.

    Returns:
        The ``measured_run`` of ``run`` and ``sweep``.

    Raises:
        InputError: as of ``run``, or no factor between 0.1 and 10 does.
    """
    every = (*SHARED, "measured")
    request = request_of(model, cluster, gpus, options, strategies=(strategy,), stack=stack, arguments=every)
    scenario, point, number = resolve_scenario(model, request), resolve_strategy(request), Number.of(measured)
    values = {name: value for name, value in parameters_of(point).items() if value is not None}
    text = json.dumps({**setting(scenario), "strategy": point.name, **values, number.name: number.value})
    return measure(point, scenario, number, {"measured_run": text})


def balance(
    model: str | Model,
    strategy: Method,
    cluster: Place = None,
    gpus: int | None = None,
    *,
    shapes: str | PathLike[str],
    stack: Software = None,
    measured: NumberSource | None = None,
    measured_run: RunSource | None = None,
    runtime: str | None = None,
    **options: Any,  # noqa: ANN401
) -> Balance:
    """Find what training on samples of mixed shapes costs, and what evening them out brings.

    ``shapes`` is a mixture's name or file; the strategy is data parallel, and the other arguments are those of ``run``.

    Raises:
        InputError: as of ``run``, a shape breaks a rule, or the strategy has stages.
        InfeasibleError: a shape does not fit.
    """
    for name in ("batch_size", "resolution", "frames"):
        if name in options:
            raise InputError(f"`{name}` is given, but the shapes say it: give it in the file of `shapes`")
    if measured is not None and measured_run is None:
        raise InputError("`measured` is given, but of which shape? give `measured_run`")
    every: tuple[str, ...] = (*ARGUMENTS, "shapes")
    where: dict[str, Any] = {"stack": stack, "runtime": runtime}
    request = request_of(model, cluster, gpus, options, strategies=(strategy,), arguments=every, **where)
    where |= {"measured": measured, "measured_run": measured_run}
    point, scenario, mixture = resolve_strategy(request), scenario_of(request), read_shapes(fspath(shapes))
    if not isinstance(point, DataParallel):
        raise wrong("strategy", f"is {point.name}, must be data parallel, whose ranks may hold other shapes")
    ranks = scenario.workload.num_gpus // point.group_size

    def simulate(shape: Trained, team: int) -> results.Result:
        one: Any = point if team == 1 else replace(point, context_degree=team)  # type: ignore[type-var]
        sizes: dict[str, Any] = {"resolution": shape.resolution, "batch_size": ranks // team * shape.batch}
        if scenario.model.draws_videos or shape.frames > 1:
            sizes["frames"] = shape.frames
        rest = {name: value for name, value in options.items() if name not in request.parameters}
        return run(model, one, cluster, gpus, **where, **rest, **sizes)

    alone = point.name == "fsdp" and point.group_size == 1
    most = min(ranks, scenario.cluster.devices_per_node) if alone else 1
    found = find_balance(mixture, ranks, doublings(ranks, most)[1:], simulate)
    return Balance(found.ranks, found.shapes, found.results, found.ways)


@overload
def sweep(model: Any, cluster: Any = None, gpus: Any = None, *, price: Any, **options: Any) -> Clusters: ...  # noqa: ANN401


@overload
def sweep(
    model: AnyModel, cluster: Place = None, gpus: int | None = None, *,
    strategy: Contenders | None = None, task: str | None = None, objective: str | None = None,
    stack: Software = None, measured: NumberSource | None = None, measured_run: RunSource | None = None,
    runtime: str | None = None, top: int = TOP, exhaustive: bool = False, **options: Any,  # noqa: ANN401
) -> Sweep: ...  # fmt: skip


@overload
def sweep(model: Any, cluster: list[Any] | tuple[Any, ...], gpus: Any = None, **options: Any) -> Clusters: ...  # noqa: ANN401


@overload
def sweep(model: Any, cluster: Any = None, gpus: Iterable[int] = (), **options: Any) -> Scaling: ...  # noqa: ANN401


def sweep(
    model: AnyModel,
    cluster: Any = None,
    gpus: Any = None,
    *,
    strategy: Contenders | None = None,
    task: str | None = None,
    objective: str | None = None,
    stack: Software = None,
    measured: NumberSource | None = None,
    measured_run: RunSource | None = None,
    runtime: str | None = None,
    top: int = TOP,
    exhaustive: bool = False,
    workers: int | None = None,
    executor: Executor | None = None,
    store: str | PathLike[str] | None = None,
    report: Report | None = None,
    price: float | str | None = None,
    **options: Any,
) -> Sweep | Scaling | Clusters:
    """Find the best strategies for a scenario: the best of each, and the best of all, are exact.

    Args:
        model: as of ``run``.
        cluster: as of ``run``. Of several, ``["l20-pcie-8", "p5"]``, ``Clusters`` know the fastest and cheapest.
        gpus: GPUs in all; by default one node. Of several, such as ``[8, 16, 32]``, a ``Scaling`` knows the knee.
        strategy: names or classes of strategies to look at; by default all of the task.
        task: ``train`` or ``sample``; by default what ``strategy`` or the options say, else ``train``.
        objective: ``throughput`` (the default), ``latency`` (that of sampling), ``memory``, ``pareto`` or ``cost``.
        stack: as of ``run``.
        measured: the number of ``measured_run``, where that holds none.
        measured_run: as of ``run``.
        runtime: the name of a runtime that must run all points.
        top: the number of best points that are exact.
        exhaustive: simulate every point that may fit, even those that can no longer be the best.
        workers: processes, by default one per core; of an executor the tasks at once, by default 16.
        executor: any ``concurrent.futures.Executor``, which does the work in place of own processes.
        store: a file that keeps what is done, so that no sweep does it again; made where there is none.
        report: called with the stage, the points that are done and the points in all.
        price: dollars of a GPU-hour, or a TOML file with lines such as ``l20-pcie-8 = 0.9``; gives ``Clusters``.
        options: of the scenario, and parameters to hold fixed.

    Raises:
        InputError: a name is unknown, a value breaks its rule, or no strategy takes what is held fixed.
    """
    start = partial(
        start_sweep, model, strategy=strategy, task=task, objective=objective, stack=stack,
        measured=measured, measured_run=measured_run, runtime=runtime, top=top, exhaustive=exhaustive,
        **options)  # fmt: skip
    gpus = gpus_in(gpus) if isinstance(gpus, str) else plain_value(gpus)
    several = isinstance(gpus, list | tuple | range)
    answer = start_clusters(start, cluster, counts(gpus) if several else (gpus,), price)
    for one in answer:
        with open_store(store, one) as answers:
            with_views(run_sweep(one, report, workers, executor, answers))
    if len(answer.scalings) > 1 or price is not None:
        return answer
    return answer.scalings[0] if several else answer.scalings[0].sweeps[0]


def start_clusters(
    start: Callable[..., Sweep],
    cluster: Any,  # noqa: ANN401
    gpus: Sequence[Any],
    price: float | str | None,
) -> Clusters:
    """Return the sweeps of a question for each cluster, and for each number of GPUs, none of them run yet."""
    scalings = []
    for one in _several(cluster):
        sweeps = []
        for count in gpus:
            with warnings.catch_warnings():
                if count != gpus[-1]:  # warnings are of the largest alone
                    warnings.simplefilter("ignore", DiffusimWarning)
                sweeps.append(start(gpus=count, cluster=one))
        scalings.append(Scaling(tuple(sweeps)))
    names = [scaling.sweeps[0].scenario.cluster_name for scaling in scalings]
    if len(set(names)) < len(names):
        raise wrong("cluster", f"is {','.join(names)}, must name each once")
    return Clusters(tuple(scalings), prices_of(price, names))


def open_store(path: str | PathLike[str] | None, sweep: Sweep) -> AbstractContextManager[Store | None]:
    """Return the store of a sweep, to be used in a ``with`` statement; None where nothing is to be kept."""
    if path is None:
        return nullcontext()
    if not isinstance(path, str | PathLike):
        raise InputError(f"`store` is {shown(path)}, must be a file")
    for cls in {type(point.strategy) for point in sweep.points if point.strategy is not None}:
        code_of(cls)
    return Store(Path(path), sweep.scenario)


def start_sweep(
    model: AnyModel,
    cluster: Place = None,
    gpus: int | None = None,
    *,
    strategy: Contenders | None = None,
    task: str | None = None,
    objective: str | None = None,
    stack: Software = None,
    measured: NumberSource | None = None,
    measured_run: RunSource | None = None,
    runtime: str | None = None,
    top: int = TOP,
    exhaustive: bool = False,
    **options: Any,  # noqa: ANN401
) -> Sweep:
    """Return a sweep with its points, none of them bounded or simulated yet; its arguments are those of ``sweep``."""
    names = _contenders(strategy)
    checkpointing = options.get("checkpointing")
    auto = not isinstance(model, Scene) and (checkpointing is None or is_one_of(checkpointing, AUTO))
    auto = auto and _leaves_open(options, runtime)
    asked: dict[str, Any] = {"strategies": names, "task": task, "stack": stack, "runtime": runtime}
    request = request_of(model, cluster, gpus, options, **asked, arguments=(*ARGUMENTS, *SWEEPING))
    scenario = calibrated(resolve_scenario(model, request), measured, measured_run)
    check_swept(scenario)
    return Sweep(
        scenario,
        TASKS[scenario.task].objectives[0] if objective is None else objective,
        tuple(swept_points(scenario, request.names, request.parameters, runtime)),
        top=plain_value(top),
        exhaustive=plain_value(exhaustive),
        relief=RELIEF if auto and isinstance(scenario, Scenario) else (),
        held=request.parameters,
        runtime=runtime,
    )


def _contenders(strategy: Contenders | None) -> Sequence[str | type[AnyStrategy]] | None:
    """Return the strategies that a sweep is to look at; None where none is named."""
    if isinstance(strategy, str):
        return strategy.split(",")
    strategy = plain_value(strategy)
    several = tuple(strategy) if isinstance(strategy, Iterable) else None if strategy is None else (strategy,)
    for one in several or ():
        if not isinstance(one, type) and hasattr(one, "candidates"):
            rule = "but a sweep finds the parameters itself: give the class"
            raise InputError(f"{shown(one)} is given, {rule}, strategy={type(one).__name__}, or ask sim.run")
    return several


def schedule(
    strategy: Method,
    model: AnyModel | None = None,
    cluster: Place = None,
    gpus: int | None = None,
    *,
    format: str = "text",  # the flag's name
    stack: Software = None,
    **options: Any,  # noqa: ANN401
) -> Schedule:
    """Return the order of a strategy; of a sampler, all steps of a run with their exchanges.

    ``format`` is ``text``, or ``torch`` as torch.distributed.pipelining reads it; the other arguments are those of
    ``run``, but many orders do not depend on the model.

    Raises:
        InputError: as of ``run``, or the order depends on the model and none is given.
    """
    if not is_one_of(format, "text", "torch"):
        raise InputError(f"`format` is {shown(format)}, must be one of text, torch")
    every = (*SHARED, "format")
    request = request_of(model, cluster, gpus, options, strategies=(strategy,), stack=stack, arguments=every)
    sampled, point = find_task(request) == "sample", resolve_strategy(request)
    if sampled and format == "torch":
        raise InputError(f"`format` is 'torch', which has no word for patches, and {point.name} draws images")
    if model is None and (isinstance(point, Sampler) or type(point).order is Strategy.order):
        raise InputError(f"the order of {point.name} depends on the model: give `model`")
    if sampled:
        return Schedule(point.name, format_patches(point, resolve_scenario(model, request)))
    if model is None:
        check_passes(point)
        return written(point, order_of(point), format)
    scenario = resolve_scenario(model, request)
    check_exists(point, scenario, given_parameters(request, point))
    check_passes(point, scenario)
    parts = replay_parts(point, scenario)
    jobs = parts_by(parts, lambda variant: variant.job)
    order = tuple(row for first, *_ in jobs for row in first.trace.plan.order)
    note = "this is the iteration without the extra forward pass; see --self-conditioning"
    return written(point, order, format, (note,) if len(jobs) < len(parts) else ())


def serve(
    model: str | Model | None = None,
    cluster: str | Cluster | Sequence[str | Cluster] | None = None,
    gpus: int | str | Sequence[int] | None = None,
    *,
    strategy: Contenders | None = None,
    policy: str | Policy | type[Policy] | Sequence[Any] | None = None,
    stack: Software = None,
    measured: NumberSource | None = None,
    measured_run: RunSource | None = None,
    runtime: str | None = None,
    workers: int | None = None,
    executor: Executor | None = None,
    report: Callable[[Serving], object] = lambda found: None,
    **options: Any,  # noqa: ANN401
) -> Serving:
    """Find how to divide GPUs among the requests of a load: replicas and their degrees, batch cap and policy.

    Args:
        model: a model's name, a model folder, or a model; none with a table of ``service`` times.
        cluster: a cluster's name, file or value; several are compared.
        gpus: GPUs of the fleet; of several, such as ``"1-64"``, the fewest that hold the SLO.
        strategy: samplers of replicas; by default the fastest that draws the exact image.
        policy: names, with commas or as a list, or policies of one's own.
        stack: as of ``run``.
        measured: as of ``sweep``.
        measured_run: as of ``sweep``.
        runtime: the name of a runtime that must run all replicas.
        workers: processes that share the plans, by default one; of an executor the tasks at once, by default 16.
        executor: as of ``sweep``.
        report: gets the answer before any plan runs; it grows while they do.
        options: of serving, such as ``rate=2, slo=5``; of the scenario, such as ``steps=28``; and of samplers.

    Raises:
        InputError: a name is unknown, a value breaks its rule, or the SLO is below the fastest request.
        InfeasibleError: no plan fits.
    """
    own = {item.name for item in fields(ServingOptions)}
    mine = ServingOptions(**{name: plain_value(options.pop(name)) for name in own & options.keys()})
    sites: list[Simulated] = []
    _check_served(mine.service, {"model": model, "cluster": cluster, **options})
    if model is not None:
        names = _contenders(strategy)
        for one in _several(cluster):
            request = request_of(
                model, one, 1, {"include": "all", **options}, strategies=names, task=SAMPLING.name, stack=stack,
                runtime=runtime, arguments=(*ARGUMENTS, *own),
            )  # fmt: skip
            scenario = calibrated(resolve_scenario(model, request), measured, measured_run)
            assert isinstance(scenario, SamplingScenario)
            sites.append(Simulated(scenario, {}, request.names, request.parameters, runtime))
    if workers is not None:
        check_integer("workers", workers)
    asks = ask(sites, mine, mine.policy if policy is None else policy, plain_value(gpus))
    if sites and not all(kind.steps_said for kind in asks[1][0].kinds):
        _note_assumed(options.get("steps"), sites[0].scenario)
    found = Serving(*asks, workers=workers, executor=executor)
    report(found)
    answer(found)
    return found


def _check_served(service: str | None, given: Mapping[str, Any]) -> None:
    """Refuse what stands beside a table of service times, and what lacks or contradicts without one."""
    if service is not None and (extra := [name for name, value in given.items() if value is not None]):
        raise InputError(f"`{extra[0]}` is given, but `service` holds the times already")
    if service is None and given["model"] is None:
        raise InputError("`model` must be given, or `service`, a table of service times")
    if "batch_size" in given:
        raise InputError("`batch_size` is given, but the policy forms batches: give `max_batch`")


def _note_assumed(given: object, scenario: SamplingScenario) -> None:
    """Say which steps are assumed where neither the question nor the model's file names any."""
    if given is None and scenario.model.steps is None:
        words = f"`steps` is {scenario.workload.steps}, which is assumed"
        warn_caller(f"{words}: the file of {scenario.model.name} names none", DiffusimNote)


def _several(cluster: Any) -> Sequence[Any]:  # noqa: ANN401
    """Return the clusters of an argument: names with commas, a list, or one."""
    several = list(dict.fromkeys(cluster.split(","))) if isinstance(cluster, str) else cluster
    if isinstance(several, list | tuple) and not several:
        raise InputError("`cluster` names none")
    return several if isinstance(several, list | tuple) else (several,)
