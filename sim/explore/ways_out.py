"""Ways out: what would have to be asked otherwise, so that something fits, where nothing that was asked does."""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from itertools import chain, combinations
from math import inf, log
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from profiles.errors import InfeasibleError, InputError
from sim.explore.points import MAX_MICRO_BATCHES, Point
from sim.explore.questions import Question, fits, least_bytes, parameters_known
from sim.outcomes.phrases import OUT_OF_MEMORY
from strategies.parameters import flag_of
from strategies.plans.workloads import ALL, RELIEF
from strategies.registry import class_of, make, strategies_of
from strategies.sampling_scenario import SamplingScenario
from strategies.scenario import Scenario
from strategies.strategy import AnyScenario, is_seamless

if TYPE_CHECKING:
    from sim.explore.sweep import Sweep

NO_WAY: Final = "no way out was found among changes of one flag or of two"
TOLD: Final = 3
"""Ways that are told."""
OTHERS: Final = 2
"""Strategies that were not asked and are tried: those that need least memory."""
VALUES: Final = 8
"""Values of a parameter that are tried: those nearest to what was asked."""
RANK: Final = 16
"""Rank of the adapters that are tried."""
MOST_TIMES: Final = 16
"""GPUs that are tried, over those that were asked."""


class WayOut(NamedTuple):
    """Something asked otherwise, and the flags that ask it; no two of a kind go together.

    Attributes:
        kind: what it concerns.
        flags: of the command line.
        change: fields of the workload and their values.
        strategy: the one that it is of; None where those that were asked are kept.
        held: parameters and their values.
        dropped: parameters that are left out.
        told_once: whether only the first of its kind that does is told.
    """

    kind: str
    flags: str
    change: tuple[tuple[str, Any], ...] = ()
    strategy: str | None = None
    held: tuple[tuple[str, Any], ...] = ()
    dropped: tuple[str, ...] = ()
    told_once: bool = False

    @property
    def told_as(self) -> str:
        """What is told once: of several numbers of GPUs, of values of a parameter or of strategies the first is."""
        if "num_gpus" in dict(self.change):
            return "gpus"
        return self.kind if self.told_once else f"{self.flags} {self.dropped}"


def ways_out(question: Question, most: int = TOLD) -> str:
    """The ways out in words, the smallest changes first, pairs where one change does not do; empty where none is known.

    Parameters come first, then strategies, then what else is asked. Each was simulated with all that was asked
    besides.
    """
    if question.scenario.cluster.device.memory_bytes is None:
        return ""
    parameters, others = list(_of_parameters(question)), list(_of_strategies(question))
    ways = list(_ways(question.scenario, relief=question.relief))
    dropping = [way for way in parameters if way.dropped]
    singly = [(way,) for way in chain(parameters, others, ways)]
    pairs = [pair for pair in combinations([*dropping, *others, *ways], 2) if _go_together(*pair)]
    for tried in (singly, pairs):
        found: dict[object, str] = {}
        for told in tried:
            told_as = tuple(way.told_as for way in told)
            if told_as not in found and (asked := _otherwise(question, told)) and fits(asked):
                found[told_as] = _words(_nearest(question, told))
            if len(found) == most:
                break
        if found:
            return f"{_listed(list(found.values()), 'or')} fits"
    return ""


def _nearest(question: Question, ways: Sequence[WayOut]) -> Sequence[WayOut]:
    """Ways that fit, a batch among them with as many samples as bisection finds to fit, in place of the fewest."""
    scenario = question.scenario
    place = next((i for i, way in enumerate(ways) if "batch_size" in dict(way.change)), None)
    if place is None:
        return ways
    fewest = _fewest(scenario)
    nearest, fitting, lacking = ways, 1, scenario.workload.batch_size // fewest
    while lacking - fitting > 1:
        each = (fitting + lacking) // 2
        nearer = [*ways[:place], _batch(each * fewest), *ways[place + 1 :]]
        if (asked := _otherwise(question, nearer)) and fits(asked):
            nearest, fitting = nearer, each
        else:
            lacking = each
    return nearest


def _batch(samples: int) -> WayOut:
    return WayOut("samples", f"--batch-size {samples}", (("batch_size", samples),))


def _fewest(scenario: AnyScenario) -> int:
    """Samples of the smallest batch: of training one for each GPU."""
    return scenario.workload.num_gpus if scenario.task == "train" else 1


def _go_together(one: WayOut, other: WayOut) -> bool:
    if one.kind == other.kind or (one.strategy and other.strategy):
        return False
    return not dict(one.change).keys() & dict(other.change).keys()


def _words(ways: Sequence[WayOut]) -> str:
    """The flags of some ways, and those to leave out."""
    flags = " ".join(way.flags for way in ways if way.flags)
    dropped = list(dict.fromkeys(flag_of(name) for way in ways for name in way.dropped))
    return f"{flags or 'the same'} without {_listed(dropped, 'and')}" if dropped else flags


