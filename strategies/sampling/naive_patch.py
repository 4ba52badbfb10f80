"""Independent patches: every GPU draws its rows as if there were no others; seams show."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import ClassVar, Self

from strategies.patching.patch_parallel import ALONE, Patches
from strategies.patching.phases import alike_phases
from strategies.plans.plan import Plan
from strategies.scenario import SamplingScenario
from strategies.strategy import Phase


@dataclass(frozen=True, slots=True)
class NaivePatch:
    """Source: DistriFusion (Li et al., 2024), section 4, naive baseline."""

    name: ClassVar[str] = "naive-patch"
    task: ClassVar[str] = "sample"
    summary: ClassVar[str] = "independent patches, without exchange"
    seamless: ClassVar[bool] = False

    def plan(self, scenario: SamplingScenario) -> Plan:
        """The plan of a run."""
        return self._steps(scenario, range(scenario.workload.steps))

    def phases(self, scenario: SamplingScenario) -> tuple[Phase, ...]:
        """The phases of a run: its steps are alike."""
        return alike_phases(scenario, self._steps)

    def _steps(self, scenario: SamplingScenario, steps: Sequence[int]) -> Plan:
        return Patches.of(scenario).plan([ALONE] * len(steps), steps[0])

    @classmethod
    def candidates(cls, scenario: SamplingScenario) -> Iterator[Self]:
        """The one point."""
        yield cls()

    def bound(self, scenario: SamplingScenario) -> float:
        """Seconds that no run can undercut."""
        return scenario.workload.steps * Patches.of(scenario).bound(ALONE)

    def least_memory_bytes(self, scenario: SamplingScenario) -> float:
        """Bytes that the fullest device cannot do without."""
        return Patches.of(scenario).least_memory_bytes(ALONE)
