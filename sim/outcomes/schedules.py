"""Schedules: the orders of strategies as text."""

from dataclasses import dataclass
from itertools import accumulate, chain

from profiles.errors import counted
from strategies.patching.frozen import with_frozen
from strategies.plans.actions import Order, StageAction, format_order, format_torch
from strategies.sampling_scenario import SamplingScenario
from strategies.strategy import AnyScenario, AnyStrategy, Phase, Sampler


@dataclass(frozen=True, slots=True, repr=False)
class Schedule:
    """The order in which every device of a strategy works.

    Attributes:
        strategy: its name.
        text: a line for each device.
        notes: remarks about it.
    """

    strategy: str
    text: str
    notes: tuple[str, ...] = ()

    def __str__(self) -> str:
        return self.text

    def __repr__(self) -> str:
        return f"<Schedule of {self.strategy}: {counted(len(self.text.splitlines()), 'device')}>"


def written(point: AnyStrategy, order: Order, format: str, notes: tuple[str, ...] = ()) -> Schedule:
    """Return an order in one of two formats: ``text``, or ``torch``."""
    if format == "text":
        return Schedule(point.name, format_order(order), notes)
    if any(not isinstance(action, StageAction) or action.kind == "O" for row in order for action in row):
        notes += ("torch has no word for optimizer steps and frozen layers: they are left out",)
    return Schedule(point.name, format_torch(order), notes)


def format_patches(sampler: AnyStrategy, scenario: AnyScenario) -> str:
    """Return all steps of a run with their exchanges, and the frozen components it includes."""
    assert isinstance(sampler, Sampler) and isinstance(scenario, SamplingScenario)
    sampler.bound(scenario)  # refuses what cannot exist before its order is written out
    run = Phase("run", sampler.plan(scenario), 1, scenario.workload.computed_steps)
    phases = with_frozen(scenario, (run,), sampler.guidance_groups(scenario))
    starts = accumulate((len(phase.plan.collectives) for phase in phases), initial=0)
    parts = [phase.plan.rows(first) for phase, first in zip(phases, starts, strict=False)]
    return format_order(chain.from_iterable(row) for row in zip(*parts, strict=True))