def _listed(words: Sequence[str], last: str) -> str:
    return f" {last} ".join(filter(None, (", ".join(words[:-1]), words[-1])))


def _otherwise(question: Question, ways: Sequence[WayOut]) -> Question | None:
    """The question with some things asked otherwise; None where that cannot be."""
    scenario = question.scenario
    dropped = {name for way in ways for name in way.dropped}
    held = dict(question.parameters) | dict(item for way in ways for item in way.held)
    first = question.names[:1] if scenario.task == "train" else question.names  # many that differ little
    try:
        workload: Any = replace(scenario.workload, **dict(item for way in ways for item in way.change))
        changed = scenario.remember(("otherwise", workload), lambda: scenario.under(workload))
    except InputError:  # no such thing here: nobody knows the host's link, or the two do not go together
        return None
    return question._replace(
        scenario=changed,
        names=[way.strategy for way in ways if way.strategy][:1] or first,
        parameters={name: value for name, value in held.items() if name not in dropped},
    )


def _of_parameters(question: Question) -> Iterator[WayOut]:
    """Other values of the parameters that were given, and none; of one point more micro-batches, too."""
    ways: list[WayOut] = []
    given = list(question.parameters)
    for name in dict.fromkeys([*given, *(["micro_batches"] if question.single else [])]):
        owner = next((own for own in question.names if name in parameters_known(own)), None)
        for value in () if owner is None else _values(question, owner, name):
            flags = f"{flag_of(name)} {value}"
            ways.append(WayOut(name, flags, (), owner, ((name, value),), told_once=True))
    yield from _recomputing_too(question, ways)
    for dropped in dict.fromkeys([*((name,) for name in given), tuple(given)] if given else []):
        owner = next((own for own in question.names if parameters_known(own) & set(dropped)), None)
        if owner is not None:
            kind = dropped[0] if len(dropped) == 1 else "left out"  # a value of it that fits says the same
            yield from _recomputing_too(question, [WayOut(kind, "", (), owner, (), dropped, told_once=True)])


def _values(question: Question, owner: str, name: str) -> list[Any]:
    """Values of a strategy's parameter that are worth a try, the nearest to what was asked first."""
    if name == "micro_batches":
        held = {key: value for key, value in question.parameters.items() if key in parameters_known(owner)}
        now = getattr(make(owner, held), name) or 1
        most = min(MAX_MICRO_BATCHES, question.scenario.workload.batch_size)
        return [now * 2**k for k in range(1, VALUES + 3) if now * 2**k <= most]
    now, cls, gpus = question.parameters[name], class_of(owner), question.scenario.workload.num_gpus
    try:
        offered = {getattr(point, name) for point in cls.candidates(question.scenario)}  # type: ignore[arg-type]
    except InfeasibleError:
        return []
    if type(now) is str:
        return sorted(value for value in offered - {now} if type(value) is str)[:VALUES]
    if type(now) is not int:
        return []
    degrees = {2**k for k in range(gpus.bit_length())} | {gpus}  # that of all GPUs has often no number there
    values = {value for value in offered | degrees if type(value) is int} - {now}
    return sorted(values, key=lambda value: (abs(log(value or 0.5) - log(now or 0.5)), value))[:VALUES]


def _of_strategies(question: Question) -> Iterator[WayOut]:
    """The strategies that were not asked and need least memory, without the parameters that they do not have."""
    scenario = question.scenario
    others: list[tuple[float, WayOut]] = []
    for name, cls in strategies_of(scenario.task).items():
        if name in question.names or not is_seamless(cls):
            continue
        known = parameters_known(name)
        dropped = tuple(given for given in question.parameters if given not in known)
        way = WayOut("strategy", f"--strategy {name}", (), name, (), dropped, told_once=True)
        asked = _otherwise(question, [way])
        if asked is not None and (need := least_bytes(asked._replace(relief=True))) < inf:
            others.append((need, way))
    yield from _recomputing_too(question, [way for _, way in sorted(others)[:OTHERS]])


def _recomputing_too(question: Question, ways: Sequence[WayOut]) -> Iterator[WayOut]:
    """Some ways, then the same with recomputation, where that was not asked."""
    yield from ways
    for way in () if question.recomputes else ways:
        flags = f"{way.flags} --checkpointing {RELIEF[0]}".strip()
        yield way._replace(flags=flags, change=(("checkpointing", RELIEF[0]),))


def _ways(scenario: AnyScenario, *, relief: bool) -> Iterator[WayOut]:
    """What may be asked otherwise, those changes first that cost least."""
    workload, gpus = scenario.workload, scenario.workload.num_gpus
    if isinstance(scenario, Scenario):
        yield from _of_training(scenario, relief=relief)
    else:
        yield from _of_sampling(scenario)
    fewest = _fewest(scenario)
    if workload.batch_size > fewest:
        yield _batch(fewest)
    more = gpus * 2
    while more <= min(scenario.cluster.max_devices, gpus * MOST_TIMES):
        flags = f"--gpus {more} --batch-size {workload.batch_size}"
        yield WayOut("samples", flags, (("num_gpus", more),))
        more *= 2


