"""Synchronous patch parallelism: every GPU computes its rows, and gathers the others' before each layer."""

from dataclasses import dataclass

from strategies.patching.patch_parallel import Kind, Patches
from strategies.sampling_scenario import SamplingScenario
from strategies.templates.grid_sampler import GridSampler


@dataclass(frozen=True, slots=True)
class SyncPatch(GridSampler):
    """Source: DistriFusion (Li et al., 2024), Table 2, synchronous patch parallelism."""

    name = "sync-patch"
    summary = "patch parallelism that gathers fresh activations"
    awaits = "all_gather"

    def layout(self, scenario: SamplingScenario) -> Patches:
        """Rows of the image on each device, which see those of the others in the same step."""
        return Patches.of(scenario, Kind.SYNCHRONOUS)
