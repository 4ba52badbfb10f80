"""Tensor parallelism: every GPU holds a part of every matrix and sums the hidden state with the others."""

from dataclasses import dataclass

from strategies.patching.grid import make_grid
from strategies.patching.patch_pipeline import PatchPipeline
from strategies.sampling_scenario import SamplingScenario
from strategies.templates.grid_sampler import GridSampler


@dataclass(frozen=True, slots=True)
class TensorParallel(GridSampler):
    """Source: Shoeybi et al., Megatron-LM, 2019; on U-Nets as in DistriFusion (Li et al., 2024), section 5.2."""

    name = "tensor"
    summary = "tensor parallelism over all GPUs"

    def layout(self, scenario: SamplingScenario) -> PatchPipeline:
        """All layers on every device, their matrices and heads divided."""
        return PatchPipeline.of(scenario, make_grid(scenario, tensor=scenario.gpus_per_prediction))
