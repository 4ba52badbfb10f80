"""The answer to a question about serving: plans with what they gave, best first, and what else was asked for."""

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from math import inf
from typing import TYPE_CHECKING, Any, Final, NamedTuple

import numpy as np

from profiles.costs.bands import Band
from profiles.errors import InfeasibleError, InputError, counted, wrong
from sim.outcomes.results import Result
from sim.serving.fleet import Setup
from sim.serving.options import ServingOptions, span_of
from sim.serving.outcomes import BATCHES, STUDENT, Outcome, Plan
from sim.serving.serve import EXACT, POINTS, Question

if TYPE_CHECKING:
    import pandas as pd

CURVES: Final = 4
"""Plans whose curve over the rate is drawn: the best at the highest rate and at the lowest."""
CAPACITIES: Final = 3
"""Plans whose capacity is also found at the low and the high estimate of service times."""
DRAWS: Final = 3
"""Draws of requests over which the ends of a capacity are taken."""
TOLD: Final = (50, 90, 99)
"""Percentiles that are told."""


@dataclass(slots=True)
class Serving:
    """Plans and what they gave, best first.

    Attributes:
        title: the question in words.
        questions: one for each cluster.
        outcomes: of each plan at the highest rate asked for; of several numbers of GPUs on the fewest that hold.
        curves: of the best plans, outcomes by rate.
        estimates: of the best plan, its outcome where service takes as long as the low and the high estimate.
        limit: where the best plan misses the SLO or cannot keep up, the highest rate at which one would not, and it.
        fewest_bound: GPUs that no plan can do without, where the fewest were asked for.
        fewest_ends: the fewest at the low and the high estimate of service times; None where none holds.
    """

    title: str
    questions: Sequence[Question]
    outcomes: list[Outcome] = field(default_factory=list)
    curves: list[list[Outcome]] = field(default_factory=list)
    estimates: tuple[Outcome, ...] = ()
    limit: tuple[float, Plan] | None = None
    fewest_bound: int | None = None
    fewest_ends: tuple[int | None, ...] = ()

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
        return next(of for of in self.questions if of.site.name == self.best.plan.cluster)

    @property
    def result(self) -> Result | None:
        """A request alone on a replica of the best plan, simulated; None of a table of service times."""
        return self.question.site.results.get(self.best.plan.degree)

    @property
    def measured_s(self) -> tuple[float, ...]:
        """Seconds that the requests of a trace took, where it says so and is replayed as it was."""
        trace = self.questions[0].trace
        return trace.latency_s if trace is not None and self.options.rate is None else ()

    def ties(self) -> list[Outcome]:
        """Plans that cannot be told from the best by what ranks them: its capacity, its GPUs and what was drawn."""
        return [of for of in self.outcomes[1:] if self._ties(self.best, of)]

    def _ties(self, best: Outcome, of: Outcome) -> bool:
        if best.capacity_per_s and self.options.rate is None:
            return best.capacity_per_s[0] - of.capacity_per_s[0] <= EXACT * best.capacity_per_s[0]
        share = self.options.slo_share
        alike = _dollars(best) == _dollars(of) and best.holds(share) == of.holds(share)
        return alike and tied(best, of, share)

    def to_json(self) -> list[dict[str, Any]]:
        """All outcomes under their public keys, best first; of a curve those at every rate."""
        rows = [of.to_json() for of in (*(of for curve in self.curves for of in curve),) or self.outcomes]
        if rows and not self.curves:
            rows[0] |= self._known_of_best()
        return rows

    def _known_of_best(self) -> dict[str, Any]:
        """What is known of the best plan alone, under public keys."""
        row: dict[str, Any] = {}
        for end, of in zip(("low", "high"), self.estimates, strict=False):
            row |= {f"attainment_{end}": of.attainment, f"p99_s_{end}": of.to_json()["p99_s"]}
        for end, gpus in zip(("low", "high"), self.fewest_ends, strict=False):
            row[f"gpus_{end}"] = gpus
        row |= {f"measured_p{p}_s": float(np.percentile(self.measured_s, p)) for p in TOLD if self.measured_s}
        known = {"limit_per_s": self.limit and self.limit[0], "gpus_bound": self.fewest_bound}
        return row | {key: value for key, value in known.items() if value is not None}

    def frame(self) -> "pd.DataFrame":
        """All outcomes as a frame, one row for each."""
        import pandas as pd  # noqa: PLC0415  takes long

        rows = self.to_json()
        return pd.DataFrame([{**{f"plan_{k}": v for k, v in row.pop("plan").items()}, **row} for row in rows])

    def __repr__(self) -> str:
        best = f"best {self.best.plan.replicas} {self.best.plan.policy}" if self.outcomes else "not answered"
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
    if found.options.capacity and not any(kind.slo_s < inf for kind in found.questions[0].kinds):
        raise InputError("`capacity` asks for the highest rate under an SLO: give `slo`")
    check_slo(found.questions)
    if len(found.questions[0].gpus) > 1:
        _find_fewest(found)
    else:
        _compare(found)


