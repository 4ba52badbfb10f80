"""Verdicts: what a sweep recommends, how sure that is, and what would change it."""

from collections import Counter
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from typing import Any, Final, Literal

from profiles.errors import counted
from profiles.units import GIB
from sim.explore.legality import always_recomputed, is_unknown, runtimes_of, starts
from sim.explore.points import Point
from sim.explore.relax import fitting_changes
from sim.explore.sweep import SLACK, Choice, Sweep, choose, is_wide
from sim.explore.workers import parallel_calls
from sim.outcomes.results import Result
from sim.report.blocks import Block, Command, Line, Panel, Panelled
from sim.report.changes import Change, changes_asked, fastest_of
from sim.report.reasons import Account, account_of_best
from sim.report.results import (
    NO_RUNTIME_TODAY,
    command_of,
    image_groups,
    origin_lines,
    result_lines,
    trust_in,
)
from sim.report.words import Tried, compared, duration, how, sample_words, tried


@dataclass(frozen=True, slots=True, repr=False)
class Verdict(Panelled):
    """The answer of a sweep; it prints itself.

    Attributes:
        sweep: what it answers.
        choice: the recommended point, what is too close to call, and what decided.
        best: the result of the recommended point.
        runner_up: the best of another strategy, of those that a runtime starts where it starts the best; else None.
        difference: what the runner-up does longer and shorter.
        changes: single changes of the question, and the answers then.
        tried: the values of parameters that the sweep looks at; those that it varied are named.
        fastest: the fastest point, where memory is ranked by; else None.
        research: the best point of all where no runtime starts it, but others; else None.
        roomy: where the best is nearly full, the best of those simulated that are not; else None.
        lead: lines above all others, of a verdict on several numbers of GPUs.
    """

    sweep: Sweep
    title: str
    choice: Choice
    best: Result
    account: Account
    runner_up: Result | None
    runner_up_ties: bool
    difference: str
    changes: tuple[Change, ...]
    tried: Tried
    fastest: Result | None
    research: Result | None
    research_ties: bool
    roomy: Result | None
    lead: tuple[Line, ...] = ()
    note: str = ""

    def __bool__(self) -> Literal[True]:
        return True

    @property
    def ties(self) -> dict[str, int]:
        """How many points of each strategy, of those simulated, tie with the best."""
        return Counter(point.name for point in self.sweep.ties())

    @property
    def runs_in(self) -> list[str]:
        """The runtimes that start the best, the one that was asked for first."""
        return sorted(runtimes_of(self.best), key=lambda name: name != self.sweep.runtime)

    @property
    def same_as(self) -> list[str]:
        """Points of other strategies with the result of the best, in words."""
        best = self.choice.point
        same = (p for p in self.sweep.simulated() if p.recommended and p is not best and p.same(best))
        return [self._words(point.result) for point in same if point.result]

    @property
    def again(self) -> str:
        """The command line that gives the best result again."""
        return command_of(self.best)

    @property
    def launch(self) -> str:
        """The command line that starts the best in a runtime; empty where none does."""
        return command_of(self.best, "launch", self.runs_in[0]) if self.runs_in else ""

    @property
    def answer(self) -> list[Block]:
        """The verdict as a panel, and the commands that start the best, and that with room, where a runtime does."""
        commands = [Command("start it", self.launch)] if self.launch else []
        if self.roomy is not None and (names := runtimes_of(self.roomy)):
            commands.append(Command("with room", command_of(self.roomy, "launch", names[0])))
        return [self.panel, *commands]

    @property
    def lines(self) -> list[Line]:
        """The verdict line by line: a word, and what it says."""
        return [*self.lead, *self._lines()]

    def _lines(self) -> Iterator[Line]:
        """Yield the best with its time and memory, the runner-up, ties, changes, runtimes and trust."""
        best, runs, copies = self.best, self.runs_in, self.sweep.copies(self.choice.point)
        yield "best", self._named(best)
        yield from (("", f"the same: {words}") for words in self.same_as)
        if len(self.choice.close) > 1:
            yield "chosen", f"{_chosen_words(self.choice)}{' that runs' * bool(runs)}"
        if self.research is not None:
            lost = best.source is not None and is_unknown(best.source.scenario)
            words = self._beside_best(self.research, self.research_ties)
            yield "research", f"{words}; {NO_RUNTIME_TODAY}{' for any model' * lost}"
        yield from result_lines(best, self.account)
        if self.roomy is not None:
            held = f"{self.roomy.peak_memory_bytes / GIB:.1f} GiB"
            yield "with room", f"{self._named(self.roomy)}: {self._took_words(self.roomy)}, {held}"
        elif best.nearly_full:
            fitting = fitting_changes(best, next(iter(runs), None))
            yield "with room", f"none of the points simulated surely fits; {fitting}"
        if copies > 1:
            more, speed = sample_words(best)[1], copies * best.samples_per_s
            yield "copies", f"{copies} side by side, each on {more} of its own, draw {speed:,.4g} {more}/s"
        if (fastest := self.fastest) is not None:
            ratio = fastest.samples_per_s / best.samples_per_s
            took = f"{duration(fastest)} in {fastest.peak_memory_bytes / GIB:.1f} GiB"
            words = f"{self._named(fastest)}: {ratio:.1f} x as fast, {took}"
            yield "fastest", words if ratio > 1 else "the same: no other point is faster"
        if self.runner_up is None:
            more = " and runs today" * bool(runs) + " on 1 GPU" * (best.num_gpus == 1)
            yield "runner-up", f"none: no other strategy of this sweep fits{more}"
        else:
            why = f" ({self.difference})" if self.difference else ""
            yield "runner-up", f"{self._beside_best(self.runner_up, self.runner_up_ties)}{why}"
        yield from (("", words) for words in self._ties_words())
        for number, change in enumerate(self.changes):
            words = change.words(best.strategy, self.sweep.objective)
            yield "" if number else "if", f"{change.name}: {words}"
        yield from origin_lines(best)
        yield from (("note", words) for words in (_one_copy_words(self.sweep), self.note) if words)

    def _named(self, result: Result) -> str:
        """Return a point by its strategy and parameters, with its GPUs where it, best or runner-up leave some."""
        used = {point.num_gpus for point in (result, self.best, self.runner_up) if point is not None}
        alone = used == {self.sweep.scenario.workload.num_gpus}
        where = [] if alone else [f"on {counted(result.num_gpus, 'GPU')}"]
        return ", ".join([self._words(result), *where])

    def _words(self, result: Result) -> str:
        return ", ".join(filter(None, (result.strategy, how(result, self.tried))))

    def _ties_words(self) -> Iterator[str]:
        """Yield the ties that are not named already, with what they recompute: those close, then much slower ones."""
        named = {self.best.strategy, self.runner_up.strategy if self.runner_up else ""}
        leaders: dict[str, Point] = {}
        for point in self.sweep.ties():
            if point.name not in named:
                leaders.setdefault(point.name, point)
        also = "also " * self.runner_up_ties
        for wide, words in (
            (False, f"{also}too close to call"),
            (True, f"over {SLACK - 1:.0%} slower, but within the error"),
        ):
            others = [
                f"{name} ({point.checkpointing} checkpointing)" if point.checkpointing else name
                for name, point in leaders.items()
                if self._is_wide(point.costs[0]) == wide
            ]
            yield from [f"{words}: {', '.join(others)}"] * bool(others)

    def _is_wide(self, seconds: float) -> bool:
        """Whether a tie is slower than a choice may be, so that it ties by the width of its error."""
        return seconds > SLACK * self.best.expected.duration_s

    def _took_words(self, result: Result) -> str:
        """Return the value of a result by the ranking criterion."""
        if self.sweep.objective == "memory":
            return f"{result.peak_memory_bytes / GIB:.1f} GiB"
        by_cost = self.sweep.objective == "cost"
        return f"{duration(result)}{f', {result.gpu_s_per_sample:,.2f} GPU-seconds each' * by_cost}"

    def _beside_best(self, other: Result, tie: bool) -> str:
        """Return a result with its value by the ranking criterion, and how that compares with the best."""
        ratios = {
            "memory": other.peak_memory_bytes / self.best.peak_memory_bytes,
            "cost": other.gpu_s_per_sample / self.best.gpu_s_per_sample,
            "speed": self.best.expected.duration_s / other.expected.duration_s,
        }
        by = self.sweep.objective if self.sweep.objective in ratios else "speed"
        words = f"{self._named(other)}: {self._took_words(other)}, {compared(ratios[by], by)}"
        if not tie:
            return words
        wide = self._is_wide(other.expected.duration_s)
        return f"{words}, {'within the error' if wide else 'too close to call'}"

    @property
    def panel(self) -> Panel:
        """The verdict as a panel."""
        return Panel(self.title, self.lines)

    def __repr__(self) -> str:
        return f"<Verdict: {self.best.strategy}, {self.title}>"

    def to_json(self) -> dict[str, Any]:
        """Return the verdict under public keys; seconds, bytes and shares."""
        account, trust, (groups, approximation) = self.account, trust_in(self.best), image_groups(self.best)
        copies = self.sweep.copies(self.choice.point)
        values = {
            "title": self.title,
            "objective": self.sweep.objective,
            "best": _short(self.best),
            "copies": copies if copies > 1 else None,
            "memory_bytes": self.best.device_memory_bytes,
            "time_shares": {name: getattr(account, name) for name in ("compute", "host", "wire", "idle")},
            "slowed_share": account.slowed,
            "reasons": list(account.reasons),
            "chosen": {"of": n, "by": list(self.choice.by)} if (n := len(self.choice.close)) > 1 else None,
            "research": self.research
            and {**_short(self.research), "tie": self.research_ties, "again": command_of(self.research)},
            "runner_up": self.runner_up
            and {**_short(self.runner_up), "tie": self.runner_up_ties, "difference": self.difference},
            "ties": dict(self.ties),
            "image_groups": groups if groups > 1 else None,
            "approximation": approximation,
            "same_as": self.same_as,
            "changes": [change.to_json() for change in self.changes],
            "trust": trust and asdict(trust),
            "note": _one_copy_words(self.sweep),
            "fastest": self.fastest and _short(self.fastest),
            "nearly_full": self.best.nearly_full,
            "roomy": self.roomy and _short(self.roomy),
            "again": self.again,
            "launch": self.launch,
            "runs_in": self.runs_in,
        }
        return {key: value for key, value in values.items() if value or key not in OPTIONAL}


