"""Relaxing: the smallest changes of a question that make something fit, where nothing does."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import fields, replace
from itertools import combinations, product
from math import inf, log
from typing import Any, Final, NamedTuple

from profiles.errors import DiffusimError, InfeasibleError, InputError
from profiles.software.stacks import UNFUSED
from sim.explore.legality import check_single, within
from sim.explore.points import MAX_MICRO_BATCHES, Candidate, find_points
from sim.inputs.limits import check_passes
from sim.inputs.scenarios import fields_of
from sim.outcomes.results import Result, lacking_words
from sim.outcomes.runs import bound, least_memory_bytes, run_point
from strategies.pipelining.stages import divisors
from strategies.plans.workloads import ALL, AUTO, RELIEF, SHARDED, STREAMED
from strategies.registry import class_of, make, strategies_of
from strategies.sampling_scenario import SamplingScenario
from strategies.scenario import Scenario
from strategies.strategy import AnyScenario, AnyStrategy, is_seamless

NOTHING_FITS: Final = "no change of one flag or of two was found with which anything fits"
MOST_CHANGES: Final = 3
"""The most changes that are named."""
OTHERS: Final = 2
"""The most strategies beside the given ones that are tried: those that need least memory."""
VALUES: Final = 8
"""The most values of a parameter that are tried: those nearest to the given one."""
RANK: Final = 16
"""Rank of the adapters that are tried."""
MOST_TIMES: Final = 16
"""The most GPUs that are tried, over those of the question."""
POINTS: Final = 48
"""Points of a strategy whose bytes are bounded."""
SIMULATED: Final = 2
"""Points that are simulated to see whether one fits: those that need least."""
BLOCK, SELECTIVE = RELIEF


class Question(NamedTuple):
    """A question as ``sim run`` or ``sim sweep`` asks it.

    Attributes:
        scenario: of the question.
        names: strategies, the one that lacks least first.
        parameters: fixed for the strategies that have them.
        relief: whether points that lack memory are tried with recomputation, too.
        single: whether it is of one point, whose other parameters have their defaults.
        runtime: the name of a runtime that must run the points.
    """

    scenario: AnyScenario
    names: Sequence[str]
    parameters: Mapping[str, Any] = {}
    relief: bool = False
    single: bool = False
    runtime: str | None = None


class Change(NamedTuple):
    """A change of a question: fields of the workload, a strategy, its parameters, and parameters to leave out.

    Of the same ``kinds`` only the first that fits is named.
    """

    kinds: tuple[str, ...]
    workload: Mapping[str, Any] = {}
    strategy: str | None = None
    held: Mapping[str, Any] = {}
    dropped: tuple[str, ...] = ()

    def __str__(self) -> str:
        """The flags that make it, and those to leave out."""
        strategy = {"strategy": self.strategy} if "strategy" in self.kinds else {}
        values = {**strategy, **self.held, **self.workload}
        flags = " ".join(
            f"`{'gpus' if name == 'num_gpus' else name}` {value}" for name, value in values.items()
        )
        dropped = [f"`{name}`" for name in self.dropped]
        return f"{flags} without {_listed(dropped, 'and')}" if dropped else flags


def relax(question: Question, most: int = MOST_CHANGES) -> str:
    """Return the changes with which something fits in words; empty if none is.

    Two together are tried only if no single one is enough, a parameter or strategy only with recomputation or more
    GPUs. Parameters come first, then strategies, then the rest; adapters, which train something else, where nothing
    else does. Each was simulated with all else unchanged.
    """
    if question.scenario.cluster.device.memory_bytes is None:
        return ""
    singles = [*_parameters(question), *_strategies(question), *_options(question)]
    for adapted, changes in product((False, True), (singles, [*_pairs(singles)])):
        answers: dict[object, str] = {}
        for change in (each for each in changes if ("trainable" in each.workload) == adapted):
            if change.kinds not in answers and _fits_with(question, change):
                answers[change.kinds] = str(_largest_batch(question, change))
            if len(answers) == most:
                break
        if answers:
            return f"{_listed(list(answers.values()), 'or')} fits"
    return ""


def fitting_changes(result: Result, runtime: str | None) -> str:
    """Return the changes with which a result that a runtime is to start surely fits, in words."""
    scenario, there = result.origin.scenario, result.device_memory_bytes
    if there is not None and result.nearly_full:  # what fits in so much less fits by the high estimate, too
        less = there * result.reserved.middle / result.reserved.high
        device = replace(scenario.cluster.device, memory_bytes=less)
        scenario = replace(scenario, cluster=replace(scenario.cluster, device=device))
    held = {name: value for name, value in result.parameters.items() if value is not None}
    return relax(Question(scenario, [result.strategy], held, single=True, runtime=runtime)) or NOTHING_FITS


def _pairs(singles: Sequence[Change]) -> Iterator[Change]:
    """Yield what is tried of two changes together; of a parameter only with recomputation."""
    for one, other in combinations(singles, 2):
        kinds, held = (*one.kinds, *other.kinds), {**one.held, **other.held}
        apart = len({*kinds}) == 1 or {*kinds} == {"batch", "gpus"} or (one.strategy and other.strategy)
        if not apart and ("checkpointing" in kinds or not held):
            workload, strategy = {**one.workload, **other.workload}, one.strategy or other.strategy
            yield Change(kinds, workload, strategy, held, one.dropped + other.dropped)


def _largest_batch(question: Question, change: Change) -> Change:
    """A change that fits, whose batch, where it makes that smaller, is as large as bisection finds to fit."""
    if "batch" not in change.kinds:
        return change
    fewest, fitting = _fewest(question.scenario), 1
    lacking = question.scenario.workload.batch_size // fewest
    while lacking - fitting > 1:
        each = (fitting + lacking) // 2
        larger = change._replace(workload={**change.workload, "batch_size": each * fewest})
        if _fits_with(question, larger):
            change, fitting = larger, each
        else:
            lacking = each
    return change


def _fewest(scenario: AnyScenario) -> int:
    """Samples of the smallest batch: of training one for each GPU."""
    return scenario.workload.num_gpus if scenario.task == "train" else 1


def _listed(words: Sequence[str], last: str) -> str:
    return f" {last} ".join(filter(None, (", ".join(words[:-1]), words[-1])))


def _changed(question: Question, change: Change) -> Question | None:
    """The question with a change; None where it is not possible."""
    scenario, values = question.scenario, dict(change.workload)
    held = {**question.parameters, **change.held}
    first = question.names[:1] if scenario.task == "train" else question.names  # many that differ little
    if "include" in values:
        values["include"] = (values["include"],)
    try:
        workload: Any = replace(scenario.workload, **values)
        changed = scenario.remember(("relaxed", workload), lambda: scenario.under(workload))
    except InputError:  # no such thing here: nobody knows the host's link, or the two do not go together
        return None
    return question._replace(
        scenario=changed,
        names=[change.strategy] if change.strategy else first,
        parameters={name: value for name, value in held.items() if name not in change.dropped},
    )


def _parameters(question: Question) -> Iterator[Change]:
    """Yield other values of the fixed parameters; of one point more micro-batches, too."""
    for name in dict.fromkeys([*question.parameters, *(["micro_batches"] if question.single else [])]):
        owner = next((holder for holder in question.names if name in fields_of([class_of(holder)])), None)
        for value in () if owner is None else _values(question, owner, name):
            yield Change((name,), {}, owner, {name: value})


def _values(question: Question, owner: str, name: str) -> list[Any]:
    """Return the values of a strategy's parameter that are worth a try, the nearest to the given one first."""
    now, workload = question.parameters.get(name), question.scenario.workload
    if name == "micro_batches":
        most = min(MAX_MICRO_BATCHES, workload.batch_size)
        return [more for k in range(1, VALUES + 3) if (more := (now or 1) * 2**k) <= most]
    if type(now) is int:
        others = set(divisors(workload.num_gpus)) - {now}
        return sorted(others, key=lambda value: (abs(log(value / (now or 0.5))), value))[:VALUES]
    cls: Any = class_of(owner)
    choices = next(item for item in fields(cls) if item.name == name).metadata.get("choices") or ()
    return [value for value in choices if value != now]


