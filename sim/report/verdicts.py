"""Verdicts: what a sweep recommends, how sure that is, and what would change it."""

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any, Final, Literal, NamedTuple

from profiles.costs.trust import Trust
from profiles.errors import counted
from profiles.software.runtimes import all_runtimes
from profiles.units import GIB
from sim.explore.legality import always_recomputed, refusal, starters, within
from sim.explore.points import Point
from sim.explore.sweep import Sweep
from sim.explore.workers import parallel_calls
from sim.outcomes.results import Result
from sim.report.blocks import Line, Panel, Panelled
from sim.report.changes import Change, changes_asked, fastest_of, swept
from sim.report.descriptions import Tried, fairness, how, tried
from sim.report.numbers import duration, sample_words
from sim.report.reasons import Account, account_of_best
from sim.report.results import command_of, image_groups, origin_lines, result_lines, trust_in


class Runnable(NamedTuple):
    """The best point that runtimes run.

    Attributes:
        result: the result of the point.
        how: its parameters in words.
        runs_in: the runtimes.
        again: the command line that gives its result again.
        tie: whether it ties with the best of all.
        times: its score over that of the best.
        others: other runtimes that run some point; a sweep with ``--runtime`` finds the best that each runs.
    """

    result: Result
    how: str
    runs_in: tuple[str, ...]
    again: str
    tie: bool
    times: float
    others: tuple[str, ...]

    def to_json(self) -> dict[str, Any]:
        """Return its values beside the result, under public keys."""
        return {name: getattr(self, name) for name in ("tie", "others", "runs_in", "again")}


def best_runnable(sweep: Sweep, best: Point) -> Runnable | None:
    """Return the best point that runtimes run; None where there is none that fits."""
    best_by_runtime = best_of_each(sweep)
    if not best_by_runtime:
        return None
    scores = {name: point.score(sweep.objective) for name, point in best_by_runtime.items()}
    score, first = min(scores.values()), best_by_runtime[min(scores, key=lambda name: scores[name])]
    names = starters(first, sweep.scenario)
    others = tuple(sorted(scores.keys() - set(names), key=lambda name: (scores[name], name)))
    tie = first.costs == best.costs or first.tied(best, sweep.objective)
    result = sweep.result_of(first)
    words = how(result, tried([*sweep.points, first]))
    return Runnable(
        result, words, names, command_of(result), tie, score / best.score(sweep.objective), others
    )


def best_of_each(sweep: Sweep) -> dict[str, Point]:
    """Return the best point by runtime, of a sweep in it; parameters that the user set stay as they are."""
    best: dict[str, Point] = {}
    known = [point for point in (*sweep.points, *sweep.left) if point.strategy is not None]
    plain = [point for point in known if point.checkpointing is None]
    relieved = {of.candidate(sweep.scenario): of for of in known if of.checkpointing is not None}
    for runtime in all_runtimes().values():
        if runtime.task != sweep.scenario.task or runtime.unknown(sweep.scenario.model.name):
            continue
        always = always_recomputed(runtime.name) if sweep.relief else ""
        points = plain
        if always:
            again = (of.candidate(sweep.scenario)._replace(checkpointing=always) for of in plain)
            points = [relieved.get(of) or of.point() for of in again]
        there = [
            point
            for point in within(runtime.name, list(map(replace, points)), sweep.scenario)
            if all(getattr(point.strategy, name, of) == of for name, of in sweep.held.items())
        ]
        there += [replace(of) for of in relieved.values() if not refusal(runtime, of, sweep.scenario)]
        within_it = replace(sweep, runtime=runtime.name, relief=() if always else sweep.relief)
        if first := swept(within_it, there, sweep.scenario, sweep.objective).best_point():
            best[runtime.name] = first
    return best


RANKED_BY: Final[Mapping[str, str]] = {"cost": "the cost", "memory": "the memory"}
"""Ranking criteria other than the time."""