OPTIONAL: Final = (
    "copies", "image_groups", "approximation", "same_as", "fastest", "nearly_full", "roomy", "chosen", "research",
    "launch",
)  # fmt: skip
"""Keys of a verdict that are left out where they say nothing."""


@dataclass(frozen=True, slots=True, repr=False)
class NoVerdict(Panelled):
    """In place of a verdict where nothing recommended fits: false, and prints missing memory and fixes."""

    sweep: Sweep

    def __bool__(self) -> Literal[False]:
        return False

    def __repr__(self) -> str:
        return f"<NoVerdict: {self.sweep.none_fits(most=0)}>"

    @property
    def panel(self) -> Panel:
        """The same as a panel."""
        return Panel(self.sweep.title, [("", str(self.sweep.none_fits()))])


def _short(result: Result) -> dict[str, Any]:
    """Return the main values of a result under its public keys."""
    ends = "samples_per_s", "peak_memory_bytes"
    row = result.to_json()
    keys = ("strategy", "parameters", "num_gpus", *result.times, *result.bands, *ends)
    return {key: row[key] for key in keys}


def verdict_of(sweep: Sweep, note: str = "") -> Verdict | NoVerdict:
    """Return the verdict of a sweep, with a note; false where no recommended point fits."""
    ranked = [point for point in sweep.simulated() if point.recommended]
    if (choice := sweep.choice()) is None:
        return NoVerdict(sweep)
    best, first, ties = choice.point, ranked[0], sweep.ties()
    result = sweep.result_of(best)
    by_memory = sweep.objective == "memory"
    sure = [p for p in ranked if result.nearly_full and p.result and not p.result.nearly_full]
    roomy = choose([p for p in sure if not is_wide(p, best)] or sure, sweep.scenario, sweep.objective)
    there = [point for point in ranked if starts(point, sweep.scenario)] or ranked
    research = first if first is not there[0] and not first.same(there[0]) else None
    others = [*there, *(point for point in ranked if research is None or point.name != research.name)]
    other = next((point for point in others if point.name != best.name and not point.same(best)), None)
    account_asked = account_of_best, (sweep, best, None if by_memory else other)
    fastest_asked = [(fastest_of, (sweep,))] if by_memory else []
    calls = changes_asked(sweep, best)  # the last takes longest: one link after the other
    answers = parallel_calls(sweep.workers, *calls[-1:], *calls[:-1], account_asked, *fastest_asked)
    *changes, (account, difference) = answers[: len(calls) + 1]
    always = sweep.runtime and always_recomputed(sweep.runtime)
    return Verdict(
        sweep=sweep,
        title=sweep.title,
        choice=choice,
        best=result,
        account=account,
        runner_up=None if other is None else other.result,
        runner_up_ties=any(other is point for point in ties),
        difference=difference,
        changes=(*changes[1:], *changes[:1]),
        tried=tried(sweep.points),
        fastest=answers[-1] if by_memory else None,
        research=None if research is None else sweep.result_of(research),
        research_ties=any(research is point for point in ties),
        roomy=None if roomy is None else sweep.result_of(roomy.point),
        note="; ".join(filter(None, (note, f"{sweep.runtime} always recomputes" if always else ""))),
    )


def _chosen_words(choice: Choice) -> str:
    """Return what decided among points that are too close to call."""
    names = {point.name for point in choice.close}
    among = f"{len(names)} strategies" if len(names) > 1 else f"{len(choice.close)} points"
    why = f"as it {' and '.join(choice.by) or 'is the fastest that fits'}"
    return f"{why}, of {among} too close to call, at most {SLACK - 1:.0%} slower than the fastest"


def _one_copy_words(sweep: Sweep) -> str:
    """Return a note that the throughput is of one copy, where several might work side by side; else empty."""
    scenario = sweep.scenario
    if sweep.objective != "throughput" or scenario.task == "train" or scenario.workload.num_gpus == 1:
        return ""
    return "throughput is of one copy of the model; the objective cost compares copies side by side"
