"""Synchronous patch parallelism: every GPU computes its rows, and gathers the others' before each layer."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import ClassVar, Self

from strategies.patching.patch_parallel import SYNCHRONOUS, Patches
from strategies.patching.phases import alike_phases
from strategies.plans.plan import Plan
from strategies.scenario import SamplingScenario
from strategies.strategy import Phase


@dataclass(frozen=True, slots=True)
class SyncPatch:
    """Source: DistriFusion (Li et al., 2024), Table 2, synchronous patch parallelism."""

    name: ClassVar[str] = "sync-patch"
    task: ClassVar[str] = "sample"
    summary: ClassVar[str] = "patch parallelism that gathers fresh activations"

    def plan(self, scenario: SamplingScenario) -> Plan:
        """The plan of a run."""
        return self._steps(scenario, range(scenario.workload.steps))

    def phases(self, scenario: SamplingScenario) -> tuple[Phase, ...]:
        """The phases of a run: its steps are alike."""
        return alike_phases(scenario, self._steps)

    def _steps(self, scenario: SamplingScenario, steps: Sequence[int]) -> Plan:
        return Patches.of(scenario).plan([SYNCHRONOUS] * len(steps), steps[0])

    @classmethod
    def candidates(cls, scenario: SamplingScenario) -> Iterator[Self]:
        """The one point."""
        yield cls()

    def bound(self, scenario: SamplingScenario) -> float:
        """Seconds that no run can undercut."""
        return scenario.workload.steps * Patches.of(scenario).bound(SYNCHRONOUS)

    def least_memory_bytes(self, scenario: SamplingScenario) -> float:
        """Bytes that the fullest device cannot do without."""
        return Patches.of(scenario).least_memory_bytes(SYNCHRONOUS)
