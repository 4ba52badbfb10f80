"""PipeFusion: patches of the image pass through a pipeline of stages, on keys and values one step old."""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import ClassVar, Self

from strategies import parameters as fields
from strategies.patching.grid import make_grid
from strategies.patching.patch_pipeline import RECEIVES, Pipeline, paced_stages
from strategies.patching.phases import check_warmup
from strategies.plans.plan import Plan
from strategies.scenario import SamplingScenario
from strategies.strategy import Phase


@dataclass(frozen=True, slots=True)
class PipeFusion:
    """Source: Fang et al., PipeFusion, 2024, its first release (``receive = before``) and xDiT (``after``).

    ``warmup_steps`` are the synchronous steps really run: one more than the first release's setting.
    """

    name: ClassVar[str] = "pipefusion"
    task: ClassVar[str] = "sample"
    summary: ClassVar[str] = "displaced patches through a pipeline of stages"

    pipeline_degree: int | None = fields.degree("in line, each with its stage (default: all)", None)
    patches: int | None = fields.patches()
    warmup_steps: int = fields.warmup_steps()
    receive: str = fields.parameter(
        "before", "when the next patch is asked for: before or after computing", choices=RECEIVES
    )
    layers: tuple[int, ...] | None = fields.integers("layers of each stage, with commas (default: even)")

    def plan(self, scenario: SamplingScenario) -> Plan:
        """The plan of a run."""
        return self._pipeline(scenario).plan(range(scenario.workload.steps), self.warmup_steps)

    def phases(self, scenario: SamplingScenario) -> tuple[Phase, ...]:
        """The one phase of a run: its steps overlap."""
        return (Phase("run", self.plan(scenario), 1, scenario.workload.steps),)

    def _pipeline(self, scenario: SamplingScenario) -> Pipeline:
        check_warmup(scenario, self.warmup_steps)
        guidance = scenario.guidance_groups
        degree = self.pipeline_degree or max(1, scenario.workload.num_gpus // guidance)
        grid = make_grid(scenario, guidance=guidance, pipeline=degree)
        patches = self.patches or degree
        return Pipeline.of(scenario, grid, layers=self.layers, patches=patches, receive=self.receive)

    @classmethod
    def candidates(cls, scenario: SamplingScenario) -> Iterator[Self]:
        """Powers of two as patches, from 2 to 64, and the pipeline degree itself.

        Each with as many layers in every stage as fit evenly, and with the layers that pace the stages best.
        """
        degree = scenario.workload.num_gpus // scenario.guidance_groups
        warmup = min(2, scenario.workload.steps)
        for patches in sorted({degree, 2, 4, 8, 16, 32, 64}):
            if degree > 1 and patches <= scenario.rows:
                yield cls(degree, patches, warmup)
                if layers := paced_stages(scenario, degree, patches):
                    yield cls(degree, patches, warmup, layers=layers)

    def bound(self, scenario: SamplingScenario) -> float:
        """Seconds that no run can undercut."""
        return self._pipeline(scenario).bound(self.warmup_steps)

    def least_memory_bytes(self, scenario: SamplingScenario) -> float:
        """Bytes that the fullest device cannot do without."""
        return self._pipeline(scenario).least_memory_bytes(self.warmup_steps)
