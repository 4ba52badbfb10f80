"""Closed forms: what a formula says beside what a replay says, and how far the two may differ."""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Final

from profiles.clusters import load_cluster
from profiles.models import Model
from sim.experiment import replay
from strategies.registry import make_strategy
from strategies.scenario import Scenario, TrainingWorkload
from strategies.traces import Trace
from validate.reporting.sections import Section

EXACT: Final = 1e-9
"""Relative difference of two sums of floating point numbers in another order."""
PRINTED: Final = 5e-4
"""Absolute difference that rounding to three digits leaves."""


@dataclass(frozen=True, slots=True)
class Form:
    """One value of a formula beside the simulated one.

    Attributes:
        family: what it is about; the heading of its table.
        setting: its numbers.
        formula: in words.
        expected: its value.
        simulated: what a replay says.
        tolerance: how far the two may differ, relative to ``expected`` unless that is 0.
        source: where the formula stands.
    """

    family: str
    setting: str
    formula: str
    expected: float
    simulated: float
    source: str
    tolerance: float = EXACT

    @property
    def error(self) -> float:
        """The relative difference; the absolute one where the formula says 0."""
        difference = self.simulated - self.expected
        return difference / self.expected if self.expected else difference

    @property
    def holds(self) -> bool:
        """Whether the two differ by no more than the tolerance."""
        return abs(self.error) <= self.tolerance


Forms = Iterable[Form]
Family = Callable[[], Forms]


def trained(model: Model, strategy: str, degree: int, batch_size: int, **asked: int | str) -> Trace:
    """Return the replay of one iteration of a strategy on as many devices as it has positions, on free links."""
    workload = TrainingWorkload(degree, batch_size, self_conditioning=0.0)
    scenario = Scenario.of(model, load_cluster("ideal"), workload)
    return replay(make_strategy(strategy, {"pipeline_degree": degree, **asked}), scenario)


def sections(forms: Sequence[Form]) -> list[Section]:
    """Return one table per family."""
    families = dict.fromkeys(form.family for form in forms)
    return [_section(family, [form for form in forms if form.family == family]) for family in families]


def _section(family: str, forms: Sequence[Form]) -> Section:
    missed = sum(not form.holds for form in forms)
    worst = max((form.error for form in forms), key=abs)
    sources = "; ".join(dict.fromkeys(form.source for form in forms))
    verdict = "all hold" if not missed else f"{missed} do not hold"
    return Section(
        f"{family}: {len(forms)} values, {verdict}, largest error {worst:+.1e}",
        ("setting", "formula", "its value", "simulated", "error", "holds"),
        [_row(form) for form in forms],
        f"Source: {sources}.",
    )


def _row(form: Form) -> list[str]:
    values = [f"{form.expected:.7g}", f"{form.simulated:.7g}", f"{form.error:+.1e}"]
    return [form.setting, form.formula, *values, "yes" if form.holds else "NO"]
