"""The answer to a question about serving: plans with what they gave, best first, and what else was asked for."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from math import inf
from typing import TYPE_CHECKING, Any, Final, NamedTuple

import numpy as np

from profiles.errors import InfeasibleError, InputError, wrong
from sim.serving.fleet import Setup
from sim.serving.load import Kind
from sim.serving.options import ServingOptions, span_of
from sim.serving.outcomes import Outcome
from sim.serving.serve import EXACT, POINTS, Question

if TYPE_CHECKING:
    import pandas as pd

CURVES: Final = 4
"""Plans whose curve over the rate is drawn: the best at the highest rate."""
CAPACITIES: Final = 3
"""Plans whose capacity is also found at the low and the high estimate of service times."""


@dataclass(slots=True)
class Serving:
    """Plans and what they gave, best first.

    Attributes:
        title: the question in words.
        options: what was asked.
        kinds: classes of requests, their SLOs in seconds.
        outcomes: of each plan at the highest rate asked for; of several numbers of GPUs on the fewest that hold.
        curves: of the best plans, outcomes by rate.
        estimates: of the best plan, its outcome where service takes as long as the low and the high estimate.
        fewest_bound: GPUs that no plan can do without, where the fewest were asked for.
        measured_s: seconds that the requests of a trace took, where it says so.
    """

    title: str
    options: ServingOptions
    kinds: tuple[Kind, ...]
    outcomes: list[Outcome] = field(default_factory=list)
    curves: list[list[Outcome]] = field(default_factory=list)
    estimates: tuple[Outcome, ...] = ()
    fewest_bound: int | None = None
    measured_s: tuple[float, ...] = ()

    @property
    def best(self) -> Outcome:
        """The best plan's outcome.

        Raises:
            InfeasibleError: there is none.
        """
        if not self.outcomes:
            raise InfeasibleError("no plan holds the SLO on these GPUs")
        return self.outcomes[0]

    @property
    def has_slo(self) -> bool:
        """Whether any request has one."""
        return any(kind.slo_s < inf for kind in self.kinds)

    def ties(self) -> list[Outcome]:
        """Plans that the draws cannot tell from the best: the interval of their difference, batch by batch, holds 0."""
        return [of for of in self.outcomes[1:] if tied(self.best, of)] if self.outcomes else []

    def to_json(self) -> list[dict[str, Any]]:
        """All outcomes under their public keys, best first; of a curve those at every rate."""
        return [of.to_json() for of in (*(of for curve in self.curves for of in curve),) or self.outcomes]

    def frame(self) -> "pd.DataFrame":
        """All outcomes as a frame, one row for each."""
        import pandas as pd  # noqa: PLC0415  takes long

        rows = self.to_json()
        return pd.DataFrame([{**{f"plan_{k}": v for k, v in row.pop("plan").items()}, **row} for row in rows])

    def __repr__(self) -> str:
        best = (
            f"best {self.outcomes[0].plan.replicas} {self.outcomes[0].plan.policy}"
            if self.outcomes
            else "none holds"
        )
        return f"<Serving {self.title}: {len(self.outcomes)} plans, {best}>"


def tied(one: Outcome, other: Outcome) -> bool:
    """Whether two plans under the same requests differ by less than their draws do: of attainment, else of the mean."""
    if len(one.latencies_s) != len(other.latencies_s) or len(one.latencies_s) < 20:
        return False
    both = one.attainment is not None and (one.attainment < 1 or (other.attainment or 0) < 1)
    pairs = (one.held * 1.0, other.held * 1.0) if both else (one.latencies_s, other.latencies_s)
    means = [part.mean() for part in np.array_split(pairs[0] - pairs[1], 10)]
    return bool(abs(np.mean(means)) <= 2.26 * np.std(means, ddof=1) / 10**0.5)


def answer(
    questions: Sequence[Question], title: str, report: Callable[[str], None] = lambda _: None
) -> Serving:
    """Return the answer to one question on each of several clusters.

    Raises:
        InputError: no SLO can be held by any plan.
    """
    first = questions[0]
    options = first.options
    found = Serving(title, options, first.kinds)
    if first.trace is not None:
        found.measured_s = first.trace.latency_s
    check_slo(questions)
    if len(first.gpus) > 1:
        _find_fewest(questions, found)
    else:
        _compare(questions, found)
    return found


def check_slo(questions: Sequence[Question]) -> None:
    """Refuse SLOs that are below the fastest request of every class.

    Raises:
        InputError: they are.
    """
    fastest: dict[Any, float] = {}
    for question in questions:
        for kind in question.kinds:
            fastest[kind] = min(fastest.get(kind, inf), question.site.fastest_s(kind.shape))
    if all(kind.slo_s < seconds for kind, seconds in fastest.items()):
        kind, seconds = min(fastest.items(), key=lambda item: item[1] / item[0].slo_s)
        words = f"a request of {kind.shape.words} takes {seconds:.3g} s alone on the fastest plan"
        raise InputError(f"`slo` is {kind.slo_s:g} s, but {words}")


def rate_of(question: Question) -> tuple[float, float]:
    """Return the lowest and the highest rate that is asked for."""
    if question.options.rate is not None:
        return span_of("rate", question.options.rate)
    if question.trace is not None:
        return (question.trace.rate_per_s,) * 2
    return 0.0, 0.0


def _find_fewest(questions: Sequence[Question], found: Serving) -> None:
    """Find the fewest GPUs of each kind of plan."""
    if not found.has_slo:
        raise InputError("several `gpus` ask for the fewest that hold the SLO: give `slo`")
    low, rate = rate_of(questions[0])
    if not rate or low != rate:
        raise wrong("rate", "must be one number where the fewest GPUs are asked for")
    found.outcomes = [run for question in questions for run in question.fewest(rate)]
    found.outcomes.sort(key=lambda of: (_dollars(of), of.percentile_s(99)))
    found.fewest_bound = min(question.fewest_bound(rate) for question in questions)
    if found.outcomes:
        _estimate(questions, found, rate)


def _compare(questions: Sequence[Question], found: Serving) -> None:
    """Run every plan at the highest rate, and whatever else is asked."""
    options = found.options
    low, high = rate_of(questions[0])
    made = [(question, *made) for question in questions for made in question.plans(question.gpus[0])]
    if not made:
        raise InfeasibleError(f"no plan fits on {questions[0].gpus[0]} GPUs")
    rows: list[Row] = []
    for question, plan, setup in made:
        capacity = (question.capacity_per_s(plan, setup),) if options.capacity else ()
        rate = high or max(capacity, default=0.0) or EXACT * question.ceiling_per_s(setup)
        rows.append(Row(replace(question.run(plan, setup, rate), capacity_per_s=capacity), question, setup))
    rows.sort(key=lambda row: rank(row.run, options))
    if options.capacity:
        rows[:CAPACITIES] = [row.with_ends() for row in rows[:CAPACITIES]]
    if low < high:
        rates = np.linspace(low, high, POINTS).tolist()
        found.curves = [
            [of.question.run(of.run.plan, of.setup, rate) for rate in rates] for of in rows[:CURVES]
        ]
    best = rows[0]
    log = best.question.run(best.run.plan, best.setup, best.run.rate_per_s, recorded=True).log
    rows[0] = best._replace(run=replace(best.run, log=log))
    found.outcomes = [row.run for row in rows]
    if not options.arrivals.startswith("closed"):
        _estimate(questions, found, best.run.rate_per_s)


class Row(NamedTuple):
    """A plan's run, the question that it answers, and its fleet."""

    run: Outcome
    question: Question
    setup: Setup

    def with_ends(self) -> "Row":
        """The same with the capacity at the high and the low estimate of service times too."""
        band = self.question.band(self.run.plan)
        ends = (
            self.question.scaled(of).capacity_per_s(self.run.plan, self.setup) for of in (band.high, band.low)
        )
        return self._replace(run=replace(self.run, capacity_per_s=(*self.run.capacity_per_s, *ends)))


