"""A sampler in one file: pairs of devices divide the heads, a ring of pairs the tokens."""

from dataclasses import dataclass

from strategies import parameters as fields
from strategies.patching.grid import make_grid
from strategies.patching.patch_pipeline import PatchPipeline
from strategies.sampling_scenario import SamplingScenario
from strategies.templates.grid_sampler import GridSampler


@dataclass(frozen=True, slots=True)
class RingOfPairs(GridSampler):
    """Tensor parallelism inside each pair, ring attention between the pairs."""

    name = "ring-of-pairs"
    summary = "tensor parallelism in pairs, a ring of pairs"
    keys_values: str = fields.keys_values()

    def layout(self, scenario: SamplingScenario) -> PatchPipeline:
        """All layers on every device, half of each matrix and a pair's share of the tokens."""
        grid = make_grid(scenario, tensor=2, ring=scenario.gpus_per_prediction // 2)
        return PatchPipeline.of(scenario, grid, kept=self.keys_values == "kept")
