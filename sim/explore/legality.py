"""Legality: which runtimes run a point."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from math import prod
from typing import Any, Final

from profiles.errors import InfeasibleError, InputError, unmarked
from profiles.software.levers import FP8, HALF
from profiles.software.runtimes import OF_HEADS, Case, Runtime, all_runtimes, find_runtime, runs_in
from sim.explore.points import Point, find_points
from sim.outcomes.results import Result, unused_options
from sim.outcomes.runs import parameters_of, run_point, with_source
from sim.outcomes.tasks import TASKS
from strategies.parameters import options_of
from strategies.patching.grid import PADDED
from strategies.plans.workloads import ALL, HEADS
from strategies.scenario import Scenario
from strategies.strategy import AnyScenario, AnyStrategy

NO_RUNTIME: Final = "none known"
"""In place of the names of runtimes that run a point, where none is known."""
OF_PIPELINES: Final = ("patches", "warmup_steps", "receive", "layers")
"""Parameters of samplers that change nothing of the whole image on one stage."""
COMPILED: Final = ("compiled", "inductor")
"""Stacks of torch.compile."""
TIMED: Final[Mapping[str, tuple[Any, tuple[str, ...]]]] = {
    "stack": ("", COMPILED), "precision": (HALF, (FP8,)), "all_to_all": (HALF, (FP8,)), "cache_steps": (0.0, ()),
}  # fmt: skip
"""Options that change the time: what each is by itself, and the values to which runtimes with a flag set it."""
MEMORY: Final = (
    *("checkpointing", "memory_recipe", "trainable", "offload", "precision", "attention"),
    *("encoders", "vae_tile", "weights"),
)
"""Options by which a point may fit."""
RECOMPUTED: Final = "checkpointing"
"""The option of training that rules of runtimes speak of, beside parameters."""


def case_of(strategy: AnyStrategy, scenario: AnyScenario) -> Case:
    """Return a point as runtimes see it, without parameters that change nothing of it."""
    parameters, gpus = dict(parameters_of(strategy)), scenario.workload.num_gpus
    if isinstance(scenario, Scenario):
        parameters[RECOMPUTED] = scenario.workload.checkpointing
        return Case(scenario.model.name, strategy.name, parameters, gpus)
    point: Any = strategy
    groups = point.guidance_groups(scenario)
    if scenario.workload.heads == PADDED:
        try:
            strategy.bound(scenario.with_options(heads=HEADS[0]))
        except InfeasibleError:  # the degrees alone do not divide them
            parameters[OF_HEADS] = PADDED
    if parameters.get("pipeline_degree", 0) is None:
        parameters["pipeline_degree"] = gpus // groups
    if parameters.get("pipeline_degree") == 1 and parameters.get("patches") in (None, 1):
        parameters = {name: value for name, value in parameters.items() if name not in OF_PIPELINES}
    if "guidance_degree" in parameters:  # what the degrees leave are groups with images of their own
        degrees = [degree for name, degree in parameters.items() if name.endswith("_degree") and degree]
        parameters["data_degree"] = gpus // prod(
            degrees if parameters["guidance_degree"] else (groups, *degrees)
        )
    return Case(scenario.model.name, strategy.name, parameters, gpus, groups)


def _case(point: Point, scenario: AnyScenario) -> Case | None:
    """Return a point of a sweep as runtimes see it; None where it does not exist, which the sweep says."""
    if point.strategy is None:
        return None
    try:
        return case_of(point.strategy, point.candidate.at(scenario))
    except InfeasibleError:
        return None


def always_recomputed(name: str) -> str:
    """Return the recomputation of a runtime that always does the same; empty where it leaves that open."""
    allowed = [rule.values.get(RECOMPUTED, ("none",)) for rule in find_runtime(name).rules.values()]
    first = {choices[0] for choices in allowed}
    return "" if len(first) != 1 or any("none" in choices for choices in allowed) else first.pop()


def starters(point: Point, scenario: AnyScenario) -> tuple[str, ...]:
    """The names of the runtimes that run a point of a sweep, so that it fits; none of one that does not exist."""
    if point.strategy is None:
        return ()
    candidate = point.candidate

    def make() -> tuple[str, ...]:
        if point.result is not None:
            return runtimes_of(with_source(point.result, candidate.strategy, candidate.at(scenario)))
        case = _case(point, scenario)
        there = [one for one in priced(scenario) if trains(one, scenario)] if case else []
        return tuple(one.name for one in there if case and not one.refusal(case))

    return scenario.remember(("starters", candidate, point.result is None), make)


def trains(runtime: Runtime, scenario: AnyScenario) -> bool:
    """Return whether a runtime trains the weights that a scenario asks for: all, or adapters if it sets them."""
    return getattr(scenario.workload, "trainable", ALL) == ALL or "trainable" in runtime.sets


def is_unknown(scenario: AnyScenario) -> bool:
    """Return whether no runtime of its task has the model of a scenario."""
    return all(one.unknown(scenario.model.name) for one in priced(scenario))


def starts(point: Point, scenario: AnyScenario) -> bool:
    """Return whether a runtime runs a point; of a model that none knows, whether one does for a model that it knows."""
    if not is_unknown(scenario):
        return bool(starters(point, scenario))

    def make() -> bool:
        case = _case(point, scenario)
        known = ((runtime, model) for runtime in priced(scenario) for model in runtime.models or ())
        return case is not None and any(
            not runtime.refusal(replace(case, model=model)) for runtime, model in known
        )

    return scenario.remember(("starts", point.strategy, point.num_gpus, point.checkpointing), make)


def left_out(runtime: Runtime, scenario: AnyScenario) -> dict[str, Any]:
    """Return the options that change the time, and that a runtime does not set."""
    given = {name: getattr(scenario.workload, name, usual) for name, (usual, _) in TIMED.items()}
    return {
        name: value
        for name, value in (given | {"stack": scenario.stack_name}).items()
        if value != (runtime.stack if name == "stack" else TIMED[name][0])
        and (name not in runtime.sets or value not in TIMED[name][1])
    }


def priced(scenario: AnyScenario) -> list[Runtime]:
    """Return the runtimes of a task, first those that set all that a time depends on, and of these those that serve."""
    of_task = [one for one in all_runtimes().values() if one.task == scenario.task]
    return scenario.remember(
        "runtimes", lambda: sorted(of_task, key=lambda one: (len(left_out(one, scenario)), not one.serves))
    )


def needed(runtime: Runtime, result: Result, unset: Iterable[str]) -> str:
    """Return without which of some options a point does not fit, in words; empty where it fits without them."""
    strategy, scenario = result.origin.strategy, result.origin.scenario
    workload: Any = scenario.workload
    usual = {item.name: item.default for item in options_of(workload)}
    for name in unset if result.fits_memory else ():
        value = getattr(workload, name, None)
        if name in MEMORY and name in usual and value != usual[name]:
            if name == "trainable":  # adapters are of the model itself
                return f"`{name}` is {value}, but {runtime.name} does not set it"
            other = replace(scenario, workload=replace(workload, **{name: usual[name]}))
            if missing := run_point(strategy, other).missing_memory:
                rule = f"but {runtime.name} does not set it, and without it {result.strategy} does not fit"
                return f"`{name}` is {value}, {rule}: {missing}"
    return ""


def runtimes_of(result: Result) -> tuple[str, ...]:
    """Return the runtimes that start a result so that it fits, in the order of ``priced``; none without a source."""
    if (source := result.source) is None:
        return ()
    case, scenario = case_of(source.strategy, source.scenario), source.scenario
    moved = {"offload"} if getattr(scenario.workload, "moved", False) else set()
    there = (one for one in priced(scenario) if not one.refusal(case))
    unset = ((one, {*MEMORY} - one.settable(case.model) | (set() if one.moves else moved)) for one in there)
    return tuple(one.name for one, options in unset if not needed(one, result, options))


def first_runtime(result: Result) -> Runtime:
    """Return the first runtime that runs a result."""
    scenario = result.origin.scenario
    case = case_of(result.origin.strategy, scenario)
    if names := runtimes_of(result) or runs_in(scenario.task, case):
        return find_runtime(names[0])
    of_task = [one for one in all_runtimes().values() if one.task == scenario.task]
    having = sorted(
        (one for one in of_task if case.strategy in one.rules), key=lambda one: bool(one.unknown(case.model))
    )
    changes = {one.name: one.rules[case.strategy].kept_to(case.parameters) for one in having}
    why = [
        f"{_change_words(changed)} {one.name} runs it if it fits"
        if (changed := changes[one.name])
        and not one.refusal(replace(case, parameters={**case.parameters, **changed}))
        else one.refusal(case)
        for one in having
    ]
    if not why:
        knowing = [one.name for one in of_task if not one.unknown(case.model)]
        others = f"; sweep with `runtime` {' or '.join(knowing)} to find the best that it runs"
        why = [f"none has the strategy{others if knowing else ''}"]
    raise InputError(f"no runtime is known that starts this {case.strategy}: {'; '.join(why)}")


def _change_words(changes: Mapping[str, object]) -> str:
    """Parameters to give, and those to leave out."""
    changed = [f"`{name}` {value}" for name, value in changes.items() if value is not None]
    left = [f"`{name}`" for name, value in changes.items() if value is None]
    return ", ".join(
        f"{word} {' '.join(flags)}" for word, flags in (("with", changed), ("without", left)) if flags
    )


def runtime_for(name: str, scenario: AnyScenario) -> Runtime:
    """Return the runtime of a name, of the task of a scenario."""
    runtime = find_runtime(name)
    if runtime.task != scenario.task:
        raise InputError(
            f"`runtime` is {name}, which is of {TASKS[runtime.task].noun}, but this is of {TASKS[scenario.task].noun}"
        )
    if unknown := runtime.unknown(scenario.model.name):
        raise InputError(f"`runtime` is {name}, but {unknown}")
    if not trains(runtime, scenario):
        raise InputError(f"`runtime` is {name}, which trains all weights and does not set `trainable`")
    return runtime


def check_single(strategy: AnyStrategy, scenario: AnyScenario, runtime: str | None) -> None:
    """Refuse options that change nothing of the only point of a question, and a runtime that does not run it.

    Raises:
        InputError: there is such an option, or such a runtime.
        InfeasibleError: the point does not exist.
    """
    for reason in unused_options(strategy, scenario).values():
        raise InputError(reason)
    if runtime is not None and (
        refused := runtime_for(runtime, scenario).refusal(case_of(strategy, scenario))
    ):
        raise InputError(f"`runtime` is {runtime}, but {refused}")


def swept_points(
    scenario: AnyScenario, names: Sequence[str] | None, held: Mapping[str, Any], runtime: str | None
) -> list[Point]:
    """Return the points of a sweep: those that a runtime runs; without one all, and those as runtimes run them."""
    points = find_points(scenario, names, held)
    if runtime is not None:
        return within(runtime, points, scenario)
    known = {point.candidate for point in points if point.strategy is not None}
    kept: dict[object, Point] = {}
    for one in all_runtimes().values():
        if one.task == scenario.task and not one.unknown(scenario.model.name):
            for nearest in (kept_to(one, point, scenario) for point in points if point.name in one.rules):
                fixed = all(getattr(nearest.strategy, name, value) == value for name, value in held.items())
                if nearest.strategy is not None and fixed and not refusal(one, nearest, scenario):
                    kept.setdefault(nearest.candidate, nearest)
    return [*points, *(point for candidate, point in kept.items() if candidate not in known)]


def within(name: str | None, points: Sequence[Point], scenario: AnyScenario) -> list[Point]:
    """Return the points that a runtime runs, all without one; of each strategy that has none, one that says why.

    Where only parameters beside degrees break a rule, they are set to what it allows.
    """
    if name is None:
        return list(points)
    runtime = runtime_for(name, scenario)
    kept: dict[object, Point] = {}
    refused: dict[str, Point] = {}
    for point in points:
        nearest = kept_to(runtime, point, scenario)
        if reason := refusal(runtime, nearest, scenario):
            none = Point(None, point.name, point.num_gpus, reason=unmarked(reason), kind=f"not in {name}")
            refused.setdefault(point.name, none)
        else:
            kept.setdefault((nearest.name, nearest.num_gpus, nearest.strategy), nearest)
    there = {point.name for point in kept.values()}
    others = [point for name, point in refused.items() if name not in there]
    return [*kept.values(), *sorted(others, key=lambda point: point.name not in runtime.rules)]


def kept_to(runtime: Runtime, point: Point, scenario: AnyScenario) -> Point:
    """A point whose parameters that a runtime refuses are set to what it allows."""
    rule, case = runtime.rules.get(point.name), _case(point, scenario)
    if rule is None or case is None:
        return point
    changes = {name: value for name, value in rule.kept_to(case.parameters).items() if name != RECOMPUTED}
    if not changes:
        return point
    strategy: AnyStrategy = replace(point.strategy, **changes)  # type: ignore[type-var,assignment]
    return point.candidate._replace(strategy=strategy).point()


def refusal(runtime: Runtime, point: Point, scenario: AnyScenario) -> str:
    """Return the rule of a runtime that a point of a sweep breaks, in words; empty where the runtime runs it."""
    case = _case(point, scenario)
    if case is None and point.name not in runtime.rules:
        case = Case(scenario.model.name, point.name, {}, scenario.workload.num_gpus)
    return runtime.refusal(case) if case else ""
