"""DistriFusion: displaced patches, whose rows are gathered beside the compute of the next step."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import ClassVar, Final, Self

from profiles.errors import InfeasibleError
from strategies import parameters as fields
from strategies.patching.patch_parallel import DISPLACED, SYNCHRONOUS, Patches
from strategies.patching.phases import alike_phases, check_warmup
from strategies.plans.plan import Plan
from strategies.scenario import SamplingScenario
from strategies.strategy import Phase

BUNDLED: Final = 60
"""Source: its released code, for SDXL; the port to transformers in PipeFusion's launches every gather alone."""


@dataclass(frozen=True, slots=True)
class DistriFusion:
    """Source: Li et al., DistriFusion, CVPR 2024, section 4, and its released code.

    ``warmup_steps`` are the synchronous steps really run: one more than that code's setting.
    """

    name: ClassVar[str] = "distrifusion"
    task: ClassVar[str] = "sample"
    summary: ClassVar[str] = "displaced patches with asynchronous gathers"

    warmup_steps: int = fields.warmup_steps()
    gather_layers: int = fields.parameter(BUNDLED, "exchanging layers whose gathers are launched together")

    def plan(self, scenario: SamplingScenario) -> Plan:
        """The plan of a run."""
        return self._steps(scenario, range(scenario.workload.steps))

    def phases(self, scenario: SamplingScenario) -> tuple[Phase, ...]:
        """The phases of a run: synchronous steps, and displaced ones."""
        check_warmup(scenario, self.warmup_steps)
        return alike_phases(scenario, self._steps, self.warmup_steps)

    def _steps(self, scenario: SamplingScenario, steps: Sequence[int]) -> Plan:
        check_warmup(scenario, self.warmup_steps)
        kinds = [SYNCHRONOUS if step < self.warmup_steps else DISPLACED for step in steps]
        return self._patches(scenario).plan(kinds, steps[0], follows_displaced=steps[0] > self.warmup_steps)

    def _patches(self, scenario: SamplingScenario) -> Patches:
        """The patches of a world whose size is a power of two, as the released code demands."""
        gpus = scenario.workload.num_gpus
        if gpus & (gpus - 1):
            raise InfeasibleError(f"gpus({gpus}) is not a power of two", "needs a power of two of GPUs")
        return Patches.of(scenario, self.gather_layers)

    @classmethod
    def candidates(cls, scenario: SamplingScenario) -> Iterator[Self]:
        """Gathers in bundles, as on U-Nets, and one by one; at most as many warm-up steps as the run has."""
        for gather_layers in (BUNDLED, 1):
            yield cls(min(2, scenario.workload.steps), gather_layers)

    def bound(self, scenario: SamplingScenario) -> float:
        """Seconds that no run can undercut."""
        check_warmup(scenario, self.warmup_steps)
        return scenario.workload.steps * self._patches(scenario).bound(DISPLACED)

    def least_memory_bytes(self, scenario: SamplingScenario) -> float:
        """Bytes that the fullest device cannot do without."""
        kind = DISPLACED if scenario.workload.steps > self.warmup_steps else SYNCHRONOUS
        return self._patches(scenario).least_memory_bytes(kind)
