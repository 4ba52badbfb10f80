"""One GPU draws everything: the baseline of every speedup."""

from dataclasses import dataclass
from typing import ClassVar

from strategies.patching.grid import make_grid
from strategies.patching.patch_pipeline import PatchPipeline
from strategies.sampling_scenario import SamplingScenario
from strategies.templates.grid_sampler import GridSampler


@dataclass(frozen=True, slots=True)
class Single(GridSampler):
    """No parallelism."""

    name: ClassVar[str] = "single"
    summary: ClassVar[str] = "one GPU"
    baseline: ClassVar[bool] = True
    gpu_counts: ClassVar[tuple[int, ...] | None] = (1,)

    def layout(self, scenario: SamplingScenario) -> PatchPipeline:
        """All layers and rows on the one device."""
        return PatchPipeline.of(scenario, make_grid(scenario, guidance=1))