def _estimate(questions: Sequence[Question], found: Serving, rate: float) -> None:
    """Run the best plan at the low and the high estimate of service times."""
    best = found.outcomes[0]
    question = next(of for of in questions if of.site.name == best.plan.cluster)
    setup = next(setup for plan, setup in question.plans(best.plan.gpus) if plan == best.plan)
    band = question.band(best.plan)
    found.estimates = tuple(question.scaled(of).run(best.plan, setup, rate) for of in (band.low, band.high))


def _dollars(of: Outcome) -> float:
    """Return what is paid for an hour: dollars where a price is given, else GPUs."""
    return of.plan.gpus * (1.0 if of.price_per_gpu_hour is None else of.price_per_gpu_hour)


def rank(of: Outcome, options: ServingOptions) -> tuple[float, ...]:
    """Return the key by which plans are ranked: those that hold first; the rest by the share that does."""
    misses = 0.0 if of.holds(options.slo_share) else 1 - (of.attainment or 0.0)
    if options.capacity and options.rate is None:
        return -of.capacity_per_s[0], of.percentile_s(99)
    cost = of.dollars_per_1000 if of.dollars_per_1000 is not None else of.gpu_s_per_request
    if options.arrivals.startswith("closed"):
        return misses, -of.completed_per_s
    return misses, *((cost,) if options.objective == "cost" else ()), of.percentile_s(99)
