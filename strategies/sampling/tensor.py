"""Tensor parallelism: every GPU holds a part of every matrix and sums the hidden state with the others."""

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
class TensorParallel:
    """Source: Shoeybi et al., Megatron-LM, 2019; on U-Nets as in DistriFusion (Li et al., 2024), section 5.2."""

    name: ClassVar[str] = "tensor"
    task: ClassVar[str] = "sample"
    summary: ClassVar[str] = "tensor parallelism over all GPUs"

    def plan(self, scenario: SamplingScenario) -> Plan:
        """The plan of a run."""
        return self._steps(scenario, range(scenario.workload.steps))

    def phases(self, scenario: SamplingScenario) -> tuple[Phase, ...]:
        """The phases of a run: its steps are alike."""
        return alike_phases(scenario, self._steps)

    def _steps(self, scenario: SamplingScenario, steps: Sequence[int]) -> Plan:
        return self._pipeline(scenario).plan(steps)

    def _pipeline(self, scenario: SamplingScenario) -> Pipeline:
        guidance = scenario.guidance_groups
        degree = max(1, scenario.workload.num_gpus // guidance)
        return Pipeline.of(scenario, make_grid(scenario, guidance=guidance, tensor=degree))

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
