"""Independent patches: every GPU draws its rows as if there were no others; seams show."""

from dataclasses import dataclass

from strategies.patching.patch_parallel import Kind, Patches
from strategies.sampling_scenario import SamplingScenario
from strategies.templates.grid_sampler import GridSampler


@dataclass(frozen=True, slots=True)
class NaivePatch(GridSampler):
    """Source: DistriFusion (Li et al., 2024), section 4, naive baseline."""

    name = "naive-patch"
    summary = "independent patches, without exchange"
    seamless = False

    def layout(self, scenario: SamplingScenario) -> Patches:
        """Rows of the image on each device, which see only themselves."""
        return Patches.of(scenario, Kind.ALONE)
