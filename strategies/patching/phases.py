"""Phases: the parts of a sampling run that happen alike."""

from collections.abc import Callable, Sequence

from profiles.errors import InfeasibleError
from strategies.plans.plan import Plan
from strategies.scenario import SamplingScenario
from strategies.strategy import Phase

Build = Callable[[SamplingScenario, Sequence[int]], Plan]
"""Returns the plan of some successive steps."""


def alike_phases(scenario: SamplingScenario, build: Build, warmup_steps: int = 0) -> tuple[Phase, ...]:
    """The phases of a sampler whose devices meet at the end of each step: warm-up steps, and the others."""
    steps = scenario.workload.steps
    phases = []
    if warmup_steps:
        phases.append(Phase("warm-up", build(scenario, [warmup_steps - 1]), warmup_steps))
    if steps > warmup_steps:
        phases.append(Phase("steady", build(scenario, [steps - 1]), steps - warmup_steps))
    return tuple(phases)


def check_warmup(scenario: SamplingScenario, warmup_steps: int) -> None:
    """Refuse a warm-up that is longer than the run.

    Raises:
        InfeasibleError: it is.
    """
    steps = scenario.workload.steps
    if warmup_steps > steps:
        raise InfeasibleError(
            f"warmup_steps({warmup_steps}) exceeds steps({steps})", "warm-up longer than the run"
        )
