"""Changes: what would change the answer of a sweep, by simulating its best few points again."""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from math import inf
from typing import Final, NamedTuple

from profiles.errors import InfeasibleError, InputError, counted
from profiles.machines.clusters import Cluster
from profiles.software.stacks import DEFAULT_STACK, load_stack
from sim.explore.points import Asked, Point
from sim.explore.sweep import Sweep
from sim.outcomes.results import Result
from sim.outcomes.runs import run_within
from sim.report.numbers import drawn_words
from strategies.sampling_scenario import SamplingScenario
from strategies.scenario import Scenario
from strategies.strategy import AnyScenario

CONTENDERS: Final = 4
"""Strategies whose best points are simulated again; where cost is ranked by those on every number of GPUs."""
IMAGES: Final = 4
"""Images drawn together in place of one."""
COMPILED: Final = "compiled"


@dataclass(frozen=True, slots=True)
class Change:
    """What becomes of the answer if one thing is changed.

    Attributes:
        name: the change in words.
        flags: those that ask for it; empty where none does.
        strategy: the best of the few that were simulated again; None where none of them fits.
        speed: samples per second over those of the answer as it is, of all copies where cost is ranked by.
        stays: whether the answer is still of the same strategy.
        tie: whether the answer ties with the new best.
        memory: peak memory over that of the answer as it is.
        num_gpus: GPUs of that best where they are more or fewer than the answer's; else None.
    """

    name: str
    flags: str
    strategy: str | None
    speed: float
    stays: bool
    tie: bool
    memory: float = 1.0
    num_gpus: int | None = None

    def words(self, answer: str, objective: str = "throughput") -> str:
        """What becomes of an answer, in words."""
        if self.strategy is None:
            return "none of the best few fits"
        speed = f"{self.speed:.2f} x the speed"
        if objective == "memory":
            speed = f"{self.memory:.2f} x the memory, {speed}"
        if self.stays:
            return f"{speed}, {answer} stays"
        where = "" if self.num_gpus is None else f"on {counted(self.num_gpus, 'GPU')} "
        return f"{speed}, {self.strategy} {where}" + (
            f"first, {answer} a tie" if self.tie else f"instead of {answer}"
        )


class Variation(NamedTuple):
    """A scenario with one thing changed, and what that is; ``recomputes`` where it is what is recomputed."""

    name: str
    flags: str
    scenario: AnyScenario
    recomputes: bool = False


def variations(scenario: AnyScenario, num_gpus: int) -> Iterator[Variation]:
    """The scenario with one thing changed, of those that most often decide.

    Args:
        scenario: what was asked.
        num_gpus: GPUs of the answer: they say which link it uses.
    """
    if isinstance(scenario, Scenario):
        yield from _of_training(scenario)
    else:
        yield from _of_sampling(scenario)
        yield from _of_decoding(scenario, num_gpus)
    cluster = scenario.cluster
    if num_gpus > cluster.devices_per_node and cluster.inter_node is not None:
        link = replace(scenario, cluster=cluster.scaled(inter_node=2.0))
        yield Variation("twice the link between nodes", _link_flag(cluster, "inter"), link)
    elif num_gpus > 1 and cluster.intra_node.kind != "ideal":
        link = replace(scenario, cluster=cluster.scaled(intra_node=2.0))
        yield Variation("twice the link in a node", _link_flag(cluster, "intra"), link)


def _link_flag(cluster: Cluster, link: str) -> str:
    """The flag that asks for twice a link; none where the link is changed already: flags do not add up."""
    return "" if "link" in dict(cluster.changes) else f"--link {link}=2x"


def _of_training(scenario: Scenario) -> Iterator[Variation]:
    workload = scenario.workload
    other = "block" if workload.checkpointing == "none" else "none"
    name = "no checkpointing" if other == "none" else "checkpointing"
    changed = replace(scenario, workload=replace(workload, checkpointing=other))
    yield Variation(name, f"--checkpointing {other}", changed, recomputes=True)
    if any(scenario.model.components[i].cacheable for i in scenario.model.frozen):
        other = "online" if workload.frozen == "cached" else "cached"
        changed = replace(scenario, workload=replace(workload, frozen=other))
        yield Variation(f"encoders {other}", f"--frozen {other}", changed)


def _of_sampling(scenario: SamplingScenario) -> Iterator[Variation]:
    if scenario.measured is None:  # which is of one stack
        other = DEFAULT_STACK if scenario.stack.name == COMPILED else COMPILED
        changed = replace(scenario, stack=load_stack(other), asked_stack="")
        yield Variation(f"stack {other}", f"--stack {other}", changed)
    batch = scenario.workload.batch_size * IMAGES
    changed = replace(scenario, workload=replace(scenario.workload, batch_size=batch))
    yield Variation(f"{batch} {drawn_words(scenario.options)[1]} at once", f"--batch-size {batch}", changed)