@dataclass(frozen=True, slots=True, repr=False)
class Verdict(Panelled):
    """The answer of a sweep; it prints itself.

    Attributes:
        title: the question in words.
        objective: the ranking criterion.
        best: the recommended result.
        account: where its time goes, and why.
        runner_up: the best of another strategy; None where there is none.
        ties: points of each strategy, of those simulated, that tie with the best.
        relieved: checkpointing of the best tie of each of these strategies, where it lacks memory without.
        changes: single changes of the question, and the answers then.
        tried: the values of parameters that the sweep looks at; those that it varied are named.
        fair: a remark on how fairly points compare; empty where each strategy has its best partition.
        fastest: the fastest point, where memory is ranked by; else None.
        runs_in: the runtimes that run the best.
        runnable: where no runtime runs the best, the best point that one runs; None where there is none.
        copies: of the best that work side by side where cost is ranked by, each on images of its own.
        same_as: points of other strategies with the result of the best, in words.
        lead: lines above all others, of a verdict on several numbers of GPUs.
        best_word: the label of the best.
        note: a further remark, or empty.
        roomy: where the best is nearly full, the best of those simulated that are not; else None.
    """

    title: str
    objective: str
    best: Result
    account: Account
    runner_up: Result | None
    ties: Mapping[str, int]
    relieved: Mapping[str, str]
    changes: tuple[Change, ...]
    tried: Tried
    fair: str
    fastest: Result | None = None
    runs_in: tuple[str, ...] = ()
    runnable: Runnable | None = None
    copies: int = 1
    same_as: tuple[str, ...] = ()
    lead: tuple[Line, ...] = ()
    best_word: str = "best"
    note: str = ""
    roomy: Result | None = None

    def __bool__(self) -> Literal[True]:
        return True

    @property
    def trust(self) -> Trust | None:
        """The trust that published numbers give to such an estimate; None where nothing is estimated."""
        return trust_in(self.best)

    @property
    def again(self) -> str:
        """The command line that gives the best result again."""
        return command_of(self.best)

    @property
    def runner_up_ties(self) -> bool:
        """Whether the runner-up ties with the best."""
        return self.runner_up is not None and self.runner_up.strategy in self.ties

    @property
    def lines(self) -> list[Line]:
        """The verdict line by line: a word, and what it says."""
        return [*self.lead, *self._best_lines(), *self._other_lines()]

    def _best_lines(self) -> Iterator[Line]:
        """Yield the best, with its time and memory."""
        yield self.best_word, self._named(self.best)
        yield from (("", f"the same: {words}") for words in self.same_as)
        yield from result_lines(self.best, self.account)
        if self.best.nearly_full:
            yield "with room", self._roomy_words()
        if self.copies > 1:
            more, speed = sample_words(self.best)[1], self.copies * self.best.samples_per_s
            words = f"each on {more} of its own, draw {speed:,.4g} {more}/s"
            yield "copies", f"{self.copies} side by side, {words}"

    def _other_lines(self) -> Iterator[Line]:
        """Yield the runner-up, ties, changes, runtimes and trust."""
        if self.fastest is not None:
            yield "fastest", self._fastest_words(self.fastest)
        yield "runner-up", self._runner_up_words()
        if words := self._ties_words():
            yield "", f"{'ties too' if self.runner_up_ties else 'ties with the best'}: {words}"
        for number, change in enumerate(self.changes):
            words = change.words(self.best.strategy, self.objective)
            yield "" if number else "if", f"{change.name}: {words}"
        (runs_in, *origin) = origin_lines(self.best)
        yield runs_in
        if not self.runs_in and self.runnable is not None:
            yield "", self._runnable_words(self.runnable)
        yield from origin
        yield from (("note", words) for words in (self.fair, self.note) if words)

    def _named(self, result: Result, parameters: str | None = None) -> str:
        """A point by its strategy and parameters, with its GPUs where best and runner-up do not take all alike."""
        alike = self.copies == 1 and (self.runner_up is None or self.runner_up.num_gpus == self.best.num_gpus)
        where = "" if alike else f"on {counted(result.num_gpus, 'GPU')}"
        words = how(result, self.tried) if parameters is None else parameters
        return ", ".join(filter(None, (result.strategy, words, where)))

    def _ties_words(self) -> str:
        """Return the ties that are not named already, those together that recompute the same."""
        named = {self.best.strategy, self.runner_up.strategy if self.runner_up else ""}
        others: dict[str, list[str]] = {}
        for name in self.ties:
            if name not in named:
                others.setdefault(self.relieved.get(name, ""), []).append(name)
        return "; ".join(
            f"{', '.join(names)}{f' ({what} checkpointing)' if what else ''}"
            for what, names in others.items()
        )

    def _runnable_words(self, runnable: Runnable) -> str:
        """Return the best point that a runtime runs, where none runs the best of all."""
        than, others = "a tie" if runnable.tie else self._worse_words(runnable.times), ""
        if runnable.times < 1:
            than += " by parameters that this sweep holds fixed"
        if runnable.others:
            others = f"; --runtime {' or '.join(runnable.others)} finds the best that it runs"
        named, took = self._named(runnable.result, runnable.how), self._took_words(runnable.result)
        return f"{named}: {took}, {than}, runs in {', '.join(runnable.runs_in)}{others}"

    def _took_words(self, result: Result) -> str:
        """Return the value of a result by the ranking criterion."""
        if self.objective == "memory":
            return f"{result.peak_memory_bytes / GIB:.1f} GiB"
        cost = f", {result.gpu_s_per_sample:,.2f} GPU-seconds each" if self.objective == "cost" else ""
        return f"{duration(result)}{cost}"

    def _worse_words(self, times: float) -> str:
        """Return a ratio of values of the ranking criterion in words."""
        return f"{times:.2f} x {RANKED_BY.get(self.objective, 'the time')}"

    def _fastest_words(self, fastest: Result) -> str:
        """Return the speed-up of the fastest point over the one of least memory."""
        ratio = fastest.samples_per_s / self.best.samples_per_s
        if ratio <= 1:
            return "the same: no other point is faster"
        took = f"{duration(fastest)} in {fastest.peak_memory_bytes / GIB:.1f} GiB"
        return f"{self._named(fastest)}: {ratio:.1f} x as fast, {took}"

    def _roomy_words(self) -> str:
        """Return the best point that fits by the high estimate of reserved memory, too."""
        if (other := self.roomy) is None:
            return "none of the points simulated surely fits"
        return f"{self._named(other)}: {self._took_words(other)}, {other.peak_memory_bytes / GIB:.1f} GiB"

    def _runner_up_words(self) -> str:
        if self.runner_up is None:
            where = " on 1 GPU" if self.best.num_gpus == 1 else ""
            return f"none: no other strategy of this sweep has a point that fits{where}"
        took = f"{self._named(self.runner_up)}: {self._took_words(self.runner_up)}"
        if self.objective == "memory":
            return took
        times = self.best.samples_per_s / self.runner_up.samples_per_s
        if self.objective == "cost":
            times = self.runner_up.gpu_s_per_sample / self.best.gpu_s_per_sample
        return f"{took}, " + ("a tie" if self.runner_up_ties else self._worse_words(times))

    @property
    def panel(self) -> Panel:
        """The verdict as a panel."""
        return Panel(self.title, self.lines)

    def __repr__(self) -> str:
        return f"<Verdict: {self.best.strategy}, {self.title}>"

    def to_json(self) -> dict[str, Any]:
        """Return the verdict under public keys; seconds, bytes and shares."""
        account, trust, (groups, approximation) = self.account, self.trust, image_groups(self.best)
        values = {
            "title": self.title,
            "objective": self.objective,
            "best": _short(self.best),
            "copies": self.copies if self.copies > 1 else None,
            "memory_bytes": self.best.memory_bytes,
            "time_shares": {name: getattr(account, name) for name in ("compute", "host", "wire", "idle")},
            "slowed_share": account.slowed,
            "reasons": list(account.reasons),
            "runner_up": self.runner_up and {**_short(self.runner_up), "tie": self.runner_up_ties},
            "ties": dict(self.ties),
            "image_groups": groups if groups > 1 else None,
            "approximation": approximation,
            "same_as": list(self.same_as),
            "changes": [change.to_json() for change in self.changes],
            "trust": trust and asdict(trust),
            "note": self.fair,
            "fastest": self.fastest and _short(self.fastest),
            "nearly_full": self.best.nearly_full,
            "roomy": self.roomy and _short(self.roomy),
            "again": self.again,
            "runs_in": list(self.runs_in),
            "runnable": self.runnable and self.runnable.to_json() | _short(self.runnable.result),
        }
        return {key: value for key, value in values.items() if value or key not in OPTIONAL}


