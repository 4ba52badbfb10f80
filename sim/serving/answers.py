"""The answer to a question about serving: plans with what they gave, best first, and what else was asked for."""

from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import Executor
from dataclasses import dataclass, field, replace
from itertools import chain
from math import inf
from typing import TYPE_CHECKING, Any, Final, TypeVar

import numpy as np

from profiles.costs.bands import Band
from profiles.errors import InfeasibleError, InputError, counted, wrong
from sim.explore.workers import LENT, finished_calls
from sim.outcomes.results import Result
from sim.serving.fleet import Plan
from sim.serving.options import REQUESTS, ServingOptions
from sim.serving.serve import EXACT, STUDENT, Outcome, Question

if TYPE_CHECKING:
    import pandas as pd

T = TypeVar("T")

POINTS: Final = 10
"""Rates of a curve."""
CURVES: Final = 4
"""Plans whose curve over the rate is drawn: that which holds the most, and the best at the highest and lowest rate."""
DRAWS: Final = 3
"""Draws of requests over which the ends of a capacity are taken."""
BATCHES: Final = 5
"""Batches of consecutive requests by which two plans are compared."""
MISSES_LAST: Final = ("requests a second", "cost", "p99")
"""What plans are ranked by after those that miss the SLO; of others each is at its capacity, or on its fewest GPUs."""
TOLD: Final = (50, 90, 99)
"""Percentiles that are told."""


@dataclass(slots=True, eq=False)
class Serving:
    """Plans and what they gave, best first.

    Attributes:
        title: the question in words.
        outcomes: of each plan at the highest rate asked for; of several numbers of GPUs on the fewest that hold.
        curves: of the best plans, outcomes by rate.
        ends: of the best plan, the lowest and the highest value of what it gives, by public key, where service takes
            as long as the low, the middle and the high estimate; infinite GPUs where none hold.
        limit: where the best plan misses the SLO or cannot keep up, the highest rate at which one would not, and it.
        fewest_bound: GPUs of the best plan's cluster that none can do without, where the fewest were asked for.
        workers: processes that run plans, by default one; of an executor the tasks at once.
        executor: runs them in place of own processes.
    """

    title: str
    questions: Sequence[Question]
    outcomes: list[Outcome] = field(default_factory=list)
    curves: list[list[Outcome]] = field(default_factory=list)
    ends: dict[str, tuple[float, float]] = field(default_factory=dict)
    limit: tuple[float, Plan] | None = None
    fewest_bound: int | None = None
    workers: int | None = None
    executor: Executor | None = None

    @property
    def options(self) -> ServingOptions:
        """What is asked."""
        return self.questions[0].options

    @property
    def best(self) -> Outcome:
        """The best plan's outcome.

        Raises:
            InfeasibleError: there is none.
        """
        if not self.outcomes:
            raise InfeasibleError("no plan is known yet")
        return self.outcomes[0]

    @property
    def question(self) -> Question:
        """The question on the best plan's cluster."""
        return self.question_of(self.best.plan)

    def question_of(self, plan: Plan) -> Question:
        """Return the question on a plan's cluster."""
        return next(question for question in self.questions if question.site.name == plan.cluster)

    @property
    def result(self) -> Result | None:
        """A request alone on a replica of the best plan, simulated; None of a table of service times."""
        return self.question.site.fastest.get(self.best.plan.degree)

    def fullest(self, plan: Plan) -> Result | None:
        """The batch of a plan that holds the most of a GPU; None of a table, and of pools, which hold less."""
        sizes = () if plan.stages else plan.degrees if plan.elastic else plan.sizes
        every = self.question_of(plan).site.results.items()
        fitting = [result for (gpus, _, batch), result in every if gpus in sizes and batch <= plan.max_batch]
        return max(fitting, key=lambda result: result.reserved_bytes_high, default=None)

    @property
    def measured_s(self) -> tuple[float, ...]:
        """Seconds that the requests of a trace took, where it says so and is replayed as it was."""
        trace = self.questions[0].trace
        return trace.latency_s if trace is not None and self.options.rate is None else ()

    @property
    def ranked_by(self) -> str:
        """What ranks plans, before their p99."""
        options, (one, *others) = self.options, self.questions
        if len(one.gpus) > 1:
            return "GPUs" if one.site.price is None else "dollars an hour"
        if options.capacity:
            return "capacity"
        if options.clients:
            return "requests a second"
        return "cost" if others or options.objective == "cost" else "p99"

    def rank(self, outcome: Outcome) -> tuple[float, ...]:
        """Return the key that orders plans, the best first; those that miss the SLO by the share that does."""
        first = {
            "GPUs": outcome.dollars_per_hour,
            "dollars an hour": outcome.dollars_per_hour,
            "capacity": -(outcome.capacity_per_s or 0.0),
            "requests a second": -outcome.completed_per_s,
            "cost": outcome.cost,
            "p99": 0.0,
        }
        missed = self.ranked_by in MISSES_LAST and not outcome.holds(self.options.slo_share)
        return missed * (1 - (outcome.attainment or 0.0)), first[self.ranked_by], outcome.percentile_s(99)

    def ties(self) -> list[Outcome]:
        """Plans that cannot be told from the best by what ranks them: its capacity, its GPUs and what was drawn."""
        best, share = self.best, self.options.slo_share
        if self.ranked_by == "capacity" and best.capacity_per_s is not None:
            least = (1 - EXACT) * best.capacity_per_s
            return [run for run in self.outcomes[1:] if (run.capacity_per_s or 0.0) >= least]
        alike = [run for run in self.outcomes[1:] if run.dollars_per_hour == best.dollars_per_hour]
        return [run for run in alike if best.holds(share) == run.holds(share) and tied(best, run, share)]

    def to_json(self) -> list[dict[str, Any]]:
        """All outcomes under their public keys, best first; of a curve those at every rate."""
        rows = [run.to_json() for run in (*(run for curve in self.curves for run in curve),) or self.outcomes]
        if rows and not self.curves:
            for key, (low, high) in self.ends.items():
                ends = {f"{key}_low": low, f"{key}_high": high}
                rows[0] |= {name: None if end == inf else end for name, end in ends.items()}
            measured = {f"p{p}": float(np.percentile(self.measured_s, p)) for p in TOLD if self.measured_s}
            rows[0] |= {f"measured_{key}_s": seconds for key, seconds in measured.items()}
            known = {"limit_per_s": self.limit and self.limit[0], "gpus_bound": self.fewest_bound}
            rows[0] |= {key: value for key, value in known.items() if value is not None}
        return rows

    def frame(self) -> "pd.DataFrame":
        """All outcomes as a frame, one row for each."""
        import pandas as pd  # noqa: PLC0415  takes long

        return pd.json_normalize(self.to_json(), sep="_", max_level=1)

    def __repr__(self) -> str:
        best = f"best {self.best.plan.replicas} {self.best.plan.rule}" if self.outcomes else "not answered"
        return f"<Serving {self.title}: {len(self.outcomes)} plans, {best}>"