def _of_decoding(scenario: SamplingScenario, num_gpus: int) -> Iterator[Variation]:
    """The rows of an included VAE divided among all GPUs, where they are not divided."""
    workload = scenario.workload
    if num_gpus == 1 or workload.vae_parallel > 1 or not scenario.included(scenario.decoders):
        return
    try:
        divided = replace(workload, vae_parallel=num_gpus, vae_tile=None, decode_chunks=1)
        changed = replace(scenario, workload=divided)
    except InputError:  # nobody counted the kernels of this decoder
        return
    yield Variation(f"VAE on {num_gpus} GPUs", f"--vae-parallel {num_gpus}", changed)


def changes_asked(
    sweep: Sweep, answer: Point
) -> list[tuple[Callable[..., Change], tuple[Variation, Sweep, list[Point]]]]:
    """The calls that give what would change an answer: what becomes of it and of the best of other strategies."""
    assert answer.result is not None
    points, asked = contenders(sweep, answer), sweep.scenario
    if isinstance(asked, Scenario):
        own = asked.workload.checkpointing
        points = [replace(point, checkpointing=point.checkpointing or own) for point in points]
        asked = asked.with_checkpointing(answer.checkpointing or own)
    bare = replace(sweep, points=[])
    return [(_change, (one, bare, points)) for one in variations(asked, answer.result.num_gpus)]


def contenders(sweep: Sweep, answer: Point) -> list[Point]:
    """The answer, and the best points of the strategies that come next; by cost those on every number of GPUs."""
    best = {answer.name: answer}
    ranked = [point for point in sweep.ranked() if not point.reason and point.recommended]
    for point in ranked:
        if point.status == "simulated":
            best.setdefault(point.name, point)
    chosen = dict.fromkeys(list(best)[:CONTENDERS])
    if sweep.objective != "cost":
        return [best[name] for name in chosen]
    each = {(answer.name, answer.num_gpus): answer}
    for point in ranked:
        if point.name in chosen:
            each.setdefault((point.name, point.num_gpus), point)
    return list(each.values())


def _change(variation: Variation, sweep: Sweep, points: Sequence[Point]) -> Change:
    objective = sweep.objective
    if variation.recomputes:
        points = [replace(point, checkpointing=None) for point in points]
    first, *others = points
    assert first.result is not None
    answer = simulated_again(first, variation.scenario, inf)
    best = answer
    for point in others:
        limit = inf if objective == "memory" else best.score(objective) / point.price(objective)
        found = simulated_again(point, variation.scenario, limit)
        best = min(best, found, key=lambda one: one.score(objective))
    if best.result is None or best.status != "simulated":
        return Change(variation.name, variation.flags, None, 0.0, stays=False, tie=False)
    speed = sweep.samples_per_s(best) / sweep.samples_per_s(first)
    memory = best.result.peak_memory_bytes / first.result.peak_memory_bytes
    tie = best is not answer and answer.tied(best, objective)
    gpus = None if best.num_gpus == first.num_gpus else best.num_gpus
    return Change(variation.name, variation.flags, best.name, speed, best is answer, tie, memory, gpus)


def fastest_of(sweep: Sweep) -> Result | None:
    """The fastest recommended point known of a sweep, with those that promise most of what it did not simulate."""
    points = [point for point in sweep.points if point.recommended and point.reason is None]
    found = min((p for p in points if p.result is not None), key=lambda p: p.score("latency"), default=None)
    leaders: dict[str, Point] = {}
    for point in sorted(points, key=lambda point: point.bound_s):
        leaders.setdefault(point.name, point)
    for point in list(leaders.values())[:CONTENDERS]:
        limit_s = inf if found is None else found.score("latency")
        if point.result is None and point.bound_s < limit_s:
            again = simulated_again(point, sweep.scenario, limit_s)
            found = again if again.status == "simulated" else found
    return None if found is None else found.result


def simulated_again(point: Point, scenario: AnyScenario, limit_s: float) -> Point:
    """A point in another scenario; without a result where it does not exist, or takes as long as the limit."""
    assert point.strategy is not None
    asked = Asked(point.strategy, point.num_gpus or scenario.workload.num_gpus, point.checkpointing)
    result: Result | float
    try:
        result = run_within(point.strategy, asked.at(scenario), limit_s)
    except InfeasibleError as error:
        return replace(point, result=None, reason=str(error))
    found = None if isinstance(result, float) else result
    return replace(point, result=found, reason=found.missing_memory if found else None)
