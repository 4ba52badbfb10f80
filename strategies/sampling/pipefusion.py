"""PipeFusion: patches of the image pass through a pipeline of stages, on keys and values one step old."""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Self

from strategies import parameters as fields
from strategies.patching.grid import make_grid
from strategies.patching.patch_pipeline import PatchPipeline, paced_stages
from strategies.sampling_scenario import SamplingScenario
from strategies.templates.grid_sampler import GridSampler


@dataclass(frozen=True, slots=True)
class PipeFusion(GridSampler):
    """Source: Fang et al., PipeFusion, 2024, its first release (``receive = before``) and xDiT (``after``).

    ``warmup_steps`` are the synchronous steps really run: one more than the first release's setting.
    """

    name = "pipefusion"
    summary = "displaced patches through a pipeline of stages"

    pipeline_degree: int | None = fields.degree("in line, each with its stage (default: all)", None)
    patches: int | None = fields.patches()
    warmup_steps: int = fields.warmup_steps()
    receive: str = fields.receive()
    layers: tuple[int, ...] | None = fields.layers()

    def layout(self, scenario: SamplingScenario) -> PatchPipeline:
        """Stages of layers on the devices in line."""
        degree = self.pipeline_degree or scenario.gpus_per_prediction
        return PatchPipeline.of(
            scenario,
            make_grid(scenario, pipeline=degree),
            warmup_steps=self.warmup_steps,
            layers=self.layers,
            patches=self.patches or degree,
            receive=self.receive,
        )

    @classmethod
    def candidates(cls, scenario: SamplingScenario) -> Iterator[Self]:
        """Powers of two as patches, from 2 to 64, and the pipeline degree itself.

        Each with as many layers in every stage as fit evenly, and with the layers that pace the stages best.
        """
        degree = scenario.gpus_per_prediction
        warmup = min(2, scenario.workload.steps)
        for patches in sorted({degree, 2, 4, 8, 16, 32, 64}):
            if degree > 1 and patches <= scenario.rows:
                yield cls(degree, patches, warmup)
                if layers := paced_stages(scenario, degree, patches):
                    yield cls(degree, patches, warmup, layers=layers)