def tied(one: Outcome, other: Outcome, share: float) -> bool:
    """Whether plans differ less than batches of their requests do: in attainment where one misses, else in the mean."""
    if len(one.latencies_s) != len(other.latencies_s) or len(one.latencies_s) < 20:
        return False
    by_slo = not (one.holds(share) and other.holds(share)) and (one.held != other.held).any()
    pairs = (one.held * 1.0, other.held * 1.0) if by_slo else (one.latencies_s, other.latencies_s)
    means = [part.mean() for part in np.array_split(pairs[0] - pairs[1], BATCHES)]
    return bool(abs(np.mean(means)) <= STUDENT[BATCHES - 2] * np.std(means, ddof=1) / BATCHES**0.5)


def answer(found: Serving) -> None:
    """Answer one question on each of several clusters; what is found until an interrupt is kept.

    Raises:
        InputError: no SLO can be held by any plan.
        InfeasibleError: no plan fits, or none holds on any of several numbers of GPUs.
    """
    questions, options = found.questions, found.options
    (low, high), most = questions[0].rates, max(questions[0].gpus)
    several = len(questions[0].gpus) > 1
    if (several or options.capacity) and not questions[0].has_slo:
        asks = "several `gpus` ask for the fewest" if several else "`capacity` asks for the highest rate"
        raise InputError(f"{asks} that hold{'s' * (not several)} the SLO: give `slo`")
    check_slo(questions)
    if several:
        if not high or low != high:
            raise wrong("rate", "must be one number to find the fewest GPUs; a closed loop has none")
        found.fewest_bound = min(question.fewest_bound(high) for question in questions)
    cases = [(question, plan, high) for question in questions for plan in question.plans(most)]
    if not cases:
        why = "; ".join(line for question in questions for line in question.site.impossible)
        raise InfeasibleError(f"no plan fits on {counted(most, 'GPU')}: {why}")
    _run_all(found, cases)
    if not found.outcomes:
        bound = f"fewer than {found.fewest_bound} cannot keep up, whatever the plan"
        raise InfeasibleError(f"no plan holds the SLO on up to {counted(most, 'GPU')}; {bound}")
    _look_closer(found)
    best, plan = found.best, found.best.plan
    if several:
        for question in questions:
            if all(outcome.plan.cluster != question.site.name for outcome in found.outcomes):
                question.site.impossible = {
                    _none_words(question, most, high): None
                } | question.site.impossible
        found.fewest_bound = found.question.fewest_bound(high)
        ends = _at_ends(found, lambda question: question.fewest(plan, high))
        found.ends["gpus"] = _span([plan.gpus, *(inf if end is None else end.gpus for end in ends)])
    elif not (best.holds(options.slo_share) and best.keeps_up) and not options.clients:
        found.limit = _limit(found)
    if options.capacity:
        rates = _at_ends(found, lambda question: question.capacity_per_s(plan), DRAWS)
        found.ends["capacity_per_s"] = _span([best.capacity_per_s or 0.0, *rates])
    if low < high:
        _draw_curves(found, np.linspace(low, high, POINTS).tolist())


