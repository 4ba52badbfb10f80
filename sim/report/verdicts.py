"""Verdicts: what a sweep recommends, how sure that is, and what would change it."""

from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, replace
from html import escape
from typing import Any, Final

from profiles.costs.trust import Trust
from profiles.errors import counted
from profiles.units import GIB
from sim.explore.legality import starters
from sim.explore.points import Point
from sim.explore.sweep import Sweep
from sim.explore.workers import parallel_calls
from sim.outcomes.hints import Hinting
from sim.outcomes.results import Result
from sim.report.changes import Change, changes_asked, fastest_of
from sim.report.descriptions import Tried, fairness, how, tried
from sim.report.numbers import duration, image_words
from sim.report.panels import (
    TOGETHER,
    ImageGroups,
    Line,
    Panel,
    image_groups_of,
    result_lines,
    runs_in_words,
    trust_in,
)
from sim.report.reasons import Account, account_of_best
from sim.report.runnable import Runnable, best_runnable
from sim.report.tables import PACED, command_of, is_paced, measured_words

RANKED_BY: Final[Mapping[str, str]] = {"cost": "the cost", "memory": "the memory"}
"""What is ranked by, where that is not the time."""
TIME: Final = "the time"


@dataclass(frozen=True, slots=True, repr=False)
class Verdict(Hinting):
    """The answer of a sweep; it prints itself.

    Attributes:
        title: what was asked, in words.
        objective: what was ranked by.
        best: the recommended result.
        how: the parameters of the best in words, those that the sweep varied.
        account: where its time goes, and why.
        runner_up: the best of another strategy; None where there is none.
        runner_up_how: its parameters.
        ties: points of each strategy, of those simulated, that tie with the best.
        relieved: of each of these strategies, what its best tie recomputes, where it lacks memory without.
        changes: what would change the answer.
        trust: what published numbers say of estimates like this one; None where nothing is estimated.
        fair: a remark on how fairly points compare; empty where each strategy has its best partition.
        again: the command line that gives the best result again.
        fastest: the fastest point, where memory is ranked by; else None.
        fastest_how: its parameters.
        runs_in: the runtimes that run the best.
        runnable: where no runtime runs the best, the best point that one runs; None where there is none.
        copies: of the best that work side by side where cost is ranked by, each on images of its own.
        same_as: points of other strategies with the result of the best, in words.
        lead: lines above all others, of a verdict on several numbers of GPUs.
        best_word: what the best is called.
        note: what else is to be said; empty where there is nothing.
        image_groups: how the GPUs of the best divide images.
        measured: the factor of a measured run on compute, in words; empty without one.
        paced: whether that run is of this task.
    """

    title: str
    objective: str
    best: Result
    how: str
    account: Account
    runner_up: Result | None
    runner_up_how: str
    ties: Mapping[str, int]
    relieved: Mapping[str, str]
    changes: tuple[Change, ...]
    trust: Trust | None
    fair: str
    again: str
    fastest: Result | None = None
    fastest_how: str = ""
    runs_in: tuple[str, ...] = ()
    runnable: Runnable | None = None
    copies: int = 1
    same_as: tuple[str, ...] = ()
    lead: tuple[Line, ...] = ()
    best_word: str = "best"
    note: str = ""
    image_groups: ImageGroups = TOGETHER
    measured: str = ""
    paced: bool = False

    @property
    def runner_up_ties(self) -> bool:
        """Whether the runner-up ties with the best."""
        return self.runner_up is not None and self.runner_up.strategy in self.ties

    @property
    def lines(self) -> list[Line]:
        """The verdict line by line: a word, and what it says."""
        named = self._named(self.best, self.how)
        lines = [
            *self.lead,
            (self.best_word, named),
            *(("", f"the same: {words}") for words in self.same_as),
            *result_lines(self.best, self.account, self.image_groups),
            *self._copies_line(),
        ]
        if self.fastest is not None:
            lines.append(("fastest", self._fastest_words(self.fastest)))
        lines.append(("runner-up", self._runner_up_words()))
        word = "ties too" if self.runner_up_ties else "ties with the best"
        lines += [("", f"{word}: {words}")] if (words := self._ties_words()) else []
        for number, change in enumerate(self.changes):
            word = "" if number else "if"
            lines.append((word, f"{change.name}: {change.words(self.best.strategy, self.objective)}"))
        lines += [("runs in", runs_in_words(self.runs_in)), *self._runnable_line()]
        lines += [("measured", self.measured)] if self.measured else []
        trust = "exact: all times are given" if self.trust is None else str(self.trust)
        lines.append(("trust", f"{trust}{PACED if self.paced else ''}"))
        notes = filter(None, (self.fair, self.note))
        return [*lines, *(("note", words) for words in notes)]

    def _named(self, result: Result, parameters: str) -> str:
        """A point by its strategy and parameters, with its GPUs where best and runner-up do not take all alike."""
        alike = self.copies == 1 and (self.runner_up is None or self.runner_up.num_gpus == self.best.num_gpus)
        where = "" if alike else f"on {counted(result.num_gpus, 'GPU')}"
        return ", ".join(filter(None, (result.strategy, parameters, where)))

    def _copies_line(self) -> list[Line]:
        """What all GPUs draw, where the best leaves some that copies of it work on."""
        if self.copies == 1:
            return []
        more, speed = image_words(self.best.options)[1], self.copies * self.best.samples_per_s
        return [
            ("copies", f"{self.copies} side by side, each on {more} of its own, draw {speed:,.4g} {more}/s")
        ]

    def _ties_words(self) -> str:
        """The ties that are not named already, those together that recompute the same."""
        said = {self.best.strategy, self.runner_up.strategy if self.runner_up else ""}
        others: dict[str, list[str]] = {}
        for name in self.ties:
            if name not in said:
                others.setdefault(self.relieved.get(name, ""), []).append(name)
        words = (
            f"{', '.join(names)}{f' ({what} checkpointing)' if what else ''}"
            for what, names in others.items()
        )
        return "; ".join(words)

    def _runnable_line(self) -> list[Line]:
        """The best point that a runtime runs, where none runs the best of all."""
        if self.runs_in or self.runnable is None:
            return []
        result, runs_in = self.runnable.result, ", ".join(self.runnable.runs_in)
        named = self._named(result, self.runnable.how)
        unsure, others = self.runnable.unsure, ""
        than = "a tie" if self.runnable.tie else self._worse_words(self.runnable.times)
        if self.runnable.times < 1:
            than += " by parameters that this sweep holds fixed"
        if unsure:
            than = than if self.runnable.tie else f"at most {than}"
            better = "better" if self.objective in RANKED_BY else "faster"
            others = f"; --runtime {' or '.join(unsure)} may find a {better} one"
        elif self.runnable.others:
            others = f"; --runtime {' or '.join(self.runnable.others)} finds the best that it runs"
        return [("", f"{named}: {self._took_words(result)}, {than}, runs in {runs_in}{others}")]

    def _took_words(self, result: Result) -> str:
        """What a result takes of what is ranked by."""
        if self.objective == "memory":
            return f"{result.peak_memory_bytes / GIB:.1f} GiB"
        cost = f", {result.gpu_s_per_sample:,.2f} GPU-seconds each" if self.objective == "cost" else ""
        return f"{duration(result)}{cost}"

    def _worse_words(self, times: float) -> str:
        """How many times as much of what is ranked by."""
        return f"{times:.2f} x {RANKED_BY.get(self.objective, TIME)}"

    def _fastest_words(self, fastest: Result) -> str:
        """How much faster a point is than the one that takes the least memory."""
        if fastest.samples_per_s <= self.best.samples_per_s:
            return "the same: no other point is faster"
        ratio = fastest.samples_per_s / self.best.samples_per_s
        named = ", ".join(filter(None, (fastest.strategy, self.fastest_how)))
        there = f"{fastest.peak_memory_bytes / GIB:.1f} GiB"
        return f"{named}: {ratio:.1f} x as fast, {duration(fastest)} in {there}"

    def _runner_up_words(self) -> str:
        if self.runner_up is None:
            where = " on 1 GPU" if self.best.num_gpus == 1 else ""
            return f"none: no other strategy that was asked has a point that fits{where}"
        named = self._named(self.runner_up, self.runner_up_how)
        took = f"{named}: {self._took_words(self.runner_up)}"
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

    def __str__(self) -> str:
        return self.panel.text()

    def __repr__(self) -> str:
        return f"<Verdict: {self.best.strategy}, {self.title}>"

    def _repr_html_(self) -> str:
        """The verdict as a table, in a notebook."""
        return self.panel.html()

    def markdown(self) -> str:
        """The verdict as a Markdown list."""
        return self.panel.markdown()

    def to_json(self) -> dict[str, Any]:
        """The verdict under public keys; seconds, bytes and shares."""
        account, image_groups = self.account, self.image_groups
        return {
            "title": self.title,
            "objective": self.objective,
            "best": _short(self.best),
            **({} if self.copies == 1 else {"copies": self.copies}),
            "memory_bytes": self.best.memory_bytes,
            "time_shares": {name: getattr(account, name) for name in ("compute", "host", "wire", "idle")},
            "slowed_share": account.slowed,
            "reasons": list(account.reasons),
            "runner_up": self.runner_up and {**_short(self.runner_up), "tie": self.runner_up_ties},
            "ties": dict(self.ties),
            **({} if image_groups.groups == 1 else {"image_groups": image_groups.groups}),
            **({"approximation": image_groups.approximation} if image_groups.approximation else {}),
            **({"same_as": list(self.same_as)} if self.same_as else {}),
            "changes": [change.to_json() for change in self.changes],
            "trust": self.trust and asdict(self.trust),
            "note": self.fair,
            **({} if self.fastest is None else {"fastest": _short(self.fastest)}),
            "again": self.again,
            "runs_in": list(self.runs_in),
            **({} if self.runnable is None else {"runnable": _runnable_json(self.runnable)}),
        }


