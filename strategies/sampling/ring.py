"""Ring attention: tokens are divided, keys and values pass around a ring beside attention."""

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
class Ring:
    """Source: Liu et al., Ring Attention with Blockwise Transformers, 2023."""

    name: ClassVar[str] = "ring"
    task: ClassVar[str] = "sample"
    summary: ClassVar[str] = "sequence parallelism by a ring over all GPUs"

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
        guidance = scenario.guidance_groups
        degree = max(1, scenario.workload.num_gpus // guidance)
        grid = make_grid(scenario, guidance=guidance, ring=degree)
        return Pipeline.of(scenario, grid, kept=self.keys_values == "kept")

    @classmethod
    def candidates(cls, scenario: SamplingScenario) -> Iterator[Self]:
        """Both variants: one keeps keys and values, one frees them."""
        yield from (cls(), cls("freed"))

    def bound(self, scenario: SamplingScenario) -> float:
        """Seconds that no run can undercut."""
        return self._pipeline(scenario).bound()

    def least_memory_bytes(self, scenario: SamplingScenario) -> float:
        """Bytes that the fullest device cannot do without."""
        return self._pipeline(scenario).least_memory_bytes()