def check_slo(questions: Sequence[Question]) -> None:
    """Refuse SLOs below the fastest request of every class or, where plans are searched for, of too many requests."""
    options, late = questions[0].options, [dict(question.late_alone()) for question in questions]
    kinds = questions[0].kinds
    lost = {kind: s for kind in kinds if 0 < (s := min(times.get(kind, 0.0) for times in late)) < inf}
    searched = options.capacity or len(questions[0].gpus) > 1
    too_many = searched and sum(kind.share for kind in lost) > 1 - options.slo_share + 1e-9
    if too_many or len(lost) == len(kinds):
        kind, seconds = max(lost.items(), key=lambda item: item[1] / item[0].slo_s)
        words = f"a request of {kind.shape.words} takes {seconds:.3g} s alone on the fastest plan"
        raise InputError(f"`slo` is {kind.slo_s:g} s, but {words}")


def _none_words(question: Question, most: int, rate: float) -> str:
    """Return that no plan holds on a site, with the fewest GPUs that do at the low estimate of service times."""
    lows = ((plan, question.scaled(question.site.band(plan.degree).low)) for plan in question.plans(most))
    ends = [plan.gpus for like, low in lows if (plan := low.fewest(like, rate)) is not None]
    band = f" ({min(ends)} to more by the error of the step times)" if ends else ""
    alone = (f": {kind.shape.words} takes {s:.3g} s alone" for kind, s in question.late_alone())
    return f"no plan holds the SLO on up to {counted(most, 'GPU')}{band}{next(alone, '')}"


def _draw_curves(found: Serving, rates: Sequence[float]) -> None:
    """Record what some plans give at each rate: that which holds the most, and the best at both ends, in turn."""

    def run(plan: Plan, rate: float) -> Outcome:
        return found.question_of(plan).run(plan, rate)

    ends = [(run(outcome.plan, rates[0]), outcome) for outcome in found.outcomes]
    first = [pair for pair in ends if found.limit and pair[1].plan is found.limit[1]]
    by_low = sorted(ends, key=lambda pair: found.rank(pair[0]))
    chosen = {id(pair): pair for pair in (*first, *chain.from_iterable(zip(ends, by_low, strict=True)))}
    for low, high in [*chosen.values()][:CURVES]:
        found.curves.append([low, *(run(low.plan, rate) for rate in rates[1:-1]), high])


def _outcome(question: Question, plan: Plan, rate: float) -> Outcome | None:
    """Return what a plan gives at a rate, else at its capacity; of several numbers of GPUs on the fewest, if any."""
    fleet = question.fewest(plan, rate) if len(question.gpus) > 1 else plan
    if fleet is None:
        return None
    capacity = question.capacity_per_s(fleet) if question.options.capacity else None
    rate = rate or capacity or EXACT * question.ceiling_per_s(fleet)
    return replace(question.run(fleet, rate), capacity_per_s=capacity)


def _run_all(found: Serving, cases: Sequence[tuple[Question, Plan, float]]) -> None:
    """Record what plans give, best first, as far as it is known; several processes share what takes long."""
    known: dict[int, Outcome | None] = {}
    size, calls = found.workers or (LENT if found.executor else 1), tuple((_outcome, case) for case in cases)
    try:
        known.update(finished_calls(calls, size, found.executor))
    finally:
        found.outcomes = sorted((run for _, run in sorted(known.items()) if run is not None), key=found.rank)


def _limit(found: Serving) -> tuple[float, Plan]:
    """Return the highest rate that a plan holds, or keeps up with where there is no SLO, and that plan."""
    best = 0.0, found.best.plan
    for outcome in found.outcomes:
        question = replace(found.question_of(outcome.plan), least=REQUESTS)
        known = outcome.ceiling_per_s if outcome.attainment is None else outcome.capacity_per_s
        rate = known or question.capacity_per_s(outcome.plan, best[0])
        best = (rate, outcome.plan) if rate > best[0] else best
    return best


def _look_closer(found: Serving) -> None:
    """Record what the best plan ran, and run it at the low and the high estimate of service times."""
    best, question = found.best, found.question
    if not len(best.latencies_s):
        raise InputError("`duration` is too short: no request is counted")
    found.outcomes[0] = replace(best, log=question.run(best.plan, best.rate_per_s, recorded=True).log)
    if found.options.clients or question.site.band(best.plan.degree) == Band():
        return
    runs = [best, *_at_ends(found, lambda question: question.run(best.plan, best.rate_per_s))]
    found.ends["p99_s"] = _span(run.percentile_s(99) for run in runs)
    if best.attainment is not None:
        found.ends["attainment"] = _span(run.attainment or 0.0 for run in runs)


def _at_ends(found: Serving, fact: Callable[[Question], T], draws: int = 1) -> list[T]:
    """Return what holds at the low and the high estimate of the best plan's service times, in some draws."""
    question, band = found.question, found.question.site.band(found.best.plan.degree)
    return [fact(question.scaled(end, draw)) for end in (band.low, band.high) for draw in range(draws)]


def _span(values: Iterable[float]) -> tuple[float, float]:
    """Return the lowest and the highest of some values."""
    ordered = sorted(values)
    return ordered[0], ordered[-1]
