"""The grid sampler: a template of samplers whose devices form a grid.

Such a sampler defines its layout in a scenario, and its candidates where it has several.
"""

from abc import abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass
from typing import ClassVar

from profiles.checks import BELOW_SUM
from strategies.bounds.samplers import least_run_seconds
from strategies.patching.frozen import least_frozen_bytes, least_frozen_s
from strategies.patching.grid import make_grid
from strategies.patching.layout import GridLayout
from strategies.patching.patch_pipeline import PatchPipeline
from strategies.plans.plan import Plan
from strategies.sampling_scenario import SamplingScenario
from strategies.strategy import Phase, Sampler


@dataclass(frozen=True, slots=True)
class GridSampler(Sampler):
    """A sampler all of whose plans, phases, bounds and bytes follow from its layout."""

    @abstractmethod
    def layout(self, scenario: SamplingScenario) -> GridLayout:
        """The stages and patches of each device of the grid."""

    def plan(self, scenario: SamplingScenario) -> Plan:
        """The plan of a run."""
        layout = self._made(scenario)
        return layout.plan(range(layout.num_steps))

    def phases(self, scenario: SamplingScenario) -> tuple[Phase, ...]:
        """The phases of a run."""
        return self._made(scenario).phases()

    def folded_phases(self, scenario: SamplingScenario, *, excerpt: bool = False) -> tuple[Phase, ...]:
        """The phases of a run; where all guidance groups are alike, one stands for all in their plans."""
        return self._made(scenario).folded.phases(excerpt=excerpt)

    def bound(self, scenario: SamplingScenario) -> float:
        """Seconds that no run can undercut, with the frozen components that it includes."""
        layout = self._made(scenario)
        return least_run_seconds(layout.folded) + (1 - BELOW_SUM) * least_frozen_s(scenario, layout.grid)

    def least_memory_bytes(self, scenario: SamplingScenario) -> float:
        """Bytes that the fullest device cannot do without."""
        layout = self._made(scenario)
        resident = layout.resident(range(layout.num_steps))
        throughout = max(sum(buffer.size_bytes for buffer in buffers) for buffers in resident)
        return max(throughout, least_frozen_bytes(scenario, layout.grid, resident))

    def guidance_groups(self, scenario: SamplingScenario) -> int:
        """Groups of devices that each compute one of an image's predictions."""
        return self._made(scenario).grid.guidance

    def image_groups(self, scenario: SamplingScenario) -> int:
        """Groups of GPUs that each draw images of their own."""
        return self._made(scenario).grid.data

    def approximation(self, scenario: SamplingScenario) -> str:
        """Why an image is not the one that a single GPU draws, in words; empty where it is."""
        return self._made(scenario).approximation

    def _made(self, scenario: SamplingScenario) -> GridLayout:
        """The layout on a scenario, made once."""
        return scenario.remember(("layout", self), lambda: self.layout(scenario))


@dataclass(frozen=True, slots=True)
class TeamSampler(GridSampler):
    """All layers on every device: one degree of the grid is all GPUs of a prediction, or a sampler says ``degrees``."""

    degree: ClassVar[str]

    def degrees(self, scenario: SamplingScenario) -> Mapping[str, int]:
        """Degrees of the grid."""
        return {self.degree: scenario.gpus_per_prediction}

    def layout(self, scenario: SamplingScenario) -> PatchPipeline:
        """All layers on every device, their tokens or matrices divided."""
        kept = getattr(self, "keys_values", "freed") == "kept"
        return PatchPipeline.of(scenario, make_grid(scenario, **self.degrees(scenario)), kept=kept)