def _of_training(scenario: Scenario, *, relief: bool) -> Iterator[WayOut]:
    workload = scenario.workload
    if workload.checkpointing == "none" and not relief:
        yield WayOut("checkpointing", f"--checkpointing {RELIEF[0]}", (("checkpointing", RELIEF[0]),))
    if workload.memory_recipe == "mixed" and workload.offload == "none":
        yield WayOut("optimizer", "--memory-recipe adam8bit", (("memory_recipe", "adam8bit"),))
    if workload.offload == "none":
        yield WayOut("optimizer", "--offload optimizer", (("offload", "optimizer"),))
    if not workload.rank:
        yield WayOut("weights", f"--trainable lora:{RANK}", (("trainable", f"lora:{RANK}"),))


def _of_sampling(scenario: SamplingScenario) -> Iterator[WayOut]:
    workload = scenario.workload
    if workload.encoders == "resident" and scenario.encoders:
        run = (
            () if scenario.included(scenario.encoders) else (("include", (ALL,)),)
        )  # else they never come and go
        flags = f"{f'--include {ALL} ' if run else ''}--encoders offloaded"
        yield WayOut("encoders", flags, (("encoders", "offloaded"), *run))
    if not workload.swapped:
        blocks = len({layer.block for layer in scenario.backbone.layers})
        yield WayOut("weights", f"--offload layers:{blocks}", (("offload", f"layers:{blocks}"),))


def needed_bytes(point: Point) -> float:
    """Bytes that a point is known to need."""
    simulated = 0.0 if point.result is None else point.result.expected.peak_memory_bytes
    return max(point.least_memory_bytes, simulated)


def example_of(points: Iterable[Point], kind: str) -> Point:
    """The point that stands for the infeasible ones of a kind: of those that lack memory, the one that lacks least."""
    return min((point for point in points if point.kind == kind), key=needed_bytes)


def such_as(points: Iterable[Point], kind: str) -> str:
    """An example of a kind in words."""
    return f"such as {_example_words(points, kind)}"


def _example_words(points: Iterable[Point], kind: str) -> str:
    example = example_of(points, kind)
    if example.reason == kind:
        return example.name
    recomputing = f" with {example.checkpointing} checkpointing" if example.checkpointing else ""
    return f"{example.name}{recomputing}: {example.reason}"


def nearest_words(sweep: "Sweep") -> str:
    """What keeps the points of a sweep without a best one from it, in words: of memory what the nearest lacks."""
    counts = sweep.infeasible_by_reason()
    if not counts or any(point.reason is None for point in sweep.points):
        return why_none(sweep, most=0)
    kind = _told_of(counts)
    such = "the nearest is" if kind == OUT_OF_MEMORY else "such as"
    return f"{kind}, {such} {_example_words(sweep.points, kind)}"


def _told_of(counts: Mapping[str, int]) -> str:
    """The reason that is told, of those that there are: memory first, which other flags may mend."""
    return OUT_OF_MEMORY if OUT_OF_MEMORY in counts else next(iter(counts))


def why_none(sweep: "Sweep", most: int = TOLD) -> str:
    """Why a sweep has no best point, with an example, and what would give it one: so many ways at most.

    Of a sweep that was not run, or was interrupted before any result, that alone.
    """
    counts = sweep.infeasible_by_reason()
    if any(point.status == "simulated" for point in sweep.points):
        return "no point of the sweep is feasible and recommended: in what those draw that fit, seams show"
    if not counts or any(point.status == "bounded" for point in sweep.points):
        return "nothing was simulated yet"
    kind = _told_of(counts)
    words = f"{counts[kind]} of {len(sweep.points)} x {kind} ({such_as(sweep.points, kind)})"
    if kind == OUT_OF_MEMORY and most:
        first = example_of(sweep.points, kind).name
        names = list(dict.fromkeys([first, *(point.name for point in sweep.points)]))
        asked = Question(sweep.scenario, names, sweep.held, relief=bool(sweep.relief), runtime=sweep.runtime)
        words += f"; {ways_out(asked, most) or NO_WAY}"
    return f"no point of the sweep is feasible: {words}"


def nearest(sweep: "Sweep", tried: Iterable[Point]) -> list[Point]:
    """Of points tried with relief in vain, where nothing else is feasible either, the one that lacks least."""
    if any(point.reason is None for point in sweep.points):
        return []
    short = [point for point in tried if point.kind == OUT_OF_MEMORY]
    return [example_of(short, OUT_OF_MEMORY)] if short else []
