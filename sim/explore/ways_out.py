"""Ways out: flags with which a question would fit the devices, by bound, where nothing that was asked does."""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace
from itertools import combinations
from math import inf
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from profiles.errors import InfeasibleError, InputError
from sim.explore.points import Point
from sim.outcomes.phrases import OUT_OF_MEMORY
from sim.outcomes.runs import least_memory_bytes
from strategies.plans.workloads import ALL, RELIEF
from strategies.registry import class_of, strategies_of
from strategies.sampling_scenario import SamplingScenario
from strategies.scenario import Scenario
from strategies.strategy import AnyScenario, AnyStrategy, gpu_counts, is_seamless

if TYPE_CHECKING:
    from sim.explore.sweep import Sweep

MOST: Final = 48
"""Points of a strategy that are looked at for each way."""
TOLD: Final = 3
"""Ways that are told."""
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
        strategy: one that was not asked; None where those that were are kept.
    """

    kind: str
    flags: str
    change: tuple[tuple[str, Any], ...]
    strategy: str | None = None

    @property
    def told_as(self) -> str:
        """What is told once: of several numbers of GPUs only the smallest is."""
        return "gpus" if "num_gpus" in dict(self.change) else self.flags


def ways_out(
    scenario: AnyScenario, names: Sequence[str], *, relief: bool = False, point: AnyStrategy | None = None
) -> str:
    """The ways out in words, the smallest changes first, pairs where one change does not do; empty where none is known.

    Args:
        scenario: what nothing of these strategies fits.
        names: the strategies that were asked, the one that lacks least first.
        relief: whether recomputation was tried without being asked.
        point: the only one that was asked, with its parameters; None where all of a strategy are.
    """
    if scenario.cluster.device.memory_bytes is None:
        return ""
    looked = names[:1] if scenario.task == "train" else names  # those of training are many, and differ little
    ways = [*_other(scenario, names, relief=relief), *_ways(scenario, relief=relief)]
    singly = [(way,) for way in ways]
    pairs = [pair for pair in combinations(ways, 2) if pair[0].kind != pair[1].kind]
    for tried in (singly, pairs):
        found: dict[object, str] = {}
        for told in tried:
            told_as = tuple(way.told_as for way in told)
            if told_as not in found and _fits(scenario, looked, told, relief=relief, point=point):
                found[told_as] = " ".join(way.flags for way in told)
            if len(found) == TOLD:
                break
        if found:
            return f"{_either(list(found.values()))} would fit by bound"
    return ""


def _either(words: Sequence[str]) -> str:
    return " or ".join(filter(None, (", ".join(words[:-1]), words[-1])))


def _other(scenario: AnyScenario, names: Sequence[str], *, relief: bool) -> Iterator[WayOut]:
    """The strategy that was not asked and takes least memory, in training with recomputation."""
    classes = strategies_of(scenario.task).items()
    others = [name for name, cls in classes if name not in names and is_seamless(cls)]
    needs = {name: _least_bytes(scenario, name, relief=True) for name in others}
    least = min(needs, key=lambda name: needs[name], default=None)
    if least is None:
        return
    recomputes = isinstance(scenario, Scenario) and scenario.workload.checkpointing == "none" and not relief
    change = {"checkpointing": RELIEF[0]} if recomputes else {}
    flags = "".join(f" --{name} {value}" for name, value in change.items())
    yield WayOut(
        "checkpointing" if recomputes else "strategy",
        f"--strategy {least}{flags}",
        tuple(change.items()),
        least,
    )


def _ways(scenario: AnyScenario, *, relief: bool) -> Iterator[WayOut]:
    """What may be asked otherwise, those changes first that cost least."""
    workload, gpus = scenario.workload, scenario.workload.num_gpus
    if isinstance(scenario, Scenario):
        yield from _of_training(scenario, relief=relief)
    else:
        yield from _of_sampling(scenario)
    fewest = gpus if scenario.task == "train" else 1
    if workload.batch_size > fewest:
        yield WayOut("samples", f"--batch-size {fewest}", (("batch_size", fewest),))
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


def _fits(
    scenario: AnyScenario,
    names: Sequence[str],
    ways: Sequence[WayOut],
    *,
    relief: bool,
    point: AnyStrategy | None,
) -> bool:
    """Whether one of some strategies has a point that fits by bound, once some things are asked otherwise."""
    change = dict(item for way in ways for item in way.change)
    names = [way.strategy for way in ways if way.strategy] or names
    there = scenario.cluster.device.memory_bytes
    try:
        workload: Any = replace(scenario.workload, **change)
        changed: AnyScenario = replace(scenario, workload=workload)
    except InputError:  # no such thing here: nobody knows the host's link, or the two do not go together
        return False
    if there is None:
        return False
    if point is not None and point.name in names:
        return _needs(point, _relieved(changed, relief)) <= there
    return any(_least_bytes(changed, name, relief=relief) <= there for name in names)


def _least_bytes(scenario: AnyScenario, name: str, *, relief: bool) -> float:
    """Bytes without which no point of a strategy does, of those that are looked at; infinite where it has none."""
    scenario, cls = _relieved(scenario, relief), class_of(name)
    least = inf
    for count in gpu_counts(cls, scenario.workload.num_gpus):
        there = scenario.on(count)
        least = min([least, *(_needs(strategy, there) for strategy in _offered(cls, there))])
    return least


def _relieved(scenario: AnyScenario, relief: bool) -> AnyScenario:
    """A scenario that recomputes where memory lacks, if that is not asked otherwise."""
    if not relief or not isinstance(scenario, Scenario) or scenario.workload.checkpointing != "none":
        return scenario
    return scenario.with_checkpointing(RELIEF[0])


def _needs(strategy: AnyStrategy, scenario: AnyScenario) -> float:
    """Bytes that a point cannot do without; infinite where it does not exist, or does not know."""
    try:
        return least_memory_bytes(strategy, scenario) or inf
    except InfeasibleError:
        return inf


def _offered(cls: Any, scenario: AnyScenario) -> Sequence[AnyStrategy]:  # noqa: ANN401
    """Candidates of a strategy, spread over all of them."""
    try:
        every = list(cls.candidates(scenario))
    except InfeasibleError:
        return ()
    return every[:: max(1, len(every) // MOST)]


def needed_bytes(point: Point) -> float:
    """Bytes that a point is known to need."""
    simulated = 0.0 if point.result is None else point.result.expected.peak_memory_bytes
    return max(point.least_memory_bytes, simulated)


def example_of(points: Iterable[Point], kind: str) -> Point:
    """The point that stands for the infeasible ones of a kind: of those that lack memory, the one that lacks least."""
    return min((point for point in points if point.kind == kind), key=needed_bytes)


def such_as(points: Iterable[Point], kind: str) -> str:
    """An example of a kind in words."""
    example = example_of(points, kind)
    if example.reason == kind:
        return f"such as {example.name}"
    recomputing = f" with {example.checkpointing} checkpointing" if example.checkpointing else ""
    return f"such as {example.name}{recomputing}: {example.reason}"


def why_none(sweep: "Sweep") -> str:
    """Why a sweep has no best point, with an example, and what would give it one."""
    counts = sweep.infeasible_by_reason()
    if any(point.status == "simulated" for point in sweep.points):
        return "no point of the sweep is feasible and recommended: in what those draw that fit, seams show"
    if not counts:
        return "no point of the sweep is feasible: nothing was simulated"
    kind = OUT_OF_MEMORY if OUT_OF_MEMORY in counts else next(iter(counts))
    words = f"{counts[kind]} of {len(sweep.points)} x {kind} ({such_as(sweep.points, kind)})"
    if kind == OUT_OF_MEMORY:
        first = example_of(sweep.points, kind).name
        names = dict.fromkeys([first, *(point.name for point in sweep.points)])
        words += (
            f"; {ways}" if (ways := ways_out(sweep.scenario, list(names), relief=bool(sweep.relief))) else ""
        )
    return f"no point of the sweep is feasible: {words}"


def nearest(sweep: "Sweep", tried: Iterable[Point]) -> list[Point]:
    """Of points tried with relief in vain, where nothing else is feasible either, the one that lacks least."""
    if any(point.reason is None for point in sweep.points):
        return []
    short = [point for point in tried if point.kind == OUT_OF_MEMORY]
    return [example_of(short, OUT_OF_MEMORY)] if short else []
