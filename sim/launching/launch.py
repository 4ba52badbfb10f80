"""The launch of a point.

What is printed stands in the installed files that the profile of the runtime names: it is the rows and the template of
that profile, filled with ``values``.
"""

import json
import shlex
from collections.abc import Mapping
from dataclasses import dataclass
from os import PathLike
from string import Template
from typing import Any

from profiles.architectures.models import Model
from profiles.errors import InputError, flag_of, shown
from profiles.machines.clusters import Cluster
from profiles.software.runtimes import RUNTIMES, UNCHECKED, Runtime, find_runtime
from sim.api import run
from sim.explore.legality import case_of, first_runtime
from sim.explore.points import Point
from sim.launching.values import filled, stands, values_of
from sim.outcomes.results import Result
from sim.report.views import Scaling, Sweep
from strategies.parameters import options_of
from strategies.plans.workloads import SEQUENTIAL
from strategies.scenario import Scene
from strategies.strategy import AnyScenario, AnyStrategy


@dataclass(frozen=True, slots=True, repr=False)
class Launch:
    """The flags, configuration or code that starts a point.

    Attributes:
        runtime: the name of what runs it.
        text: flags, a configuration or code.
        notes: about the runtime, a line each.
        remarks: of the simulation, a line each.
    """

    runtime: str
    text: str
    notes: tuple[str, ...] = ()
    remarks: tuple[str, ...] = ()

    def __str__(self) -> str:
        return self.text

    def __repr__(self) -> str:
        return f"<Launch in {self.runtime}: {len(self.text.splitlines())} lines>"


def launch(
    model: str | Model | AnyScenario | Result | Sweep | Scaling,
    strategy: str | AnyStrategy | type[AnyStrategy] | None = None,
    cluster: str | Cluster | None = None,
    gpus: int | None = None,
    *,
    runtime: str | None = None,
    **options: Any,  # noqa: ANN401
) -> Launch:
    """Return the flags, configuration or code that starts a point in a runtime.

    Args:
        model: as of ``run``; or a result, which says all but the runtime, or a sweep, whose best is meant.
        strategy: as of ``run``.
        cluster: as of ``run``.
        gpus: as of ``run``.
        runtime: its name; by default the first that runs the point.
        options: all else that ``run`` takes.

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
        arguments = {"strategy": strategy, "cluster": cluster, "gpus": gpus, **options}
        if extra := [name for name, value in arguments.items() if value is not None]:
            raise InputError(f"{extra[0]} is given, but the result says it already")
        if result.source is None:
            raise InputError(
                f"the result of {result.title} came from another process: give its model and strategy"
            )
    elif strategy is None:
        raise InputError("`strategy` must be given, or a result in place of all, such as sweep.best")
    else:
        result = run(model, strategy, cluster, gpus, runtime=runtime, **options)
    return launch_of(result, first_runtime(result) if runtime is None else find_runtime(runtime))


def launch_of(result: Result, runtime: Runtime) -> Launch:
    """Return the launch of a result in a runtime.

    Raises:
        InputError: it does not run it.
    """
    assert result.source is not None
    if refused := runtime.refusal(case_of(result.source.strategy, result.source.scenario)):
        raise InputError(refused)
    values = values_of(result, runtime)
    if runtime.command:
        text = _command(runtime, values)
    else:
        text = filled((RUNTIMES / f"{runtime.name}.template").read_text(encoding="utf-8"), values)
    notes = filter(None, (filled(note, values) for note in runtime.notes))
    lacking = [f"{result.strategy} does not fit: {result.missing_memory}"] if result.missing_memory else []
    read = "no version of it was checked" if runtime.version == UNCHECKED else f"for {runtime.version}"
    text = _with_unset(text, unset_options(result, runtime, values))
    return Launch(runtime.name, f"{text}\n", (read, *notes), (*result.source.remarks, *lacking))


def _command(runtime: Runtime, values: dict[str, Any]) -> str:
    """Return a command line, a flag on each line."""
    quoted = {name: _quoted(value) for name, value in values.items()}
    words = [filled(runtime.command, values)]
    for flag, text in runtime.flags.items():
        if stands(template := Template(text), values):
            words.append(f"{flag} {template.substitute(quoted)}".rstrip())
    return " \\\n    ".join(words)


def _quoted(value: object) -> str:
    """Return a value as a shell reads it."""
    if value is True:
        return ""
    return " ".join(map(str, value)) if isinstance(value, tuple) else shlex.quote(str(value))


def _with_unset(text: str, options: Mapping[str, Any]) -> str:
    """Return a launch below a comment, or with a key, that lists the options it does not set."""
    flags = {flag_of(name): value for name, value in options.items()}
    if text.startswith("{"):  # JSON has no comments, and DeepSpeed looks up the keys that it knows
        return json.dumps(json.loads(text) | ({"not_set_here": flags} if flags else {}), indent=2)
    return "".join(f"# not set below: {flag} {value}\n" for flag, value in flags.items()) + text


def unset_options(result: Result, runtime: Runtime, values: Mapping[str, Any]) -> dict[str, Any]:
    """Return the options of a point that its launch does not set, and that a runtime does not have by itself."""
    assert result.source is not None
    scenario: Any = result.source.scenario
    options = {**scenario.asked, **scenario.options}
    options = {name: value for name, value in options.items() if name not in scenario.shared_options}
    options |= {"batch_size": result.batch_size, "stack": scenario.stack_name}
    usual = {item.name: item.default for item in options_of(scenario.workload)} | {"stack": runtime.stack}
    if scenario.task == "train":
        usual |= {"self_conditioning": 0.0}
    else:
        in_turn = scenario.model.name in runtime.sequential
        usual |= {"batch_size": 1, "guidance": SEQUENTIAL if in_turn else scenario.model.guidance}
        usual.pop("steps", None)
    printed = {name for name, gap in runtime.sets.items() if values[gap] not in (None, False)}
    return {
        name: value
        for name, value in options.items()
        if name not in printed and value not in ("", None) and (name not in usual or value != usual[name])
    }
