"""The launch of a point.

What is printed stands in the installed files that the profile of the runtime names.
"""

from os import PathLike
from typing import Any

from profiles.architectures.models import Model
from profiles.errors import InputError, shown
from profiles.machines.clusters import Cluster
from profiles.software.runtimes import UNCHECKED, Runtime, find_runtime
from sim.api import run
from sim.explore.legality import case_of, first_runtime
from sim.explore.points import Point
from sim.inputs.arguments import speaks_of_parameters
from sim.launching.said import commented
from sim.launching.samplers import SAMPLERS
from sim.launching.starts import Launch, Start
from sim.launching.trainers import TRAINERS
from sim.outcomes.results import Result
from sim.report.views import Scaling, Sweep
from strategies.scenario import Scene
from strategies.strategy import AnyScenario, AnyStrategy


@speaks_of_parameters
def launch(
    model: str | Model | AnyScenario | Result | Sweep | Scaling,
    strategy: str | AnyStrategy | type[AnyStrategy] | None = None,
    cluster: str | Cluster | None = None,
    gpus: int | None = None,
    *,
    runtime: str | None = None,
    **given: Any,  # noqa: ANN401
) -> Launch:
    """The flags, configuration or code that starts a point in a runtime.

    Args:
        model: as of ``run``; or a result, which says all but the runtime, or a sweep, whose best is meant.
        strategy: as of ``run``.
        cluster: as of ``run``.
        gpus: as of ``run``.
        runtime: its name; by default the first that runs the point.
        given: all else that ``run`` takes.

    Raises:
        InputError: as of ``run``, or no runtime is known to run the point.
        InfeasibleError: the strategy, a degree or the batch does not apply here.
    """
    if not isinstance(model, str | PathLike | Model | Scene | Result | Sweep | Scaling):
        of_point = "; of a point give its result: sweep.result_of(point)" * isinstance(model, Point)
        rule = f"must be a model with a strategy, a result or a sweep{of_point}"
        raise InputError(f"model is {shown(model)}, {rule}")
    if isinstance(model, Result | Sweep | Scaling):
        result = model if isinstance(model, Result) else model.best
        said = {"strategy": strategy, "cluster": cluster, "gpus": gpus, **given}
        if extra := [name for name, value in said.items() if value is not None]:
            raise InputError(f"{extra[0]} is given, but the result says it already")
        if result.source is None:
            raise InputError(
                f"the result of {result.title} came from another process: give its model and strategy"
            )
    elif strategy is None:
        raise InputError("--strategy must be given, or a result in place of all, such as sweep.best")
    else:
        result = run(model, strategy, cluster, gpus, runtime=runtime, **given)
    return launch_of(result, _first_runtime(model, result) if runtime is None else find_runtime(runtime))


def _first_runtime(model: object, result: Result) -> Runtime:
    """The first runtime that runs a result; of a sweep whose best none runs, the error names the best that one does."""
    try:
        return first_runtime(result)
    except InputError as error:
        if not isinstance(model, Sweep) or (other := model.verdict.runnable) is None:
            raise
        named = ", ".join(filter(None, (other.result.strategy, other.how)))
        what = f"{'a tie' if other.tie else 'the best'} that runs in {other.runs_in[0]}"
        raise InputError(f"{error}; {what}: {named} (sweep.verdict.runnable.again)") from None


def launch_of(result: Result, runtime: Runtime) -> Launch:
    """What starts the point of a result in a runtime.

    Raises:
        InputError: it does not run it.
    """
    assert result.source is not None
    if refused := runtime.refusal(case_of(result.source.strategy, result.source.scenario)):
        raise InputError(refused)
    start = Start(runtime, result.source.strategy, result)
    text, *notes = commented(start, (SAMPLERS | TRAINERS)[runtime.name](start))
    lacking = [f"{result.strategy} does not fit: {result.missing_memory}"] if result.missing_memory else []
    remarks = (*result.source.remarks, *lacking)
    read = "no version of it was checked" if runtime.version == UNCHECKED else f"for {runtime.version}"
    return Launch(runtime.name, text.rstrip("\n") + "\n", (read, *notes), remarks)
