"""Ulysses: tokens are divided, and exchanged for heads around attention."""

from dataclasses import dataclass

from strategies import parameters as fields
from strategies.patching.grid import make_grid
from strategies.patching.patch_pipeline import PatchPipeline
from strategies.sampling_scenario import SamplingScenario
from strategies.templates.grid_sampler import GridSampler


@dataclass(frozen=True, slots=True)
class Ulysses(GridSampler):
    """Source: Jacobs et al., DeepSpeed-Ulysses, 2023."""

    name = "ulysses"
    summary = "sequence parallelism by all-to-all over all GPUs"
    awaits = "all_to_all"

    keys_values: str = fields.keys_values()

    def layout(self, scenario: SamplingScenario) -> PatchPipeline:
        """All layers on every device, the tokens divided."""
        grid = make_grid(scenario, ulysses=scenario.gpus_per_prediction)
        return PatchPipeline.of(scenario, grid, kept=self.keys_values == "kept")
