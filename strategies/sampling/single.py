"""One GPU draws everything: the baseline of every speedup."""

from dataclasses import dataclass

from strategies.patching.grid import make_grid
from strategies.patching.patch_pipeline import PatchPipeline
from strategies.sampling_scenario import SamplingScenario
from strategies.templates.grid_sampler import GridSampler


@dataclass(frozen=True, slots=True)
class Single(GridSampler):
    """No parallelism."""

    name = "single"
    summary = "one GPU"
    baseline = True
    gpu_counts = (1,)

    def layout(self, scenario: SamplingScenario) -> PatchPipeline:
        """All layers and rows on the one device."""
        return PatchPipeline.of(scenario, make_grid(scenario, guidance=1))