@dataclass(frozen=True, slots=True, repr=False)
class NoVerdict:
    """In place of a verdict where nothing that is recommended fits: false, and prints what lacks and what would fit."""

    sweep: Sweep

    def __bool__(self) -> bool:
        return False

    def __str__(self) -> str:
        return str(self.sweep.none_fits())

    def __repr__(self) -> str:
        return f"<NoVerdict: {self.sweep.none_fits(most=0)}>"

    def _repr_html_(self) -> str:
        """The same, in a notebook."""
        return f"<b>{escape(self.sweep.title)}</b><p>{escape(str(self))}</p>"

    def __getattr__(self, name: str) -> Any:  # noqa: ANN401
        """What a verdict has, this lacks.

        Raises:
            InfeasibleError: a verdict has it; what lacks, and changes that would do.
        """
        if name.startswith("_") or not hasattr(Verdict, name):
            raise AttributeError(name)
        raise self.sweep.none_fits()


def _runnable_json(runnable: Runnable) -> dict[str, Any]:
    own = {
        "tie": runnable.tie,
        "others": runnable.others,
        "unsure": list(runnable.unsure),
        "runs_in": list(runnable.runs_in),
        "again": runnable.again,
    }
    return {**_short(runnable.result), **own}


def _short(result: Result) -> dict[str, Any]:
    """What a result is and what came out, under its public keys."""
    keys = (
        "strategy",
        "parameters",
        "num_gpus",
        *result.times,
        *result.bands,
        "samples_per_s",
        "peak_memory_bytes",
    )
    found = result.to_json()
    return {key: found[key] for key in keys}