def check_slo(questions: Sequence[Question]) -> None:
    """Refuse SLOs below the fastest request of every class or, where plans are searched for, of too many requests.

    Raises:
        InputError: they are.
    """
    fastest = {
        kind: min(question.site.fastest_s(kind.shape) for question in questions)
        for kind in questions[0].kinds
    }
    options, lost = questions[0].options, {of: s for of, s in fastest.items() if of.slo_s < s}
    searched = options.capacity or len(questions[0].gpus) > 1
    if len(lost) == len(fastest) or (
        searched and sum(of.share for of in lost) > 1 - options.slo_share + 1e-9
    ):
        kind, seconds = max(lost.items(), key=lambda item: item[1] / item[0].slo_s)
        words = f"a request of {kind.shape.words} takes {seconds:.3g} s alone on the fastest plan"
        raise InputError(f"`slo` is {kind.slo_s:g} s, but {words}")


def rate_of(question: Question) -> tuple[float, float]:
    """Return the lowest and the highest rate that is asked for."""
    if question.options.rate is not None:
        return span_of("rate", question.options.rate)
    if question.trace is not None:
        return (question.trace.rate_per_s,) * 2
    return 0.0, 0.0


def _find_fewest(found: Serving) -> None:
    """Find the fewest GPUs of each kind of plan."""
    questions = found.questions
    if not any(kind.slo_s < inf for kind in questions[0].kinds):
        raise InputError("several `gpus` ask for the fewest that hold the SLO: give `slo`")
    low, rate = rate_of(questions[0])
    if not rate or low != rate:
        raise wrong("rate", "must be one number where the fewest GPUs are asked for")
    found.fewest_bound = min(question.fewest_bound(rate) for question in questions)
    try:
        for question in questions:
            found.outcomes.extend(question.fewest(rate))
    finally:
        found.outcomes.sort(key=lambda of: (_dollars(of), of.percentile_s(99)))
    if not found.outcomes:
        most = counted(max(questions[0].gpus), "GPU")
        bound = f"fewer than {found.fewest_bound} cannot keep up, whatever the plan"
        raise InfeasibleError(f"no plan holds the SLO on up to {most}; {bound}")
    _look_closer(found, rate)
    question, plan = found.question, found.best.plan
    band = question.band(plan)
    ends = (question.scaled(factor).fewest_like(plan, rate) for factor in (band.low, band.high))
    found.fewest_ends = tuple(None if of is None else of.plan.gpus for of in ends)


def _compare(found: Serving) -> None:
    """Run every plan at the highest rate, and whatever else is asked."""
    questions, options = found.questions, found.options
    low, high = rate_of(questions[0])
    made = [(question, *made) for question in questions for made in question.plans(question.gpus[0])]
    if not made:
        why = "; ".join(line for question in questions for line in question.site.impossible)
        raise InfeasibleError(f"no plan fits on {counted(questions[0].gpus[0], 'GPU')}: {why}")
    rows: list[Row] = []
    try:
        for question, plan, setup in made:
            capacity = (question.capacity_per_s(setup),) if options.capacity else ()
            rate = high or max(capacity, default=0.0) or EXACT * question.ceiling_per_s(setup)
            run = question.run(plan, setup, rate)
            rows.append(Row(replace(run, capacity_per_s=capacity), question, setup))
    finally:
        rows.sort(key=lambda row: rank(row.run, options, cheapest=len(questions) > 1))
        found.outcomes = [row.run for row in rows]
    _look_closer(found, found.best.rate_per_s)
    satisfied = found.best.holds(options.slo_share) and found.best.keeps_up
    if not satisfied and not options.arrivals.startswith("closed"):
        found.limit = _limit(rows)
    for place, row in enumerate(rows[:CAPACITIES] if options.capacity else ()):
        found.outcomes[place] = replace(found.outcomes[place], capacity_per_s=row.capacities())
    if low < high:
        rates = np.linspace(low, high, POINTS).tolist()
        for row in _leaders(rows, low):
            curve = (row.question.run(row.run.plan, row.setup, rate) for rate in rates)
            found.curves.append([replace(of, capacity_per_s=row.run.capacity_per_s) for of in curve])


