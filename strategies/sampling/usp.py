"""Unified sequence parallelism: Ulysses inside, a ring outside."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import ClassVar, Self

from strategies import parameters as fields
from strategies.patching.grid import make_grid
from strategies.patching.patch_pipeline import Pipeline
from strategies.patching.phases import alike_phases
from strategies.plans.plan import Plan
from strategies.scenario import SamplingScenario
from strategies.strategy import Phase


@dataclass(frozen=True, slots=True)
class USP:
    """Source: Fang and Zhao, USP: A Unified Sequence Parallelism Approach, 2024."""

    name: ClassVar[str] = "usp"
    task: ClassVar[str] = "sample"
    summary: ClassVar[str] = "sequence parallelism by all-to-all inside and a ring outside"

    ulysses_degree: int = fields.degree("that exchange tokens for heads around attention", 2)
    ring_degree: int = fields.degree("around which keys and values pass", 2)
    keys_values: str = fields.keys_values()

    def plan(self, scenario: SamplingScenario) -> Plan:
        """The plan of a run."""
        return self._steps(scenario, range(scenario.workload.steps))

    def phases(self, scenario: SamplingScenario) -> tuple[Phase, ...]:
        """The phases of a run: its steps are alike."""
        return alike_phases(scenario, self._steps)

    def _steps(self, scenario: SamplingScenario, steps: Sequence[int]) -> Plan:
        return self._pipeline(scenario).plan(steps)

    def _pipeline(self, scenario: SamplingScenario) -> Pipeline:
        grid = make_grid(
            scenario, guidance=scenario.guidance_groups, ring=self.ring_degree, ulysses=self.ulysses_degree
        )
        return Pipeline.of(scenario, grid, kept=self.keys_values == "kept")

    @classmethod
    def candidates(cls, scenario: SamplingScenario) -> Iterator[Self]:
        """Every pair of degrees above 1, keeping keys and values and freeing them."""
        degree = scenario.workload.num_gpus // scenario.guidance_groups
        for ulysses in range(2, degree):
            if degree % ulysses == 0:
                yield cls(ulysses, degree // ulysses)
                yield cls(ulysses, degree // ulysses, "freed")

    def bound(self, scenario: SamplingScenario) -> float:
        """Seconds that no run can undercut."""
        return self._pipeline(scenario).bound()

    def least_memory_bytes(self, scenario: SamplingScenario) -> float:
        """Bytes that the fullest device cannot do without."""
        return self._pipeline(scenario).least_memory_bytes()
