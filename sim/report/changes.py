"""Changes: what a sweep answers when one thing of its question changes."""

from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass, replace
from typing import Any, Final, NamedTuple

from profiles.errors import InputError, counted
from profiles.software.stacks import DEFAULT_STACK, SERVED, in_graphs, load_stack
from sim.explore.legality import always_recomputed, swept_points
from sim.explore.points import BOUNDS, COARSE, REPLAY, Point, answer_of, take_answer
from sim.explore.search import run_sweep
from sim.explore.sweep import Sweep
from sim.outcomes.results import OUT_OF_MEMORY, Result
from sim.outcomes.tasks import TASKS
from sim.report.words import compared, differing, sample_words
from strategies.plans.workloads import CACHED, ONLINE
from strategies.scenario import Scenario
from strategies.strategy import AnyScenario

LINKS: Final = (
    ("both links", "inter", "intra"), ("the link between nodes", "inter"), ("the link in a node", "intra"),
)  # fmt: skip
"""Links that are doubled, in words."""
LEAST: Final = 0.01
"""Gain in speed from which on a link limits it."""
IMAGES: Final = 4
"""Images drawn together in place of one."""


@dataclass(frozen=True, slots=True)
class Change:
    """The answer when one thing of the question is changed.

    Attributes:
        flags: those that ask for it; empty where none does.
        strategy: the best one then; None where none fits.
        speed: samples per second over those of the answer as it is, of all copies where cost is ranked by.
        stays: whether the answer is still of the same strategy; ``tie``: whether it ties with the new best.
        memory: peak memory over that of the answer as it is.
        num_gpus: GPUs of that best where they are more or fewer than the answer's; else None.
        how: parameters of that best in words that are not the answer's, where its strategy stays; else empty.
        fits: whether the answer as it is fits then.
        lacked: whether that best lacks memory without the change.
        enough: whether that best is slower than the answer was, although the answer itself would not be.
    """

    name: str
    flags: str
    strategy: str | None
    speed: float
    stays: bool
    tie: bool
    memory: float = 1.0
    num_gpus: int | None = None
    how: str = ""
    fits: bool = True
    lacked: bool = False
    enough: bool = False

    def words(self, answer: str, objective: str = "throughput") -> str:
        """Return the new answer in words."""
        if self.strategy is None:
            return "none fits"
        speed = compared(1 / self.speed, "cost") if objective == "cost" else compared(self.speed)
        speed = f"{compared(self.memory, 'memory')}, {speed}" if objective == "memory" else speed
        where = "" if self.num_gpus is None else f" on {counted(self.num_gpus, 'GPU')}"
        why = "" if self.fits or self.speed >= 1 else ", since what is best now would not fit"
        why = ", which does not fit without that" if self.lacked else why
        how = f" with {self.how}" if self.how else ""
        if self.enough:  # preferred among ties
            return f"{self.strategy}{where}{how} is enough, {speed}"
        if self.stays:
            return f"{speed}, {answer} still best{where}{how}{why}"
        close = f", {answer} too close to call" if self.tie else ""
        return f"{speed}, {self.strategy}{where} best{close}{why}"

    def to_json(self) -> dict[str, Any]:
        """Return the change under public keys."""
        return {key: value for key, value in asdict(self).items() if key not in ("fits", "lacked", "enough")}


class Variation(NamedTuple):
    """A scenario with one thing changed, be it checkpointing."""

    name: str
    flags: str
    scenario: AnyScenario
    recomputes: bool = False


def variations(scenario: AnyScenario, num_gpus: int, checkpointing: str = "") -> Iterator[Variation]:
    """Yield the scenario with one thing changed, of those that most often decide; the answer's GPUs decide on links."""
    workload: Any = scenario.workload
    cluster = scenario.cluster

    def changed(name: str, flags: str, **changes: Any) -> Variation:  # noqa: ANN401
        return Variation(name, flags, replace(scenario, workload=replace(workload, **changes)))

    if isinstance(scenario, Scenario):
        recomputed = (checkpointing or workload.checkpointing) != "none"
        name, kind = ("no checkpointing", "none") if recomputed else ("block checkpointing", "block")
        yield changed(name, f"--checkpointing {kind}", checkpointing=kind)._replace(recomputes=True)
        if any(scenario.model.components[i].cacheable for i in scenario.model.frozen):
            kind = CACHED if workload.frozen == ONLINE else ONLINE
            yield changed(f"encoders {kind}", f"--frozen {kind}", frozen=kind)
    else:
        if scenario.measured is None:  # which is of one stack
            name = scenario.stack.name
            plain = {in_graphs(stack): stack for stack in (SERVED, DEFAULT_STACK)}
            stack = plain.get(name, in_graphs(name))
            other = replace(scenario, stack=load_stack(stack), asked_stack="")
            yield Variation(f"stack {stack}", f"--stack {stack}", other)
        batch = workload.batch_size * IMAGES
        name = f"{batch} {sample_words(scenario)[1]} at once"
        yield changed(name, f"--batch-size {batch}", batch_size=batch)
        if num_gpus > 1 and workload.vae_parallel <= 1 and scenario.included(scenario.decoders):
            name, divided = f"VAE on {num_gpus} GPUs", {"vae_parallel": num_gpus, "vae_tile": None}
            with suppress(InputError):  # nobody counted the kernels of this decoder
                yield changed(name, f"--vae-parallel {num_gpus}", **divided, decode_chunks=1)
    between = num_gpus > cluster.devices_per_node and cluster.inter_node is not None
    if between or (num_gpus > 1 and cluster.intra_node.kind != "ideal"):
        asked = "link" in dict(cluster.changes)  # flags do not add up
        for words, *links in LINKS if between else LINKS[-1:]:
            flags = "" if asked else f"--link {','.join(f'{link}=2x' for link in links)}"
            faster = replace(scenario, cluster=cluster.scaled(**{f"{link}_node": 2.0 for link in links}))
            yield Variation(f"twice {words}", flags, faster)