def verdict_of(sweep: Sweep, meanwhile: Callable[[], object] = lambda: None) -> Verdict | None:
    """The verdict of a sweep; None where no point that is recommended fits.

    For each of up to three changes the nearest points are looked at again; for more images at once, all points are.
    While other processes do that, this one does ``meanwhile``.
    """
    ranked = [point for point in sweep.ranked() if point.status == "simulated" and point.recommended]
    best = next(iter(ranked), None)
    if best is None or best.result is None:
        meanwhile()
        return None
    values, sourced = tried(sweep.points), sweep.sourced(best)
    by_memory = sweep.objective == "memory"
    twins = sweep.twins()
    same = [point for point in ranked if twins.get(id(point)) is best]
    other = next((point for point in ranked if point.name != best.name and point not in same), None)
    ties = sweep.ties()
    leaders = {point.name: point for point in reversed(ties)}
    runs_in = starters(best, sweep.scenario)
    told = iter(
        parallel_calls(
            sweep.workers,
            (account_of_best, (sweep, best, None if by_memory else other)),
            *([] if runs_in else [(best_runnable, (sweep, best))]),
            *([(fastest_of, (sweep,))] if by_memory else []),
            *changes_asked(sweep, best),
            meanwhile=meanwhile,
        )
    )
    account, runnable = next(told), None if runs_in else next(told)
    fastest = next(told) if by_memory else None
    return Verdict(
        title=sweep.title,
        objective=sweep.objective,
        best=best.result,
        how=how(best.result, values),
        account=account,
        runner_up=None if other is None else other.result,
        runner_up_how="" if other is None or other.result is None else how(other.result, values),
        ties=Counter(point.name for point in ties),
        relieved={name: of.checkpointing for name, of in leaders.items() if of.checkpointing is not None},
        changes=tuple(told),
        trust=trust_in(best.result, sweep.scenario.cluster.device.name),
        fair=fairness(sweep.points) or _one_copy_words(sweep),
        again=command_of(sourced),
        runs_in=runs_in,
        runnable=runnable,
        copies=sweep.copies(best),
        same_as=tuple(_said(point, values) for point in same),
        fastest=fastest,
        fastest_how="" if fastest is None else how(fastest, values),
        image_groups=image_groups_of(sourced),
        measured=measured_words(sweep.scenario),
        paced=is_paced(sweep.scenario),
    )


def _one_copy_words(sweep: Sweep) -> str:
    """A note that the throughput is of one copy, where several might work side by side; else empty."""
    scenario = sweep.scenario
    if sweep.objective != "throughput" or scenario.task == "train" or scenario.workload.num_gpus == 1:
        return ""
    return "throughput is of one copy of the model; the objective cost compares copies side by side"


def _said(point: Point, values: Tried) -> str:
    """A point in words."""
    assert point.result is not None
    return ", ".join(filter(None, (point.name, how(point.result, values))))


def with_note(verdict: Verdict | None, note: str) -> Verdict | None:
    """A verdict that also says something else."""
    return verdict and replace(verdict, note=note)
