"""Ring attention: tokens are divided, keys and values pass around a ring beside attention."""

from dataclasses import dataclass

from strategies import parameters as fields
from strategies.patching.grid import make_grid
from strategies.patching.patch_pipeline import PatchPipeline
from strategies.sampling_scenario import SamplingScenario
from strategies.templates.grid_sampler import GridSampler


@dataclass(frozen=True, slots=True)
class Ring(GridSampler):
    """Source: Liu et al., Ring Attention with Blockwise Transformers, 2023."""

    name = "ring"
    summary = "sequence parallelism by a ring over all GPUs"

    keys_values: str = fields.keys_values()

    def layout(self, scenario: SamplingScenario) -> PatchPipeline:
        """All layers on every device, the tokens divided."""
        grid = make_grid(scenario, ring=scenario.gpus_per_prediction)
        return PatchPipeline.of(scenario, grid, kept=self.keys_values == "kept")