OPTIONAL: Final = (
    "copies",
    "image_groups",
    "approximation",
    "same_as",
    "fastest",
    "nearly_full",
    "roomy",
    "runnable",
)
"""Keys of a verdict that are left out where they say nothing."""


@dataclass(frozen=True, slots=True, repr=False)
class NoVerdict(Panelled):
    """In place of a verdict where nothing recommended fits: false, and prints missing memory and fixes."""

    sweep: Sweep

    def __bool__(self) -> Literal[False]:
        return False

    def __str__(self) -> str:
        return str(self.sweep.none_fits())

    def __repr__(self) -> str:
        return f"<NoVerdict: {self.sweep.none_fits(most=0)}>"

    @property
    def panel(self) -> Panel:
        """The same as a panel."""
        return Panel(self.sweep.title, [("", str(self))])


def _short(result: Result) -> dict[str, Any]:
    """Return the main values of a result under its public keys."""
    ends = "samples_per_s", "peak_memory_bytes"
    row = result.to_json()
    keys = ("strategy", "parameters", "num_gpus", *result.times, *result.bands, *ends)
    return {key: row[key] for key in keys}


def verdict_of(sweep: Sweep, note: str = "") -> Verdict | NoVerdict:
    """Return the verdict of a sweep, with a note; false where no recommended point fits.

    For each of up to three changes the nearest points are looked at again; for more images at once, all points are.
    """
    ranked = [point for point in sweep.ranked() if point.status == "simulated" and point.recommended]
    if not ranked:
        return NoVerdict(sweep)
    best, values, twins, ties = ranked[0], tried(sweep.points), sweep.twins(), sweep.ties()
    assert best.result is not None
    same = [point.result for point in ranked if point.result and twins.get(id(point)) is best]
    others = (p for p in ranked if p.name != best.name and twins.get(id(p)) is not best)
    other, by_memory = next(others, None), sweep.objective == "memory"
    runs_in, leaders = starters(best, sweep.scenario), {point.name: point for point in reversed(ties)}
    answers = iter(
        parallel_calls(
            sweep.workers,
            (account_of_best, (sweep, best, None if by_memory else other)),
            *([] if runs_in else [(best_runnable, (sweep, best))]),
            *([(fastest_of, (sweep,))] if by_memory else []),
            *changes_asked(sweep, best),
        )
    )
    account, runnable = next(answers), None if runs_in else next(answers)
    fastest = next(answers) if by_memory else None
    return Verdict(
        title=sweep.title,
        objective=sweep.objective,
        best=sweep.result_of(best),
        account=account,
        runner_up=None if other is None else other.result,
        ties=Counter(point.name for point in ties),
        relieved={name: of.checkpointing for name, of in leaders.items() if of.checkpointing is not None},
        changes=tuple(answers),
        tried=values,
        fair=fairness(sweep.points) or _one_copy_words(sweep),
        runs_in=runs_in,
        runnable=runnable,
        copies=sweep.copies(best),
        same_as=tuple(", ".join(filter(None, (one.strategy, how(one, values)))) for one in same),
        fastest=fastest,
        note=note,
        roomy=_roomy(ranked) if best.result.nearly_full else None,
    )


def _roomy(ranked: Sequence[Point]) -> Result | None:
    """Return the best of some points, the best first, that is not nearly full."""
    return next((point.result for point in ranked if point.result and not point.result.nearly_full), None)


def _one_copy_words(sweep: Sweep) -> str:
    """Return a note that the throughput is of one copy, where several might work side by side; else empty."""
    scenario = sweep.scenario
    if sweep.objective != "throughput" or scenario.task == "train" or scenario.workload.num_gpus == 1:
        return ""
    return "throughput is of one copy of the model; the objective cost compares copies side by side"