def _strategies(question: Question) -> list[Change]:
    """Return the other strategies that need least memory, without the parameters that they do not have."""
    needs: list[tuple[float, Change]] = []
    for name, cls in strategies_of(question.scenario.task).items():
        dropped = tuple(key for key in question.parameters if key not in fields_of([cls]))
        change = Change(("strategy",), strategy=name, dropped=dropped)
        changed = _changed(question, change)
        if changed is not None and name not in question.names and is_seamless(cls):
            relieved = changed._replace(relief=True)
            needs.append((min((_needs(relieved, point) for point in _points(relieved)), default=inf), change))
    return [change for need, change in sorted(needs, key=lambda pair: pair[0])[:OTHERS] if need < inf]


def _options(question: Question) -> Iterator[Change]:
    """Yield changes of all but parameters and strategies, those that cost least first."""
    scenario = question.scenario
    batch_size, gpus, fewest = scenario.workload.batch_size, scenario.workload.num_gpus, _fewest(scenario)
    if isinstance(scenario, Scenario):
        training = scenario.workload
        if training.checkpointing == "none" and not question.relief:
            yield Change(("checkpointing",), {"checkpointing": BLOCK})
        if training.offload == "none":
            if training.memory_recipe == "mixed":
                yield Change(("optimizer",), {"memory_recipe": "adam8bit"})
            yield Change(("optimizer",), {"offload": "optimizer"})
        if not training.rank:
            yield Change(("weights",), {"trainable": f"lora:{RANK}"})
    else:
        yield from _of_sampling(scenario)
    if batch_size > fewest:
        yield Change(("batch",), {"batch_size": fewest})
    more = gpus * 2
    while more <= min(scenario.cluster.max_devices, gpus * MOST_TIMES):
        yield Change(("gpus",), {"num_gpus": more, "batch_size": batch_size})
        more *= 2