def changes_asked(sweep: Sweep, answer: Point) -> list[tuple[Callable[..., Change], tuple[Any, ...]]]:
    """Return the calls that give the changes of an answer."""
    assert answer.result is not None
    changes = list(variations(sweep.scenario, answer.result.num_gpus, answer.checkpointing or ""))
    always = sweep.runtime and always_recomputed(sweep.runtime)
    links = [one for one in changes if one.name.startswith("twice ")]
    alone = (one for one in changes if one not in links and not (one.recomputes and always))
    calls = [(_change, (one, sweep, answer)) for one in alone]
    return calls + ([(_limiting, (links, sweep, answer))] if links else [])


def _limiting(links: Sequence[Variation], sweep: Sweep, first: Point) -> Change:
    """Return the change of the one link that brings most of what all do; of all where none alone does."""
    every = _change(links[0], sweep, first)
    for one in links[1:] if every.speed >= 1 + LEAST else ():
        if (change := _change(one, sweep, first)).speed ** 2 >= every.speed:
            return change
    alike = f"{every.name}, which limit alike" if len(links) > 1 and every.speed >= 1 + LEAST else every.name
    return replace(every, name=alike)


def _change(variation: Variation, sweep: Sweep, first: Point) -> Change:
    """Return the change of an answer."""
    scenario = variation.scenario
    sweep = replace(sweep, relief=()) if variation.recomputes else sweep
    names = tuple(dict.fromkeys(point.name for point in sweep.points))
    points = swept_points(scenario, names, sweep.held, sweep.runtime)
    again = swept(sweep, points, scenario, sweep.objective, (first.name,))
    ranked = again.simulated()
    if (best := again.best_point()) is None:
        return Change(variation.name, variation.flags, None, 0.0, stays=False, tie=False)
    same = best if best.name == first.name else next((p for p in ranked if p.name == first.name), None)
    assert first.result is not None and best.result is not None
    stays = best is same
    before_per_s = sweep.samples_per_s(first)
    speed, kept = sweep.samples_per_s(best) / before_per_s, None
    if speed < 1 and not (variation.recomputes and first.checkpointing):
        kept = _asked(first.candidate.point(), scenario, BOUNDS, REPLAY)
    before = [p for p in sweep.points if (p.strategy, p.num_gpus) == (best.strategy, best.num_gpus)]
    before = [_asked(point, sweep.scenario, *[BOUNDS] * (point.answered == COARSE)) for point in before]
    return Change(
        variation.name,
        variation.flags,
        best.name,
        speed,
        stays=stays,
        tie=same is not None and not stays and same.tied(best, sweep.objective),
        memory=best.result.peak_memory_bytes / held if (held := first.result.peak_memory_bytes) else 1.0,
        num_gpus=None if best.num_gpus == first.num_gpus else best.num_gpus,
        how=differing(first.result, best.result) if stays else "",
        fits=kept is None or kept.kind != OUT_OF_MEMORY,
        lacked=bool(before) and all(point.kind == OUT_OF_MEMORY for point in before),
        enough=kept is not None and kept.reason is None and again.samples_per_s(kept) >= before_per_s,
    )


def _asked(point: Point, scenario: AnyScenario, *kinds: str) -> Point:
    """Return a point with more answers, unless it does not fit by those before."""
    point = replace(point)
    for kind in kinds:
        if point.reason is None:
            take_answer(point, kind, answer_of(kind, point.candidate, scenario), scenario)
    return point


def fastest_of(sweep: Sweep) -> Result | None:
    """Return the fastest recommended point of a sweep that ranks by something else."""
    points = [replace(point) for point in sweep.points if point.checkpointing is None]
    best = swept(sweep, points, sweep.scenario, TASKS[sweep.scenario.task].objectives[0]).fastest_point()
    return None if best is None else best.result


def swept(
    sweep: Sweep,
    points: Iterable[Point],
    scenario: AnyScenario,
    objective: str,
    leading: tuple[str, ...] = (),
) -> Sweep:
    """Return a sweep of the recommended points over a scenario; its best is exact, and that of leading strategies."""
    good = tuple(point for point in points if point.recommended)
    objective = TASKS[scenario.task].objectives[0] if objective == "pareto" else objective
    again = replace(
        sweep, scenario=scenario, objective=objective, points=good, top=1, exhaustive=False, leading=leading
    )
    return run_sweep(again)
