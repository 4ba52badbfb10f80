"""One GPU draws everything: the baseline of every speedup."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import ClassVar, Self

from strategies.patching.grid import make_grid
from strategies.patching.patch_pipeline import Pipeline
from strategies.patching.phases import alike_phases
from strategies.plans.plan import Plan
from strategies.scenario import SamplingScenario
from strategies.strategy import Phase


@dataclass(frozen=True, slots=True)
class Single:
    """No parallelism."""

    name: ClassVar[str] = "single"
    task: ClassVar[str] = "sample"
    summary: ClassVar[str] = "one GPU"
    baseline: ClassVar[bool] = True
    gpu_counts: ClassVar[tuple[int, ...]] = (1,)

    def plan(self, scenario: SamplingScenario) -> Plan:
        """The plan of a run."""
        return self._steps(scenario, range(scenario.workload.steps))

    def phases(self, scenario: SamplingScenario) -> tuple[Phase, ...]:
        """The phases of a run: its steps are alike."""
        return alike_phases(scenario, self._steps)

    def _steps(self, scenario: SamplingScenario, steps: Sequence[int]) -> Plan:
        return self._pipeline(scenario).plan(steps)

    def _pipeline(self, scenario: SamplingScenario) -> Pipeline:
        return Pipeline.of(scenario, make_grid(scenario))

    @classmethod
    def candidates(cls, scenario: SamplingScenario) -> Iterator[Self]:
        """The one point."""
        yield cls()

    def bound(self, scenario: SamplingScenario) -> float:
        """Seconds that no run can undercut."""
        return self._pipeline(scenario).bound()

    def least_memory_bytes(self, scenario: SamplingScenario) -> float:
        """Bytes that the fullest device cannot do without."""
        return self._pipeline(scenario).least_memory_bytes()