def _leaders(rows: Sequence["Row"], low: float) -> Sequence["Row"]:
    """Return the plans whose curves are drawn: the best at the highest rate, and the best at the lowest."""
    at_low = [(row.question.run(row.run.plan, row.setup, low), row) for row in rows]
    ranked = sorted(at_low, key=lambda item: rank(item[0], item[1].question.options))
    both = (row for pair in zip(rows, (row for _, row in ranked), strict=True) for row in pair)
    return list({id(row): row for row in both}.values())[:CURVES]


class Row(NamedTuple):
    """A plan's run, the question that it answers, and its fleet."""

    run: Outcome
    question: Question
    setup: Setup

    def capacities(self) -> tuple[float, ...]:
        """Its capacity, the least at the high estimate of service times, and the most at the low, of some draws."""
        band = self.question.band(self.run.plan)
        least, most = (
            [self.question.scaled(of, draw).capacity_per_s(self.setup) for draw in range(DRAWS)]
            for of in (band.high, band.low)
        )
        return (*self.run.capacity_per_s, min(least), max(most))


def _limit(rows: Sequence[Row]) -> tuple[float, Plan]:
    """Return the highest rate that a plan holds, or keeps up with where there is no SLO, and that plan.

    Of each division into replicas the best is looked at, and the best that forms no batches: these pay at high loads.
    """
    best = 0.0, rows[0].run.plan
    first: dict[tuple[str, bool], Row] = {}
    for row in rows:
        first.setdefault((row.run.plan.replicas, row.run.plan.max_batch == 1), row)
    for run, question, setup in first.values():
        has_slo = run.attainment is not None
        rate = question.capacity_per_s(setup, best[0]) if has_slo else run.ceiling_per_s
        best = (rate, run.plan) if rate > best[0] else best
    return best


def _look_closer(found: Serving, rate: float) -> None:
    """Record what the best plan ran, and run it at the low and the high estimate of service times."""
    best, question = found.best, found.question
    if not len(best.latencies_s):
        raise InputError("`duration` is too short: no request is counted")
    setup = next(setup for plan, setup in question.plans(best.plan.gpus) if plan == best.plan)
    found.outcomes[0] = replace(best, log=question.run(best.plan, setup, rate, recorded=True).log)
    band = question.band(best.plan)
    if found.options.arrivals.startswith("closed") or band == Band():
        return
    found.estimates = tuple(question.scaled(of).run(best.plan, setup, rate) for of in (band.low, band.high))


def _dollars(of: Outcome) -> float:
    """Return what is paid for an hour: dollars where a price is given, else GPUs."""
    return of.plan.gpus * (1.0 if of.price_per_gpu_hour is None else of.price_per_gpu_hour)


def rank(of: Outcome, options: ServingOptions, *, cheapest: bool = False) -> tuple[float, ...]:
    """Return the key by which plans are ranked: those that hold first; the rest by the share that does."""
    misses = 0.0 if of.holds(options.slo_share) else 1 - (of.attainment or 0.0)
    if options.capacity and options.rate is None:
        return -of.capacity_per_s[0], of.percentile_s(99)
    cost = of.dollars_per_1000 if of.dollars_per_1000 is not None else of.gpu_s_per_request
    if options.arrivals.startswith("closed"):
        return misses, -of.completed_per_s
    return misses, *((cost,) if cheapest or options.objective == "cost" else ()), of.percentile_s(99)