def _of_sampling(scenario: SamplingScenario) -> Iterator[Change]:
    """Yield the ways to keep fewer weights of a sampler's components on each GPU, those that cost least first."""
    workload = scenario.workload
    absent = scenario.encoders and not scenario.included(scenario.encoders)
    run = {"include": ALL} if absent else {}  # else what is moved never comes
    if not workload.encoders_moved and scenario.encoders:
        yield Change(("encoders",), {**run, "encoders": "offloaded"})
    if scenario.shards == 1 < workload.num_gpus and not workload.moved:
        yield Change(("weights",), {"weights": SHARDED})
    if not workload.swapped:
        blocks = len({layer.block for layer in scenario.backbone.layers})
        yield Change(("weights",), {"offload": f"layers:{blocks}"})
    if not workload.moved:
        yield Change(("weights",), {**run, "offload": STREAMED})


def _fits_with(question: Question, change: Change) -> bool:
    """Return whether a point of a changed question fits: it is simulated, where its bound lets it."""
    if (changed := _changed(question, change)) is None:
        return False

    def need(point: Candidate) -> tuple[float, int]:  # of those that need as much the quickest first
        return round(_needs(changed, point), 1), getattr(point.strategy, "micro_batches", None) or 1

    promising = [point for point in _points(changed) if _needs(changed, point) <= 1]
    return any(_runs(changed, point) for point in sorted(promising, key=need)[:SIMULATED])


def _points(question: Question) -> list[Candidate]:
    """Return points of a question, of each strategy so many that are spread over all of them."""
    gpus = question.scenario.workload.num_gpus
    candidates: list[Candidate] = []
    for name in question.names:
        held = {
            key: value for key, value in question.parameters.items() if key in fields_of([class_of(name)])
        }
        try:
            if question.single:
                candidates.append(Candidate(make(name, held), gpus))
                continue
            points = find_points(question.scenario, [name], held)
            points = within(question.runtime, points, question.scenario)
        except InputError:  # a value is not valid for this strategy
            continue
        every = [
            point.candidate
            for point in points
            if point.strategy is not None
            and (getattr(point.strategy, "micro_batches", None) or 1) <= MAX_MICRO_BATCHES
        ]
        candidates += every[:: max(1, len(every) // POINTS)]
    return candidates


def _at(question: Question, point: Candidate) -> AnyScenario:
    """Return the scenario of a point, with recomputation where that would be tried."""
    there = point.at(question.scenario)
    if isinstance(there, Scenario) and question.relief and there.workload.checkpointing == "none":
        return there.with_options(checkpointing=BLOCK)
    return there


def _needs(question: Question, point: Candidate) -> float:
    """Share of the room that a point cannot do without; infinite where it does not exist, or does not know."""
    there = _at(question, point)
    try:
        return (least_memory_bytes(point.strategy, there) or inf) / (there.room_bytes or inf)
    except InfeasibleError:
        return inf


def _runs(question: Question, point: Candidate) -> bool:
    """Return whether a point is accepted, and fits."""
    try:
        there = _at(question, point)
        bound(point.strategy, there)
        if question.single:
            check_single(point.strategy, there, question.runtime)
        check_passes(point.strategy, there)
        return run_point(point.strategy, there).fits_memory
    except DiffusimError:
        return False


def attends_in_one(scenario: AnyScenario) -> bool:
    """Return whether a scenario's stack has fused attention, whose output can be kept."""
    return isinstance(scenario, Scenario) and scenario.stack.attention != UNFUSED


def least_recomputed(strategy: AnyStrategy, scenario: AnyScenario) -> tuple[AnyScenario, str]:
    """The scenario with the least recomputation that lets a point fit, and a remark that says which it is.

    Where none does, the one in which the point lacks least memory by its bound.
    """
    assert isinstance(scenario, Scenario)
    room, before = scenario.room_bytes, ": it fits without recomputation"
    lacking: dict[str, float] = {}
    for checkpointing in ("none", SELECTIVE, BLOCK):  # by the time that it takes
        if checkpointing == SELECTIVE and not attends_in_one(scenario):
            continue
        tried = scenario.with_options(checkpointing=checkpointing)
        held = lacking[checkpointing] = least_memory_bytes(strategy, tried)
        if room is None or held <= room:
            held = run_point(strategy, tried).peak_memory_bytes
        if room is None or held <= room:
            return tried, f"`checkpointing` {AUTO} took {checkpointing}{before}"
        before = f": with {checkpointing} it {lacking_words(held, scenario)}"
    least = min(lacking, key=lambda name: lacking[name])
    words = f"`checkpointing` {AUTO} took {least}, with which it lacks least: no recomputation makes it fit"
    return scenario.with_options(checkpointing=least), words
